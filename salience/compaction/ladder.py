"""A compaction ends in a view that fits, measured by compiling it, or in a refusal that names what is too large (spec CMP-9).

The rungs differ in how much they keep verbatim and how much they say; each is smaller than the one before, and the last
keeps nothing but what must stay. None needs a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from salience.compaction.checks import check, not_smaller
from salience.compaction.cut import Cut, cut_of
from salience.compaction.record import POLICY, record_of
from salience.compaction.text import text_of_record
from salience.context.budget import Budget, budget_of
from salience.context.epoch import EpochState
from salience.context.eviction import target_of
from salience.context.inputs import BuildInput
from salience.context.tokens import LABEL_OVERHEAD, MESSAGE_OVERHEAD
from salience.context.view import View, largest_of, view_of
from salience.model.canonical import canonical_json, digest, digest_of
from salience.model.compaction import (
    Checkpoint,
    CompactionChecks,
    CompactionRecord,
    CompactionTrigger,
    RefusalKind,
)
from salience.model.session import MIN_ROUNDS
from salience.projection.transcript import Entry

MIN_FREED = 0.1
"""Share of the usable window that a compaction must free, unless a person asked for it."""
SMALLEST_SUMMARY = 200
"""Tokens of a summary that still says something, in windows so small that a share of them is less."""
FRAME = MESSAGE_OVERHEAD + LABEL_OVERHEAD


@dataclass(frozen=True, slots=True)
class _Rung:
    """Shares of what a compaction keeps: of the recent history, and of the usable window."""

    recent: float
    prompts: float
    summary: float


LADDER = (_Rung(1, 0.15, 0.12), _Rung(0.5, 0.10, 0.08), _Rung(0.2, 0.05, 0.05), _Rung(0, 0.02, 0.03))


@dataclass(frozen=True, slots=True)
class Compaction:
    """A checkpoint that may be used, with what it names: record and text lie nowhere yet."""

    checkpoint: Checkpoint
    record: CompactionRecord
    text: str
    checks: CompactionChecks

    @property
    def blobs(self) -> tuple[bytes, bytes]:
        """Record and text as bytes, in the order of `record_ref` and `summary_ref`."""
        return canonical_json(self.record.plain()), self.text.encode()


@dataclass(frozen=True, slots=True)
class Refusal:
    """No checkpoint, and why; `record` is kept as evidence when it failed its checks."""

    kind: RefusalKind
    message: str
    tokens_before: int = 0
    record: CompactionRecord | None = None
    checks: CompactionChecks | None = None


def compact(
    inputs: BuildInput,
    epoch: EpochState | None,
    previous: CompactionRecord | None,
    *,
    generation: int,
    trigger: CompactionTrigger,
    focus: str = "",
    window: int | None = None,
) -> Compaction | Refusal:
    """Compact the view of a session as it stands.

    Args:
        inputs: what a build at this moment would get, texts included.
        epoch: the state of the running epoch.
        previous: the record of the checkpoint that serves.
        generation: how many checkpoints there were in this session, this one included; it makes the id unique.
        trigger: why; a person's wish need not free a stated share.
        focus: what the user asked to pay attention to.
        window: the window to compact for, in tokens, where it is not the session's.
    """
    view = view_of(inputs, epoch)
    budget = budget_of(
        inputs.config.context_config, inputs.gauge, total=view.tokens, epoch=view.epoch.state.number, window=window
    )
    least = 1 if trigger == "manual" else max(1, int(budget.usable * MIN_FREED))
    aim = min(_aim(view, inputs, budget), view.tokens - least)
    best: _Measured | None = None
    failed: Refusal | None = None
    for rung in LADDER:
        cut = _cut(view, inputs, budget, rung, trigger, aim)
        if cut is None:
            continue
        made = _made(inputs, view, cut, previous, budget, rung, generation, focus)
        if made.broken:
            message = f"the record fails its checks: {'; '.join(made.broken[:3])}"
            failed = failed or Refusal("check_failed", message, view.tokens, made.compaction.record, made.checks)
            continue
        if best is None or made.tokens < best.tokens:
            best = made
        if best.tokens <= aim:
            break
    return _judged(view, inputs, budget, least, best, failed)


def _aim(view: View, inputs: BuildInput, budget: Budget) -> int:
    """The size to come down to; more than the target where what must stay takes most of it.

    Otherwise the smallest view would be taken for good, and what stands for all the rest of the history in it says nothing.
    """
    kept = view.epoch.kept(inputs.current_request)
    held = sum(part.tokens for part in view.epoch.parts if kept.holds(part.position))
    return target_of(budget.usable, _fixed(view) + held, budget.target)


def _fixed(view: View) -> int:
    """Tokens of all but the transcript and the summary, which the new one replaces."""
    replaced = sum(part.tokens for part in view.epoch.head if part.segment.section == "summary")
    return view.tokens - replaced - sum(part.tokens for part in view.epoch.parts)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The compaction of one rung, and the view it gives."""

    compaction: Compaction
    view: View

    @property
    def tokens(self) -> int:
        return self.view.tokens

    @property
    def checks(self) -> CompactionChecks:
        return self.compaction.checks

    @property
    def broken(self) -> list[str]:
        """The rules that the record itself breaks: that a view is not smaller is judged with the sizes of all rungs."""
        record = self.compaction.record
        return [problem for problem in self.checks.problems if problem != not_smaller(record)]


