"""A blob is bytes under their own sha256: written once, verified on every read (spec EVT-6, design §6)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote, unquote

from salience.errors import BackendUnavailable, BlobCorrupt, NotFound
from salience.model.canonical import digest

_NAME_BYTES = 200
"""Of one file name; most file systems take 255."""
_COPIED_BYTES = 1024 * 1024


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

    def pieces(self, ref: str, size_bytes: int) -> AsyncIterator[bytes]:
        """The bytes of a digest in pieces, for blobs that are not to be held in memory; there is always one piece.

        Raises:
            NotFound: there is no such blob.
            BlobCorrupt: the stored bytes do not match, which only the last piece can tell.
            BackendUnavailable: the store did not answer.
        """
        ...

    async def put_file(self, path: Path) -> str:
        """Keep the bytes of a file as `put` does, without holding them in memory."""
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


def is_ref(ref: str) -> bool:
    """Whether a text has the form of a blob's digest; anything else names no blob, and must not name a path."""
    return len(ref) == 64 and all(letter in "0123456789abcdef" for letter in ref)


def corrupt(ref: str) -> BlobCorrupt:
    """The error for bytes that are not what their name says."""
    return BlobCorrupt(f"blob {ref} does not match its hash", mend="restore the object from a backup")


def quoted(name: str) -> str:
    """A name as a relative path that no part of it can lead out of.

    Names hold session ids, which are opaque: quoting keeps any of them inside the folder, `..` among them. A part that is
    longer than a file's name may be goes on in a folder below, after a `%` that no quoting makes.
    """
    return "/".join(_quoted_part(part) for part in name.split("/"))


def _quoted_part(part: str) -> str:
    text = part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="") or "%00"
    return "%/".join(text[at : at + _NAME_BYTES] for at in range(0, len(text), _NAME_BYTES))


def unquoted(path: str) -> str:
    """The name of a quoted one."""
    return "/".join(unquote(part) for part in path.replace("%/", "").split("/"))


class FileBlobs:
    """Blobs as files of one folder, `ab/abcdef…`, for one machine.

    A file is written beside its place, synced and renamed, so that a crash leaves a whole blob or none. The folder itself
    is made once: one that vanished later is a disk that was taken away, and what were written in its place would be lost.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._begun = False

    def path(self, ref: str) -> Path:
        """Where the blob's file is, or would be."""
        return self._root / ref[:2] / ref

    async def put(self, data: bytes) -> str:
        return await asyncio.to_thread(self._put, data)

    async def get(self, ref: str) -> bytes:
        return await asyncio.to_thread(self._read, ref)

    async def pieces(self, ref: str, size_bytes: int) -> AsyncIterator[bytes]:
        file = await asyncio.to_thread(self._opened, ref)
        found = hashlib.sha256()
        try:
            data = await asyncio.to_thread(file.read, size_bytes)
            while True:
                found.update(data)
                following = await asyncio.to_thread(file.read, size_bytes)
                if not following and found.hexdigest() != ref:
                    raise corrupt(ref)
                yield data
                if not following:
                    return
                data = following
        finally:
            file.close()

    async def put_file(self, path: Path) -> str:
        return await asyncio.to_thread(self._copy, path)

    async def exists(self, ref: str) -> bool:
        return is_ref(ref) and await asyncio.to_thread(self.path(ref).is_file)

    async def name(self, name: str, ref: str) -> None:
        await asyncio.to_thread(self._write_file, self._named(name), ref.encode())

    async def named(self, prefix: str) -> dict[str, str]:
        return await asyncio.to_thread(self._list, prefix)

    def _named(self, name: str) -> Path:
        return self._root / "names" / quoted(name)

    def _list(self, prefix: str) -> dict[str, str]:
        self._must_be_there()
        root = self._root / "names"
        found: dict[str, str] = {}
        for path in sorted(self._named(prefix).rglob("*")):
            if path.is_file() and not path.name.startswith(".writing-"):
                found[unquoted(path.relative_to(root).as_posix())] = path.read_text()
        return found

    def _must_be_there(self) -> None:
        if self._begun and not self._root.is_dir():
            raise BackendUnavailable(f"blob store at {self._root} is gone", mend="mount it or put the folder back")

    def _read(self, ref: str) -> bytes:
        with self._opened(ref) as file:
            try:
                data = file.read()
            except OSError as error:
                raise BackendUnavailable(f"blob {ref} cannot be read: {error}") from error
        if digest(data) != ref:
            raise corrupt(ref)
        return data

    def _opened(self, ref: str) -> BinaryIO:
        if not is_ref(ref):
            raise NotFound(f"{ref!r} is not a blob digest")
        try:
            file = self.path(ref).open("rb")
            self._begun = True
            return file
        except FileNotFoundError:
            self._must_be_there()
            raise NotFound(f"no blob {ref}") from None
        except OSError as error:
            raise BackendUnavailable(f"blob {ref} cannot be read: {error}") from error

    def _put(self, data: bytes) -> str:
        ref = digest(data)
        final = self.path(ref)
        if not (final.exists() and final.stat().st_size == len(data)):
            self._write_file(final, data)
        return ref

    def _copy(self, path: Path) -> str:
        """A file whose digest is known when it is copied is copied under the root first, then put into its place."""
        self._must_be_there()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._begun = True
            fd, temporary = tempfile.mkstemp(dir=self._root, prefix=".writing-")
            found = hashlib.sha256()
            try:
                with os.fdopen(fd, "wb") as file, path.open("rb") as source:
                    while data := source.read(_COPIED_BYTES):
                        found.update(data)
                        file.write(data)
                    file.flush()
                    os.fdatasync(file.fileno())
                final = self.path(found.hexdigest())
                final.parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary, final)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise BackendUnavailable(f"blob store at {self._root} cannot be written: {error}") from error
        return found.hexdigest()

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
