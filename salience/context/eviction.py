"""A reduction takes the least valuable first, oldest first, whole groups, and only what is needed (spec CTX-3, CTX-4).

Verbose tool results are masked, then exchanges are left out, then old user messages. What the model has not seen yet
and the current request are never touched. Each kind goes up to one position and never back, so a mask
set is three numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from salience.context.groups import groups_of, is_maskable
from salience.context.segments import Part
from salience.model.bundle import Excluded, Horizon, Masks
from salience.model.compaction import Checkpoint
from salience.projection.transcript import Entry


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a reduction leaves of a transcript, and the tokens of the whole bundle with it."""

    parts: list[Part]
    masks: Masks
    dropped: list[Part]
    total: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What may not be evicted: all from the last response on, whose results are unseen, and the current request."""

    unseen_from: int
    current: int

    def holds(self, position: int) -> bool:
        """Whether the entry at this position must stay as it is."""
        return position >= self.unseen_from or position == self.current


def is_left_out(entry: Entry, masks: Masks, checkpoint: Checkpoint | None = None) -> bool:
    """Whether an entry is dropped by a mask set, or summarised by a checkpoint."""
    if entry.kind == "prompt":
        return entry.position < max(masks.prompts.below, checkpoint.prompts_from if checkpoint else 0)
    return entry.position < max(masks.chatter.below, checkpoint.first_kept if checkpoint else 0)


def is_masked(entry: Entry, masks: Masks) -> bool:
    """Whether an entry is shown as preview and reference by a mask set."""
    return entry.position < masks.results.below and is_maskable(entry)


def target_of(usable: int, fixed: int, target: int) -> int:
    """The size a reduction aims at, in tokens.

    Args:
        usable: what a prompt may use.
        fixed: what may never be evicted.
        target: the configured aim.

    Returns:
        The aim; but where what is fixed takes most of it, history keeps half its share of what is left. A lower aim
        would empty the history at each reduction and reduce again at the next build.
    """
    return max(target, fixed + (usable - fixed) * target // max(1, 2 * usable))


def reduce(
    parts: Sequence[Part],
    masks: Masks,
    kept: Kept,
    *,
    total: int,
    target: int,
    mask: Callable[[Entry], Part],
    drop: bool = True,
) -> Reduction:
    """Make a transcript smaller until the total is at the target or nothing more may go.

    Args:
        parts: the transcript's parts in order.
        masks: what was masked and left out so far.
        kept: what must stay.
        total: tokens of the whole bundle.
        target: tokens to come down to.
        mask: makes the masked part of an entry.
        drop: whether messages may be left out, where masking is not enough.
    """
    left = list(parts)
    entries = [part.entry for part in parts if part.entry is not None]
    results = masks.results
    for at, entry in enumerate(entries):
        if total <= target:
            break
        if kept.holds(entry.position) or left[at].segment.masked or not is_maskable(entry):
            continue
        masked = mask(entry)
        freed = left[at].tokens - masked.tokens
        left[at] = masked
        total -= freed
        results = _further(results, entry.position, [freed])

    gone: set[int] = set()
    horizons = {"exchange": masks.chatter, "prompt": masks.prompts}
    groups = groups_of(entries)
    for kind in ("exchange", "prompt") if drop else ():
        for group in groups:
            if total <= target:
                break
            span = range(group.first, group.last + 1)
            if group.kind != kind or any(kept.holds(entries[at].position) for at in span):
                continue
            if kind == "prompt" and 0 <= kept.current < entries[group.first].position:
                break  # the horizon of prompts may not pass the current request, or it would be left out with them
            freed = [left[at].tokens for at in span]
            gone.update(span)
            total -= sum(freed)
            horizons[kind] = _further(horizons[kind], entries[group.last].position, freed)
    return Reduction(
        parts=[part for at, part in enumerate(left) if at not in gone],
        masks=Masks(results=results, chatter=horizons["exchange"], prompts=horizons["prompt"]),
        # The unmasked parts: what was left out is the message, not the mask made on the way.
        dropped=[parts[at] for at in sorted(gone)],
        total=total,
    )


def _further(horizon: Horizon, position: int, freed: list[int]) -> Horizon:
    return Horizon(below=position + 1, messages=horizon.messages + len(freed), tokens=horizon.tokens + sum(freed))


def excluded_now(dropped: Iterable[Part]) -> list[Excluded]:
    """One entry for each message that this reduction left out."""
    return [
        Excluded(
            segment_id=part.segment.segment_id,
            section=part.segment.section,
            role=part.segment.role,
            source_refs=part.segment.source_refs,
            tokens=part.tokens,
            why="oldest user message, left out to fit the window"
            if part.segment.role == "user"
            else "oldest exchange, left out whole to fit the window",
        )
        for part in dropped
    ]


def excluded_before(masks: Masks, checkpoint: Checkpoint | None) -> list[Excluded]:
    """One entry for what a checkpoint stands for, and one for each kind of message that earlier epochs left out.

    Each message was listed by name when it was left out; listing all again at each epoch would grow without bound.
    """
    listed: list[Excluded] = []
    if checkpoint is not None:
        listed.append(
            Excluded(
                segment_id=f"summarised<{checkpoint.first_kept}",
                section="transcript",
                role="assistant",
                source_refs=(f"messages:{checkpoint.from_message_id}..{checkpoint.to_message_id}",),
                tokens=max(0, checkpoint.tokens_before - checkpoint.tokens_after),
                why=f"{checkpoint.messages} messages before tr{checkpoint.first_kept} are summarised by compaction"
                f" {checkpoint.compaction_id}",
            )
        )
    for name, role, horizon in (("exchanges", "assistant", masks.chatter), ("prompts", "user", masks.prompts)):
        if horizon.messages:
            listed.append(
                Excluded(
                    segment_id=f"{name}<{horizon.below}",
                    section="transcript",
                    role="assistant" if role == "assistant" else "user",
                    source_refs=(f"messages:tr0..tr{horizon.below - 1}",),
                    tokens=horizon.tokens,
                    why=f"{horizon.messages} messages left out by earlier epochs, all {name} before tr{horizon.below}",
                )
            )
    return listed
