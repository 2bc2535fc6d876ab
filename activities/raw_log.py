"""The raw log of a session is found wherever it still is: in Temporal, in archives, in an imported file (EVT-5, EVT-2b)."""

from __future__ import annotations

from dataclasses import dataclass

from temporalio.api.history.v1 import HistoryEvent

from activities.archive import ArchiveManifest, archive_name, unpack
from salience.errors import BackendUnavailable, NotFound
from salience.log.decode import reset_point
from salience.log.imported import is_import
from salience.store.blobs import BlobStore
from salience.store.history import Histories
from salience.store.imports import Imports, ReadImport
from salience.store.journal import Journal, Run


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run's whole history and what decoding needs beside it."""

    run: Run
    events: list[HistoryEvent]
    archived: bool
    imported: ReadImport | None = None


class RawLog:
    """Reads the runs of sessions.

    Args:
        histories: None reads without Temporal, from archives alone.
    """

    def __init__(self, journal: Journal, blobs: BlobStore, histories: Histories | None) -> None:
        self._journal = journal
        self._blobs = blobs
        self._histories = histories
        self._imports = Imports(blobs)

    async def run(self, session_id: str, run: Run) -> SourceRun | None:
        """A run's history: from Temporal while it is retained, else from its archive; an imported run's is a file."""
        if is_import(run.run_id):
            read = await self._imports.read(session_id, run.archive_ref)
            return read and _imported_source(read)
        if self._histories is not None:
            try:
                return SourceRun(run, await self._histories.whole(session_id, run.run_id), archived=False)
            except NotFound:
                pass
        archive_ref = run.archive_ref
        if archive_ref is None:
            archive_ref = (await self._blobs.named(archive_name(session_id, run.run_id))).get(
                archive_name(session_id, run.run_id)
            )
        if archive_ref is None:
            return None
        manifest = ArchiveManifest.model_validate_json(await self._blobs.get(archive_ref))
        return SourceRun(run, unpack(await self._blobs.get(manifest.history_ref)), archived=True)

    async def runs(self, session_id: str) -> list[SourceRun]:
        """Every run there is a history of, first to last: what the journal lists, Temporal holds, and archives keep."""
        found: dict[str, SourceRun] = {}
        for run in await self._journal.runs(session_id):
            source = await self.run(session_id, run)
            if source is not None:
                found[run.run_id] = source
        if not any(is_import(run_id) for run_id in found):
            read = await self._imports.read(session_id)
            if read is not None:
                found[read.log.run_id] = _imported_source(read)
        for archive_ref in (await self._blobs.named(f"archive/{session_id}")).values():
            manifest = ArchiveManifest.model_validate_json(await self._blobs.get(archive_ref))
            if manifest.run_id not in found:
                run = _archived_run(manifest, archive_ref)
                found[run.run_id] = SourceRun(run, unpack(await self._blobs.get(manifest.history_ref)), archived=True)
        ordered = sorted(found.values(), key=lambda source: source.run.generation)
        if self._histories is not None:
            generation = ordered[-1].run.generation if ordered else 0
            for ref in await self._histories.runs(session_id):
                if ref.run_id in found:
                    continue
                generation += 1
                try:
                    history = await self._histories.whole(session_id, ref.run_id)
                except (NotFound, BackendUnavailable):
                    continue
                base = reset_point(history)
                run = Run(
                    run_id=ref.run_id,
                    generation=generation,
                    decoder_version=1,
                    base_seq=0,
                    reset_from=base[0] if base else None,
                    shared_until=base[1] if base else 0,
                    history_events=None,
                    archive_ref=None,
                )
                ordered.append(SourceRun(run, history, archived=False))
        return ordered


def _archived_run(manifest: ArchiveManifest, archive_ref: str) -> Run:
    return Run(
        run_id=manifest.run_id,
        generation=manifest.generation,
        decoder_version=manifest.decoder_version,
        base_seq=manifest.base_seq,
        reset_from=manifest.reset_from,
        shared_until=manifest.shared_until,
        history_events=manifest.history_events,
        archive_ref=archive_ref,
    )


def _imported_source(read: ReadImport) -> SourceRun:
    return SourceRun(read.run, [], archived=True, imported=read)
