"""A file of any bytes is lines at line feeds alone, and no line costs more memory than the longest that can be meant."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_LINE_BYTES: Final = 8 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its line feed.

    Attributes:
        number: from 1.
        data: the bytes; None for a line that is too long.
        before: sha256 of all bytes of the file before it, without a byte order mark and with line feeds alone.
        went_on_from: sha256 of all bytes before it as they are, and the same without the line feed right before it: a
            file that was cut gets one when a section is added.
        ended: whether a line feed ended it.
    """

    number: int
    data: bytes | None
    before: str
    went_on_from: tuple[str, str]
    ended: bool = True


class Lines:
    """Splits what is fed to it. U+2028 and its kin are text; a carriage return before a line feed belongs to the line end.

    Attributes:
        marked: whether the file began with a byte order mark.
        returns: number of line ends that had a carriage return.
    """

    def __init__(self) -> None:
        self.marked = False
        self.returns = 0
        self._rest = bytearray()
        self._too_long = False
        self._number = 0
        self._digest = hashlib.sha256()
        self._raw = hashlib.sha256()
        self._before = self._digest.hexdigest()
        self._raw_before = (self._before, self._before)
        self._begun = False

    def feed(self, data: bytes) -> Iterator[Line]:
        """The lines that end in these bytes."""
        if not self._begun:
            data = bytes(self._rest) + data
            self._rest.clear()
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest.extend(data)
                return
            self._begun = True
            self.marked = data.startswith(_BOM)
            if self.marked:
                self._raw.update(_BOM)
                data = data.removeprefix(_BOM)
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            yield self._line(data[start:end], ended=True)
            start = end + 1
        self._keep(data[start:])

    def finish(self) -> Iterator[Line]:
        """The last line, when no line feed ended it."""
        if self._rest or self._too_long:
            yield self._line(b"", ended=False)

    @property
    def digest(self) -> str:
        """sha256 of the file, byte for byte, as far as its lines were given."""
        return self._raw.hexdigest()

    def _keep(self, data: bytes) -> None:
        self._rest.extend(data)
        if len(self._rest) > MAX_LINE_BYTES:
            self._too_long = True
            self._count(bytes(self._rest))
            self._rest.clear()

    def _count(self, data: bytes) -> None:
        self._digest.update(data)
        self._raw.update(data)

    def _line(self, data: bytes, *, ended: bool) -> Line:
        before, raw_before = self._before, self._raw_before
        self._number += 1
        self._keep(data)
        whole: bytes | None = bytes(self._rest)
        self._rest.clear()
        self._raw.update(whole)
        if self._too_long:
            self._too_long = False
            self._digest.update(whole)
            whole = None
        else:
            if ended and whole.endswith(b"\r"):
                self.returns += 1
                whole = whole[:-1]
            self._digest.update(whole)
        unended = self._raw.hexdigest()
        if ended:
            self._digest.update(b"\n")
            self._raw.update(b"\n")
        self._before = self._digest.hexdigest()
        self._raw_before = (self._raw.hexdigest(), unended)
        return Line(self._number, whole, before, raw_before, ended)
