"""Blobs in a bucket of any S3 store: acknowledged once the server has them whole, verified on every read (spec EVT-6).

The keys are the paths of the file store under a prefix, so a folder of blobs that is copied into a bucket is a store.
The client is a blocking one. Its calls run on threads of this store, a few at a time, and none of them waits for ever:
a request has a timeout and few retries, a whole operation an end of its own. What does not come through is
`BackendUnavailable`, which the callers repeat (spec LOOP-3); nothing here needs to be undone before they do.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar
from xml.etree.ElementTree import ParseError

from minio import Minio
from minio.error import MinioException, S3Error
from minio.helpers import check_bucket_name
from urllib3 import BaseHTTPResponse, PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError, MaxRetryError

from salience.errors import BackendUnavailable, NotFound, UsageError
from salience.model.canonical import digest
from salience.store.blobs import corrupt, is_ref, quoted, unquoted

THREADS = 16
"""Operations at a time; more wait. A large blob uses three connections, so sockets stay below a hundred."""

TIMEOUT_S = 10.0
"""Longest silence of the server, and longest time to send one part: 8 MiB, so 0.8 MB/s on each connection."""

PART_BYTES = 8 * 1024 * 1024
SLOWEST_BYTES_PER_S = 1024 * 1024
"""What a large blob may take is its size by this, beside the time for the requests."""

_RETRIES = Retry(
    total=2,
    connect=1,
    read=1,
    status=2,
    redirect=0,
    other=0,
    backoff_factor=0.2,
    allowed_methods=None,  # every request may be repeated, because a key never gets other bytes
    status_forcelist=(500, 502, 503, 504),
    raise_on_status=False,  # the last answer says more than "too many errors"
    raise_on_redirect=False,
    respect_retry_after_header=False,  # a server could hold a thread for hours with it
)

_MISSING = frozenset(("NoSuchKey", "NoSuchBucket"))
_AWAY = (MinioException, HTTPError, OSError, ParseError, ValueError)
"""What the client raises: refusals, no connection, and answers that are none of S3."""

T = TypeVar("T")


class S3Blobs:
    """Blobs as objects of one bucket, `PREFIX/ab/abcdef…`; the bucket is made with the first blob.

    Args:
        endpoint: host:port of the server, or its host.
        bucket: name of the bucket.
        access_key: id of the key.
        secret_key: the key; it is used for signatures and appears nowhere.
        region: region of the bucket; empty: the server is asked once.
        secure: whether to speak TLS; certificates are checked against those that the machine trusts.
        prefix: what all keys begin with.
        timeout_s: longest silence of the server, in seconds.

    Raises:
        UsageError: endpoint, bucket or region cannot be right.
    """

    def __init__(
        self,
        endpoint: str,
        bucket: str,
        *,
        access_key: str,
        secret_key: str,
        region: str = "",
        secure: bool = True,
        prefix: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        try:
            check_bucket_name(bucket, strict=True)
            self._client = Minio(
                endpoint,
                access_key=access_key,
                secret_key=secret_key,
                region=region or None,
                secure=secure,
                http_client=PoolManager(
                    timeout=Timeout(connect=timeout_s, read=timeout_s),
                    retries=_RETRIES,
                    maxsize=4 * THREADS,
                    cert_reqs="CERT_REQUIRED",
                ),
            )
        except ValueError as error:
            mend = "SALIENCE_S3_ENDPOINT is host:port without http://, SALIENCE_S3_BUCKET 3 to 63 of a-z, 0-9, . and -"
            raise UsageError(f"the S3 store cannot be used as configured: {error}", mend=mend) from None
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="salience-s3")
        self.where = f"bucket {bucket} at {endpoint}"

    def key(self, ref: str) -> str:
        """Where the blob's object is, or would be."""
        return f"{self._prefix}{ref[:2]}/{ref}"

    async def put(self, data: bytes) -> str:
        return await self._ask("take a blob", lambda: self._put(data), size=len(data))

    async def get(self, ref: str) -> bytes:
        if not is_ref(ref):
            raise NotFound(f"{ref!r} is not a blob digest")
        data = await self._read(self.key(ref), f"no blob {ref}")
        if await self._hash(data) != ref:
            raise corrupt(ref)
        return data

    async def pieces(self, ref: str, size_bytes: int) -> AsyncIterator[bytes]:
        if not is_ref(ref):
            raise NotFound(f"{ref!r} is not a blob digest")
        try:
            response = await self._ask("give a blob", lambda: self._open(self.key(ref)))
        except _Missing:
            raise NotFound(f"no blob {ref}") from None
        found = hashlib.sha256()

        def read() -> bytes:
            piece = response.read(size_bytes)
            found.update(piece)
            return piece

        try:
            data = await self._ask("give a piece of a blob", read, size=size_bytes)
            while True:
                following = await self._ask("give a piece of a blob", read, size=size_bytes)
                if not following and found.hexdigest() != ref:
                    raise corrupt(ref)
                yield data
                if not following:
                    return
                data = following
        finally:
            with suppress(Exception):
                response.close()
                response.release_conn()

    async def put_file(self, path: Path) -> str:
        size = path.stat().st_size
        return await self._ask("take a file", lambda: self._put_file(path, size), size=size)

    async def exists(self, ref: str) -> bool:
        return is_ref(ref) and await self._ask("look for a blob", lambda: self._size(self.key(ref))) is not None

    async def name(self, name: str, ref: str) -> None:
        await self._ask("take a name", lambda: self._write(self._named(name), io.BytesIO(ref.encode()), len(ref)))

    async def named(self, prefix: str) -> dict[str, str]:
        keys = await self._ask("list names", lambda: self._list(f"{self._named(prefix)}/"))
        free = asyncio.Semaphore(THREADS)  # none waits in a queue while its time runs, however many there are

        async def read(key: str) -> bytes:
            async with free:
                return await self._read(key, f"no name {key}")

        refs = await asyncio.gather(*map(read, keys))
        skip = len(f"{self._prefix}names/")
        return {unquoted(key[skip:]): ref.decode() for key, ref in zip(keys, refs, strict=True)}

    async def check(self) -> str:
        """Whether the server answers, takes the keys and has the bucket, in words; nothing is written.

        Raises:
            BackendUnavailable: it does not; a bucket that is still to be made is no failure.
        """
        if await self._ask("list blobs", self._lists):
            return self.where
        return f"{self.where}: not there yet, is made with the first blob"

    def _named(self, name: str) -> str:
        return f"{self._prefix}names/{quoted(name)}"

    # --- on a thread --------------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> str:
        ref = digest(data)
        if self._size(self.key(ref)) != len(data):  # one that was cut is written again, as in the file store
            self._write(self.key(ref), io.BytesIO(data), len(data))
        return ref

    def _put_file(self, path: Path, size: int) -> str:
        with path.open("rb") as file:
            ref = hashlib.file_digest(file, hashlib.sha256).hexdigest()
            if self._size(self.key(ref)) != size:
                self._write(self.key(ref), file, size)
        return ref

    def _open(self, key: str) -> BaseHTTPResponse:
        response = self._client.get_object(self._bucket, key)
        _must_be_s3(response.headers.get("etag"))
        return response

    def _size(self, key: str) -> int | None:
        try:
            found = self._client.stat_object(self._bucket, key)
        except S3Error as error:
            if error.code in _MISSING:
                return None
            raise
        _must_be_s3(found.etag)
        return found.size

    def _write(self, key: str, data: BinaryIO, size: int) -> None:
        try:
            self._send(key, data, size)
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise
            self._make_bucket()
            self._send(key, data, size)

    def _send(self, key: str, data: BinaryIO, size: int) -> None:
        data.seek(0)
        kept = self._client.put_object(self._bucket, key, data, size, part_size=PART_BYTES)
        _must_be_s3(kept.etag)

    def _make_bucket(self) -> None:
        try:
            self._client.make_bucket(self._bucket)
        except S3Error as error:
            # Another process may have been faster. Whether the bucket is ours shows when it is written to.
            if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise BackendUnavailable(
                    f"{self.where} does not exist and cannot be made: {error.code}",
                    mend=f"make the bucket {self._bucket}, or set SALIENCE_S3_BUCKET to one that exists",
                ) from None

    def _list(self, prefix: str) -> list[str]:
        found = self._client.list_objects(self._bucket, prefix, recursive=True)
        return sorted(str(entry.object_name) for entry in found if not entry.is_dir)

    def _lists(self) -> bool:
        try:
            # A prefix that no key has: the answer is small however large the store is.
            next(self._client.list_objects(self._bucket, f"{self._prefix}?"), None)
        except S3Error as error:
            if error.code != "NoSuchBucket":
                raise
            return False
        self._size(f"{self._prefix}?")
        return True

    # --- from the loop ------------------------------------------------------------------------------------------------

    async def _read(self, key: str, missing: str) -> bytes:
        try:
            response = await self._ask("give a blob", lambda: self._open(key))
        except _Missing:
            raise NotFound(missing) from None
        try:
            return await self._ask(
                "give a whole blob", lambda: _whole(response), size=int(response.headers.get("content-length") or 0)
            )
        except BaseException:
            # A thread that still reads from a server which sends a byte now and then must not do so for ever.
            with suppress(Exception):
                response.shutdown()
            raise

    async def _hash(self, data: bytes) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._threads, digest, data)

    async def _ask(self, what: str, work: Callable[[], T], *, size: int = 0) -> T:
        """What `work` returns; everything that can go wrong with the server becomes one of our errors.

        Args:
            what: what the server is asked to do, for the error.
            work: what to do on a thread; may be left running there when the time is over.
            size: bytes that are moved, which take their time.
        """
        allowed = 3 * self._timeout_s + size / SLOWEST_BYTES_PER_S
        answer = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            done, _ = await asyncio.wait((answer,), timeout=allowed)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        if not done:
            answer.cancel()
            raise BackendUnavailable(f"{self.where} did not {what} within {allowed:.0f} s", mend="salience doctor")
        try:
            return answer.result()
        except S3Error as error:
            if error.code == "NoSuchKey":
                raise _Missing from None
            raise self._refused(what, error) from None
        except _AWAY as error:
            raise BackendUnavailable(f"{self.where} did not {what}: {_said(error)}", mend="salience doctor") from error

    def _refused(self, what: str, error: S3Error) -> BackendUnavailable:
        keys = "check SALIENCE_S3_ACCESS_KEY and SALIENCE_S3_SECRET_KEY"
        mends = {
            "InvalidAccessKeyId": keys,
            "SignatureDoesNotMatch": keys,
            "AccessDenied": f"{keys}, and that they may list, read and write {self._bucket}",
            "NoSuchBucket": f"make the bucket {self._bucket}, or check SALIENCE_S3_BUCKET",
            "RequestTimeTooSkewed": "set this machine's clock",
            "AuthorizationHeaderMalformed": "check SALIENCE_S3_REGION",
            "PermanentRedirect": "check SALIENCE_S3_ENDPOINT and SALIENCE_S3_REGION",
        }
        # The server's own words may repeat what was signed; the code is enough, and is the same on every server.
        return BackendUnavailable(
            f"{self.where} refused to {what}: {error.code}", mend=mends.get(error.code or "", "salience doctor")
        )


class _Missing(Exception):
    """There is no such object."""


class _NoS3(MinioException):
    """Something answered, but no S3 server: what it seemed to take would be lost."""


def _must_be_s3(etag: str | None) -> None:
    if not etag:
        raise _NoS3("the answer is none of an S3 server")


def _whole(response: BaseHTTPResponse) -> bytes:
    """The body; shorter than announced is an error of urllib3's."""
    try:
        return response.read()
    finally:
        response.release_conn()


def _said(error: BaseException) -> str:
    if isinstance(error, MaxRetryError) and error.reason:
        error = error.reason
    return " ".join(str(error).split())[:200] or type(error).__name__
