"""A text of any size is shown in parts, and each part says how to get the next: no copy of the whole is made for it."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from activities.tools.result import Refused
from salience.model.text import decode

MAX_LINES = 2_000
MAX_LINE_BYTES = 2_000
HEADER_BYTES = 512
_CHUNK = 1024 * 1024
_CONTINUATION = range(0x80, 0xC0)


@dataclass(frozen=True, slots=True)
class Page:
    """Numbered lines of a text.

    Args:
        text: the lines, each with its number.
        first: number of the first, from 1.
        last: number of the last; below `first` when there is none.
        end: number of the last line that was asked for.
        total: lines of the whole text.
    """

    text: str
    first: int
    last: int
    end: int
    total: int

    @property
    def span(self) -> str:
        """Which lines these are."""
        return f"lines {self.first}-{self.last} of {self.total}" if self.total else "empty"

    @property
    def more(self) -> str:
        """How to go on; empty when nothing that was asked for is left."""
        left = self.end - self.last
        return f"[{left} more lines: go on with start_line {self.last + 1}]\n" if left > 0 else ""


def room(budget: int) -> int:
    """Bytes of a result that lines may take, beside the header and the line that says how to go on."""
    return budget - min(HEADER_BYTES, budget // 4)


def page(name: str, data: bytes, start: int, end: int | None, space: int) -> Page:
    """Lines of a text, as many as there is space for, but at least one.

    Args:
        name: what the text is, for a refusal.
        data: the text; the end of its last line begins no further one.
        start: number of the first line.
        end: number of the last line wanted; None for the last there is.
        space: bytes the lines may take.

    Raises:
        Refused: there are no such lines.
    """
    total = lines_in(data)
    upto = total if end is None else min(end, total)
    if start > max(total, 1) or (total and upto < start):
        raise Refused(f"{name} has {total} lines; lines {start} to {end or total} are not among them")
    width = len(str(upto))
    shown: list[str] = []
    at = offset_of(data, start)
    last = start - 1
    for number in range(start, upto + 1):
        stop = data.find(b"\n", at)
        stop = len(data) if stop < 0 else stop
        line = f"{number:>{width}}\t{_line(data, at, stop)}\n"
        space -= len(line.encode())
        if shown and (space < 0 or len(shown) == MAX_LINES):
            break
        shown.append(line)
        last = number
        at = stop + 1
    return Page("".join(shown), start, last, upto, total)


def lines_in(data: bytes) -> int:
    """How many lines a text has."""
    return data.count(b"\n") + (1 if data and not data.endswith(b"\n") else 0)


def offset_of(data: bytes, line: int) -> int:
    """Where a line begins, in bytes; the text's end when it has no such line."""
    at = 0
    for _ in range(line - 1):
        at = data.find(b"\n", at) + 1
        if at == 0:
            return len(data)
    return at


def is_text(data: bytes) -> bool:
    """Whether it is UTF-8 without NUL, so that what is shown of it is what it is."""
    if b"\x00" in data:
        return False
    check = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(data), _CHUNK):
            check.decode(data[at : at + _CHUNK])
        check.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def head(data: bytes, limit: int) -> str:
    """The beginning of some bytes as mended text of at most `limit` bytes, cut at a character."""
    text = decode(_whole_characters(data[:limit]))
    return text.encode()[:limit].decode("utf-8", "ignore")


def tail(data: bytes, limit: int) -> str:
    """The end of some bytes as mended text of at most `limit` bytes, cut at a character."""
    end = data[max(len(data) - limit, 0) :] if limit > 0 else b""
    if len(end) < len(data):
        skip = 0
        while skip < min(3, len(end)) and end[skip] in _CONTINUATION:
            skip += 1
        end = end[skip:]
    encoded = decode(end).encode()
    return encoded[max(len(encoded) - limit, 0) :].decode("utf-8", "ignore")


def _whole_characters(data: bytes) -> bytes:
    """Without the first bytes of a character that the cut went through."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if back >= length else data[:-back]
        if byte < 0x80:
            break
    return data


def _line(data: bytes, at: int, stop: int) -> str:
    if stop > at and data[stop - 1] == 0x0D:
        stop -= 1
    if stop - at <= MAX_LINE_BYTES:
        text = decode(data[at:stop])
        size = len(text.encode())
        if size <= MAX_LINE_BYTES:
            return text
    else:
        size = stop - at
    shown = head(data[at : min(stop, at + MAX_LINE_BYTES)], MAX_LINE_BYTES)
    return f"{shown}… [{size - len(shown.encode())} more bytes in this line]"
