"""A bundle is a function of its inputs and the epoch before it: same ones, same hash, warm or cold (spec CTX-5).

The prefix — head and transcript — grows within an epoch; the tail is made anew each time. A build costs what is new.
One that does not fit reduces; one that cannot fit says so by name and leaves the history as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from salience.context.epoch import Epoch, EpochState, Sizes, changed
from salience.context.eviction import (
    Reduction,
    excluded_before,
    excluded_now,
    is_left_out,
    is_masked,
    reduce,
    target_of,
)
from salience.context.inputs import BUILDER_VERSION, Basis, BuildInput, basis_of, fingerprint_of
from salience.context.segments import (
    Part,
    card_part,
    entry_part,
    head_excluded,
    head_parts,
    masked_part,
    note_part,
)
from salience.context.tokens import REPLY_OVERHEAD, Tokenizer, tokenizer_for
from salience.model.bundle import (
    BundleManifest,
    BundleSummary,
    BundleTokens,
    Decision,
    EpochReason,
    Excluded,
    Masks,
    View,
    bundle_id_of,
)
from salience.model.canonical import canonical_json, digest_of
from salience.model.message import CompiledMessage
from salience.projection.transcript import Entry

NOTE_ROOM = 120
"""Tokens kept for the budget note, which can only be written once the reduction is known."""
NAMED_SIZES = 5


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled bundle.

    Attributes:
        summary: what history and the journal hold.
        state: the epoch as of this bundle; kept with the latest row, for a cold process.
        epoch: the same in memory, for the next build.
        manifest: what is stored of the bundle, as the difference to the one before.
        texts: bytes by digest that `manifest` names and no blob holds yet.
        tail: the volatile parts.
        prefix_length: segments of the prefix; the epoch may grow beyond them later.
    """

    summary: BundleSummary
    state: EpochState
    epoch: Epoch
    manifest: BundleManifest
    texts: dict[str, bytes]
    tail: tuple[Part, ...]
    prefix_length: int

    @property
    def fits(self) -> bool:
        """Whether the bundle may be sent; if not, `summary.problem` says why."""
        return self.summary.fits

    @property
    def prefix(self) -> list[Part]:
        """The parts before the tail."""
        return [*self.epoch.head, *self.epoch.parts[: self.prefix_length - len(self.epoch.head)]]

    @property
    def messages(self) -> tuple[CompiledMessage, ...]:
        """The compiled messages, without the tool contracts."""
        return tuple(part.message for part in (*self.prefix, *self.tail) if part.message is not None)


def prefix_bytes(built: Built) -> bytes:
    """The bytes of a bundle without its tail: tool contracts, then one message a line (spec CTX-7)."""
    return b"".join(
        (part.text or b"" if part.message is None else canonical_json(part.message.plain())) + b"\n"
        for part in built.prefix
    )


def refs_needed(inputs: BuildInput, epoch: Epoch | EpochState | None) -> list[str]:
    """The digests whose bytes `build` will ask `inputs.text_of` for, each once, in order.

    Args:
        inputs: the inputs; their `text_of` is not called.
        epoch: what will be given to `build`.
    """
    basis = basis_of(inputs)
    before, warm = _before(epoch)
    reason = _reason(before, warm, basis)
    masks = before.masks if before else Masks()
    going_on = warm is not None and reason is None and warm.tokenizer is tokenizer_for(basis.model)
    refs: dict[str, None] = {} if going_on else {file.digest: None for file in basis.instructions}
    for entry in _entries(inputs, warm.seen if warm and going_on else 0):
        if entry.ref is not None and not is_left_out(entry, masks) and not is_masked(entry, masks):
            refs[entry.ref] = None
    return list(refs)


