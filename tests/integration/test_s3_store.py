"""The S3 store against a server that is misused, killed, frozen or no S3 server at all (spec EVT-6, LOOP-3)."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from pydantic import SecretStr

from salience.errors import BackendUnavailable, NotFound, UsageError
from salience.local.doctor import Check, examine
from salience.model.canonical import digest
from salience.settings import Settings
from salience.store.blobs import FileBlobs
from salience.store.configured import blobs_of, s3_of
from salience.store.s3 import PART_BYTES, S3Blobs
from tests.conftest import until
from tests.s3_server import OWNER_KEY, OWNER_SECRET, SECRET_KEY, S3Server, free_ports


@pytest.fixture
def bucket() -> str:
    """A bucket that no other test uses; it is not there yet."""
    return f"b-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_server() -> Iterator[S3Server]:
    """A server that the test may harm."""
    with S3Server() as running:
        yield running


# --- signatures and buckets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"access_key": "nobody"}, {"secret_key": "not-the-secret"}])
@pytest.mark.parametrize("region", ["", "us-east-1"])
async def test_a_wrong_key_is_named(s3_server: S3Server, bucket: str, wrong: dict[str, str], region: str) -> None:
    ref = await s3_server.blobs(bucket).put(b"mine")
    thief = s3_server.blobs(bucket, region=region, **wrong)
    for refused in (thief.get(ref), thief.put(b"other"), thief.exists(ref), thief.named("archive"), thief.check()):
        with pytest.raises(BackendUnavailable) as caught:
            await refused
        line = caught.value.line()
        assert "SALIENCE_S3_SECRET_KEY" in line
        assert "not-the-secret" not in line
    assert s3_server.objects(bucket) == [f"{ref[:2]}/{ref}"]


async def test_the_bucket_is_made_with_the_first_blob(s3_server: S3Server, bucket: str) -> None:
    reader = s3_server.blobs(bucket)
    assert "not there yet" in await reader.check()
    with pytest.raises(BackendUnavailable, match="NoSuchBucket"):
        await reader.get("0" * 64)
    refs = await asyncio.gather(*(s3_server.blobs(bucket).put(b"%d" % number) for number in range(8)))
    assert await asyncio.gather(*(reader.get(ref) for ref in refs)) == [b"%d" % number for number in range(8)]
    assert "not there yet" not in await reader.check()


async def test_a_large_first_blob_and_a_first_name_make_the_bucket_too(s3_server: S3Server, bucket: str) -> None:
    data = os.urandom(2 * PART_BYTES + 1)
    blobs = s3_server.blobs(bucket)
    assert await blobs.get(await blobs.put(data)) == data
    await s3_server.blobs(f"{bucket}-2").name("archive/s/1", digest(data))
    assert await s3_server.blobs(f"{bucket}-2").named("archive/s") == {"archive/s/1": digest(data)}


async def test_a_bucket_that_may_not_be_made_is_named(bucket: str) -> None:
    """A key that may read and write, but makes no buckets."""
    with S3Server(may=("Read", "Write", "List")) as server:
        with pytest.raises(BackendUnavailable) as caught:
            await server.blobs(bucket).put(b"x")
        assert f"make the bucket {bucket}" in caught.value.mend


async def test_a_key_that_may_only_read_is_told_so(bucket: str) -> None:
    with S3Server(may=("Read", "List")) as server:
        ref = await server.blobs(bucket, access_key=OWNER_KEY, secret_key=OWNER_SECRET).put(b"x")
        reader = server.blobs(bucket)
        assert await reader.get(ref) == b"x"
        assert await reader.put(b"x") == ref, "what is there need not be written"
        with pytest.raises(BackendUnavailable, match="AccessDenied") as caught:
            await reader.put(b"y")
        assert f"list, read and write {bucket}" in caught.value.mend


async def test_large_blobs_go_in_parts_and_are_not_sent_again(s3_server: S3Server, bucket: str) -> None:
    data = os.urandom(2 * PART_BYTES + 1)
    blobs = s3_server.blobs(bucket)
    ref = await blobs.put(data)
    before = s3_server.client().stat_object(bucket, blobs.key(ref))
    assert str(before.etag).endswith("-3")
    await until(lambda: asyncio.sleep(0, time.time() > before.last_modified.timestamp() + 1.1))
    assert await blobs.put(data) == ref
    assert s3_server.client().stat_object(bucket, blobs.key(ref)).last_modified == before.last_modified


async def test_stores_with_other_prefixes_do_not_see_each_other(s3_server: S3Server, bucket: str) -> None:
    one, other = s3_server.blobs(bucket, prefix="/one/"), s3_server.blobs(bucket, prefix="one/other")
    ref = await one.put(b"x")
    await one.name("archive/s/1", ref)
    with pytest.raises(NotFound):
        await other.get(ref)
    assert await other.named("archive/s") == {}
    assert s3_server.objects(bucket) == [f"one/{ref[:2]}/{ref}", "one/names/archive/s/1"]


async def test_a_folder_of_blobs_that_is_copied_into_a_bucket_is_a_store(
    s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    files = FileBlobs(tmp_path)
    ref = await files.put(b"moved")
    await files.name("archive/a b/..", ref)
    client = s3_server.client()
    client.make_bucket(bucket)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            client.fput_object(bucket, path.relative_to(tmp_path).as_posix(), str(path))
    assert await s3_server.blobs(bucket).get(ref) == b"moved"
    assert await s3_server.blobs(bucket).named("archive/a b") == {"archive/a b/..": ref}


# --- a server that dies or stands still -------------------------------------------------------------------------------


async def test_no_acknowledged_blob_is_lost_when_the_server_is_killed_under_load(
    own_server: S3Server, bucket: str
) -> None:
    blobs = own_server.blobs(bucket, region="us-east-1")
    kept: dict[str, int] = {}
    refused = 0
    stop = asyncio.Event()

    async def write(writer: int) -> None:
        nonlocal refused
        number = writer
        while not stop.is_set():
            try:
                kept[await blobs.put(content(number))] = number
                number += 8
            except BackendUnavailable:
                refused += 1
                await asyncio.sleep(0.1)

    def content(number: int) -> bytes:
        return f"blob {number} ".encode() * (1 + (number % 7) * 4_000)

    async def more(many: int) -> None:
        wanted = len(kept) + many
        await until(lambda: asyncio.sleep(0, len(kept) >= wanted), timeout_s=60)

    load = [asyncio.create_task(write(writer)) for writer in range(8)]
    for _ in range(2):
        await more(40)
        own_server.kill()
        before = refused
        await until(lambda before=before: asyncio.sleep(0, refused > before), timeout_s=60)
        await asyncio.to_thread(own_server.start)
    await more(40)
    stop.set()
    await asyncio.gather(*load)
    reader = own_server.blobs(bucket)
    for ref, number in kept.items():
        assert await reader.get(ref) == content(number)


async def test_a_frozen_server_is_an_error_and_blocks_nobody(own_server: S3Server, bucket: str) -> None:
    blobs = own_server.blobs(bucket, timeout_s=0.5)
    large = os.urandom(3 * PART_BYTES)
    refs = [await blobs.put(b"small"), await own_server.blobs(bucket).put(large)]
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0.02)

    own_server.freeze()
    beating = asyncio.create_task(beat())
    asked = [
        *(blobs.get(refs[0]) for _ in range(30)),
        *(blobs.put(b"new %d" % number) for number in range(30)),
        blobs.put(os.urandom(3 * PART_BYTES)),
        blobs.exists(refs[1]),
        blobs.named("archive"),
        blobs.check(),
    ]
    outcomes = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    assert {type(outcome) for outcome in outcomes} == {BackendUnavailable}, outcomes
    assert beats > 20, "the event loop went on while the store waited"
    beating.cancel()
    own_server.thaw()
    patient = own_server.blobs(bucket)
    assert await patient.get(refs[0]) == b"small"
    assert await patient.get(refs[1]) == large


async def test_who_is_told_to_stop_does_not_wait_for_a_frozen_server(own_server: S3Server, bucket: str) -> None:
    blobs = own_server.blobs(bucket, timeout_s=5)
    ref = await blobs.put(b"x")
    own_server.freeze()
    asking = asyncio.create_task(blobs.get(ref))
    await asyncio.sleep(0.1)
    asking.cancel()
    done, _ = await asyncio.wait((asking,), timeout=2)
    assert done
    assert asking.cancelled()
    own_server.thaw()


async def test_connections_from_before_a_restart_fail_nobody(own_server: S3Server, bucket: str) -> None:
    blobs = own_server.blobs(bucket)
    refs = await asyncio.gather(*(blobs.put(b"%d" % number) for number in range(32)))
    own_server.kill()
    await asyncio.to_thread(own_server.start)
    assert await asyncio.gather(*(blobs.get(ref) for ref in refs)) == [b"%d" % number for number in range(32)]


async def test_nobody_there_is_one_clear_line() -> None:
    (port,) = free_ports(1)
    blobs = S3Blobs(f"127.0.0.1:{port}", "bucket", access_key="a", secret_key=SECRET_KEY, secure=False)
    with pytest.raises(BackendUnavailable) as caught:
        await blobs.put(b"x")
    assert f"bucket bucket at 127.0.0.1:{port}" in caught.value.line()
    assert "\n" not in caught.value.line()
    assert SECRET_KEY not in caught.value.line()


HEAD = b'HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nETag: "1"\r\n'
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
STRANGE: dict[str, bytes] = {
    "a web page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>no</html>",
    "a web page that refuses": b"HTTP/1.1 403 No\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nno",
    "broken XML": b"HTTP/1.1 500 No\r\nContent-Type: application/xml\r\nContent-Length: 6\r\n\r\n<Error",
    "no HTTP": b"220 mail.example ESMTP\r\n",
    "nothing": b"",
    "a body that is cut": HEAD + b"Content-Length: 100\r\n\r\nonly this",
    "busy, for an hour": BUSY,
    "somewhere else": b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
}


@contextmanager
def answering(answer: bytes, *, drip: bool = False) -> Iterator[int]:
    """A port where each connection gets the same answer, or then a byte now and then without end; yields the port."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with closing(connection), suppress(OSError):
            connection.settimeout(5)
            connection.recv(65_536)
            connection.sendall(answer)
            while drip and not ended.wait(0.1):
                connection.sendall(b".")

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("answer", STRANGE.values(), ids=list(STRANGE))
@pytest.mark.parametrize("region", ["", "us-east-1"])
async def test_a_server_that_is_no_s3_is_unavailable(answer: bytes, region: str) -> None:
    with answering(answer) as port:
        blobs = strange(port, region)
        for asked in (blobs.put(b"data"), blobs.get("0" * 64), blobs.check()):
            with pytest.raises(BackendUnavailable) as caught:
                await asyncio.wait_for(asked, 30)
            assert "\n" not in caught.value.line()


