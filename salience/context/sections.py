"""A section of generated text never exceeds its room, and says how many of its items it leaves out (spec CMP-9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from salience.model.text import preview

SHORTEST_BYTES = 100
"""An item that is cut further than this says nothing any more."""


def section(
    title: str, items: Sequence[str], room: int, *, line_bytes: int, size: Callable[[str], int], more: str
) -> tuple[list[str], int]:
    """As much of a section as there is room for: a title, a line for each item, and how many more there are.

    Args:
        title: its first line.
        items: what it lists, the most important first.
        room: what it may use, in the unit of `size`.
        line_bytes: most bytes of one item; the first one is cut further where that makes it fit.
        size: what one line uses.
        more: what is said after the number of items that are left out, such as `more in the record`.

    Returns:
        Its lines and the room they use; no lines where there is nothing to say or no room even for the number.
    """
    used = size(title)
    lines: list[str] = []
    for at, item in enumerate(items):
        left = len(items) - at - 1
        spare = room - used - (size(_rest(left, more)) if left else 0)
        line = _line(item, line_bytes, SHORTEST_BYTES if at == 0 else line_bytes, spare, size)
        if line is None:
            break
        lines.append(line)
        used += size(line)
    if (left := len(items) - len(lines)) > 0:
        rest = _rest(left, more)
        if used + size(rest) > room:
            return [], 0  # only without a line: each line was taken with room for this one
        lines.append(rest)
        used += size(rest)
    return ([title, *lines], used) if lines else ([], 0)


def one_line(text: str) -> str:
    """The text with every run of white space as one blank."""
    return " ".join(text.split())


def _rest(left: int, more: str) -> str:
    return f"- … {left} {more}"


def _line(item: str, limit: int, shortest: int, room: int, size: Callable[[str], int]) -> str | None:
    """The line of an item, cut until it fits; None where that would leave less than `shortest` bytes of it."""
    whole = one_line(item)
    limit = min(limit, len(whole.encode()))
    while True:
        line = f"- {preview(whole, limit)}"
        if size(line) <= room:
            return line
        if limit <= shortest:
            return None
        limit = max(shortest, limit * 2 // 3)