def _judged(
    view: View,
    inputs: BuildInput,
    budget: Budget,
    least: int,
    best: _Measured | None,
    failed: Refusal | None,
) -> Compaction | Refusal:
    before, current = view.tokens, view.epoch.kept(inputs.current_request).current
    if best is None:
        if failed is not None:
            return failed
        nothing = "no completed exchange stands before what must stay verbatim"
        if before > budget.usable:
            largest = largest_of(view.parts, current)
            nothing += f"; the view has {before} tokens and {budget.usable} are usable; the largest: {largest}"
        return Refusal("nothing_to_summarise", nothing, before)
    after = best.tokens
    evidence = best.compaction.record, best.checks
    if after > budget.usable:
        message = (
            f"the smallest view has {after} tokens and {budget.usable} are usable; "
            f"the largest: {largest_of(best.view.parts, current)}"
        )
        return Refusal("does_not_fit", message, before, *evidence)
    if before - after < least:
        message = f"the smallest view has {after} of {before} tokens, and at least {least} have to be freed"
        return Refusal("frees_too_little", message, before, *evidence)
    return best.compaction


def _cut(
    view: View, inputs: BuildInput, budget: Budget, rung: _Rung, trigger: CompactionTrigger, aim: int
) -> Cut | None:
    parts = view.epoch.parts
    recent = int(budget.recent * rung.recent)
    if trigger == "manual":
        # Someone wants a smaller view now, also of a history that is still short.
        recent = min(recent, sum(part.tokens for part in parts) // 2)
    return cut_of(
        parts,
        view.epoch.kept(inputs.current_request),
        recent=recent,
        prompts=int(budget.usable * rung.prompts),
        rounds=_rounds(inputs) if rung.recent else 0,
        room=aim - _fixed(view) - _summary(budget, rung),
    )


def _summary(budget: Budget, rung: _Rung) -> int:
    """Tokens of the summary, its frame included."""
    return max(SMALLEST_SUMMARY, int(budget.usable * rung.summary))


def _rounds(inputs: BuildInput) -> int:
    asked = inputs.config.context_config.min_rounds
    return MIN_ROUNDS if asked is None else asked


def _made(
    inputs: BuildInput,
    view: View,
    cut: Cut,
    previous: CompactionRecord | None,
    budget: Budget,
    rung: _Rung,
    generation: int,
    focus: str,
) -> _Measured:
    """The checkpoint of one cut, its sizes measured by compiling the view it gives."""
    serving = inputs.checkpoint
    first = serving.first_kept if serving else 0
    entries = [inputs.entries[at] for at in range(first, cut.first_kept)]
    kept = [inputs.entries[at] for at in range(cut.first_kept, len(inputs.entries))]
    leaving = [e for e in _prompts(inputs, serving.prompts_from if serving else 0) if e.position < cut.prompts_from]
    span = (entries[0].message_id, entries[-1].message_id)
    compaction_id = f"c{generation}-{digest_of([inputs.session_id, *span, POLICY, generation])[:12]}"
    record = record_of(
        compaction_id=compaction_id,
        session_id=inputs.session_id,
        state=inputs.state,
        entries=entries,
        leaving=leaving,
        first_kept=kept[0].message_id,
        previous=previous,
        focus=focus,
        tokens_before=view.tokens,
    )
    text = text_of_record(record, max_tokens=_summary(budget, rung) - FRAME, tokenizer=view.epoch.tokenizer)
    summary_ref = digest(text.encode())
    checkpoint = Checkpoint(
        compaction_id=compaction_id,
        number=serving.number + 1 if serving else 1,
        record_ref="0" * 64,
        summary_ref=summary_ref,
        from_message_id=span[0],
        to_message_id=span[1],
        first_kept=cut.first_kept,
        first_kept_message_id=kept[0].message_id,
        prompts_from=cut.prompts_from,
        messages=0,
        tokens_before=view.tokens,
        tokens_after=0,
        previous=serving.compaction_id if serving else None,
    )
    compacted = replace(inputs, checkpoint=checkpoint, text_of=_with(inputs.text_of, summary_ref, text.encode()))
    smaller = view_of(compacted, view.epoch.state)
    record = record.model_copy(update={"tokens_after": smaller.tokens})
    checks = check(record, text, inputs.state, entries, kept, previous)
    settled = checkpoint.model_copy(
        update={
            "record_ref": digest(canonical_json(record.plain())),
            "messages": len(inputs.entries) - len(smaller.epoch.parts),
            "tokens_after": smaller.tokens,
        }
    )
    return _Measured(Compaction(settled, record, text, checks), smaller)


def _prompts(inputs: BuildInput, first: int) -> list[Entry]:
    """The user messages from a position on."""
    entries = inputs.entries.between(first, len(inputs.entries))
    return [entry for entry in entries if entry.kind == "prompt"]


def _with(text_of: Callable[[str], bytes], ref: str, data: bytes) -> Callable[[str], bytes]:
    return lambda asked: data if asked == ref else text_of(asked)
