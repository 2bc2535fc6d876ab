"""The file store and the S3 store keep the same promises: one list of tests for both, on real disks and a real server."""

from __future__ import annotations

import asyncio
import io
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st

from salience.errors import BlobCorrupt, NotFound
from salience.model.canonical import digest
from salience.store.blobs import BlobStore, FileBlobs
from salience.store.cache import CachedBlobs
from tests.s3_server import S3Server


class FileKind:
    """A folder, and what somebody else may do in it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> BlobStore:
        return FileBlobs(self._root)

    def overwrite(self, ref: str, data: bytes) -> None:
        FileBlobs(self._root).path(ref).write_bytes(data)

    def objects(self) -> list[str]:
        return sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*") if path.is_file())


class S3Kind:
    """A bucket, and what somebody else may do in it."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._bucket = f"b-{uuid.uuid4().hex[:12]}"

    def open(self) -> BlobStore:
        return self._server.blobs(self._bucket)

    def overwrite(self, ref: str, data: bytes) -> None:
        key = self._server.blobs(self._bucket).key(ref)
        self._server.client().put_object(self._bucket, key, io.BytesIO(data), len(data))

    def objects(self) -> list[str]:
        return self._server.objects(self._bucket)


Kind = FileKind | S3Kind
Make = Callable[[], Kind]


