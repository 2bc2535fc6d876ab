"""Whatever the bytes of an export are, what is sound in them is read, and what is not is named by its line (spec EVT-7)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, cast

from pydantic import ValidationError

from salience.log.chain import link
from salience.log.decode import DECODER_VERSION
from salience.log.lines import MAX_LINE_BYTES, Line, Lines
from salience.log.named import named_blobs
from salience.model.canonical import canonical_json, digest
from salience.model.event import PAYLOADS, Anchor, Event
from salience.model.export import EXPORT_VERSION, BlobLine, EndLine, Envelope, EventLine, Fault, Header, OmittedLine

MAX_FAULTS: Final = 1_000
MAX_DEPTH: Final = 64
_LARGEST: Final = 2**63 - 1


class NewerExport(ValueError):
    """The file was made by a newer release: it is not guessed at."""


class NoExport(ValueError):
    """Nothing in the file is a line of an export."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One sound event of a file, as it was exported."""

    line: int
    envelope: Envelope
    payload: dict[str, Any] | None
    event: Event | None
    payload_digest: str
    previous: str
    hash: str


@dataclass(slots=True)
class Section:
    """What an export holds between a header and an end: one journal, or what one gained since it was imported."""

    line: int
    header: Header | None = None
    session_id: str = ""
    events: list[Recorded] = field(default_factory=list[Recorded])
    ended: bool = False
    before: str = ""
    """Digest of the file that the section went on from."""
    blobs: set[str] = field(default_factory=set[str])
    counted: list[int] = field(default_factory=lambda: [0, 0, 0])


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a blob, to be kept beside the ones before it; after the last, `whole` says that all of them match."""

    digest: str
    data: bytes
    first: bool
    whole: bool


@dataclass(slots=True)
class _Open:
    digest: str
    line: int
    next: int = 0
    hash: Any = field(default_factory=hashlib.sha256)
    broken: bool = False


class Reading:
    """Reads a file of any origin as an export.

    Attributes:
        sections: what was read, in order.
        blobs: digests of the blobs that are whole.
        omitted: digests that the file says it does not hold.
        left_out: whether the file was made without blobs.
        faults: what is wrong, by line; the first `MAX_FAULTS`.
    """

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.blobs: set[str] = set()
        self.omitted: dict[str, str] = {}
        self.left_out = False
        self.faults: list[Fault] = []
        self.more_faults = 0
        self._lines = Lines()
        self._last = 0
        self._open: _Open | None = None
        self._known = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Take bytes in; gives the pieces of blobs that were in them.

        Raises:
            NewerExport: the file is of a newer format.
        """
        for line in self._lines.feed(data):
            yield from self._take(line)

    def finish(self) -> Iterator[Piece]:
        """Take the end of the file in; afterwards `sections` and `faults` are complete.

        Raises:
            NewerExport: the file is of a newer format.
            NoExport: the file has no sound event.
        """
        for line in self._lines.finish():
            yield from self._take(line)
        self._close_blob()
        if not self._known or not any(section.events for section in self.sections):
            raise NoExport("it has no event of a session")
        if self._lines.marked:
            self._fault(1, "the file begins with a byte order mark: an editor or a transfer has changed it")
        if self._lines.returns:
            self._fault(1, f"{self._lines.returns} lines end with CR LF: an editor or a transfer has changed the file")
        if not self.sections[-1].ended:
            self._fault(self._last + 1, "the file is cut: its end line is missing")
        for number, section in enumerate(self.sections):
            self._settle(section, self.sections[number - 1] if number else None)
        self._missing_blobs()
        self.faults.sort(key=lambda fault: fault.line)

    # --- lines --------------------------------------------------------------------------------------------------------

    def _take(self, line: Line) -> Iterator[Piece]:
        self._last = line.number
        value = self._json(line)
        if value is None:
            return
        try:
            match value.get("kind"):
                case "header":
                    self._header(line, value)
                case "event":
                    self._event(line, value)
                case "blob":
                    yield from self._blob(line, BlobLine.model_validate(value))
                case "omitted":
                    omitted = OmittedLine.model_validate(value)
                    self._section(line).counted[2] += 1
                    self.omitted[omitted.digest] = omitted.why
                case "end":
                    self._end(line, EndLine.model_validate(value))
                case other:
                    self._fault(line.number, f"no kind of line is called {_short(other)}; left out")
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            self._fault(line.number, f"not a {_short(value.get('kind'))} line ({place}: {first['msg']}); left out")

    def _json(self, line: Line) -> dict[str, Any] | None:
        if line.data is None:
            self._fault(line.number, f"longer than {MAX_LINE_BYTES // 1_048_576} MiB, which no export writes; left out")
            return None
        try:
            value: Any = json.loads(line.data.decode(), parse_constant=_refuse)
            again = canonical_json(value)
        except UnicodeDecodeError as error:
            self._fault(line.number, f"not UTF-8 at byte {error.start}; left out")
            return None
        except (ValueError, RecursionError) as error:
            what = str(error).partition(":")[0] if isinstance(error, ValueError) else "nested too deeply"
            self._fault(line.number, f"not JSON ({_short(what)}); left out")
            return None
        if not isinstance(value, dict):
            self._fault(line.number, "not a JSON object; left out")
            return None
        if not line.ended:
            self._fault(line.number, "the file is cut: no line feed ends this line")
        elif again != line.data:
            self._fault(line.number, "written in other words than an export's: altered, though it says the same; kept")
        return cast("dict[str, Any]", value)

    def _header(self, line: Line, value: dict[str, Any]) -> None:
        version: Any = value.get("salience_export")
        decoders: Any = value.get("decoder_versions")
        newest = (
            max((n for n in cast("list[Any]", decoders) if isinstance(n, int)), default=0)
            if isinstance(decoders, list)
            else 0
        )
        if (isinstance(version, int) and version > EXPORT_VERSION) or newest > DECODER_VERSION:
            raise NewerExport("the file was made by a newer Salience")
        header = Header.model_validate(value)
        self._known = True
        if self.sections and not self.sections[-1].ended:
            self._fault(line.number, "a section begins where the one before has no end line")
        if self.sections and header.continues is None:
            self._fault(line.number, "a second export in one file; only what goes on with the first is kept")
        elif header.continues is not None and header.continues not in line.went_on_from:
            self._fault(line.number, "what stands before this section is not what it went on from: altered")
        self.left_out = self.left_out or header.blobs == "left_out"
        self.sections.append(
            Section(line.number, header, header.session_id, before=header.continues or line.went_on_from[0])
        )

    def _section(self, line: Line) -> Section:
        if not self.sections:
            self._fault(line.number, "no header stands before this line; the events say whose they are")
            self.sections.append(Section(line.number))
        return self.sections[-1]

    def _event(self, line: Line, value: dict[str, Any]) -> None:
        said = EventLine.model_validate(value)
        section = self._section(line)
        section.counted[0] += 1
        metadata = canonical_json(said.metadata)
        whole = said.payload is None or digest(canonical_json(said.payload)) == said.payload_digest
        if not whole or link(said.previous, metadata, said.payload_digest) != said.hash:
            self._fault(line.number, "the event does not match its own hash: altered; left out")
            return
        if (said.payload is None) != (said.erased is True):
            self._fault(line.number, "neither a payload nor word of its erasure, or both; left out")
            return
        envelope = Envelope.model_validate(said.metadata)
        self._known = True
        problem = _unstorable(value)
        if envelope.decoder_version > DECODER_VERSION or envelope.type not in PAYLOADS:
            problem = f"this release does not know its type {_short(envelope.type)}"
        elif PAYLOADS[envelope.type].actor != envelope.actor:
            problem = f"its actor cannot be {envelope.actor}"
        if problem is not None:
            self._fault(line.number, f"{problem}; left out")
            return
        event = None
        if said.payload is not None:
            fields = {name: field for name, field in said.metadata.items() if name != "decoder_version"}
            event = Event.model_validate({**fields, "payload": said.payload})
        kept = Recorded(line.number, envelope, said.payload, event, said.payload_digest, said.previous, said.hash)
        section.events.append(kept)

    def _blob(self, line: Line, piece: BlobLine) -> Iterator[Piece]:
        section = self._section(line)
        self._known = True
        opened = self._open
        if piece.piece == 0:
            self._close_blob()
            opened = self._open = _Open(piece.digest, line.number)
        if opened is None or opened.digest != piece.digest or opened.next != piece.piece:
            self._fault(
                line.number, f"piece {piece.piece} of blob {piece.digest[:16]} without the one before; left out"
            )
            return
        opened.next += 1
        try:
            data = base64.b64decode(piece.data, validate=True)
        except (binascii.Error, ValueError):
            self._fault(line.number, f"piece {piece.piece} of blob {piece.digest[:16]} is not base64; blob left out")
            self._open = None
            return
        opened.hash.update(data)
        whole = piece.last and opened.hash.hexdigest() == piece.digest
        if piece.last:
            self._open = None
            section.counted[1] += 1
            if not whole:
                where = "" if opened.line == line.number else f", which begins in line {opened.line},"
                what = f"blob {piece.digest[:16]}{where} does not match its digest: altered; left out"
                self._fault(line.number, what)
                return
            if piece.digest in section.blobs:
                self._fault(line.number, f"blob {piece.digest[:16]} stands here a second time")
            section.blobs.add(piece.digest)
            self.blobs.add(piece.digest)
        yield Piece(piece.digest, data, first=piece.piece == 0, whole=whole)

    def _close_blob(self) -> None:
        if self._open is not None:
            self._fault(self._open.line, f"blob {self._open.digest[:16]} is cut: its last piece is missing; left out")
            self._open = None

    def _end(self, line: Line, end: EndLine) -> None:
        section = self._section(line)
        self._known = True
        if section.ended:
            self._fault(line.number, "a second end line")
            return
        section.ended = True
        if end.digest != line.before or end.lines != line.number - 1:
            self._fault(line.number, "the file is not what was written: its digest is another")
        elif [end.events, end.blobs, end.omitted] != section.counted:
            self._fault(line.number, "the counts of the end line are not those of the lines before")

    # --- the whole ----------------------------------------------------------------------------------------------------

    def _settle(self, section: Section, before: Section | None) -> None:
        """Bring a section's events into their order, and say what is missing between them."""
        header = section.header
        if before is not None and header is not None and header.continues is None:
            section.events.clear()
            return
        if section.events:
            section.session_id = section.events[0].envelope.session_id
            if header is not None and header.session_id != section.session_id:
                self._fault(section.line, "the header names another session than the events: altered")
        kept: dict[int, Recorded] = {}
        highest = 0
        for event in section.events:
            seq, twin = event.envelope.seq, kept.get(event.envelope.seq)
            if event.envelope.session_id != section.session_id:
                self._fault(event.line, "an event of another session; left out")
            elif twin is not None:
                what = (
                    f"repeats line {twin.line}"
                    if twin.hash == event.hash
                    else f"another event {seq} than line {twin.line}"
                )
                self._fault(event.line, f"{what}; left out")
            else:
                if seq < highest:
                    self._fault(event.line, f"event {seq} stands after event {highest}; put back into its place")
                highest = max(highest, seq)
                kept[seq] = event
        section.events = [kept[seq] for seq in sorted(kept)]
        self._chain(section, header)

    def _chain(self, section: Section, header: Header | None) -> None:
        at = header.base if header is not None else None
        if at is None and (not section.events or section.events[0].envelope.seq == 1):
            at = Anchor(seq=0, head="")
        for event in section.events:
            seq = event.envelope.seq
            if at is not None and seq != at.seq + 1:
                first, last = at.seq + 1, seq - 1
                what = f"event {first} is" if first == last else f"events {first} to {last} are"
                self._fault(
                    event.line, f"{what} missing before this one" if first <= last else "an event that was told before"
                )
            elif at is not None and event.previous != at.head:
                self._fault(event.line, f"does not follow from event {at.seq}: altered; kept")
            at = Anchor(seq=seq, head=event.hash)
        if header is not None and at is not None and at.seq < header.head.seq:
            self._fault(section.line, f"events {at.seq + 1} to {header.head.seq} are missing")
        elif header is not None and at is not None and header.head != at:
            self._fault(section.line, "the header names another end of the journal than the events: altered")

    def _missing_blobs(self) -> None:
        if self.left_out:
            return
        told: set[str] = set()
        for section in self.sections:
            for event in section.events:
                for ref in named_blobs(event.payload):
                    if ref in self.blobs or ref in self.omitted or ref in told:
                        continue
                    told.add(ref)
                    self._fault(event.line, f"names blob {ref[:16]}, which the file does not hold")
        for ref, why in self.omitted.items():
            if why == "missing":
                self._fault(1, f"blob {ref[:16]} was missing already where the file was made")

    def _fault(self, line: int, message: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(line=line, message=message))
        else:
            self.more_faults += 1


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _unstorable(value: Any, depth: int = 0) -> str | None:
    """Why a value cannot stand in a record that nothing but sound events ever entered; None when it can."""
    if depth > MAX_DEPTH:
        return "nested too deeply"
    if isinstance(value, str):
        return "a NUL in its text" if "\x00" in value else None
    if isinstance(value, int):
        return None if -_LARGEST <= value <= _LARGEST else "a number beyond 64 bits"
    if isinstance(value, list):
        items: list[Any] = cast("list[Any]", value)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        items = [*fields.keys(), *fields.values()]
    else:
        return None
    return next((problem for item in items if (problem := _unstorable(item, depth + 1)) is not None), None)


def _short(value: Any) -> str:
    words = " ".join(str(value).split())
    return words if len(words) <= 60 else words[:59] + "…"
