"""A real S3 server from a wheel, which tests may kill, freeze and start again: what it acknowledged is on its disk.

with S3Server() as server:
    server.blobs()        # a store in it
    server.environment()  # the settings of a worker that uses it

SeaweedFS checks signatures, keeps multipart uploads, and loses nothing it acknowledged when it is killed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import URLError
from urllib.request import urlopen

from minio import Minio

from salience.settings import Settings
from salience.store.s3 import S3Blobs

ACCESS_KEY = "salience-tests"
SECRET_KEY = "a-key-for-tests-only"
OWNER_KEY = "salience-owner"
OWNER_SECRET = "another-key-for-tests-only"
PARTS = ("s3", "master", "volume", "filer", "admin")
GRPC = 10_000
"""Each part listens a second time so far above its port, and relies on it of the others."""


class S3Server:
    """One server process with its data in a temporary folder.

    Args:
        may: what the key may do, of Read, Write, List and Admin; everything by default.
        start_timeout_s: how long to wait for its first answer, in seconds.
    """

    def __init__(self, *, may: Sequence[str] = ("Admin",), start_timeout_s: float = 60) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="s3-", dir="/tmp"))
        self._ports = dict(zip(PARTS, free_ports(len(PARTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        self._start_timeout_s = start_timeout_s
        keys = (ACCESS_KEY, SECRET_KEY, may), (OWNER_KEY, OWNER_SECRET, ("Admin",))
        identities = [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": list(actions)}
            for key, secret, actions in keys
        ]
        (self._folder / "keys.json").write_text(json.dumps({"identities": identities}))

    @property
    def endpoint(self) -> str:
        """Its host:port."""
        return f"127.0.0.1:{self._ports['s3']}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start it, with the data it has; returns when it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(self._folder),
                    "TMPDIR": str(self._folder),
                    "GOMEMLIMIT": "200MiB",
                },
                start_new_session=True,
            )
        give_up = time.monotonic() + self._start_timeout_s
        while not self._works():
            if self._process.poll() is not None or time.monotonic() > give_up:
                tail = (self._folder / "log").read_text()[-3000:]
                self.kill()
                raise RuntimeError(f"the S3 server did not start:\n{tail}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """End it at once (SIGKILL), frozen or not; the data stay."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Have it answer nothing (SIGSTOP), while its connections stay open."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it and delete its data."""
        self.kill()
        for part in PARTS:
            # Where the server itself puts its sockets, whatever its folder is; a killed one leaves them there.
            Path(f"/tmp/seaweedfs-{part}-grpc-{self._ports[part] + GRPC}.sock").unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def client(self) -> Minio:
        """A client of its own, for looking and tampering behind the store's back."""
        return Minio(self.endpoint, access_key=OWNER_KEY, secret_key=OWNER_SECRET, secure=False)

    def blobs(self, bucket: str = "blobs", **otherwise: Any) -> S3Blobs:
        """A store in a bucket of it."""
        options: dict[str, Any] = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "secure": False}
        return S3Blobs(self.endpoint, bucket, **{**options, **otherwise})

    def objects(self, bucket: str = "blobs") -> list[str]:
        """The keys of a bucket."""
        found = self.client().list_objects(bucket, recursive=True)
        return sorted(entry.object_name for entry in found if entry.object_name)

    def environment(self, bucket: str = "blobs") -> dict[str, str]:
        """The variables of a process whose blobs lie in it."""
        return {
            "SALIENCE_S3_ENDPOINT": self.endpoint,
            "SALIENCE_S3_BUCKET": bucket,
            "SALIENCE_S3_ACCESS_KEY": ACCESS_KEY,
            "SALIENCE_S3_SECRET_KEY": SECRET_KEY,
            "SALIENCE_S3_SECURE": "false",
        }

    def settings(self, settings: Settings, bucket: str = "blobs") -> Settings:
        """The same settings with this server for the blobs."""
        said = {name.removeprefix("SALIENCE_").lower(): value for name, value in self.environment(bucket).items()}
        return Settings.model_validate({**settings.model_dump(), **said})

    def _command(self) -> list[str]:
        ports = [f"-{part}.port={port}" for part, port in self._ports.items()]
        return [
            str(Path(sys.executable).parent / "weed"),
            "mini",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-dir={self._folder}/data",
            *ports,
            f"-s3.config={self._folder}/keys.json",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",  # the store has to make its bucket, as it has to elsewhere
            f"-s3.localSocket={self._folder}/s3.sock",
            f"-filer.localSocket={self._folder}/filer.sock",
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
        ]

    def _works(self) -> bool:
        """Whether it stores and gives back: after a restart it answers before its volumes are found."""
        try:
            urlopen(f"http://{self.endpoint}/status", timeout=1).close()
        except (URLError, OSError):
            return False
        client = self.blobs("ready", access_key=OWNER_KEY, secret_key=OWNER_SECRET, timeout_s=2)
        try:
            key = client._put(str(time.monotonic_ns()).encode())
            client._client.remove_object("ready", client.key(key))
        except Exception:
            return False
        return True


def free_ports(number: int) -> list[int]:
    """Ports that are free, each with its second one, below those that the system gives to clients."""
    found: list[int] = []
    while len(found) < number:
        port = random.randrange(11_000, 32_000 - GRPC)
        if port not in found and all(_free(each) for each in (port, port + GRPC)):
            found.append(port)
    return found


def _free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
