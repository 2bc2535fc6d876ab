"""A worker is hatched: forked from a process that has loaded it once, so that a start costs a moment and not two seconds.

It is a process of its own in every other way: its own session, environment, log and end.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from salience.local.work import CHECKOUT

_PR_SET_PDEATHSIG = 1
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["pytest", "salience.worker", "tests.chaos.hatch"])


class Worker:
    """A worker process.

    Args:
        env: its whole environment.
        log: file that both its outputs are appended to.
    """

    def __init__(self, env: Mapping[str, str], log: Path) -> None:
        self._process = _FORKING.Process(target=_work, args=(dict(env), str(log)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    async def wait(self) -> int:
        """Wait until it has ended; returns its exit code, negative for a signal."""
        loop = asyncio.get_running_loop()
        while self._process.exitcode is None:
            ended = asyncio.Event()
            # A copy of its own: several may wait, and the loop knows one reader of a file.
            sentinel = os.dup(self._process.sentinel)
            loop.add_reader(sentinel, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(sentinel)
                os.close(sentinel)
        return self._process.exitcode

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives."""
        if self._process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def end(self, within_s: float) -> None:
        """Ask it to end, and end it when it has not after so many seconds."""
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), within_s)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.wait()


def _work(env: dict[str, str], log: str) -> None:
    """Be the worker that `python -m salience.worker` is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(CHECKOUT)
    os.environ.clear()
    os.environ.update(env)
    if "LD_PRELOAD" in env:  # which only a program that is loaded anew obeys
        os.execve(sys.executable, [sys.executable, "-m", "salience.worker"], env)
    importlib.reload(importlib.import_module("salience.telemetry.failpoints"))  # it reads its environment once
    importlib.import_module("salience.worker").main([])
