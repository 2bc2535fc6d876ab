"""Where a view is cut: between rounds where that frees enough, inside a long one, never in a group (spec CMP-4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from salience.compaction import Cut, cut_of
from salience.context.eviction import Kept
from salience.context.segments import Part
from salience.model.bundle import Segment
from salience.projection.transcript import Entry, EntryKind

ALL = 10**6


def view(shape: str) -> tuple[list[Part], Kept]:
    """Parts of a shape such as `P5 E10 P5 E40`: a user message of 5 tokens, an exchange of 10, half of it its result."""
    parts: list[Part] = []
    answer = current = -1
    for at, word in enumerate(shape.split()):
        tokens = int(word[1:])
        kinds: list[tuple[EntryKind, int]] = (
            [("prompt", tokens)] if word[0] == "P" else [("response", tokens // 2), ("result", tokens - tokens // 2)]
        )
        for kind, size in kinds:
            position = len(parts)
            answer = position if kind == "response" else answer
            current = position if kind == "prompt" else current
            entry = Entry(
                message_id=f"m{position}", position=position, kind=kind, group=f"g{at}", turn=0, event_id="e", seq=1
            )
            segment = Segment(
                segment_id=f"tr{position}", section="transcript", role="user", reason="r", source_refs=("e",),
                trust="user", freshness="recent", priority=1, tokens=size, digest="d",
            )  # fmt: skip
            parts.append(Part(segment, None, b"", entry=entry))
    return parts, Kept(unseen_from=answer, current=current)


def cut(shape: str, *, recent: int = 0, prompts: int = ALL, rounds: int = 0, room: int = ALL) -> tuple[int, int] | None:
    """Where a shape is cut, as the number of words of it before the cut, and of words before the oldest kept message."""
    parts, kept = view(shape)
    made: Cut | None = cut_of(parts, kept, recent=recent, prompts=prompts, rounds=rounds, room=room)
    if made is None:
        return None
    words = [int(part.entry.group[1:]) for part in parts if part.entry]
    assert made.first_kept == words.index(words[made.first_kept]), "a group is split"
    return words[made.first_kept], words[made.prompts_from]


@pytest.mark.parametrize(
    ("shape", "given", "wanted"),
    [
        # Between rounds where that is enough; inside the last one where it is not.
        ("P1 E10 P1 E10 P1 E10", {"recent": 11}, (4, 0)),
        ("P1 E10 P1 E10 P1 E10", {"recent": 25}, (2, 0)),
        ("P1 E10 P1 E10 E10 E10", {"recent": 25}, (4, 0)),
        ("P1 E10 E10 E10 E10", {"recent": 25}, (3, 0)),
        ("P1 E10 E10 E10 E10", {"recent": 0}, (4, 0)),
        # min_rounds: more than is aimed at, where they fit; as many of them as fit.
        ("P1 E10 P1 E10 P1 E10", {"recent": 0, "rounds": 2}, (2, 0)),
        ("P1 E10 P1 E10 P1 E10", {"recent": 0, "rounds": 2, "room": 15}, (4, 0)),
        ("P1 E10 P1 E10 P1 E10", {"recent": 0, "rounds": 2, "room": 9}, (5, 4)),
        ("P1 E10 P1 E10 P1 E10", {"recent": 25, "rounds": 1}, (2, 0)),
        # A request that nothing was done about yet is a round; nothing can be cut in it, but it is counted.
        ("P1 E10 P1 E10 P1 E10 P1", {"recent": 0, "rounds": 2}, (4, 0)),
        ("P1 E10 P1 E10 P1", {"recent": 0, "rounds": 1}, (3, 0)),
        # Messages that were delivered together are of one round.
        ("P1 E10 P1 P1 E10 P1 E10", {"recent": 0, "rounds": 2}, (2, 0)),
        ("P1 E10 P1 P1 E10", {"recent": 12}, (2, 0)),
        # What stays never exceeds the room where something may go.
        ("P1 E10 P1 E10 P1 E10", {"recent": ALL, "room": 12}, (4, 2)),
        ("P1 E10 E10 E10 E10", {"recent": ALL, "room": 22}, (3, 0)),
        ("P9 E10 E10 E10 E10", {"recent": ALL, "room": 29}, (3, 0)),
        ("P9 E10 E10 E10 E10", {"recent": ALL, "room": 28}, (4, 0)),
        ("P9 E10 E10 E10 E10", {"recent": ALL, "room": -5}, (4, 0)),
        # User messages before the cut: the newest, as many as there is room for; the current request in any case.
        ("P3 E1 P3 E1 P3 E1 E1 E1", {"recent": 0, "prompts": 3}, (7, 2)),
        ("P3 E1 P3 E1 P3 E1 E1 E1", {"recent": 0, "prompts": 2}, (7, 4)),
        ("P3 E1 P3 E1 P3 E1 E1 E1", {"recent": 0, "prompts": 0}, (7, 4)),
        ("P3 E1 P3 E1 P3 E1 E1 E1", {"recent": 0, "prompts": ALL, "room": 7}, (7, 2)),
        ("P1 E1 P99 E1 E1", {"recent": 0, "prompts": 50}, (4, 0)),
        ("P1 E10 P3 E10 P1 E10", {"recent": 11, "prompts": 2}, (4, 4)),
        # Nothing that no model has seen, and nothing without an exchange.
        ("P1 E10", {"recent": 0}, None),
        ("P1 E10 P1", {"recent": 0}, None),
        ("P1 P1 P1", {"recent": 0}, None),
        ("E10 E10 E10", {"recent": 0}, (2, 2)),
        ("P1 E10 E10", {"recent": ALL}, None),
    ],
)
def test_where_a_view_is_cut(shape: str, given: dict[str, int], wanted: tuple[int, int] | None) -> None:
    assert cut(shape, **given) == wanted


def test_an_empty_view_has_no_cut() -> None:
    parts: Sequence[Part] = []
    assert cut_of(parts, Kept(-1, -1), recent=0, prompts=0, rounds=0, room=0) is None
