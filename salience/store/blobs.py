"""A blob is bytes under their own sha256: written once, verified on every read (spec EVT-6, design §6)."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote

from salience.errors import BackendUnavailable, BlobCorrupt, NotFound
from salience.model.canonical import digest


class BlobStore(Protocol):
    """What a blob store does; the file store and the S3 store keep the same promises."""

    async def put(self, data: bytes) -> str:
        """Keep bytes durably; return their digest. Putting the same bytes again is harmless."""
        ...

    async def get(self, ref: str) -> bytes:
        """The bytes of a digest.

        Raises:
            NotFound: there is no such blob.
            BlobCorrupt: the stored bytes no longer match.
            BackendUnavailable: the store did not answer.
        """
        ...

    async def exists(self, ref: str) -> bool:
        """Whether there is such a blob; says nothing about its bytes."""
        ...

    async def name(self, name: str, ref: str) -> None:
        """Give a blob a name with slashes, so that it can be found when every database is lost."""
        ...

    async def named(self, prefix: str) -> dict[str, str]:
        """Names under a prefix with their digests."""
        ...


class FileBlobs:
    """Blobs as files of one folder, `ab/abcdef…`, for one machine.

    A file is written beside its place, synced and renamed, so that a crash leaves a whole blob or none. Small blobs
    read or written lately are kept in memory: a turn reads what the turn before has written. The folder itself is made
    once: one that vanished later is a disk that was taken away, and what were written in its place would be lost.
    """

    def __init__(self, root: Path, *, cache_bytes: int = 64 * 1024 * 1024) -> None:
        self._root = root
        self._begun = False
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes

    def path(self, ref: str) -> Path:
        """Where the blob's file is, or would be."""
        return self._root / ref[:2] / ref

    async def put(self, data: bytes) -> str:
        ref = digest(data)
        if ref not in self._cache:
            await asyncio.to_thread(self._write, ref, data)
            self._remember(ref, data)
        return ref

    async def get(self, ref: str) -> bytes:
        if (cached := self._cache.get(ref)) is not None:
            self._cache.move_to_end(ref)
            return cached
        data = await asyncio.to_thread(self._read, ref)
        if digest(data) != ref:
            raise BlobCorrupt(f"blob {ref} does not match its hash", mend="restore the object from a backup")
        self._remember(ref, data)
        return data

    async def exists(self, ref: str) -> bool:
        return ref in self._cache or await asyncio.to_thread(self.path(ref).is_file)

    async def name(self, name: str, ref: str) -> None:
        await asyncio.to_thread(self._write_file, self._named(name), ref.encode())

    async def named(self, prefix: str) -> dict[str, str]:
        return await asyncio.to_thread(self._list, prefix)

    def _named(self, name: str) -> Path:
        # Names hold session ids, which are opaque: quoting keeps any of them inside the folder.
        return self._root / "names" / "/".join(quote(part, safe="") or "%00" for part in name.split("/"))

    def _list(self, prefix: str) -> dict[str, str]:
        self._must_be_there()
        root = self._root / "names"
        found: dict[str, str] = {}
        for path in sorted(self._named(prefix).rglob("*")):
            if path.is_file() and not path.name.startswith(".writing-"):
                name = "/".join(unquote(part) for part in path.relative_to(root).parts)
                found[name] = path.read_text()
        return found

    def _must_be_there(self) -> None:
        if self._begun and not self._root.is_dir():
            raise BackendUnavailable(f"blob store at {self._root} is gone", mend="mount it or put the folder back")

    def _remember(self, ref: str, data: bytes) -> None:
        if ref in self._cache or len(data) > self._cache_bytes // 8:
            return
        self._cache[ref] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > self._cache_bytes:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)

    def _read(self, ref: str) -> bytes:
        if len(ref) != 64 or not ref.isalnum():
            raise NotFound(f"{ref!r} is not a blob digest")
        try:
            data = self.path(ref).read_bytes()
            self._begun = True
            return data
        except FileNotFoundError:
            self._must_be_there()
            raise NotFound(f"no blob {ref}") from None
        except OSError as error:
            raise BackendUnavailable(f"blob {ref} cannot be read: {error}") from error

    def _write(self, ref: str, data: bytes) -> None:
        final = self.path(ref)
        if final.exists() and final.stat().st_size == len(data):
            return
        self._write_file(final, data)

    def _write_file(self, final: Path, data: bytes) -> None:
        self._must_be_there()
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            self._begun = True
            fd, temporary = tempfile.mkstemp(dir=final.parent, prefix=".writing-")
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fdatasync(file.fileno())
                os.replace(temporary, final)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise BackendUnavailable(f"blob store at {self._root} cannot be written: {error}") from error
