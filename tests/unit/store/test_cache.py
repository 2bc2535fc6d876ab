"""The memory holds no more than it may, and only what the store took or gave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from salience.errors import BackendUnavailable, NotFound
from salience.model.canonical import digest
from salience.store.blobs import FileBlobs
from salience.store.cache import CachedBlobs


async def test_the_cache_holds_no_more_than_it_may(tmp_path: Path) -> None:
    blobs = CachedBlobs(FileBlobs(tmp_path), cache_bytes=1_000)
    refs = [await blobs.put(os.urandom(100)) for _ in range(50)]
    assert sum(map(len, blobs._kept.values())) == blobs._kept_bytes <= 1_000
    for ref in refs:
        assert digest(await blobs.get(ref)) == ref
    assert sum(map(len, blobs._kept.values())) == blobs._kept_bytes <= 1_000


async def test_what_was_read_lately_stays(tmp_path: Path) -> None:
    files = FileBlobs(tmp_path)
    blobs = CachedBlobs(files, cache_bytes=1_000)
    ref = await blobs.put(b"x" * 100)
    for _ in range(30):
        await blobs.put(os.urandom(100))
        await blobs.get(ref)
    files.path(ref).unlink()
    assert await blobs.get(ref) == b"x" * 100
    assert await blobs.exists(ref)


async def test_what_the_store_refused_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    blobs = CachedBlobs(FileBlobs(tmp_path / "file"))
    with pytest.raises(BackendUnavailable):
        await blobs.put(b"x")
    assert not await blobs.exists(digest(b"x"))
    with pytest.raises((BackendUnavailable, NotFound)):
        await blobs.get(digest(b"x"))
