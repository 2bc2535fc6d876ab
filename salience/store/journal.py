"""The journal outlives Temporal's retention: rows are appended in order, once, and never changed (spec EVT-3, EVT-4)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from salience.errors import JournalConflict, NotFound
from salience.log.chain import Row
from salience.model.artifact import Artifact
from salience.model.event import Event
from salience.projection.projection import Projection, SavedProjection
from salience.projection.transcript import Entry, Transcript
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


class Journal:
    """Appends and reads events, and keeps the fold at the journal's end as a cache."""

    def __init__(self, postgres: Postgres, tenant: str) -> None:
        self._postgres = postgres
        self._tenant = tenant

    # --- appending: everything inside one transaction of the caller -------------------------------------------------

    async def lock(self, connection: Connection, session_id: str) -> Position:
        """Take the session's row lock and say where the journal stands; makes the row of a new session."""
        found = await connection.execute(
            "SELECT seq, head FROM sessions WHERE tenant = %s AND session_id = %s FOR UPDATE",
            (self._tenant, session_id),
        )
        row = await found.fetchone()
        if row is None:
            await connection.execute(
                "INSERT INTO sessions (tenant, session_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (self._tenant, session_id),
            )
            return await self.lock(connection, session_id)
        return Position(seq=row[0], head=row[1])

    async def append(self, connection: Connection, session_id: str, rows: Sequence[Row]) -> None:
        """Append rows; a row that is already there must be identical (spec EVT-3).

        Raises:
            JournalConflict: a row with the same seq or event id exists and differs.
        """
        if not rows:
            return
        made = await connection.execute(
            "INSERT INTO events (tenant, session_id, seq, event_id, run_id, type, metadata, payload, payload_digest, hash)"
            " SELECT %s, %s, * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],"
            " %s::text[], %s::text[]) ON CONFLICT DO NOTHING",
            (
                self._tenant,
                session_id,
                [r.seq for r in rows],
                [r.event_id for r in rows],
                [r.run_id for r in rows],
                [r.type for r in rows],
                [r.metadata for r in rows],
                [r.payload for r in rows],
                [r.payload_digest for r in rows],
                [r.hash for r in rows],
            ),
        )
        if made.rowcount != len(rows):
            await self._compare(connection, session_id, rows)

    async def _compare(self, connection: Connection, session_id: str, rows: Sequence[Row]) -> None:
        found = await connection.execute(
            f"SELECT {_ROW} FROM events WHERE tenant = %s AND session_id = %s AND seq BETWEEN %s AND %s",
            (self._tenant, session_id, rows[0].seq, rows[-1].seq),
        )
        stored = {row[0]: Row(*row) for row in await found.fetchall()}
        for row in rows:
            there = stored.get(row.seq)
            if there is None or (there.event_id, there.hash, there.payload_digest, there.metadata) != (
                row.event_id,
                row.hash,
                row.payload_digest,
                row.metadata,
            ):
                raise JournalConflict(
                    f"journal row {row.seq} of {session_id} differs from what history decodes to",
                    mend=f"salience verify {session_id}",
                )

    async def save(
        self,
        connection: Connection,
        projection: Projection,
        events: Sequence[Event],
        artifacts: Sequence[Artifact],
        entries: Sequence[Entry],
    ) -> None:
        """Store the fold after `events`: the mutable latest row, new transcript entries, artifacts, maybe a snapshot."""
        session_id = projection.cursor.session_id
        place = projection.workplace
        saved = projection.save()
        body = saved.model_dump_json(by_alias=True, exclude_none=True)
        await connection.execute(
            "UPDATE sessions SET seq = %s, head = %s, run_id = %s, history_id = %s, status = %s, end_reason = %s,"
            " model = %s, title = %s, created_at = %s, updated_at = %s, projection = %s"
            " WHERE tenant = %s AND session_id = %s",
            (
                projection.cursor.seq,
                projection.head,
                projection.cursor.run_id,
                projection.cursor.history_id,
                place.status,
                place.end_reason,
                place.config.model_settings.model if place.config else "",
                projection.state.goal.user_goal[:200],
                place.created_at,
                place.updated_at,
                body,
                self._tenant,
                session_id,
            ),
        )
        if entries:
            await connection.execute(
                "INSERT INTO messages (tenant, session_id, position, message_id, kind, seq, body)"
                " SELECT %s, %s, * FROM unnest(%s::int[], %s::text[], %s::text[], %s::bigint[], %s::text[])"
                " ON CONFLICT DO NOTHING",
                (
                    self._tenant,
                    session_id,
                    [e.position for e in entries],
                    [e.message_id for e in entries],
                    [e.kind for e in entries],
                    [e.seq for e in entries],
                    [e.model_dump_json(exclude_none=True) for e in entries],
                ),
            )
        if artifacts:
            await connection.execute(
                "INSERT INTO artifacts (tenant, session_id, artifact_id, kind, content_hash, size_bytes,"
                " source_event_id, seq, body) SELECT %s, %s, * FROM unnest(%s::text[], %s::text[], %s::text[],"
                " %s::bigint[], %s::text[], %s::bigint[], %s::text[]) ON CONFLICT DO NOTHING",
                (
                    self._tenant,
                    session_id,
                    [a.artifact_id for a in artifacts],
                    [a.kind for a in artifacts],
                    [a.content_hash for a in artifacts],
                    [a.size_bytes for a in artifacts],
                    [a.source_event_id for a in artifacts],
                    [projection.cursor.seq for _ in artifacts],
                    [a.model_dump_json(exclude_none=True) for a in artifacts],
                ),
            )
        if events and events[-1].seq // SNAPSHOT_EVERY != (events[0].seq - 1) // SNAPSHOT_EVERY:
            await connection.execute(
                "INSERT INTO state_snapshots (tenant, session_id, seq, head, body) VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                (self._tenant, session_id, projection.cursor.seq, projection.head, body),
            )

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
        transcript = Transcript.load(saved.transcript, seen)
        transcript.entries = entries
        return Projection.load(saved, transcript)

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

    async def artifacts(self, session_id: str) -> list[Artifact]:
        """The session's artifacts, in order of appearance."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT body FROM artifacts WHERE tenant = %s AND session_id = %s ORDER BY seq, artifact_id",
                (self._tenant, session_id),
            )
            return [Artifact.model_validate_json(row[0]) for row in await found.fetchall()]


_ROW = "seq, event_id, run_id, type, metadata, payload, payload_digest, hash"


def event_of(row: Row) -> Event:
    """The event a row holds; its payload must not be erased."""
    metadata = json.loads(row.metadata)
    metadata.pop("decoder_version", None)
    return Event.model_validate({**metadata, "payload": json.loads(row.payload or "{}")})
