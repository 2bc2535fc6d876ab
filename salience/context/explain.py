"""A bundle explained says of every segment why it is there and of everything left out why it is not (spec CTX-2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from salience.model.bundle import BundleManifest, BundleSummary, ContextBundle, Excluded, Section, Segment
from salience.model.message import CompiledMessage


class SectionRow(NamedTuple):
    """One section of a bundle; `share` is its part of the prompt, from 0 to 1."""

    section: Section
    segments: int
    tokens: int
    share: float


class SegmentRow(NamedTuple):
    """One segment: where it stands, what it costs and why it is there."""

    segment_id: str
    section: Section
    role: str
    trust: str
    tokens: int
    reason: str


class LeftOutRow(NamedTuple):
    """One candidate that was left out."""

    segment_id: str
    tokens: int
    why: str


class ChangeRow(NamedTuple):
    """One segment that two contexts do not share; `tokens` is what it adds, negative for one that is gone."""

    segment_id: str
    section: Section
    change: Literal["added", "gone", "masked", "changed"]
    tokens: int
    reason: str


def explain(
    manifest: BundleManifest,
    segments: Sequence[Segment],
    excluded: Sequence[Excluded],
    summary: BundleSummary,
    messages: Sequence[CompiledMessage] = (),
) -> ContextBundle:
    """The explained form of a bundle.

    Args:
        manifest: the bundle's own manifest.
        segments: its segments, from `assemble`.
        excluded: what its epoch left out, from `assemble`.
        summary: its summary, from the journal.
        messages: its compiled messages, when they are wanted too.
    """
    return ContextBundle(
        bundle_id=manifest.bundle_id,
        bundle_hash=manifest.bundle_hash,
        session_id=manifest.session_id,
        turn=manifest.turn,
        call_index=manifest.call_index,
        source_event_id=manifest.source_event_id,
        source_seq=manifest.source_seq,
        epoch=manifest.epoch,
        epoch_reason=manifest.epoch_reason,
        decision=summary.decision,
        builder_version=manifest.builder_version,
        tokenizer=manifest.tokenizer,
        tokens=summary.tokens,
        segments=tuple(segments),
        excluded=tuple(excluded),
        view=summary.view,
        messages=tuple(messages),
    )


def section_rows(bundle: ContextBundle) -> list[SectionRow]:
    """The sections that hold anything, in the bundle's order."""
    rows: list[SectionRow] = []
    for section in get_args(Section):
        held = [segment for segment in bundle.segments if segment.section == section]
        if held:
            tokens = sum(segment.tokens for segment in held)
            rows.append(SectionRow(section, len(held), tokens, tokens / max(1, bundle.tokens.total)))
    return rows


def segment_rows(bundle: ContextBundle) -> list[SegmentRow]:
    """All segments, in the bundle's order."""
    return [SegmentRow(s.segment_id, s.section, s.role, s.trust, s.tokens, s.reason) for s in bundle.segments]


def left_out_rows(bundle: ContextBundle) -> list[LeftOutRow]:
    """What was left out, and the results of which only preview and reference were kept."""
    return [*_excluded(bundle.excluded), *_masked(bundle.segments)]


def _excluded(excluded: Iterable[Excluded]) -> Iterable[LeftOutRow]:
    return (LeftOutRow(candidate.segment_id, candidate.tokens, candidate.why) for candidate in excluded)


def _masked(segments: Iterable[Segment]) -> Iterable[LeftOutRow]:
    return (LeftOutRow(segment.segment_id, 0, segment.reason) for segment in segments if segment.masked)


def change_rows(before: ContextBundle, after: ContextBundle) -> list[ChangeRow]:
    """What changed between two contexts of a session: gone segments first, each in the order of its bundle."""
    old = {segment.segment_id: segment for segment in before.segments}
    new = {segment.segment_id: segment for segment in after.segments}
    whys = {candidate.segment_id: candidate.why for candidate in after.excluded}
    summarised = next((c.why for c in after.excluded if c.segment_id.startswith("summarised")), "not in the context")
    rows = [
        ChangeRow(name, gone.section, "gone", -gone.tokens, whys.get(name, summarised))
        for name, gone in old.items()
        if name not in new
    ]
    for name, segment in new.items():
        known = old.get(name)
        if known is None:
            rows.append(ChangeRow(name, segment.section, "added", segment.tokens, segment.reason))
        elif known.digest != segment.digest:
            change = "masked" if segment.masked and not known.masked else "changed"
            rows.append(ChangeRow(name, segment.section, change, segment.tokens - known.tokens, segment.reason))
    return rows
