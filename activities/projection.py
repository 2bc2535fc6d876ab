"""The journal is brought up to exactly one history event, in one transaction, whoever does it and however often (EVT-3).

Live projection, the catch-up of a run that ended, rebuild after data loss and verification decode with the same code.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from temporalio.api.history.v1 import HistoryEvent

from salience.errors import NotFound
from salience.log.chain import Row, row_of
from salience.log.decode import Cursor, begin_run, decode, reset_point
from salience.model.artifact import Artifact
from salience.model.event import Anchor, Event
from salience.projection.projection import Projection, artifacts_of
from salience.store.blobs import BlobStore
from salience.store.history import Histories
from salience.store.journal import Journal, Run
from salience.store.postgres import Connection, Postgres

KEPT_SESSIONS = 64
"""Folds a worker keeps in memory: the next turn of a session usually comes back to the same worker."""


@dataclass(slots=True)
class Projecting:
    """An open projection: the fold, and the transaction it will be stored in when the block ends."""

    projection: Projection
    connection: Connection
    events: list[Event]

    @property
    def anchor(self) -> Anchor:
        """The journal as this projection leaves it."""
        return anchor_of(self.projection)


def anchor_of(projection: Projection) -> Anchor:
    """Seq and head of a fold."""
    return Anchor(seq=projection.cursor.seq, head=projection.head)


class Projector:
    """Reads history, decodes, appends and folds."""

    def __init__(self, postgres: Postgres, journal: Journal, histories: Histories, blobs: BlobStore) -> None:
        self._postgres = postgres
        self._journal = journal
        self._histories = histories
        self._blobs = blobs
        self._folds: OrderedDict[str, Projection] = OrderedDict()

    @asynccontextmanager
    async def projecting(
        self, session_id: str, run_id: str, *, upto_activity: str | None = None
    ) -> AsyncIterator[Projecting]:
        """Project, and hold the transaction open for what belongs to it.

        Args:
            session_id: the session.
            run_id: the run to project. Runs before it are finished first; a run that a later one has followed is done.
            upto_activity: stop at this activity's own schedule event, so that a retry reads the same range; None takes
                everything there is.

        Raises:
            NotFound: neither Temporal nor the journal knows the run.
            JournalConflict: the journal has other rows than history decodes to.
            BackendUnavailable: a store did not answer.
        """
        projection = self._folds.pop(session_id, None) or await self._journal.load(session_id)
        if projection is None or projection.cursor.run_id != run_id:
            projection = await self._enter(projection or Projection.empty(session_id), run_id)
        history = await self._history(projection.cursor, run_id, upto_activity)
        async with self._postgres.transaction() as connection:
            position = await self._journal.lock(connection, session_id)
            if (position.seq, position.head) != (projection.cursor.seq, projection.head):
                # Another worker was here since this fold was kept: its rows are the record, start from them.
                projection = await self._journal.load(session_id) or Projection.empty(session_id)
                history = await self._history(projection.cursor, run_id, upto_activity)
            length = len(projection.transcript.entries)
            events, artifacts = await self._append(connection, projection, history)
            yield Projecting(projection, connection, events)
            entries = projection.transcript.entries[length:]
            await self._journal.save(connection, projection, events, artifacts, entries)
        self._keep(projection)

    async def project(self, session_id: str, run_id: str, *, upto_activity: str | None = None) -> Projection:
        """Project and store; returns the fold."""
        async with self.projecting(session_id, run_id, upto_activity=upto_activity) as open_projection:
            pass
        return open_projection.projection

    async def _history(self, cursor: Cursor, run_id: str, upto_activity: str | None) -> list[HistoryEvent]:
        if cursor.run_id != run_id or cursor.ended:
            return []
        return await self._histories.since(cursor.session_id, run_id, cursor.history_id, upto_activity=upto_activity)

    async def _append(
        self, connection: Connection, projection: Projection, history: list[HistoryEvent]
    ) -> tuple[list[Event], list[Artifact]]:
        decoded, cursor = decode(history, projection.cursor)
        for data in decoded.blobs.values():
            await self._blobs.put(data)
        rows: list[Row] = []
        artifacts: list[Artifact] = []
        head = projection.head
        for event in decoded.events:
            row = row_of(event, head, cursor.decoder_version)
            head = row.hash
            rows.append(row)
            artifacts.extend(artifacts_of(event))
            projection.fold(event)
        await self._journal.append(connection, cursor.session_id, rows)
        projection.cursor = cursor
        projection.head = head
        return decoded.events, artifacts

    async def _enter(self, projection: Projection, run_id: str) -> Projection:
        """The fold at the beginning of a run, with every run before it finished.

        A run that the journal has left behind already is not entered again: its fold comes back as it is.
        """
        session_id = projection.cursor.session_id
        known = {run.run_id for run in await self._journal.runs(session_id)}
        if run_id in known:
            return projection
        if projection.cursor.run_id and not projection.cursor.ended:
            projection = await self._finish(projection)
        for ref in await self._histories.runs(session_id):
            if ref.run_id == run_id:
                break
            if ref.run_id not in known and not ref.running:
                # A run that came and went without a worker: it has inputs that must not be lost.
                projection = await self._finish(await self._begin(projection, ref.run_id))
        return await self._begin(projection, run_id)

    async def _finish(self, projection: Projection) -> Projection:
        """The fold at the end of a run that has closed; what Temporal no longer holds cannot be added."""
        cursor = projection.cursor
        try:
            return await self.project(cursor.session_id, cursor.run_id)
        except NotFound:
            projection.cursor = cursor.model_copy(update={"ended": True})
            return projection

    async def _begin(self, projection: Projection, run_id: str) -> Projection:
        session_id = projection.cursor.session_id
        base = reset_point(await self._histories.since(session_id, run_id, 0)) if projection.cursor.seq else None
        base_run, shared_until = base or (None, 0)
        cursor = begin_run(projection.cursor, run_id, shared_until=shared_until)
        async with self._postgres.transaction() as connection:
            await self._journal.lock(connection, session_id)
            await self._journal.register_run(
                connection,
                session_id,
                Run(
                    run_id=run_id,
                    generation=cursor.generation,
                    decoder_version=cursor.decoder_version,
                    base_seq=cursor.seq,
                    reset_from=base_run,
                    shared_until=shared_until,
                    history_events=None,
                    archive_ref=None,
                ),
            )
            projection.cursor = cursor
            await self._journal.save(connection, projection, [], [], [])
        return projection

    def _keep(self, projection: Projection) -> None:
        self._folds[projection.cursor.session_id] = projection
        while len(self._folds) > KEPT_SESSIONS:
            self._folds.popitem(last=False)
