"""The journal outlives Temporal's retention: rows are appended in order, once, and never changed (spec EVT-3, EVT-4)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg

from salience.errors import JournalConflict, NotFound
from salience.log.chain import Row
from salience.model.artifact import Artifact
from salience.model.compaction import Checkpoint
from salience.model.event import CompactionCompleted, Event
from salience.projection.projection import Projection, SavedProjection
from salience.projection.transcript import Entry, Transcript
from salience.store.bundles import StoredBundle
from salience.store.postgres import Connection, Postgres

SNAPSHOT_EVERY = 256


@dataclass(frozen=True, slots=True)
class Position:
    """Where the journal of a session stands."""

    seq: int
    head: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a session, as the journal knows it."""

    run_id: str
    generation: int
    decoder_version: int
    base_seq: int
    reset_from: str | None
    shared_until: int
    history_events: int | None
    archive_ref: str | None


@dataclass(slots=True)
class Batch:
    """What one projection records: rows, the fold after them, and what else the fold brought."""

    projection: Projection
    rows: Sequence[Row] = ()
    entries: Sequence[Entry] = ()
    artifacts: Sequence[Artifact] = ()
    bundles: Sequence[StoredBundle] = ()
    texts: dict[str, bytes] = field(default_factory=dict[str, bytes])