@pytest.fixture(params=["file", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes an empty place for a store."""
    if request.param == "file":
        return lambda: FileKind(tmp_path / uuid.uuid4().hex)
    server = request.getfixturevalue("s3_server")
    return lambda: S3Kind(server)


@pytest.fixture
def kind(make: Make) -> Kind:
    """An empty place for a store."""
    return make()


@pytest.mark.parametrize("size", [0, 1, 1_000, 8 * 1024 * 1024, 20_000_001, 100_000_000])
async def test_bytes_come_back_under_their_digest(kind: Kind, size: int) -> None:
    data = os.urandom(size)
    ref = await kind.open().put(data)
    assert ref == digest(data)
    assert await kind.open().put(data) == ref
    assert await kind.open().get(ref) == data
    assert await kind.open().exists(ref)
    assert kind.objects() == [f"{ref[:2]}/{ref}"]


@pytest.mark.parametrize("size", [0, 1, 1_000, 3_000_000, 20_000_001])
async def test_a_file_goes_in_and_comes_back_in_pieces(kind: Kind, size: int, tmp_path: Path) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    ref = await CachedBlobs(kind.open()).put_file(tmp_path / "file")
    assert ref == await kind.open().put_file(tmp_path / "file") == digest(data)
    pieces = [piece async for piece in CachedBlobs(kind.open()).pieces(ref, 1_000_000)]
    assert b"".join(pieces) == data
    assert len(pieces) >= max(1, size // 1_000_000)
    assert max(map(len, pieces)) <= 1_000_000


async def test_pieces_of_what_is_not_there_or_was_changed(kind: Kind) -> None:
    blobs = kind.open()
    ref = await blobs.put(b"a" * 100_000)
    with pytest.raises(NotFound):
        _ = [piece async for piece in blobs.pieces("0" * 64, 1_000)]
    kind.overwrite(ref, b"a" * 99_999 + b"b")
    with pytest.raises(BlobCorrupt):
        _ = [piece async for piece in blobs.pieces(ref, 30_000)]


async def test_any_bytes_come_back(make: Make) -> None:
    blobs = make().open()

    @given(st.binary(max_size=4_096))
    @profile(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    def collect(data: bytes) -> None:
        drawn.append(data)

    drawn: list[bytes] = []
    await asyncio.to_thread(collect)
    refs = await asyncio.gather(*(blobs.put(data) for data in drawn))
    assert refs == [digest(data) for data in drawn]
    assert await asyncio.gather(*(blobs.get(ref) for ref in refs)) == drawn


@pytest.mark.parametrize("ref", ["0" * 64, "../../etc/passwd", "", "zz", "A" * 63 + "/", "\u0661" * 64])
async def test_what_is_not_there_is_not_found(kind: Kind, ref: str) -> None:
    blobs = kind.open()
    await blobs.put(b"something else")
    with pytest.raises(NotFound):
        await blobs.get(ref)
    assert not await blobs.exists(ref)


async def test_an_empty_store_has_nothing(kind: Kind) -> None:
    assert not await kind.open().exists("0" * 64)


@pytest.mark.parametrize("change", [b"xhole", b"whol", b"whole!", b""])
async def test_bytes_that_were_changed_are_refused(kind: Kind, change: bytes) -> None:
    ref = await kind.open().put(b"whole")
    kind.overwrite(ref, change)
    with pytest.raises(BlobCorrupt, match=ref):
        await kind.open().get(ref)


async def test_one_changed_byte_of_a_large_blob_is_found(kind: Kind) -> None:
    data = os.urandom(20_000_000)
    ref = await kind.open().put(data)
    kind.overwrite(ref, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(BlobCorrupt, match=ref):
        await kind.open().get(ref)


async def test_putting_again_mends_one_that_was_cut(kind: Kind) -> None:
    ref = await kind.open().put(b"whole")
    kind.overwrite(ref, b"wh")
    await kind.open().put(b"whole")
    assert await kind.open().get(ref) == b"whole"


async def test_the_same_bytes_put_at_once_are_one_blob(kind: Kind) -> None:
    data = os.urandom(300_000)
    stores = [kind.open() for _ in range(4)]
    refs = await asyncio.gather(*(stores[number % 4].put(data) for number in range(40)))
    assert set(refs) == {digest(data)}
    assert kind.objects() == [f"{refs[0][:2]}/{refs[0]}"]
    assert await kind.open().get(refs[0]) == data


async def test_names_are_listed_by_prefix(kind: Kind) -> None:
    blobs = kind.open()
    first, second = await blobs.put(b"x"), await blobs.put(b"y")
    await blobs.name("archive/a b/1", first)
    await blobs.name("archive/a b/2", first)
    await blobs.name("archive/ab/1", first)
    await blobs.name("archive/a b/2", second)
    await blobs.name("archive/a b/2", second)
    assert await kind.open().named("archive/a b") == {"archive/a b/1": first, "archive/a b/2": second}
    assert await kind.open().named("archive") == {
        "archive/a b/1": first,
        "archive/a b/2": second,
        "archive/ab/1": first,
    }
    assert await kind.open().named("archive/a") == {}
    assert await kind.open().named("archive/none") == {}


@pytest.mark.parametrize(
    "part", ["..", ".", "%", "%2E%2E", "ü 漢", 'a"<&>?#+=;:@', "*", "~", " ", "x" * 200, ".writing"]
)
async def test_any_name_is_found_again_and_leads_nowhere_else(kind: Kind, part: str) -> None:
    blobs = kind.open()
    ref = await blobs.put(b"x")
    await blobs.name(f"archive/{part}/run", ref)
    assert await kind.open().named(f"archive/{part}") == {f"archive/{part}/run": ref}
    stored = next(name for name in kind.objects() if name.startswith("names/"))
    assert stored.startswith("names/archive/")
    assert not {"..", "."} & set(stored.split("/"))


async def test_more_names_than_a_page_are_all_listed(kind: Kind) -> None:
    blobs = kind.open()
    ref = await blobs.put(b"x")
    await asyncio.gather(*(blobs.name(f"archive/s/{number}", ref) for number in range(1_050)))
    assert len(await kind.open().named("archive/s")) == 1_050


async def test_the_memory_answers_for_either(kind: Kind) -> None:
    blobs = CachedBlobs(kind.open(), cache_bytes=8_000)
    small, large = os.urandom(100), os.urandom(5_000)
    refs = [await blobs.put(small), await blobs.put(large)]
    assert [await blobs.get(ref) for ref in refs] == [small, large]
    for ref in refs:
        kind.overwrite(ref, b"")
    assert await blobs.get(refs[0]) == small
    with pytest.raises(BlobCorrupt):
        await blobs.get(refs[1])
