"""A keeper starts the next worker whenever one dies, as the supervisor does, and arms each with its own failpoint."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from salience.local.process import end, spawn
from salience.local.work import CHECKOUT


class Kill(NamedTuple):
    """Where a worker is to die: at which passing of a failpoint, counted over all workers of the keeper."""

    failpoint: str
    occurrence: int


class Keeper:
    """Keeps one worker alive on a task queue of its own.

    Args:
        home: the stack it works for.
        queue: the task queue.
        folder: where its log and the failpoints' counts lie.
        kills: where the first worker, the second, and so on, are to die; those that come later live on.
    """

    def __init__(self, home: Path, queue: str, folder: Path, kills: Sequence[Kill] = ()) -> None:
        self.deaths: list[float] = []
        self._home = home
        self._queue = queue
        self._folder = folder
        self._kills = tuple(kills)
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._died = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process = await self._start()
        self._keeping = asyncio.create_task(self._keep(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeping is not None
        self._keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeping
        if self._process is not None:
            await end(self._process, [(signal.SIGTERM, 5)])

    def kill(self) -> None:
        """Kill the worker that lives now."""
        assert self._process is not None
        self._process.kill()

    async def dead(self, count: int) -> None:
        """Wait until so many workers have been killed."""
        async with self._died:
            await self._died.wait_for(lambda: len(self.deaths) >= count)

    @property
    def log(self) -> Path:
        """What its workers said."""
        return self._folder / "worker.log"

    async def _keep(self, process: asyncio.subprocess.Process) -> None:
        while True:
            code = await process.wait()
            async with self._died:
                assert code == -signal.SIGKILL, f"a worker ended with {code} by itself, see {self.log}"
                self.deaths.append(time.time())
                self._died.notify_all()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process = self._process = await self._start()

    async def _start(self) -> asyncio.subprocess.Process:
        env = {
            **os.environ,
            "SALIENCE_HOME": str(self._home),
            "SALIENCE_TASK_QUEUE": self._queue,
            "SALIENCE_FAILPOINT_STATE": str(self._folder),
        }
        if len(self.deaths) < len(self._kills):
            failpoint, occurrence = self._kills[len(self.deaths)]
            env["SALIENCE_FAILPOINT"] = f"{failpoint}:{occurrence}:kill"
        return await spawn([sys.executable, "-m", "salience.worker"], env=env, log=self.log, cwd=CHECKOUT)
