"""An imported event is named by the imported file and its line, and everything that referred to it follows (spec EVT-2b).

Importing is decoding: the same file gives the same rows anywhere, so the file is a session's raw log as history is one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from salience.log.chain import Row, link
from salience.log.decode import Cursor
from salience.log.named import with_references
from salience.log.reading import Recorded, Section
from salience.model.bundle import BundleManifest
from salience.model.canonical import canonical_json, digest
from salience.model.event import Anchor, Event
from salience.model.export import Fault, Workplace

PREFIX: Final = "import:"


def is_import(run_id: str) -> bool:
    """Whether a run is an imported file."""
    return run_id.startswith(PREFIX)


def import_run(file_ref: str) -> str:
    """The run that a file is, by its digest."""
    return f"{PREFIX}{file_ref}"


@dataclass(frozen=True, slots=True)
class _Told:
    """One event before it is renamed."""

    line: int
    metadata: dict[str, Any]
    payload: dict[str, Any] | None
    payload_digest: str


@dataclass(slots=True)
class ImportedLog:
    """A file as the beginning of a session's journal.

    Attributes:
        file_ref: the file's digest.
        session_id: the session it is imported as.
        own: the events of the file's last section, as they were recorded.
        inner: the session as it was when that section began, when it had been imported itself.
        rows: the journal rows.
        events: their events; None where the payload is erased.
        faults: what does not agree between the sections.
    """

    file_ref: str
    session_id: str
    workplace: Workplace | None
    own: Sequence[Recorded]
    inner: ImportedLog | None
    rows: list[Row] = field(default_factory=list[Row])
    events: list[Event | None] = field(default_factory=list[Event | None])
    faults: list[Fault] = field(default_factory=list[Fault])
    _told: list[_Told] = field(default_factory=list[_Told])
    _ids: dict[str, str] = field(default_factory=dict[str, str])
    _seqs: list[int] = field(default_factory=list[int])

    @property
    def run_id(self) -> str:
        """The run that the file is."""
        return import_run(self.file_ref)

    @property
    def recorded_as(self) -> str:
        """The session as which the file's last section was recorded."""
        if self.inner is not None:
            return self.inner.session_id
        return self.own[0].envelope.session_id if self.own else self.session_id

    @property
    def cursor(self) -> Cursor:
        """Where decoding stands behind it: at the end of the session's first run."""
        return Cursor(
            session_id=self.session_id,
            run_id=self.run_id,
            generation=1,
            history_id=max((told.line for told in self._told), default=0),
            seq=len(self.rows),
            last_event_id=self.rows[-1].event_id if self.rows else None,
            ended=True,
        )

    @property
    def anchor(self) -> Anchor:
        """The end of its rows."""
        return Anchor(seq=len(self.rows), head=self.rows[-1].hash if self.rows else "")

    def event_id(self, was: str) -> str:
        """The id of an event that had another where it was recorded; of anything else, the same."""
        return self._ids.get(was, was)

    def at(self, was: int) -> Anchor:
        """The journal where it was at a seq of the recorded one; where an event is missing, at the one before it."""
        seq = bisect_right(self._seqs, was)
        return Anchor(seq=seq, head=self.rows[seq - 1].hash if seq else "")

    def manifest(self, recorded: BundleManifest) -> BundleManifest:
        """A bundle of the recorded journal as one of this: the same id, hash and texts, with its sources renamed."""
        named = with_references(recorded.plain(), self.event_id, self._anchored)
        named |= {"session_id": self.session_id, "source_seq": self.at(recorded.source_seq).seq}
        return BundleManifest.model_validate(named)

    def _anchored(self, was: int) -> tuple[int, str]:
        at = self.at(was)
        return at.seq, at.head

    def _take(self, told: Sequence[_Told], session_id: str) -> None:
        """Make the rows. Anchors name rows that came before, so one pass is enough."""
        self._ids = {str(one.metadata["event_id"]): f"{self.run_id}:{one.line}" for one in told}
        for one in told:
            payload = None if one.payload is None else self._payload(one.payload, session_id)
            metadata: dict[str, Any] = {
                **one.metadata,
                "event_id": f"{self.run_id}:{one.line}",
                "session_id": self.session_id,
                "run_id": self.run_id,
                "parent_event_id": self.rows[-1].event_id if self.rows else None,
                "seq": len(self.rows) + 1,
            }
            payload_digest = one.payload_digest if payload is None else digest(canonical_json(payload))
            text = canonical_json(metadata)
            self.rows.append(
                Row(
                    seq=metadata["seq"],
                    event_id=metadata["event_id"],
                    run_id=self.run_id,
                    type=metadata["type"],
                    metadata=text.decode(),
                    payload=None if payload is None else canonical_json(payload).decode(),
                    payload_digest=payload_digest,
                    hash=link(self.anchor.head, text, payload_digest),
                )
            )
            self._seqs.append(int(one.metadata["seq"]))
            self._told.append(_Told(one.line, metadata, payload, payload_digest))
            fields = {name: value for name, value in metadata.items() if name != "decoder_version"}
            self.events.append(None if payload is None else Event.model_validate({**fields, "payload": payload}))

    def _payload(self, payload: dict[str, Any], session_id: str) -> dict[str, Any]:
        named: dict[str, Any] = with_references(payload, self.event_id, self._anchored)
        if named.get("root_session_id") == session_id:
            named["root_session_id"] = self.session_id
        config = named.get("config")
        if self.workplace is not None and isinstance(config, dict):
            kept = {name: value for name, value in cast("dict[str, Any]", config).items() if name != "repo_root"}
            named["config"] = {**kept, "cwd": self.workplace.cwd}
        return named


def imported_log(
    sections: Sequence[Section], file_ref: str, session_id: str, workplace: Workplace | None
) -> ImportedLog:
    """What a file is as the beginning of a journal.

    A file with several sections is a session that was imported and went on, perhaps more than once: the beginning is
    decoded as it was decoded then, which gives the ids that the later events refer to.

    Args:
        sections: from a `Reading` that is finished.
        file_ref: the file's digest.
        session_id: the session to make of it.
        workplace: where that session shall work; None: where it worked.
    """
    last = sections[-1]
    inner, told = None, list[_Told]()
    faults: list[Fault] = []
    if len(sections) > 1:
        header = last.header
        inner = imported_log(
            sections[:-1],
            last.before,
            header.session_id if header else session_id,
            header.workplace if header else None,
        )
        told += inner._told
        faults += inner.faults
        if header is not None and header.continues is not None and header.base != inner.anchor:
            what = f"went on from event {header.base.seq} of another record than the lines before it are"
            faults.append(Fault(line=last.line, message=f"this section {what}: altered"))
    told += [
        _Told(
            event.line,
            event.envelope.model_dump(mode="json") | {"causality": event.envelope.causality.plain()},
            event.payload,
            event.payload_digest,
        )
        for event in last.events
    ]
    log = ImportedLog(file_ref, session_id, workplace, last.events, inner, faults=faults)
    log._take(told, last.session_id)
    return log
