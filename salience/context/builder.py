"""A bundle is a function of its inputs and the epoch before it: same ones, same hash, warm or cold (spec CTX-5).

The prefix — head and transcript — grows within an epoch; the tail is made anew each time. A build costs what is new.
One that does not fit reduces; one that cannot fit says so by name and leaves the history as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from salience.context.budget import Budget, budget_of
from salience.context.epoch import Epoch, EpochState
from salience.context.eviction import Reduction, excluded_before, excluded_now, reduce, target_of
from salience.context.inputs import BUILDER_VERSION, BuildInput
from salience.context.segments import Part, head_excluded, masked_part
from salience.context.tokens import REPLY_OVERHEAD, Tokenizer
from salience.context.view import View, largest_of, tail_of, view_of
from salience.model.bundle import (
    BundleManifest,
    BundleSummary,
    BundleTokens,
    Decision,
    Excluded,
    Masks,
    bundle_id_of,
)
from salience.model.bundle import View as Relation
from salience.model.canonical import canonical_json, digest_of
from salience.model.message import CompiledMessage

LEAST_MESSAGES = 3
"""A compaction needs at least as many messages in the view (spec CMP-3)."""
NOTE_ROOM = 120
"""Tokens kept for the budget note, which can only be written once the reduction is known."""


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
    view = view_of(inputs, epoch, tokenizer)
    excluded: list[Excluded] = []
    if view.reason is not None:
        excluded = [*head_excluded(inputs), *excluded_before(view.epoch.state.masks, inputs.checkpoint)]
    total = view.tokens
    context = inputs.config.context_config
    budget = budget_of(context, inputs.gauge, total=total, epoch=view.epoch.state.number)
    decision: Decision = "below_threshold"
    problem: str | None = None
    if total > budget.threshold:
        decision, reduction = _smaller(view, inputs, budget)
        if reduction is not None:
            excluded = [
                *head_excluded(inputs),
                *excluded_before(view.epoch.state.masks, inputs.checkpoint),
                *excluded_now(reduction.dropped),
            ]
            reduced = _reduced(view.epoch, reduction, already_new=view.reason is not None)
            view = View(reduced, tail_of(reduced, inputs), 0, view.reason)
        elif decision == "unfit":
            problem = _problem(view.epoch, view.tail, inputs, _fixed(view, inputs), budget.usable)
        elif total > budget.usable:
            # Its compaction comes before it could be sent.
            problem = f"{total} tokens, and {budget.usable} are usable"
    return _built(inputs, view, budget, decision, problem, excluded)


def _smaller(view: View, inputs: BuildInput, budget: Budget) -> tuple[Decision, Reduction | None]:
    """What is done about a view over the threshold, the gentlest first (design §4).

    Old results are masked where that alone is enough; otherwise a compaction comes; and where none may come or help, a
    view that fits is sent as it is, and one that does not loses its oldest messages.
    """
    total = view.tokens
    gauge, messages = inputs.gauge, len(inputs.entries)
    over = total > budget.usable
    if not over and messages < max(gauge.refused_until, gauge.settled_until):
        return "cooling_down", None
    masked = _reduction(view, inputs, total=total, target=budget.target, drop=False)
    if masked.total <= budget.target:
        return "reduced", masked
    enough = len(view.epoch.parts) >= LEAST_MESSAGES
    if enough and messages >= gauge.refused_until:
        return "threshold_exceeded", None
    if not over:
        return "messages_not_enough", None
    fixed = _fixed(view, inputs)
    if fixed > budget.usable:
        return "unfit", None
    target = target_of(budget.usable, fixed, budget.target)
    return "reduced", _reduction(view, inputs, total=total, target=target, drop=True)


def _fixed(view: View, inputs: BuildInput) -> int:
    """Tokens of what may never be evicted, with room for the note that a reduction adds."""
    kept = view.epoch.kept(inputs.current_request)
    freeable = sum(part.tokens for part in view.epoch.parts if not kept.holds(part.position))
    return _with_note(view) - freeable


def _with_note(view: View) -> int:
    return view.tokens + (NOTE_ROOM if len(view.tail) == 1 else 0)


def _reduction(view: View, inputs: BuildInput, *, total: int, target: int, drop: bool) -> Reduction:
    epoch = view.epoch
    return reduce(
        epoch.parts,
        epoch.state.masks,
        epoch.kept(inputs.current_request),
        total=total + _with_note(view) - view.tokens,
        target=target,
        mask=lambda entry: masked_part(entry, epoch.tokenizer),
        drop=drop,
    )


def _reduced(epoch: Epoch, reduction: Reduction, *, already_new: bool) -> Epoch:
    """The epoch that a reduction starts; one that starts for another reason anyway keeps its number and reason."""
    update: dict[str, object] = {"masks": reduction.masks}
    if not already_new:
        update |= {"number": epoch.state.number + 1, "reason": "reduction", "bundle_id": ""}
    state = epoch.state.model_copy(update=update)
    return epoch.reduced(state, reduction.parts)


def _problem(epoch: Epoch, tail: Iterable[Part], inputs: BuildInput, fixed: int, usable: int) -> str:
    kept = epoch.kept(inputs.current_request)
    must = [*epoch.head, *(part for part in epoch.parts if kept.holds(part.position)), *tail]
    largest = largest_of(must, kept.current)
    return f"what may not be left out needs {fixed} tokens and {usable} are usable; the largest: {largest}"


def _built(
    inputs: BuildInput,
    view: View,
    budget: Budget,
    decision: Decision,
    problem: str | None,
    excluded: list[Excluded],
) -> Built:
    epoch, tail, start = view.epoch, view.tail, view.start
    state, masks = epoch.state, epoch.state.masks
    sizes = epoch.sizes(tail)
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
    checkpoint = inputs.checkpoint
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
            window=budget.window,
            reserved=budget.reserved,
            by_section=sizes.by_section,
            measured=budget.measured,
        ),
        view=Relation(
            projection_mode="compact_checkpoint"
            if checkpoint
            else "masked"
            if dropped or epoch.masked
            else "full_history",
            source_message_count=len(inputs.entries),
            history_message_count=len(epoch.parts),
            system_message_count=sum(
                part.message is not None and part.segment.role in ("system", "developer") for part in epoch.head
            ),
            checkpoint_id=checkpoint.compaction_id if checkpoint else None,
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