def build(inputs: BuildInput, epoch: Epoch | EpochState | None = None, *, tokenizer: Tokenizer | None = None) -> Built:
    """Compile the next bundle.

    A warm epoch is extended in place. Take it out of any cache before, and put `Built.epoch` back only once the
    manifest is stored: the next manifest tells the difference to this one. After a failure go on from the stored state.

    Args:
        inputs: everything the bundle is a function of.
        epoch: the running epoch in memory, or its state as stored with the last bundle, or None at the first build.
        tokenizer: what counts, when not the model's own.

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

    excluded: list[Excluded] = []
    if reason is not None:
        excluded = [*head_excluded(inputs), *excluded_before(current.state.masks, inputs.entries)]
    tail = _tail(current, inputs)
    sizes = current.sizes(tail)
    decision: Decision = "below_threshold"
    problem: str | None = None
    usable = inputs.config.context_config.usable_tokens
    if sizes.total + REPLY_OVERHEAD > usable:
        kept = current.kept(inputs.current_request)
        freeable = sum(part.tokens for part in current.parts if not kept.holds(part.position))
        total = sizes.total + REPLY_OVERHEAD + (NOTE_ROOM if len(tail) == 1 else 0)
        fixed = total - freeable
        if fixed > usable:
            decision, problem = "unfit", _problem(current, tail, inputs, fixed, usable)
        else:
            reduction = reduce(
                current.parts,
                current.state.masks,
                kept,
                total=total,
                target=target_of(usable, fixed, inputs.config.context_config.reduce_to),
                mask=lambda entry: masked_part(entry, tokenizer),
            )
            excluded = [
                *head_excluded(inputs),
                *excluded_before(current.state.masks, inputs.entries),
                *excluded_now(reduction.dropped),
            ]
            current = _reduced(current, reduction, already_new=reason is not None)
            decision, start = "reduced", 0
            tail = _tail(current, inputs)
            sizes = current.sizes(tail)
    return _built(inputs, current, tail, sizes, decision, problem, start, excluded)


def _before(epoch: Epoch | EpochState | None) -> tuple[EpochState | None, Epoch | None]:
    return (epoch.state, epoch) if isinstance(epoch, Epoch) else (epoch, None)


def _reason(before: EpochState | None, warm: Epoch | None, basis: Basis) -> EpochReason | None:
    if warm is not None and warm.basis == basis:
        return None
    return changed(before, fingerprint_of(basis))


def _state(before: EpochState | None, reason: EpochReason | None, basis: Basis) -> EpochState:
    if before is not None and reason is None:
        return before
    return EpochState(
        number=before.number + 1 if before else 1,
        reason=reason or "start",
        fingerprint=fingerprint_of(basis),
        # What was masked stays masked: a longer window would bring back only what is stale by now.
        masks=before.masks if before else Masks(),
    )


def _entries(inputs: BuildInput, first: int) -> Iterator[Entry]:
    return (inputs.entries[at] for at in range(first, len(inputs.entries)))


def _extend(epoch: Epoch, inputs: BuildInput) -> None:
    """Take the new entries in; all parts are made before one is appended, so that a missing text changes nothing."""
    masks = epoch.state.masks
    parts: list[Part] = []
    for entry in _entries(inputs, epoch.seen):
        if is_left_out(entry, masks):
            continue
        if is_masked(entry, masks):
            parts.append(masked_part(entry, epoch.tokenizer))
        else:
            parts.append(entry_part(entry, inputs.text_of, epoch.tokenizer))
    epoch.extend(parts)
    if inputs.entries:
        epoch.take_in(len(inputs.entries), inputs.entries[-1].message_id)


def _reduced(epoch: Epoch, reduction: Reduction, *, already_new: bool) -> Epoch:
    """The epoch that a reduction starts; one that starts for another reason anyway keeps its number and reason."""
    update: dict[str, object] = {"masks": reduction.masks}
    if not already_new:
        update |= {"number": epoch.state.number + 1, "reason": "reduction", "bundle_id": ""}
    state = epoch.state.model_copy(update=update)
    return epoch.reduced(state, reduction.parts)


def _tail(epoch: Epoch, inputs: BuildInput) -> tuple[Part, ...]:
    masks = epoch.state.masks
    dropped = masks.chatter.messages + masks.prompts.messages
    note = note_part(dropped, epoch.masked, epoch.state.number, epoch.tokenizer)
    card = card_part(inputs, epoch.tokenizer)
    return (card,) if note is None else (card, note)


def _problem(epoch: Epoch, tail: Iterable[Part], inputs: BuildInput, fixed: int, usable: int) -> str:
    kept = epoch.kept(inputs.current_request)
    must = [*epoch.head, *(part for part in epoch.parts if kept.holds(part.position)), *tail]
    must.sort(key=lambda part: -part.tokens)
    sizes = ", ".join(f"{_name(part, kept.current)} {part.tokens}" for part in must[:NAMED_SIZES])
    return f"what may not be left out needs {fixed} tokens and {usable} are usable; the largest: {sizes}"


def _name(part: Part, current: int) -> str:
    if part.position >= 0 and part.position == current:
        return f"current request ({part.segment.segment_id})"
    if part.entry is not None:
        kind = {"prompt": "user message", "response": "response", "result": "tool result"}[part.entry.kind]
        return f"{kind} ({part.segment.segment_id})"
    return f"{part.segment.section.replace('_', ' ')} ({part.segment.segment_id})"


def _built(
    inputs: BuildInput,
    epoch: Epoch,
    tail: tuple[Part, ...],
    sizes: Sizes,
    decision: Decision,
    problem: str | None,
    start: int,
    excluded: list[Excluded],
) -> Built:
    state, masks = epoch.state, epoch.state.masks
    bundle_hash = digest_of(
        {
            "builder": BUILDER_VERSION,
            "tokenizer": epoch.tokenizer.name,
            "epoch": [state.number, state.reason, state.fingerprint.plain()],
            "masks": [masks.results.below, masks.chatter.below, masks.prompts.below],
            "prefix": epoch.prefix_hash,
            "tail": [part.identity.decode() for part in tail],
            "session": inputs.session_id,
            "turn": inputs.turn,
            "source": inputs.source_event_id,
            "call": inputs.call_index,
        }
    )
    bundle_id = bundle_id_of(inputs.turn, bundle_hash)
    prefix = len(epoch)
    appended = epoch.head[start:] + epoch.parts[max(0, start - len(epoch.head)) :]
    current = epoch.kept(inputs.current_request).current
    manifest = BundleManifest(
        bundle_id=bundle_id,
        bundle_hash=bundle_hash,
        session_id=inputs.session_id,
        turn=inputs.turn,
        call_index=inputs.call_index,
        source_event_id=inputs.source_event_id,
        source_seq=inputs.source_seq,
        epoch=state.number,
        epoch_reason=state.reason,
        previous=state.bundle_id or None,
        start=start,
        appended=tuple(part.segment for part in appended),
        tail=tuple(part.segment for part in tail),
        excluded=tuple(excluded),
        current_request=f"tr{current}" if current >= 0 else "",
        builder_version=BUILDER_VERSION,
        tokenizer=epoch.tokenizer.name,
    )
    dropped = masks.chatter.messages + masks.prompts.messages
    counts = {"dropped": dropped, "masked": epoch.masked}
    context = inputs.config.context_config
    summary = BundleSummary(
        bundle_hash=bundle_hash,
        turn=inputs.turn,
        call_index=inputs.call_index,
        epoch=state.number,
        epoch_reason=state.reason,
        decision=decision,
        fits=problem is None,
        tokens=BundleTokens(
            total=sizes.total + REPLY_OVERHEAD,
            window=context.context_window_tokens,
            reserved=context.reserved_output_tokens,
            by_section=sizes.by_section,
        ),
        view=View(
            projection_mode="masked" if dropped or epoch.masked else "full_history",
            source_message_count=len(inputs.entries),
            history_message_count=len(epoch.parts),
            system_message_count=sum(
                part.message is not None and part.segment.role in ("system", "developer") for part in epoch.head
            ),
        ),
        largest=epoch.largest(tail),
        excluded_counts={why: count for why, count in counts.items() if count},
        masks=masks if masks != Masks() else None,
        environment_ref=inputs.environment_ref,
        builder_version=BUILDER_VERSION,
        tokenizer=epoch.tokenizer.name,
        problem=problem,
    )
    epoch.state = state.model_copy(update={"entries": len(inputs.entries), "bundle_id": bundle_id})
    texts = {part.segment.digest: part.text for part in (*appended, *tail) if part.text is not None}
    return Built(summary, epoch.state, epoch, manifest, texts, tail, prefix)
