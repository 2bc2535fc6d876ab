"""A cut falls between groups, so no call loses its result, and never behind what the model has not seen (spec CMP-4).

Where whole rounds free enough it falls between rounds; one long round is cut inside, and its user message stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from salience.context.eviction import Kept
from salience.context.groups import Group, groups_of
from salience.context.segments import Part


@dataclass(frozen=True, slots=True)
class Cut:
    """Transcript positions: exchanges before `first_kept` and user messages before `prompts_from` are summarised."""

    first_kept: int
    prompts_from: int


def cut_of(parts: Sequence[Part], kept: Kept, *, recent: int, prompts: int, rounds: int, room: int) -> Cut | None:
    """Where to cut a view.

    Args:
        parts: the transcript's parts in order.
        kept: what must stay verbatim.
        recent: tokens of verbatim history to aim at.
        prompts: tokens that user messages before the cut may keep, newest first; the current request stays in any case.
        rounds: latest rounds that stay, as many of them as fit `room`.
        room: tokens there are for all that stays verbatim; what must stay may exceed it, nothing else does.

    Returns:
        None when no completed exchange stands before what must stay.
    """
    entries = [part.entry for part in parts if part.entry is not None]
    groups = groups_of(entries)
    if not groups:
        return None
    sizes = [sum(part.tokens for part in parts[group.first : group.last + 1]) for group in groups]
    tails = [0] * (len(groups) + 1)
    for at in range(len(groups) - 1, -1, -1):
        tails[at] = tails[at + 1] + sizes[at]
    last = _last_cut(groups, [entry.position for entry in entries], kept)
    chosen = _between_rounds(_rounds(groups), tails, last, recent=min(recent, room), rounds=rounds, room=room)
    if chosen is None:
        held = _current_before(parts, kept, entries[groups[last].first].position)
        within = min(recent, room - held)
        chosen = next((at for at in range(last + 1) if tails[at] <= within), last)
    if not any(group.kind == "exchange" for group in groups[:chosen]):
        return None
    first_kept = entries[groups[chosen].first].position
    spare = room - tails[chosen] - _current_before(parts, kept, first_kept)
    return Cut(first_kept, _prompts_from(parts, kept, first_kept, min(prompts, spare)))


def _last_cut(groups: Sequence[Group], positions: Sequence[int], kept: Kept) -> int:
    """The last group that may come first: the one whose results the model has not seen yet."""
    if kept.unseen_from < 0:
        return 0
    return next((at for at, group in enumerate(groups) if positions[group.last] >= kept.unseen_from), len(groups) - 1)


def _rounds(groups: Sequence[Group]) -> list[int]:
    """Where rounds begin: at user messages behind an answer; those that were delivered together are of one round."""
    return [
        at for at, group in enumerate(groups) if group.kind == "prompt" and at and groups[at - 1].kind == "exchange"
    ]


def _between_rounds(
    starts: Sequence[int], tails: Sequence[int], last: int, *, recent: int, rounds: int, room: int
) -> int | None:
    """The round boundary that keeps what is aimed at, or more where rounds that shall stay fit."""
    cuts = [at for at in starts if at <= last]
    aimed = next((at for at in cuts if tails[at] <= recent), None)
    # The latest rounds are counted with those that nothing may be cut in, for they stay, too.
    least = next((at for at in (starts[-rounds:] if rounds else ()) if at <= last and tails[at] <= room), None)
    return min((at for at in (aimed, least) if at is not None), default=None)


def _current_before(parts: Sequence[Part], kept: Kept, position: int) -> int:
    """Tokens of the current request where it stands before a position: it stays there."""
    return sum(part.tokens for part in parts if 0 <= part.position == kept.current < position)


def _prompts_from(parts: Sequence[Part], kept: Kept, first_kept: int, prompts: int) -> int:
    """The oldest user message before the cut that stays: newest first, as many as there is room for."""
    oldest = first_kept
    for part in reversed(parts):
        if part.entry is None or part.entry.kind != "prompt" or part.position >= first_kept:
            continue
        if part.position != kept.current:
            prompts -= part.tokens
            if prompts < 0:
                break
        oldest = part.position
    return oldest
