"""A session is imported whole or not at all, once, and never over one that is another (spec EVT-7, EVT-2b)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from activities.raw_log import SourceRun
from activities.verification import Verification
from salience.errors import NotFound, UsageError
from salience.log.imported import import_run, imported_log, is_import
from salience.log.reading import NewerExport, NoExport, Reading
from salience.model.export import Imported, ImportManifest, Workplace
from salience.store.blobs import BlobStore
from salience.store.imports import READ_BYTES, Imports, ReadImport
from salience.store.journal import Batch, Journal, Position, Run
from salience.store.postgres import Postgres

_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip"}


@dataclass(frozen=True, slots=True)
class Offered:
    """A file that can be imported, as it was read; nothing of it is kept yet."""

    path: Path
    file_ref: str
    session_id: str
    reading: Reading


def offered(path: Path) -> Offered:
    """Read a file as an export.

    Raises:
        NotFound: there is no such file.
        UsageError: it is no export, is packed, or was made by a newer release.
    """
    reading, found = Reading(), hashlib.sha256()
    try:
        with path.open("rb") as file:
            data = file.read(READ_BYTES)
            for magic, packing in _PACKED.items():
                if data.startswith(magic):
                    raise UsageError(f"{path} is packed with {packing}", mend="unpack it first")
            while data:
                found.update(data)
                for _ in reading.feed(data):
                    pass
                data = file.read(READ_BYTES)
        for _ in reading.finish():
            pass
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}") from error
    except NewerExport as error:
        raise UsageError(f"{path}: {error}", mend="import it with a newer release of Salience") from None
    except NoExport as error:
        raise UsageError(
            f"{path} is no export of Salience: {error}", mend="salience export SESSION makes one"
        ) from None
    sections = reading.sections
    header = sections[-1].header
    named = header.session_id if header is not None and len(sections) > 1 else sections[-1].session_id
    return Offered(path, found.hexdigest(), named, reading)


class Importing:
    """Makes sessions of files."""

    def __init__(self, postgres: Postgres, journal: Journal, blobs: BlobStore, verification: Verification) -> None:
        self._postgres = postgres
        self._journal = journal
        self._blobs = blobs
        self._imports = Imports(blobs)
        self._verification = verification

    async def take(self, file: Offered, session_id: str, workplace: Workplace | None = None) -> Imported:
        """Make a session of a file; doing it again changes nothing.

        Args:
            session_id: the session to make, which must not be running.
            workplace: where it shall work; None: where it worked.

        Raises:
            UsageError: there is another session of that id.
            BackendUnavailable: a store did not answer.
        """
        known = await self._known(file, session_id, workplace)
        if known is not None:
            return known
        file_ref = await self._blobs.put_file(file.path)
        if file_ref != file.file_ref:
            raise UsageError(f"{file.path} was changed while it was read", mend="try again when it is complete")
        reading = await self._imports.reading(file_ref, keep=True)
        manifest = ImportManifest(
            session_id=session_id, run_id=import_run(file_ref), file_ref=file_ref, workplace=workplace
        )
        manifest_ref = await self._imports.keep(manifest)
        log = imported_log(reading.sections, file_ref, session_id, workplace)
        read = ReadImport(log, reading, manifest_ref)
        batch, runs = await self._verification.folded(
            session_id, [SourceRun(read.run, [], archived=True, imported=read)]
        )
        try:
            async with self._postgres.transaction() as connection:
                for run in runs:
                    await self._journal.register_run(connection, session_id, run)
                if not await self._journal.record(connection, Position(0, ""), batch):
                    raise _Late
        except _Late:
            known = await self._known(file, session_id, workplace)
            if known is None:
                raise UsageError(
                    f"session {session_id} began while it was imported", mend="give --session NEW"
                ) from None
            return known
        await self._imports.name(manifest, manifest_ref)
        return _done(read, batch)

    async def _known(self, file: Offered, session_id: str, workplace: Workplace | None) -> Imported | None:
        """What to say where the session is there already; None where it is not."""
        position = await self._journal.position(session_id)
        if position is None or not position.seq:
            return None
        runs = await self._journal.runs(session_id)
        if runs and runs[0].run_id == import_run(file.file_ref):
            return await self._again(runs[0], session_id, workplace)
        if await self._is_ours(file, session_id):
            return Imported(session_id=session_id, file_ref=file.file_ref, status="same_session", events=position.seq)
        other = "was imported from another file" if runs and is_import(runs[0].run_id) else "is another one"
        raise UsageError(f"there is a session {session_id}, and it {other}", mend="give --session NEW")

    async def _again(self, run: Run, session_id: str, workplace: Workplace | None) -> Imported:
        found = await self._imports.manifest(session_id, run.archive_ref)
        if found is None:
            raise NotFound(f"nothing says which file {session_id} was imported from")
        manifest, manifest_ref = found
        if workplace is not None and workplace != manifest.workplace:
            place = manifest.workplace.cwd if manifest.workplace else "where it was recorded"
            raise UsageError(f"{session_id} is imported already, to work {place}", mend="give --session NEW")
        await self._imports.name(manifest, manifest_ref)
        return Imported(
            session_id=session_id,
            file_ref=manifest.file_ref,
            status="already_imported",
            events=run.history_events or 0,
            cwd=manifest.workplace.cwd if manifest.workplace else None,
        )

    async def _is_ours(self, file: Offered, session_id: str) -> bool:
        """Whether the file was exported from this very session: its last event stands in this journal."""
        events = file.reading.sections[-1].events
        if not events:
            return False
        seq = events[-1].envelope.seq
        async for row in self._journal.rows(session_id, after=seq - 1, upto=seq):
            return row.hash == events[-1].hash
        return False


def _done(read: ReadImport, batch: Batch) -> Imported:
    config = batch.projection.workplace.config
    return Imported(
        session_id=read.log.session_id,
        file_ref=read.log.file_ref,
        status="imported",
        events=len(read.log.rows),
        blobs=len(read.reading.blobs),
        left_out=read.reading.left_out,
        omitted=tuple(sorted(read.reading.omitted)),
        faults=read.faults,
        cwd=config.cwd if config is not None else None,
        model=config.model_settings.model if config is not None else None,
        api_base=config.model_settings.api_base if config is not None else None,
        sandbox_mode=config.permission_config.sandbox_mode if config is not None else None,
        network=config is not None and config.permission_config.network,
    )


class _Late(Exception):
    """Somebody else made the session first; the transaction is rolled back."""
