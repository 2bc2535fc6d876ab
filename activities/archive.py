"""A closed run's whole history is kept under the journal's anchor, so that either can rebuild the other (spec EVT-5)."""

from __future__ import annotations

import zstandard
from temporalio import activity
from temporalio.api.history.v1 import History, HistoryEvent

from activities.projection import Projector, anchor_of
from salience.errors import NotFound
from salience.model import calls
from salience.model.canonical import canonical_json
from salience.model.event import Anchor
from salience.model.frozen import Frozen
from salience.store.blobs import BlobStore
from salience.store.history import Histories
from salience.store.journal import Journal, Run
from salience.telemetry.failpoints import failpoint


class ArchiveManifest(Frozen):
    """What an archive holds: the history's blob, and the journal before and after it."""

    schema_version: int = 1
    session_id: str
    run_id: str
    generation: int
    decoder_version: int
    base_seq: int
    reset_from: str | None = None
    shared_until: int = 0
    history_ref: str
    history_events: int
    anchor: Anchor


def pack(events: list[HistoryEvent]) -> bytes:
    """A history as zstd-compressed protobuf."""
    packed = zstandard.ZstdCompressor(level=10).compress(History(events=events).SerializeToString())
    return bytes(memoryview(packed))  # a copy: the compressor's bytes keep the room of the uncompressed ones


def unpack(data: bytes) -> list[HistoryEvent]:
    """The history that `pack` packed."""
    return list(History.FromString(zstandard.ZstdDecompressor().decompress(data)).events)


def archive_name(session_id: str, run_id: str) -> str:
    """The name under which the blob store lists a run's archive."""
    return f"archive/{session_id}/{run_id}"


class ArchiveActivities:
    """Waits for runs to end, journals their last events, and keeps their histories."""

    def __init__(self, journal: Journal, histories: Histories, projector: Projector, blobs: BlobStore) -> None:
        self._journal = journal
        self._histories = histories
        self._projector = projector
        self._blobs = blobs

    @activity.defn(name=calls.AWAIT_CLOSE)
    async def await_close(self, asked: calls.ArchiveRun) -> None:
        """Return when the run has ended."""
        await self._histories.await_close(asked.session_id, asked.run_id)

    @activity.defn(name=calls.ARCHIVE_RUN)
    async def archive_run(self, asked: calls.ArchiveRun) -> calls.Archived:
        """Journal what the run did last, and archive its history; doing it again changes nothing."""
        projection = await self._projector.project(asked.session_id, asked.run_id)
        run = next((r for r in await self._journal.runs(asked.session_id) if r.run_id == asked.run_id), None)
        if run is None:
            raise NotFound(f"the journal does not know run {asked.run_id} of {asked.session_id}")
        archive_ref, events = await self.archive(asked.session_id, run, anchor_of(projection))
        return calls.Archived(
            run_id=asked.run_id, archive_ref=archive_ref, history_events=events, anchor=anchor_of(projection)
        )

    @activity.defn(name=calls.LIST_UNARCHIVED)
    async def list_unarchived(self, nothing: None) -> calls.Unarchived:
        """Closed sessions within Temporal's retention whose history is not kept yet, at most 200 at once."""
        del nothing
        kept = await self._journal.archived()
        closed = await self._histories.closed(calls.WORKFLOW_TYPE)
        left = [ref for ref in closed if (ref.session_id, ref.run_id) not in kept]
        return calls.Unarchived(
            runs=tuple(calls.ArchiveRun(session_id=r.session_id, run_id=r.run_id) for r in left[:200])
        )

    async def archive(self, session_id: str, run: Run, anchor: Anchor) -> tuple[str, int]:
        """Keep the history of a closed run; returns the archive's blob and the number of history events."""
        if run.archive_ref is not None and run.history_events is not None:
            return run.archive_ref, run.history_events
        history = await self._histories.whole(session_id, run.run_id)
        failpoint("archive.before_write")
        manifest = ArchiveManifest(
            session_id=session_id,
            run_id=run.run_id,
            generation=run.generation,
            decoder_version=run.decoder_version,
            base_seq=run.base_seq,
            reset_from=run.reset_from,
            shared_until=run.shared_until,
            history_ref=await self._blobs.put(pack(history)),
            history_events=len(history),
            anchor=anchor,
        )
        archive_ref = await self._blobs.put(canonical_json(manifest.plain()))
        await self._blobs.name(archive_name(session_id, run.run_id), archive_ref)
        await self._journal.register_archive(session_id, run.run_id, archive_ref, len(history))
        failpoint("archive.after_write")
        return archive_ref, len(history)
