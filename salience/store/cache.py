"""Blobs read or written lately are answered from memory, within a bound, whichever store keeps them.

A turn reads what the turn before has written. What is kept here was verified when it came, and never changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path

from salience.model.canonical import digest
from salience.store.blobs import BlobStore

CACHE_BYTES = 8 * 1024 * 1024


class CachedBlobs:
    """A blob store with a memory.

    Args:
        store: what keeps the blobs.
        cache_bytes: most bytes to keep in memory; a blob over an eighth of it is not kept.
    """

    def __init__(self, store: BlobStore, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._most_bytes = cache_bytes

    async def put(self, data: bytes) -> str:
        if len(data) > self._most_bytes // 8:
            return await self._store.put(data)
        ref = digest(data)
        if ref in self._kept:
            self._kept.move_to_end(ref)
        else:
            self._keep(await self._store.put(data), data)
        return ref

    async def get(self, ref: str) -> bytes:
        if (kept := self._kept.get(ref)) is not None:
            self._kept.move_to_end(ref)
            return kept
        data = await self._store.get(ref)
        self._keep(ref, data)
        return data

    def pieces(self, ref: str, size_bytes: int) -> AsyncIterator[bytes]:
        return self._store.pieces(ref, size_bytes)

    async def put_file(self, path: Path) -> str:
        return await self._store.put_file(path)

    async def exists(self, ref: str) -> bool:
        return ref in self._kept or await self._store.exists(ref)

    async def name(self, name: str, ref: str) -> None:
        await self._store.name(name, ref)

    async def named(self, prefix: str) -> dict[str, str]:
        return await self._store.named(prefix)

    def _keep(self, ref: str, data: bytes) -> None:
        if ref in self._kept or len(data) > self._most_bytes // 8:
            return
        self._kept[ref] = data
        self._kept_bytes += len(data)
        while self._kept_bytes > self._most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)
