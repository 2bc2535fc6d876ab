"""A file that a session was imported from is its raw log: whoever asks again reads the same events from it (spec EVT-2b)."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from salience.log.decode import DECODER_VERSION
from salience.log.imported import ImportedLog, imported_log
from salience.log.reading import Piece, Reading
from salience.model.canonical import canonical_json
from salience.model.export import Fault, ImportManifest
from salience.store.blobs import BlobStore
from salience.store.journal import Run

READ_BYTES = 1024 * 1024


def import_name(session_id: str, file_ref: str) -> str:
    """The name under which the blob store lists a session's import."""
    return f"import/{session_id}/{file_ref}"


@dataclass(frozen=True, slots=True)
class ReadImport:
    """An imported file, as the beginning of a session's journal and as it was read."""

    log: ImportedLog
    reading: Reading
    manifest_ref: str

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is wrong with the file, by line."""
        return tuple(sorted((*self.reading.faults, *self.log.faults), key=lambda fault: fault.line))

    @property
    def run(self) -> Run:
        """The file as the session's first run."""
        return Run(
            run_id=self.log.run_id,
            generation=1,
            decoder_version=DECODER_VERSION,
            base_seq=0,
            reset_from=None,
            shared_until=0,
            history_events=len(self.log.rows),
            archive_ref=self.manifest_ref,
        )

    def leaves_out(self, run_id: str, ref: str) -> bool:
        """Whether a blob that a run's event names is known not to be in the file."""
        return run_id == self.log.run_id and (self.reading.left_out or ref in self.reading.omitted)


class Imports:
    """Keeps imported files and reads them."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def keep(self, manifest: ImportManifest) -> str:
        """Keep what an import was made of; returns the blob that a run's archive reference names."""
        return await self._blobs.put(canonical_json(manifest.plain()))

    async def name(self, manifest: ImportManifest, manifest_ref: str) -> None:
        """Have the import found when every database is lost."""
        await self._blobs.name(import_name(manifest.session_id, manifest.file_ref), manifest_ref)

    async def manifest(self, session_id: str, manifest_ref: str | None = None) -> tuple[ImportManifest, str] | None:
        """What the session was imported from, and the blob that says so; None when it was not imported.

        Args:
            manifest_ref: from the run's archive reference; None looks for the name.
        """
        if manifest_ref is None:
            named = await self._blobs.named(f"import/{session_id}")
            if not named:
                return None
            manifest_ref = next(iter(named.values()))
        return ImportManifest.model_validate_json(await self._blobs.get(manifest_ref)), manifest_ref

    async def read(
        self, session_id: str, manifest_ref: str | None = None, *, restore: bool = False
    ) -> ReadImport | None:
        """The file as a log; None when the session was not imported.

        Args:
            restore: keep the blobs that the file holds: some may be lost.

        Raises:
            NotFound: the file is gone.
            BlobCorrupt: the file is not what it was.
        """
        found = await self.manifest(session_id, manifest_ref)
        if found is None:
            return None
        manifest, manifest_ref = found
        reading = await self.reading(manifest.file_ref, keep=restore)
        log = imported_log(reading.sections, manifest.file_ref, session_id, manifest.workplace)
        return ReadImport(log, reading, manifest_ref)

    async def reading(self, file_ref: str, *, keep: bool) -> Reading:
        """A stored file, read; raises as `read`.

        Args:
            keep: keep the blobs that it holds.
        """
        reading = Reading()
        with _Spool(self._blobs) as spool:
            async for data in self._blobs.pieces(file_ref, READ_BYTES):
                for piece in reading.feed(data):
                    await spool.take(piece, keep)
            for piece in reading.finish():
                await spool.take(piece, keep)
        return reading


class _Spool:
    """Puts blobs together that come in pieces: on disk, for one may be larger than memory."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def __enter__(self) -> _Spool:
        self._file = tempfile.NamedTemporaryFile(prefix="salience-import-")
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    async def take(self, piece: Piece, keep: bool) -> None:
        if not keep:
            return
        if piece.first and piece.whole:
            await self._blobs.put(piece.data)
            return
        if piece.first:
            self._file.seek(0)
            self._file.truncate()
        self._file.write(piece.data)
        if piece.whole:
            self._file.flush()
            await self._blobs.put_file(Path(self._file.name))
