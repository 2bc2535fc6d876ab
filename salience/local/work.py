"""The worker process of one home: alive and past its start means ready, which it says with a file."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import salience
from salience.local.home import Home
from salience.local.parts import Part
from salience.local.process import end, spawn

CHECKOUT = Path(salience.__file__).resolve().parents[1]
"""`workflows/` and `activities/` lie beside the package, in a checkout and in an image alike."""


class Work(Part):
    """One worker for all queues.

    Args:
        home: whose stack it works for.
        command: the program; another one in tests.
    """

    name = "worker"

    def __init__(self, home: Home, command: tuple[str, ...] = ()) -> None:
        super().__init__(home.logs / "worker.log")
        self._home = home
        self._command = command or (sys.executable, "-m", "salience.worker", "--role", "all")

    async def spawn(self) -> asyncio.subprocess.Process:
        self._end_group()
        self._home.worker_ready.unlink(missing_ok=True)
        env = {**os.environ, "SALIENCE_HOME": str(self._home.root)}
        return await spawn(self._command, env=env, log=self.log, cwd=CHECKOUT)

    async def healthy(self) -> bool:
        return self.process is not None and self.process.returncode is None and self._home.worker_ready.exists()

    async def stop(self) -> None:
        if self.process:
            await end(self.process, [(signal.SIGTERM, 10)])
            self._end_group()
        self._home.worker_ready.unlink(missing_ok=True)

    def _end_group(self) -> None:
        """What a dead worker started must not go on beside its successor."""
        if self.process and self.process.returncode is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
