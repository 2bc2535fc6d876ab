"""An export holds what the journal holds and every blob that it names, and no blob is held in memory (spec EVT-7, POL-5)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from salience.errors import BlobCorrupt, NotFound, SalienceError, UsageError
from salience.log.export import PIECE_BYTES, Writer
from salience.log.imported import is_import
from salience.log.named import named_blobs, named_in, nested_blobs
from salience.model.event import Anchor
from salience.model.export import Exported, Header, Workplace
from salience.store.blobs import BlobStore
from salience.store.imports import Imports
from salience.store.journal import Journal, Position, Run

EXPORT_SCOPE = "export"
"""A sensitive artifact that names this scope among its allowed ones may leave in an export."""


class Export:
    """One session as the lines of a file.

    Args:
        with_blobs: without them a file tells what happened, and cannot be continued.

    Attributes:
        outcome: what was written; complete when the lines are.
    """

    def __init__(self, journal: Journal, blobs: BlobStore, session_id: str, *, with_blobs: bool = True) -> None:
        self.outcome = Exported(session_id=session_id)
        self._journal = journal
        self._blobs = blobs
        self._session_id = session_id
        self._with_blobs = with_blobs
        self._writer = Writer()
        self._done: set[str] = set()
        self._sensitive: frozenset[str] = frozenset()
        self._ended_with_line_feed = True

    async def lines(self) -> AsyncIterator[bytes]:
        """The file's bytes, in portions of at most two megabytes; up to where the journal stands at the first.

        Raises:
            NotFound: there is no such session.
            UsageError: an imported session shall be written without blobs: its beginning is the file it came from.
            BackendUnavailable: a store did not answer.
        """
        position = await self._journal.position(self._session_id)
        if position is None or not position.seq:
            raise NotFound(f"no session {self._session_id!r} with events", mend="salience list")
        runs = await self._journal.runs(self._session_id)
        base, continues, workplace = Anchor(seq=0, head=""), None, None
        if runs and is_import(runs[0].run_id):
            base = await self._end_of_import(runs, position)
            manifest = await Imports(self._blobs).manifest(self._session_id, runs[0].archive_ref)
            if manifest is None:
                raise NotFound(f"nothing says which file {self._session_id} was imported from")
            continues, workplace = manifest[0].file_ref, manifest[0].workplace
            async for data in self._imported(continues):
                yield self._counted(data)
            self.outcome = self.outcome.model_copy(update={"events": base.seq})
            if position.seq == base.seq:
                return
            if not self._ended_with_line_feed:
                yield self._counted(self._writer.taken(b"\n"))
        async for data in self._section(base, position, runs, continues, workplace):
            yield self._counted(data)

    async def _section(
        self, base: Anchor, position: Position, runs: list[Run], continues: str | None, workplace: Workplace | None
    ) -> AsyncIterator[bytes]:
        artifacts = [a for a in await self._journal.artifacts(self._session_id) if a.access_policy.sensitive]
        self._sensitive = frozenset(
            a.content_hash for a in artifacts if EXPORT_SCOPE not in a.access_policy.allowed_scopes
        )
        yield self._writer.header(
            Header(
                salience_export=1,
                session_id=self._session_id,
                decoder_versions=tuple(sorted({run.decoder_version for run in runs if not is_import(run.run_id)})),
                base=base,
                head=Anchor(seq=position.seq, head=position.head),
                blobs="included" if self._with_blobs else "left_out",
                continues=continues,
                workplace=workplace,
            )
        )
        previous = base.head
        async for row in self._journal.rows(self._session_id, after=base.seq, upto=position.seq):
            if row.payload is not None and self._with_blobs:
                async for data in self._named(json.loads(row.payload)):
                    yield data
            yield self._writer.event(row, previous)
            previous = row.hash
        self.outcome = self.outcome.model_copy(update={"events": position.seq})
        yield self._writer.end()

    async def _named(self, payload: Any) -> AsyncIterator[bytes]:
        for ref in nested_blobs(payload):
            if ref not in self._done:
                for inner in await self._inside(ref):
                    async for data in self._blob(inner):
                        yield data
        for ref in named_blobs(payload):
            async for data in self._blob(ref):
                yield data

    async def _inside(self, ref: str) -> list[str]:
        try:
            return named_in(json.loads(await self._blobs.get(ref)))
        except (NotFound, BlobCorrupt, ValueError):
            return []

    async def _blob(self, ref: str) -> AsyncIterator[bytes]:
        if ref in self._done:
            return
        self._done.add(ref)
        if ref in self._sensitive:
            self.outcome = self.outcome.model_copy(update={"sensitive": (*self.outcome.sensitive, ref)})
            yield self._writer.omitted(ref, "sensitive")
            return
        number, held = 0, None
        try:
            async for data in self._blobs.pieces(ref, PIECE_BYTES):
                if held is not None:
                    yield self._writer.piece(ref, number, held, last=False)
                    number += 1
                held = data
        except (NotFound, BlobCorrupt):
            held = None
        if held is None:
            self.outcome = self.outcome.model_copy(update={"missing": (*self.outcome.missing, ref)})
            yield self._writer.omitted(ref, "missing")
            return
        yield self._writer.piece(ref, number, held, last=True)
        self.outcome = self.outcome.model_copy(update={"blobs": self.outcome.blobs + 1})

    async def _imported(self, file_ref: str) -> AsyncIterator[bytes]:
        """The file that the session was imported from, byte for byte."""
        if not self._with_blobs:
            raise UsageError(
                f"{self._session_id} was imported; its export begins with the file it came from, blobs and all",
                mend="leave --no-blobs out",
            )
        self._ended_with_line_feed = True
        async for data in self._blobs.pieces(file_ref, PIECE_BYTES):
            if data:
                self._ended_with_line_feed = data.endswith(b"\n")
            yield self._writer.taken(data)

    async def _end_of_import(self, runs: list[Run], position: Position) -> Anchor:
        seq = runs[1].base_seq if len(runs) > 1 else position.seq
        erased = 0
        head = ""
        async for row in self._journal.rows(self._session_id, upto=seq):
            erased += row.payload is None
            head = row.hash
        if erased:
            read = await Imports(self._blobs).read(self._session_id, runs[0].archive_ref)
            if read is not None and erased != sum(row.payload is None for row in read.log.rows):
                raise SalienceError(
                    f"payloads of {self._session_id} were erased since it was imported, and its file still holds them",
                    mend="erase the file too; what is left of the session can be read, and cannot be exported",
                )
        return Anchor(seq=seq, head=head)

    def _counted(self, data: bytes) -> bytes:
        self.outcome = self.outcome.model_copy(update={"size_bytes": self.outcome.size_bytes + len(data)})
        return data
