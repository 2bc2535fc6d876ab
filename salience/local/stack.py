"""A stack within the present process, for tests: it ends with the block, or with the process, however that ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from salience.errors import BackendUnavailable
from salience.local.belongings import purge
from salience.local.home import Home
from salience.local.info import StackInfo, ready
from salience.local.supervisor import Supervisor, migrate

PartName = Literal["temporal", "postgres", "worker"]


class Stack:
    """The embedded stack as a context manager.

    The supervisor runs on a thread of its own, because its parts die with the thread that started them.

    Args:
        home: its home; None makes a temporary one that is deleted afterwards.
        worker: whether a worker belongs to it.
        prepare: called with the owner's libpq URI once the database exists.
        temporal_args: more arguments for the Temporal server.
        worker_command: another program than the worker.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        worker: bool = False,
        prepare: Sequence[Callable[[str], object]] = (migrate,),
        temporal_args: Sequence[str] = (),
        worker_command: tuple[str, ...] = (),
    ) -> None:
        self._temporary = Path(tempfile.mkdtemp(prefix="salience-", dir="/tmp")) if home is None else None
        self.home = Home(home or self._temporary or Path())
        self._supervisor = Supervisor(
            self.home,
            worker=worker,
            prepare=prepare,
            temporal_args=temporal_args,
            worker_command=worker_command,
        )
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="salience-stack", daemon=True)
        self._stop: Callable[[], object] = lambda: None

    @property
    def info(self) -> StackInfo:
        """Where the parts answer, and their pids, as of now."""
        return ready(self.home.root)

    def kill(self, part: PartName) -> int:
        """Kill a part at once (SIGKILL); returns its pid."""
        found = getattr(self.info, part)
        os.kill(found.pid, signal.SIGKILL)
        return found.pid

    def wait_restarted(self, part: PartName, pid: int, timeout_s: float = 20) -> float:
        """Wait until a part answers under another pid; returns how long that took in seconds.

        Raises:
            BackendUnavailable: it does not.
        """
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            if getattr(self.info, part).pid != pid:
                return time.monotonic() - began
            time.sleep(0.02)
        raise BackendUnavailable(f"{part} was not restarted within {timeout_s} s", mend=f"see {self.home.logs}")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._ready.result()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._thread.join()
        if self._temporary:
            purge(self.home.root)
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _run(self) -> None:
        async def run() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel) if loop.is_running() else None
            loop = asyncio.get_running_loop()
            await self._supervisor.run(lambda: self._ready.set_result(None))

        try:
            asyncio.run(run())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
