"""The journal is brought up to exactly one history event, in one transaction, whoever does it and however often (EVT-3).

Live projection, the catch-up of a run that ended, rebuild after data loss and verification decode with the same code.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from temporalio.api.history.v1 import HistoryEvent

from salience.errors import NotFound
from salience.log.chain import Row, row_of
from salience.log.decode import Cursor, begin_run, decode, reset_point
from salience.model.artifact import Artifact
from salience.model.event import Anchor, Event
from salience.projection.projection import Projection, artifacts_of
from salience.store.blobs import BlobStore
from salience.store.bundles import StoredBundle
from salience.store.history import Histories
from salience.store.journal import Batch, Journal, Position, Run
from salience.store.postgres import Postgres

KEPT_SESSIONS = 64
"""Folds a worker keeps in memory: the next turn of a session usually comes back to the same worker."""


MANY = 500
"""History events, or transcript entries, whose work takes longer than a moment."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Compiled:
    """What was compiled from a fold and is stored with it."""

    bundles: Sequence[StoredBundle] = ()
    texts: dict[str, bytes] = field(default_factory=dict[str, bytes])


Compile = Callable[[Projection], Awaitable[Compiled]]


async def aside(many: bool, doing: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function of much input gives, computed where it does not keep this worker's activities from beating.

    A burst of ten thousand inputs takes seconds to fold, and more where the machine has other work: without a beat every
    attempt would be given up, one after the other.
    """
    return await asyncio.to_thread(doing, *args, **kwargs) if many else doing(*args, **kwargs)


def _folded(projection: Projection, events: Sequence[Event], cursor: Cursor) -> tuple[list[Row], list[Artifact]]:
    """Fold events into a projection; returns their rows and artifacts."""
    rows: list[Row] = []
    artifacts: list[Artifact] = []
    head = projection.head
    for event in events:
        row = row_of(event, head, cursor.decoder_version)
        head = row.hash
        rows.append(row)
        artifacts.extend(artifacts_of(event))
        projection.fold(event)
    projection.cursor = cursor
    projection.head = head
    return rows, artifacts


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

    async def project(
        self, session_id: str, run_id: str, *, upto_activity: str | None = None, then: Compile | None = None
    ) -> Projection:
        """Decode what is new, fold it, and record both.

        Everything is prepared first and recorded in one statement, which compares where the journal stands: when another
        worker was faster, the preparation is thrown away and done again from its rows.

        Args:
            session_id: the session.
            run_id: the run to project. Runs before it are finished first; a run that a later one has followed is done.
            upto_activity: stop at this activity's own schedule event, so that a retry reads the same range; None takes
                everything there is.
            then: called with the fold, for what is to be compiled from it and recorded with it.

        Raises:
            NotFound: neither Temporal nor the journal knows the run.
            JournalConflict: the journal has other rows than history decodes to.
            BackendUnavailable: a store did not answer.
        """
        projection = self._folds.pop(session_id, None)
        while True:
            projection = projection or await self._journal.load(session_id) or Projection.empty(session_id)
            if projection.cursor.run_id != run_id:
                projection = await self._enter(projection, run_id)
            expected = Position(projection.cursor.seq, projection.head)
            length = len(projection.transcript.entries)
            history = await self._history(projection.cursor, run_id, upto_activity)
            rows, artifacts = await self._fold(projection, history)
            await self._recall(projection, length)
            compiled = await then(projection) if then else Compiled()
            batch = Batch(
                projection=projection,
                rows=rows,
                entries=projection.transcript.entries[length:],
                artifacts=artifacts,
                bundles=compiled.bundles,
                texts=compiled.texts,
            )
            async with self._postgres.connection() as connection:
                if await self._journal.record(connection, expected, batch):
                    projection.forget()
                    self._keep(projection)
                    return projection
            projection = None

    async def _history(self, cursor: Cursor, run_id: str, upto_activity: str | None) -> list[HistoryEvent]:
        if cursor.run_id != run_id or cursor.ended:
            return []
        return await self._histories.since(cursor.session_id, run_id, cursor.history_id, upto_activity=upto_activity)

    async def _fold(self, projection: Projection, history: list[HistoryEvent]) -> tuple[list[Row], list[Artifact]]:
        many = len(history) > MANY
        decoded, cursor = await aside(many, decode, history, projection.cursor)
        for data in decoded.blobs.values():
            await self._blobs.put(data)
        return await aside(many, _folded, projection, decoded.events, cursor)

    async def _recall(self, projection: Projection, stored: int) -> None:
        """Have in memory what a build reads: a rollback brings back entries that were let go."""
        if not projection.lacks:
            return
        transcript = projection.transcript
        entries = await self._journal.verbatim(projection.cursor.session_id, projection.workplace, stored)
        for entry in transcript.entries[stored:]:
            entries.append(entry)
        transcript.entries = entries

    async def _enter(self, projection: Projection, run_id: str) -> Projection:
        """The fold at the beginning of a run, with every run before it finished.

        A run that the journal has left behind already is not entered again: its fold comes back as it is.
        """
        session_id = projection.cursor.session_id
        known = {run.run_id: run.generation for run in await self._journal.runs(session_id)}
        if known.get(run_id, projection.cursor.generation + 1) <= projection.cursor.generation:
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
        # It is as recorded: taken up where it stands, instead of read again with the whole transcript at every run's end.
        self._keep(projection)
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
        async with self._postgres.connection() as connection:
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
        return projection

    def _keep(self, projection: Projection) -> None:
        self._folds[projection.cursor.session_id] = projection
        while len(self._folds) > KEPT_SESSIONS:
            self._folds.popitem(last=False)