class Journal:
    """Appends and reads events, and keeps the fold at the journal's end as a cache."""

    def __init__(self, postgres: Postgres, tenant: str) -> None:
        self._postgres = postgres
        self._tenant = tenant

    # --- appending --------------------------------------------------------------------------------------------------

    async def record(self, connection: Connection, expected: Position, batch: Batch) -> bool:
        """Append rows and store what was folded from them, in one statement under the session's row lock.

        Args:
            connection: in autocommit mode, or inside a transaction of the caller.
            expected: where the journal must stand.
            batch: what to record.

        Returns:
            Whether it was recorded; False when the journal stands elsewhere, because another worker was here.

        Raises:
            JournalConflict: a row with the same seq or event id is there and differs (spec EVT-3).
        """
        projection = batch.projection
        session_id = projection.cursor.session_id
        values = (
            self._tenant,
            session_id,
            expected.seq,
            expected.head,
            json.dumps(_session_row(projection)),
            projection.save().model_dump_json(by_alias=True, exclude_none=True),
            json.dumps([_row_json(row) for row in batch.rows]),
            json.dumps([_entry_json(entry) for entry in batch.entries]),
            json.dumps([_artifact_json(artifact, projection.cursor.seq) for artifact in batch.artifacts]),
            json.dumps([asdict(bundle) for bundle in batch.bundles]),
            json.dumps([{"digest": ref, "body": body.decode()} for ref, body in batch.texts.items()]),
            bool(batch.rows) and batch.rows[-1].seq // SNAPSHOT_EVERY != (batch.rows[0].seq - 1) // SNAPSHOT_EVERY,
        )
        try:
            found = await connection.execute(_RECORD, values)
        except psycopg.DatabaseError as error:
            if error.sqlstate != _DIFFERS:
                raise
            raise JournalConflict(
                f"journal row {error.diag.message_detail} of {session_id} differs from what history decodes to",
                mend=f"salience verify {session_id}",
            ) from error
        row = await found.fetchone()
        return bool(row and row[0])

    async def register_run(self, connection: Connection, session_id: str, run: Run) -> None:
        """Note a run at its beginning; noting it again changes nothing."""
        await connection.execute(
            "INSERT INTO runs (tenant, session_id, run_id, generation, decoder_version, base_seq, reset_from,"
            " shared_until) VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (
                self._tenant,
                session_id,
                run.run_id,
                run.generation,
                run.decoder_version,
                run.base_seq,
                run.reset_from,
                run.shared_until,
            ),
        )

    async def forget_folds(self, connection: Connection, session_id: str) -> None:
        """Drop what can be folded again: transcript, snapshots, artifacts and bundles. The log itself stays."""
        for table in ("messages", "state_snapshots", "artifacts", "bundles"):
            await connection.execute(
                f"DELETE FROM {table} WHERE tenant = %s AND session_id = %s", (self._tenant, session_id)
            )

    async def register_archive(self, session_id: str, run_id: str, archive_ref: str, history_events: int) -> None:
        """Note where a run's history is kept."""
        async with self._postgres.connection() as connection:
            await connection.execute(
                "UPDATE runs SET archive_ref = %s, history_events = %s"
                " WHERE tenant = %s AND session_id = %s AND run_id = %s",
                (archive_ref, history_events, self._tenant, session_id, run_id),
            )

    # --- reading ------------------------------------------------------------------------------------------------------

    async def load(self, session_id: str) -> Projection | None:
        """The fold at the journal's end with the whole transcript; None for an unknown session."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT projection FROM sessions WHERE tenant = %s AND session_id = %s", (self._tenant, session_id)
            )
            row = await found.fetchone()
            if row is None or row[0] is None:
                return None
            saved = SavedProjection.model_validate_json(row[0])
            entries = await self._entries(connection, session_id)
        seen = {e.message_id for e in entries if e.kind == "prompt"}
        seen |= {e.message_id for e in saved.transcript.pending}
        return Projection.load(saved, Transcript(entries, seen, saved.transcript))

    async def _entries(self, connection: Connection, session_id: str) -> list[Entry]:
        found = await connection.execute(
            "SELECT body FROM messages WHERE tenant = %s AND session_id = %s ORDER BY position",
            (self._tenant, session_id),
        )
        return [Entry.model_validate_json(row[0]) for row in await found.fetchall()]

    async def latest(self, session_id: str) -> SavedProjection:
        """The fold at the journal's end without the transcript.

        Raises:
            NotFound: there is no such session.
        """
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT projection FROM sessions WHERE tenant = %s AND session_id = %s", (self._tenant, session_id)
            )
            row = await found.fetchone()
        if row is None or row[0] is None:
            raise NotFound(f"no session {session_id!r}", mend="salience list")
        return SavedProjection.model_validate_json(row[0])

    async def snapshot_before(self, session_id: str, seq: int) -> SavedProjection | None:
        """The latest snapshot at or before a seq."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT body FROM state_snapshots WHERE tenant = %s AND session_id = %s AND seq <= %s"
                " ORDER BY seq DESC LIMIT 1",
                (self._tenant, session_id, seq),
            )
            row = await found.fetchone()
        return SavedProjection.model_validate_json(row[0]) if row else None

    async def rows(self, session_id: str, *, after: int = 0, upto: int | None = None) -> AsyncIterator[Row]:
        """The journal's rows in order, fetched page by page."""
        last = upto if upto is not None else 2**62
        while True:
            async with self._postgres.connection() as connection:
                found = await connection.execute(
                    f"SELECT {_ROW} FROM events WHERE tenant = %s AND session_id = %s AND seq > %s AND seq <= %s"
                    " ORDER BY seq LIMIT 2000",
                    (self._tenant, session_id, after, last),
                )
                page = [Row(*row) for row in await found.fetchall()]
            for row in page:
                yield row
            if len(page) < 2000:
                return
            after = page[-1].seq

    async def events(self, session_id: str, *, after: int = 0, upto: int | None = None) -> AsyncIterator[Event]:
        """The journal's events in order; erased ones are left out, `verify` counts them."""
        async for row in self.rows(session_id, after=after, upto=upto):
            if row.payload is not None:
                yield event_of(row)

    async def seq_of(self, session_id: str, event_id: str) -> int:
        """The seq of an event id, or of a bare seq number given as text.

        Raises:
            NotFound: the session has no such event.
        """
        column = "seq = %s" if event_id.isdigit() else "event_id = %s"
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                f"SELECT seq FROM events WHERE tenant = %s AND session_id = %s AND {column}",
                (self._tenant, session_id, int(event_id) if event_id.isdigit() else event_id),
            )
            row = await found.fetchone()
        if row is None:
            raise NotFound(f"session {session_id} has no event {event_id!r}", mend=f"salience events {session_id}")
        return row[0]

    async def position(self, session_id: str) -> Position | None:
        """Where the journal stands; None for an unknown session."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT seq, head FROM sessions WHERE tenant = %s AND session_id = %s", (self._tenant, session_id)
            )
            row = await found.fetchone()
        return Position(*row) if row else None

    async def runs(self, session_id: str) -> list[Run]:
        """The session's runs, first to last."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT run_id, generation, decoder_version, base_seq, reset_from, shared_until, history_events,"
                " archive_ref FROM runs WHERE tenant = %s AND session_id = %s ORDER BY generation",
                (self._tenant, session_id),
            )
            return [Run(*row) for row in await found.fetchall()]

    async def archived(self) -> set[tuple[str, str]]:
        """(session id, run id) of every run whose history is kept."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT session_id, run_id FROM runs WHERE tenant = %s AND archive_ref IS NOT NULL", (self._tenant,)
            )
            return {(row[0], row[1]) for row in await found.fetchall()}

    async def sessions(self, *, limit: int = 100, status: str | None = None) -> list[dict[str, Any]]:
        """Sessions by latest change: {session_id, status, end_reason, model, title, seq, created_at, updated_at}."""
        only = "AND status = %s" if status else ""
        values: list[Any] = [self._tenant, *([status] if status else []), limit]
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT session_id, status, end_reason, model, title, seq, created_at, updated_at FROM sessions"
                f" WHERE tenant = %s AND projection IS NOT NULL {only} ORDER BY updated_at DESC LIMIT %s",
                values,
            )
            names = ("session_id", "status", "end_reason", "model", "title", "seq", "created_at", "updated_at")
            return [dict(zip(names, row, strict=True)) for row in await found.fetchall()]

    async def transcript(self, session_id: str) -> list[Entry]:
        """The stored transcript, in order."""
        async with self._postgres.connection() as connection:
            return await self._entries(connection, session_id)

    async def checkpoints(self, session_id: str) -> list[Checkpoint]:
        """Every checkpoint the session ever had, first to last, rolled-back ones included."""
        return [
            event.payload.checkpoint
            for event in await self.compactions(session_id)
            if isinstance(event.payload, CompactionCompleted)
        ]

    async def compactions(self, session_id: str) -> list[Event]:
        """The events that tell of compactions, in order."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                f"SELECT {_ROW} FROM events WHERE tenant = %s AND session_id = %s AND type LIKE 'Compaction%%'"
                " AND payload IS NOT NULL ORDER BY seq",
                (self._tenant, session_id),
            )
            return [event_of(Row(*row)) for row in await found.fetchall()]

    async def artifacts(self, session_id: str) -> list[Artifact]:
        """The session's artifacts, in order of appearance."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT body FROM artifacts WHERE tenant = %s AND session_id = %s ORDER BY seq, artifact_id",
                (self._tenant, session_id),
            )
            return [Artifact.model_validate_json(row[0]) for row in await found.fetchall()]


_DIFFERS = "SL001"
"""SQLSTATE that `record_projection` raises for a row that is there and differs."""
_RECORD = "SELECT record_projection(%s, %s, %s, %s, %s::json, %s, %s::json, %s::json, %s::json, %s::json, %s::json, %s)"
_ROW = "seq, event_id, run_id, type, metadata, payload, payload_digest, hash"


def _session_row(projection: Projection) -> dict[str, Any]:
    place = projection.workplace
    return {
        "seq": projection.cursor.seq,
        "head": projection.head,
        "run_id": projection.cursor.run_id,
        "history_id": projection.cursor.history_id,
        "status": place.status,
        "end_reason": place.end_reason,
        "model": place.config.model_settings.model if place.config else "",
        "title": projection.state.goal.user_goal[:200],
        "created_at": place.created_at,
        "updated_at": place.updated_at,
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "position": entry.position,
        "message_id": entry.message_id,
        "kind": entry.kind,
        "seq": entry.seq,
        "body": entry.model_dump_json(exclude_none=True),
    }


def _artifact_json(artifact: Artifact, seq: int) -> dict[str, Any]:
    return {
        "artifact_id": artifact.artifact_id,
        "kind": artifact.kind,
        "content_hash": artifact.content_hash,
        "size_bytes": artifact.size_bytes,
        "source_event_id": artifact.source_event_id,
        "seq": seq,
        "body": artifact.model_dump_json(exclude_none=True),
    }


def event_of(row: Row) -> Event:
    """The event a row holds; its payload must not be erased."""
    metadata = json.loads(row.metadata)
    metadata.pop("decoder_version", None)
    return Event.model_validate({**metadata, "payload": json.loads(row.payload or "{}")})
