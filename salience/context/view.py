"""A view is the record compiled as an epoch shows it, before anyone asks whether it fits (spec CTX-7, CTX-9).

The builder judges it and sends it; a compaction measures it. Both must see the same bytes, so both compile them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from salience.context.epoch import Epoch, EpochState, changed
from salience.context.eviction import is_left_out, is_masked
from salience.context.inputs import Basis, BuildInput, basis_of, fingerprint_of
from salience.context.segments import Part, card_part, entry_part, head_parts, masked_part, note_part
from salience.context.tokens import REPLY_OVERHEAD, Tokenizer, tokenizer_for
from salience.model.bundle import EpochReason, Horizon, Masks
from salience.model.compaction import Checkpoint
from salience.projection.transcript import Entry

NAMED_SIZES = 5


@dataclass(slots=True)
class View:
    """A compiled view.

    Attributes:
        epoch: head and transcript.
        tail: what is made anew at each build.
        start: prefix parts that the bundle before had, too.
        reason: why the epoch is a new one; None when it goes on.
    """

    epoch: Epoch
    tail: tuple[Part, ...]
    start: int
    reason: EpochReason | None

    @property
    def parts(self) -> list[Part]:
        """All parts in order."""
        return [*self.epoch.head, *self.epoch.parts, *self.tail]

    @property
    def tokens(self) -> int:
        """Estimated tokens of the whole, the opening of the reply included."""
        return self.epoch.sizes(self.tail).total + REPLY_OVERHEAD


def largest_of(parts: Iterable[Part], current: int) -> str:
    """The largest parts by name and tokens, for one who has to make room.

    Args:
        parts: the parts to choose from.
        current: transcript position of the current request; -1 where there is none.
    """
    largest = sorted(parts, key=lambda part: -part.tokens)[:NAMED_SIZES]
    return ", ".join(f"{_name(part, current)} {part.tokens}" for part in largest)


def _name(part: Part, current: int) -> str:
    if part.position >= 0 and part.position == current:
        return f"current request ({part.segment.segment_id})"
    if part.entry is not None:
        kind = {"prompt": "user message", "response": "response", "result": "tool result"}[part.entry.kind]
        return f"{kind} ({part.segment.segment_id})"
    return f"{part.segment.section.replace('_', ' ')} ({part.segment.segment_id})"


def refs_needed(inputs: BuildInput, epoch: Epoch | EpochState | None) -> list[str]:
    """The digests whose bytes a build will ask `inputs.text_of` for, each once, in order.

    Args:
        inputs: the inputs; their `text_of` is not called.
        epoch: what will be given to the build.
    """
    basis = basis_of(inputs)
    before, warm = _before(epoch)
    reason = _reason(before, warm, basis)
    masks = _masks(before, reason, inputs.checkpoint)
    going_on = warm is not None and reason is None and warm.tokenizer is tokenizer_for(basis.model)
    refs: dict[str, None] = {}
    if not going_on:
        refs = {file.digest: None for file in basis.instructions}
        if inputs.checkpoint is not None:
            refs[inputs.checkpoint.summary_ref] = None
    for entry in _entries(inputs, warm.seen if warm and going_on else 0):
        hidden = is_left_out(entry, masks, inputs.checkpoint)
        if entry.ref is not None and not hidden and not is_masked(entry, masks):
            refs[entry.ref] = None
    return list(refs)


def view_of(inputs: BuildInput, epoch: Epoch | EpochState | None, tokenizer: Tokenizer | None = None) -> View:
    """Compile the view; a warm epoch that goes on is extended in place.

    Raises:
        KeyError: a text was not preloaded (see `refs_needed`).
        ValueError: the transcript is not the one the warm epoch was built from, or shorter.
    """
    basis = basis_of(inputs)
    tokenizer = tokenizer or tokenizer_for(basis.model)
    before, warm = _before(epoch)
    reason = _reason(before, warm, basis)
    if warm is not None and reason is None and warm.tokenizer is tokenizer:
        if len(inputs.entries) < warm.seen or (warm.seen and not warm.covers(inputs.entries[warm.seen - 1].message_id)):
            raise ValueError(f"the transcript of {inputs.session_id} is not the one its epoch was built from")
        current, start = warm, len(warm)
        current.basis = basis
        _extend(current, inputs)
    else:
        current = Epoch(_state(before, reason, basis), basis, tokenizer, head_parts(inputs, tokenizer))
        _extend(current, inputs)
        known = before.entries if before and reason is None else -1
        start = len(current.head) + sum(part.position < known for part in current.parts) if known >= 0 else 0
    return View(current, tail_of(current, inputs), start, reason)


def tail_of(epoch: Epoch, inputs: BuildInput) -> tuple[Part, ...]:
    """The volatile tail: state card, and a note on what is left out."""
    masks = epoch.state.masks
    dropped = masks.chatter.messages + masks.prompts.messages
    note = note_part(dropped, epoch.masked, epoch.state.number, epoch.tokenizer)
    card = card_part(inputs, epoch.tokenizer)
    return (card,) if note is None else (card, note)


def _before(epoch: Epoch | EpochState | None) -> tuple[EpochState | None, Epoch | None]:
    return (epoch.state, epoch) if isinstance(epoch, Epoch) else (epoch, None)


def _reason(before: EpochState | None, warm: Epoch | None, basis: Basis) -> EpochReason | None:
    if warm is not None and warm.basis == basis:
        return None
    return changed(before, fingerprint_of(basis))


def _masks(before: EpochState | None, reason: EpochReason | None, checkpoint: Checkpoint | None) -> Masks:
    """What was masked stays masked: a longer window would bring back only what is stale by now.

    A rollback asks for all of it, and gets what fits. What a checkpoint summarises is no longer left out, but stood for.
    """
    if before is None or reason == "rollback":
        return Masks()
    masks = before.masks
    if reason != "compaction" or checkpoint is None:
        return masks
    return Masks(
        results=_beyond(masks.results, checkpoint.first_kept),
        chatter=_beyond(masks.chatter, checkpoint.first_kept),
        prompts=_beyond(masks.prompts, checkpoint.prompts_from),
    )


def _beyond(horizon: Horizon, position: int) -> Horizon:
    """A horizon that goes beyond a position, else none."""
    return horizon if horizon.below > position else Horizon()


def _state(before: EpochState | None, reason: EpochReason | None, basis: Basis) -> EpochState:
    if before is not None and reason is None:
        return before
    return EpochState(
        number=before.number + 1 if before else 1,
        reason=reason or "start",
        fingerprint=fingerprint_of(basis),
        masks=_masks(before, reason, basis.checkpoint),
    )


def _entries(inputs: BuildInput, first: int) -> Iterator[Entry]:
    """Entries from a position on; those that a checkpoint summarises need not be in memory."""
    entries, checkpoint = inputs.entries, inputs.checkpoint
    if checkpoint is not None:
        for entry in entries.between(max(first, checkpoint.prompts_from), checkpoint.first_kept):
            if entry.kind == "prompt":
                yield entry
        first = max(first, checkpoint.first_kept)
    for at in range(first, len(entries)):
        yield entries[at]


def _extend(epoch: Epoch, inputs: BuildInput) -> None:
    """Take the new entries in; all parts are made before one is appended, so that a missing text changes nothing."""
    masks = epoch.state.masks
    parts: list[Part] = []
    for entry in _entries(inputs, epoch.seen):
        if is_left_out(entry, masks, inputs.checkpoint):
            continue
        if is_masked(entry, masks):
            parts.append(masked_part(entry, epoch.tokenizer))
        else:
            parts.append(entry_part(entry, inputs.text_of, epoch.tokenizer))
    epoch.extend(parts)
    if inputs.entries:
        epoch.take_in(len(inputs.entries), inputs.entries[-1].message_id)
