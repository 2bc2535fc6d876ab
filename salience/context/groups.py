"""A group is an atom: a response, its calls and all their results are kept or left out together (design §4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from salience.projection.transcript import Entry

MASKABLE_BYTES = 1024
"""A smaller result is not masked: its preview and reference would hardly be shorter."""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries `first` to `last` (indexes, both included) that stand or fall together."""

    name: str
    kind: Literal["prompt", "exchange"]
    first: int
    last: int


def groups_of(entries: Sequence[Entry]) -> list[Group]:
    """The groups of a stretch of transcript, in order."""
    groups: list[Group] = []
    first = 0
    for at in range(1, len(entries) + 1):
        if at == len(entries) or entries[at].group != entries[first].group:
            kind = "prompt" if entries[first].kind == "prompt" else "exchange"
            groups.append(Group(entries[first].group, kind, first, at - 1))
            first = at
    return groups


def is_maskable(entry: Entry) -> bool:
    """Whether a result can be shown as preview and reference; the entry alone decides, so that no text need be read."""
    return entry.kind == "result" and entry.ref is not None and entry.size_bytes >= MASKABLE_BYTES
