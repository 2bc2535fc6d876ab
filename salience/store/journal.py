"""The journal outlives Temporal's retention: rows are appended in order, once, and never changed (spec EVT-3, EVT-4)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import psycopg

from salience.errors import JournalConflict, NotFound, VerificationFailed
from salience.log.chain import Row, event_of
from salience.model import text
from salience.model.artifact import Artifact
from salience.model.compaction import Checkpoint
from salience.model.event import CompactionCompleted, Event
from salience.model.state import State
from salience.projection.projection import Projection, SavedProjection, Standing, Workplace
from salience.projection.state import FOLD_VERSION, fold_state
from salience.projection.stretch import Stretch
from salience.projection.transcript import Entry, Transcript
from salience.store.batch import DIFFERS, RECORD, SMALL_STATE, Batch, Position, Written, values, written
from salience.store.postgres import Connection, Postgres


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


@dataclass(frozen=True, slots=True)
class _Latest:
    """The mutable latest row: the fold without its state, and the state as it was stored last, if it is of use."""

    standing: Standing
    state: str | None
    state_seq: int


@dataclass(frozen=True, slots=True)
class StateAt:
    """The state after the row with this seq, whose hash is `head`; before the first row, 0 and empty."""

    seq: int
    head: str
    state: State


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
        session_id = batch.projection.cursor.session_id

        def prepared() -> tuple[Written, tuple[Any, ...]]:
            fold = written(batch)
            return fold, values(self._tenant, expected, batch, fold)

        # Of thousands of rows the JSON takes long enough to keep a worker's other activities from beating.
        fold, row_values = await asyncio.to_thread(prepared) if len(batch.rows) > 500 else prepared()
        try:
            found = await connection.execute(RECORD, row_values)
        except psycopg.DatabaseError as error:
            if error.sqlstate != DIFFERS:
                raise
            raise JournalConflict(
                f"journal row {error.diag.message_detail} of {session_id} differs from what history decodes to",
                mend=f"salience verify {session_id}",
            ) from error
        row = await found.fetchone()
        if not (row and row[0]):
            return False
        batch.projection.state_size = fold.state_size
        return True

    async def register_run(self, connection: Connection, session_id: str, run: Run) -> None:
        """Note a run at its beginning; noting it again changes nothing."""
        await connection.execute(
            "INSERT INTO runs (tenant, session_id, run_id, generation, decoder_version, base_seq, reset_from,"
            " shared_until, history_events, archive_ref) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (
                self._tenant,
                session_id,
                run.run_id,
                run.generation,
                run.decoder_version,
                run.base_seq,
                run.reset_from,
                run.shared_until,
                run.history_events,
                run.archive_ref,
            ),
        )

    async def forget_folds(self, connection: Connection, session_id: str) -> None:
        """Drop what can be folded again: state, transcript, snapshots, artifacts and bundles. The log itself stays."""
        for table in ("messages", "state_snapshots", "artifacts", "bundles"):
            await connection.execute(
                f"DELETE FROM {table} WHERE tenant = %s AND session_id = %s", (self._tenant, session_id)
            )
        await connection.execute(
            "UPDATE sessions SET state = NULL, state_seq = 0 WHERE tenant = %s AND session_id = %s",
            (self._tenant, session_id),
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

    async def load(
        self,
        session_id: str,
    ) -> Projection | None:
        """The fold at the journal's end, with the entries no checkpoint stands for; None for an unknown session.

        Raises:
            VerificationFailed: a cache was deleted that events alone do not bring back.
        """
        latest = await self._latest(session_id)
        if latest is None:
            return None
        standing = latest.standing
        state, size = await self._state(session_id, latest)
        entries = await self.verbatim(session_id, standing.workplace, standing.transcript.length)
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT message_id FROM messages WHERE tenant = %s AND session_id = %s AND kind = 'prompt'"
                " AND position < %s",
                (self._tenant, session_id, standing.transcript.length),
            )
            seen = {row[0] for row in await found.fetchall()}
        seen |= {entry.message_id for entry in standing.transcript.pending}
        transcript = Transcript(entries, seen, standing.transcript)
        projection = Projection.load(_whole(standing, state), transcript)
        projection.state_size = size
        return projection

    async def verbatim(self, session_id: str, workplace: Workplace, length: int) -> Stretch[Entry]:
        """The stored entries that no checkpoint stands for, of a transcript of some length.

        Raises:
            VerificationFailed: some were deleted.
        """
        first = min(workplace.verbatim_from, length)
        async with self._postgres.connection() as connection:
            entries = await self._entries(connection, session_id, first, length)
            spared = await self._entries(connection, session_id, workplace.prompts_from, first, kind="prompt")
        if len(entries) != length - first:
            raise VerificationFailed(
                f"the transcript of {session_id} has {len(entries)} of {length - first} stored entries",
                mend=f"salience verify {session_id} --rebuild",
            )
        return Stretch(
            entries,
            first=first,
            spared={entry.position: entry for entry in spared},
            spared_from=workplace.prompts_from,
        )

    async def latest(self, session_id: str) -> SavedProjection:
        """The fold at the journal's end without the transcript.

        Raises:
            NotFound: there is no such session.
        """
        latest = await self._latest(session_id)
        if latest is None:
            raise NotFound(f"no session {session_id!r}", mend="salience list")
        state, _ = await self._state(session_id, latest)
        return _whole(latest.standing, state)

    async def state(self, session_id: str, earlier: StateAt | None = None) -> StateAt:
        """The state at the journal's end.

        Args:
            session_id: the session; one that has no row yet has an empty state.
            earlier: what was answered before. Where the journal still has its row, only events since are read.
        """
        if earlier is not None and (later := await self._folded_on(session_id, earlier)) is not None:
            return later
        latest = await self._latest(session_id)
        if latest is None:
            return StateAt(0, "", State(session_id=session_id))
        state, _ = await self._state(session_id, latest)
        return StateAt(latest.standing.cursor.seq, latest.standing.head, state)

    async def _folded_on(self, session_id: str, earlier: StateAt) -> StateAt | None:
        known, state, seq, head = False, earlier.state, earlier.seq, earlier.head
        async for row in self.rows(session_id, after=earlier.seq - 1):
            if row.seq == earlier.seq:
                known = row.hash == earlier.head
            if not known:
                return None
            if row.seq > earlier.seq and row.payload is not None:
                state = fold_state(state, event_of(row))
            seq, head = row.seq, row.hash
        return StateAt(seq, head, state) if known else None

    async def standing(self, session_id: str) -> Standing:
        """The same without the state: one row, whatever the session has done.

        Raises:
            NotFound: there is no such session.
        """
        latest = await self._latest(session_id)
        if latest is None:
            raise NotFound(f"no session {session_id!r}", mend="salience list")
        return latest.standing

    async def _latest(self, session_id: str) -> _Latest | None:
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT projection, seq, CASE WHEN state_fold = %s THEN state END, state_seq FROM sessions"
                " WHERE tenant = %s AND session_id = %s",
                (FOLD_VERSION, self._tenant, session_id),
            )
            row = await found.fetchone()
        if row is None:
            return None
        projection, seq, state, state_seq = row
        if projection is None:
            if not seq:
                return None
            raise VerificationFailed(
                f"what was folded of {session_id} is not stored", mend=f"salience verify {session_id} --rebuild"
            )
        return _Latest(Standing.model_validate_json(projection), state, state_seq)

    async def _state(self, session_id: str, latest: _Latest) -> tuple[State, int]:
        """The state at the journal's end and its size: the newest that is stored, and the events since then."""
        upto = latest.standing.cursor.seq
        state, size, seq = State(session_id=session_id), 0, 0
        if latest.state is not None:
            state, size, seq = State.model_validate_json(latest.state), len(latest.state), latest.state_seq
        if seq < upto:
            snapshot = await self.snapshot_before(session_id, upto, after=seq)
            if snapshot is not None:
                # Newer than the row's own: the state was too large for the row by then.
                state, size, seq = snapshot.state, SMALL_STATE + 1, snapshot.cursor.seq
        if seq < upto:
            async for event in self.events(session_id, after=seq, upto=upto):
                state = fold_state(state, event)
        return state, size

    async def _entries(
        self, connection: Connection, session_id: str, first: int = 0, upto: int = 2**31 - 1, kind: str = ""
    ) -> list[Entry]:
        only = "AND kind = 'prompt'" if kind == "prompt" else ""
        found = await connection.execute(
            "SELECT body FROM messages WHERE tenant = %s AND session_id = %s AND position >= %s AND position < %s"
            f" {only} ORDER BY position",
            (self._tenant, session_id, first, upto),
        )
        return [Entry.model_validate_json(row[0]) for row in await found.fetchall()]

    async def prompts(self, session_id: str) -> list[Entry]:
        """The user's messages in the stored transcript, in order."""
        async with self._postgres.connection() as connection:
            return await self._entries(connection, session_id, kind="prompt")

    async def snapshot_before(self, session_id: str, seq: int, *, after: int = 0) -> SavedProjection | None:
        """The latest snapshot at or before a seq and after another, made by this release's fold."""
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                "SELECT body FROM state_snapshots WHERE tenant = %s AND session_id = %s AND fold = %s AND seq <= %s"
                " AND seq > %s ORDER BY seq DESC LIMIT 1",
                (self._tenant, session_id, FOLD_VERSION, seq, after),
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
        number = int(event_id) if _SEQ.fullmatch(event_id) else None
        column = "event_id = %s" if number is None else "seq = %s"
        async with self._postgres.connection() as connection:
            found = await connection.execute(
                f"SELECT seq FROM events WHERE tenant = %s AND session_id = %s AND {column}",
                (self._tenant, session_id, text.mend(event_id) if number is None else number),
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


# What Postgres takes for a bigint; "²" is a digit to Python and no number.
_SEQ = re.compile(r"[0-9]{1,18}")
_ROW = "seq, event_id, run_id, type, metadata, payload, payload_digest, hash"


def _whole(standing: Standing, state: State) -> SavedProjection:
    return SavedProjection.model_construct(**dict(standing), state=state)
