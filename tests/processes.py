"""Worker processes of any role, started and killed by the test that is about them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from salience.local.home import Home
from salience.local.process import end, spawn
from salience.local.work import CHECKOUT


class Processes:
    """Worker processes on a task queue of their own."""

    def __init__(self, home: Path, queue: str, folder: Path) -> None:
        self.queue = queue
        self._home = home
        self._folder = folder
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.pids: dict[str, set[int]] = {}

    async def start(self, role: str, variables: Mapping[str, str] | None = None) -> None:
        """Start the worker of a role."""
        keys = {name for name in os.environ if name.endswith("_API_KEY")}
        env = {name: value for name, value in os.environ.items() if name not in keys}
        env |= {"SALIENCE_HOME": str(self._home), "SALIENCE_TASK_QUEUE": self.queue} | dict(variables or {})
        argv = [sys.executable, "-m", "salience.worker", "--role", role]
        process = await spawn(argv, env=env, log=self._folder / f"{role}.log", cwd=CHECKOUT)
        self._running[role] = process
        self.pids.setdefault(role, set()).add(process.pid)

    async def ready(self, role: str) -> None:
        """Wait until the worker of a role is past its start.

        Raises:
            AssertionError: it ended instead.
        """
        file = Home(self._home).ready_file(role)
        process = self._running[role]
        while not (file.exists() and file.read_text() == str(process.pid)):
            assert process.returncode is None, (self._folder / f"{role}.log").read_text()
            await asyncio.sleep(0.05)

    async def kill(self, role: str) -> None:
        """Kill the worker of a role at once."""
        process = self._running.pop(role)
        process.kill()
        await process.wait()

    async def close(self) -> None:
        """End all of them; in an orderly way, which each must manage."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        codes = [await process.wait() for process in self._running.values()]
        for process in self._running.values():
            await end(process, [])
        assert codes == [0] * len(codes)
