"""A blob is whole or absent, verified when it is read, and found by name when every database is lost (spec EVT-6)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.errors import BackendUnavailable, BlobCorrupt, NotFound
from salience.model.canonical import digest
from salience.store.blobs import FileBlobs


async def test_bytes_come_back_under_their_digest(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    for data in (b"", b"\0\xff", b"x" * 20_000_000):
        ref = await blobs.put(data)
        assert ref == digest(data)
        assert await blobs.put(data) == ref
        assert await FileBlobs(tmp_path).get(ref) == data
        assert await blobs.exists(ref)


async def test_nothing_half_written_stays(tmp_path: Path) -> None:
    ref = await FileBlobs(tmp_path).put(b"whole")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [ref]


@pytest.mark.parametrize("ref", ["0" * 64, "../../etc/passwd", "", "zz", "A" * 63 + "/"])
async def test_what_is_not_there_is_not_found(tmp_path: Path, ref: str) -> None:
    with pytest.raises(NotFound):
        await FileBlobs(tmp_path).get(ref)


@pytest.mark.parametrize("change", [b"xhole", b"whol", b"whole!"])
async def test_changed_bytes_are_refused(tmp_path: Path, change: bytes) -> None:
    blobs = FileBlobs(tmp_path)
    ref = await blobs.put(b"whole")
    blobs.path(ref).write_bytes(change)
    with pytest.raises(BlobCorrupt):
        await FileBlobs(tmp_path).get(ref)


async def test_putting_again_mends_a_cut_file(tmp_path: Path) -> None:
    ref = await FileBlobs(tmp_path).put(b"whole")
    FileBlobs(tmp_path).path(ref).write_bytes(b"wh")
    await FileBlobs(tmp_path).put(b"whole")
    assert await FileBlobs(tmp_path).get(ref) == b"whole"


async def test_a_store_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BackendUnavailable, match="cannot be written"):
        await FileBlobs(tmp_path / "file").put(b"x")


async def test_the_cache_holds_no_more_than_it_may(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path, cache_bytes=1_000)
    refs = [await blobs.put(os.urandom(100)) for _ in range(50)]
    for ref in refs:
        assert digest(await blobs.get(ref)) == ref


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=3))
def test_any_name_stays_inside_the_folder(parts: list[str]) -> None:
    root = Path("/blobs")
    path = FileBlobs(root)._named("archive/" + "/".join(part.replace("\ud800", "?") for part in parts))
    assert root / "names" in path.parents
    assert ".." not in path.relative_to(root).parts


async def test_names_are_listed_by_prefix(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    ref = await blobs.put(b"x")
    await blobs.name("archive/a b/1", ref)
    await blobs.name("archive/a b/2", ref)
    await blobs.name("archive/ab/1", ref)
    assert await blobs.named("archive/a b") == {"archive/a b/1": ref, "archive/a b/2": ref}
    assert await blobs.named("archive/none") == {}


async def test_a_folder_that_vanished_is_an_outage_and_not_made_anew(tmp_path: Path) -> None:
    root, away = tmp_path / "disk", tmp_path / "unmounted"
    blobs = FileBlobs(root, cache_bytes=0)
    ref = await blobs.put(b"kept")
    root.rename(away)
    for attempt in (blobs.put(b"more"), blobs.get(ref), blobs.name("a/name", ref), blobs.named("a")):
        with pytest.raises(BackendUnavailable, match="gone"):
            await attempt
    assert not root.exists()
    away.rename(root)
    assert await blobs.get(ref) == b"kept"
    await blobs.put(b"more")
