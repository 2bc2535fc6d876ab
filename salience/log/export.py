"""The same log gives the same bytes: an export holds no clock, no place and no counter of its own (spec EVT-7)."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from salience.log.chain import Row
from salience.model.canonical import canonical_json
from salience.model.export import EndLine, Header, OmittedLine, WhyOmitted

PIECE_BYTES = 1024 * 1024
"""Bytes of a blob in one line: a line stays under two megabytes, whatever the blob's size."""


class Writer:
    """Turns rows and blobs into lines, and keeps the counts and the digest that the end line tells."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._lines = 0
        self._events = 0
        self._blobs = 0
        self._omitted = 0

    def taken(self, data: bytes) -> bytes:
        """Bytes that are written as they are: an imported file."""
        self._digest.update(data)
        self._lines += data.count(b"\n")
        return data

    def header(self, header: Header) -> bytes:
        """The first line of a section."""
        self._events = self._blobs = self._omitted = 0
        return self._line(header.plain())

    def event(self, row: Row, previous: str) -> bytes:
        """A row's line, after a row with hash `previous`."""
        self._events += 1
        line: dict[str, Any] = {
            "kind": "event",
            "metadata": json.loads(row.metadata),
            "payload_digest": row.payload_digest,
            "previous": previous,
            "hash": row.hash,
        }
        line |= {"erased": True} if row.payload is None else {"payload": json.loads(row.payload)}
        return self._line(line)

    def piece(self, digest: str, number: int, data: bytes, *, last: bool) -> bytes:
        """A piece of a blob, counted from 0."""
        self._blobs += int(last)
        text = base64.b64encode(data).decode()
        return self._line({"kind": "blob", "digest": digest, "piece": number, "last": last, "data": text})

    def omitted(self, digest: str, why: WhyOmitted) -> bytes:
        """What stands in the place of a blob that is not written."""
        self._omitted += 1
        return self._line(OmittedLine(digest=digest, why=why).plain())

    def end(self) -> bytes:
        """The last line of the section."""
        end = EndLine(
            lines=self._lines,
            events=self._events,
            blobs=self._blobs,
            omitted=self._omitted,
            digest=self._digest.hexdigest(),
        )
        return self._line(end.plain())

    @property
    def digest(self) -> str:
        """sha256 of everything so far."""
        return self._digest.hexdigest()

    def _line(self, value: dict[str, Any]) -> bytes:
        data = canonical_json(value) + b"\n"
        return self.taken(data)