async def test_a_server_that_sends_a_byte_now_and_then_is_given_up() -> None:
    with answering(HEAD + b"Content-Length: 1000000\r\n\r\n", drip=True) as port:
        blobs = strange(port, "us-east-1")
        # More at a time than there are threads: those that are given up must become free again.
        for _ in range(2):
            asked = [blobs.get("0" * 64) for _ in range(20)]
            outcomes = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
            assert {type(outcome) for outcome in outcomes} == {BackendUnavailable}


def strange(port: int, region: str) -> S3Blobs:
    return S3Blobs(
        f"127.0.0.1:{port}",
        "bucket",
        access_key="a",
        secret_key=SECRET_KEY,
        region=region,
        secure=False,
        timeout_s=0.5,
    )


# --- settings ---------------------------------------------------------------------------------------------------------

CONFIGURED = {
    "s3_endpoint": "127.0.0.1:9000",
    "s3_bucket": "blobs",
    "s3_access_key": "me",
    "s3_secret_key": SecretStr(SECRET_KEY),
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"s3_bucket": ""}, "SALIENCE_S3_BUCKET"),
        ({"s3_access_key": "", "s3_secret_key": SecretStr("")}, "SALIENCE_S3_ACCESS_KEY, SALIENCE_S3_SECRET_KEY"),
        ({"s3_endpoint": "http://127.0.0.1:9000"}, "without http://"),
        ({"s3_endpoint": "127.0.0.1:9000/blobs"}, "SALIENCE_S3_ENDPOINT"),
        ({"s3_bucket": "No Bucket"}, "SALIENCE_S3_BUCKET"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(tmp_path: Path, change: dict[str, object], named: str) -> None:
    settings = Settings(home=tmp_path).model_copy(update={**CONFIGURED, **change})
    with pytest.raises(UsageError) as caught:
        blobs_of(settings)
    assert named in caught.value.line()
    assert SECRET_KEY not in caught.value.line()


async def test_the_settings_choose_the_store(s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ref = await blobs_of(settings).put(b"file")
    assert (settings.blobs / ref[:2] / ref).read_bytes() == b"file"
    ref = await blobs_of(s3_server.settings(settings, bucket)).put(b"object")
    assert s3_server.objects(bucket) == [f"{ref[:2]}/{ref}"]


def test_the_secret_is_never_shown(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path).model_copy(update=CONFIGURED)
    blobs = s3_of(settings)
    for shown in (
        repr(settings),
        str(settings.model_dump()),
        settings.model_dump_json(),
        repr(blobs),
        str(vars(blobs)),
    ):
        assert SECRET_KEY not in shown


async def test_the_doctor_looks_at_the_store(own_server: S3Server, bucket: str, tmp_path: Path) -> None:
    settings = own_server.settings(Settings(home=tmp_path), bucket)

    async def look(settings: Settings) -> Check:
        checks = await asyncio.to_thread(examine, settings)
        assert SECRET_KEY not in "".join(check.model_dump_json() for check in checks)
        (check,) = [check for check in checks if check.name == "blob store"]
        return check

    found = await look(settings)
    assert (found.ok, "not there yet" in found.detail) == (True, True)
    await blobs_of(settings).put(b"x")
    found = await look(settings)
    assert (found.ok, found.detail) == (True, f"bucket {bucket} at {own_server.endpoint}")
    found = await look(settings.model_copy(update={"s3_secret_key": SecretStr("wrong")}))
    assert (found.ok, found.kind) == (False, "running")
    assert "SALIENCE_S3_SECRET_KEY" in found.mend
    found = await look(settings.model_copy(update={"s3_bucket": ""}))
    assert (found.ok, found.kind, found.mend) == (False, "installed", "set SALIENCE_S3_BUCKET")
    own_server.kill()
    found = await look(settings)
    assert (found.ok, found.kind) == (False, "running")
    assert "SALIENCE_S3_ENDPOINT" in found.mend
