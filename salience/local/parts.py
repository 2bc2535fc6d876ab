"""A part is one supervised process: started until it answers, watched until it ends or hangs, ended without remains."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from pathlib import Path

from salience.errors import BackendUnavailable
from salience.local.process import ProcessId, last_line

POLL_S = 0.02
"""Between two looks while a part starts; no part here offers an event to wait for."""

CHECK_S = 10.0
"""Between two looks at a part that runs."""

HUNG_S = 60.0
"""A part that lives but has not answered for this long is killed and restarted. Generous: on a machine that is merely
overloaded, a restart makes things worse."""


class Part(ABC):
    """One process of the stack.

    Attributes:
        name: how users call it.
        log: where its output goes.
        process: the child, None before the first start.
        start_timeout_s: how long it may take to answer.
    """

    name: str
    start_timeout_s: float = 30.0

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: asyncio.subprocess.Process | None = None
        self.id: ProcessId | None = None

    @abstractmethod
    async def spawn(self) -> asyncio.subprocess.Process:
        """Clear what an earlier process left behind and start a new one."""

    @abstractmethod
    async def healthy(self) -> bool:
        """Whether it answers; never raises."""

    @abstractmethod
    async def stop(self) -> None:
        """End the process and remove what it leaves behind; also after a start that failed."""

    @property
    def pid(self) -> int:
        """Pid of the child, 0 before the first start."""
        return self.process.pid if self.process else 0

    async def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            BackendUnavailable: it ended at once or did not answer in time; the message has its last line of output.
        """
        try:
            process = self.process = await self.spawn()
        except OSError as error:
            raise BackendUnavailable(f"{self.name} cannot be started: {error}", mend="salience doctor") from error
        self.id = ProcessId.of(process.pid)
        deadline = time.monotonic() + self.start_timeout_s
        while not await self.healthy():
            if process.returncode is not None:
                raise self._failed(f"ended with code {process.returncode} at start")
            if time.monotonic() > deadline:
                raise self._failed(f"did not answer within {self.start_timeout_s:.0f} s")
            await asyncio.sleep(POLL_S)

    async def ended(self) -> str:
        """Wait until the process ends or hangs (then it is killed); returns how it ended, in words."""
        process = self.process
        if process is None:
            return "was not started"
        answered = time.monotonic()
        ending = asyncio.ensure_future(process.wait())
        try:
            while True:
                await asyncio.wait({ending}, timeout=CHECK_S)
                if ending.done():
                    return f"ended with code {process.returncode}"
                if await self.healthy():
                    answered = time.monotonic()
                elif time.monotonic() - answered > HUNG_S:
                    process.kill()
                    await process.wait()
                    return f"did not answer for {HUNG_S:.0f} s"
        finally:
            ending.cancel()

    def _failed(self, what: str) -> BackendUnavailable:
        said = last_line(self.log)
        return BackendUnavailable(f"{self.name} {what}{': ' + said if said else ''}", mend=f"see {self.log}")
