"""A keeper starts the next worker whenever one dies, as the supervisor does, and arms the failpoints of each."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from salience.telemetry.failpoints import NAMES
from tests.chaos.hatch import Worker

STARTING_S = 30.0
"""Within which a worker that finds no server ends by itself, as its supervisor expects."""
AGAIN_S = 0.5


class Kill(NamedTuple):
    """Where a worker is to die or to stand still: at which passing of a failpoint, counted over all workers of the keeper."""

    failpoint: str
    occurrence: int
    action: Literal["kill", "stop"] = "kill"


class Keeper:
    """Keeps one worker alive on a task queue of its own.

    Args:
        home: the stack it works for.
        queue: the task queue.
        folder: where its log and the failpoints' counts lie.
        kills: where the first worker, the second, and so on, are to die; those that come later live on.
        env: more variables of its workers.
    """

    def __init__(
        self,
        home: Path,
        queue: str,
        folder: Path,
        kills: Sequence[Kill] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.queue = queue
        self.deaths: list[float] = []
        self._home = home
        self._folder = folder
        self._points = folder / "failpoints"
        self._kills = list(kills)
        self._env = dict(env or {})
        self._started = 0.0
        self._process: Worker | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._died = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._points.mkdir(parents=True, exist_ok=True)
        self._arm_next()
        self._process = self._start()
        self._keeping = asyncio.create_task(self._keep(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave(within_s=5)

    async def leave(self, *, within_s: float = 20) -> None:
        """Have the worker end in order, when what it runs has ended, and start no other."""
        assert self._keeping is not None
        self._keeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._keeping
        if self._process is not None:
            self.thaw()
            await self._process.end(within_s)

    @property
    def pid(self) -> int:
        """The worker that lives now."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        """What its workers said."""
        return self._folder / "worker.log"

    def kill(self) -> None:
        """Kill the worker that lives now."""
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Have the worker stand still, and not what it has started."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Have it go on."""
        self._signal(signal.SIGCONT)

    def frozen(self) -> bool:
        """Whether the worker stands still."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
        return False

    def arm(self, kill: Kill) -> None:
        """Have the worker that lives now, or the next that gets there, die or stop at a failpoint; counts begin anew."""
        for name in NAMES:
            (self._points / name).unlink(missing_ok=True)
        armed = self._points / "armed"
        armed.with_suffix(".new").write_text(":".join(map(str, kill)))
        armed.with_suffix(".new").replace(armed)

    def disarm(self) -> None:
        """Let the failpoints be passed; counts begin anew."""
        (self._points / "armed").unlink(missing_ok=True)
        for name in NAMES:
            (self._points / name).unlink(missing_ok=True)

    def passings(self) -> dict[str, int]:
        """How often each failpoint was passed since it was armed, or since the beginning."""
        return {path.name: path.stat().st_size for path in self._points.iterdir() if path.name in NAMES}

    async def dead(self, count: int) -> None:
        """Wait until so many workers have been killed."""
        async with self._died:
            await self._died.wait_for(lambda: len(self.deaths) >= count)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.signal(number)

    def _arm_next(self) -> None:
        if self._kills:
            self.arm(self._kills.pop(0))

    async def _keep(self, process: Worker) -> None:
        while True:
            code = await process.wait()
            async with self._died:
                if code == -signal.SIGKILL:
                    self.deaths.append(time.time())
                    self._died.notify_all()
                else:
                    expected = time.monotonic() - self._started < STARTING_S
                    assert expected, f"a worker ended with {code} by itself, see {self.log}"
                    await asyncio.sleep(AGAIN_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            self._arm_next()
            process = self._process = self._start()

    def _start(self) -> Worker:
        env = {
            **os.environ,
            "SALIENCE_HOME": str(self._home),
            "SALIENCE_TASK_QUEUE": self.queue,
            "SALIENCE_FAILPOINTS": str(self._points),
            **self._env,
        }
        self._started = time.monotonic()
        return Worker(env, self.log)
