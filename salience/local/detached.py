"""A stack started and ended from outside its supervisor: any number of `up` at once end with one running stack."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from salience.errors import BackendUnavailable, SalienceError
from salience.local.home import Home
from salience.local.info import RemotePart, StackInfo, running
from salience.local.lock import HomeLock, holder
from salience.local.placement import locate
from salience.local.postgres import Postgres
from salience.local.process import rotate
from salience.local.supervisor import Tell, end_leftovers
from salience.local.work import CHECKOUT

POLL_S = 0.05
START_TIMEOUT_S = 120.0
"""For the whole stack on a slow disk; each part has its own, shorter limit."""

STOP_TIMEOUT_S = 45.0
"""More than the graces of all parts together; after it the supervisor is killed, and its parts with it."""


def up(
    home: Path,
    *,
    worker: bool = True,
    tell: Tell = lambda step, seconds: None,
    timeout_s: float = START_TIMEOUT_S,
    remote: Sequence[RemotePart] = (),
) -> StackInfo:
    """Start a detached stack unless one runs already; waits for one that is starting.

    Args:
        home: its home.
        worker: whether a worker belongs to it; a stack that runs already stays as it is.
        tell: told of each step with its time in seconds.
        timeout_s: how long to wait in all.
        remote: the parts that the settings name elsewhere, which are not started here.

    Returns:
        The running stack.

    Raises:
        SalienceError: it cannot start; nothing is left running.
    """
    place = Home(home)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        info = running(place.root)
        if info and info.state == "ready":
            return info
        if info is None and holder(place.lock_file) is None:
            _launch(place, worker, tell, remote)
            continue
        time.sleep(POLL_S)
    raise BackendUnavailable(f"the stack did not start within {timeout_s:.0f} s", mend=f"see {place.logs}")


def down(home: Path, *, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """End the stack of a home, however it was left: afterwards there is no process, socket or lock; the data stay.

    Args:
        home: its home.
        timeout_s: grace for an orderly end.

    Returns:
        Whether there was a stack to end.

    Raises:
        SalienceError: its home cannot be written.
    """
    place = Home(home)
    if not place.run.exists():
        return False
    info = running(place.root)
    process = info.supervisor() if info else holder(place.lock_file)
    if process is not None:
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while process.alive():
            if time.monotonic() > deadline:
                process.signal(signal.SIGKILL)
            time.sleep(0.02)
    remains = place.stack_file.exists() or place.lock_file.exists()
    if remains:
        _sweep(place)
    return process is not None or remains


def _sweep(home: Home) -> None:
    """What a killed supervisor could not remove."""
    lock = HomeLock(home.lock_file)
    if not lock.acquire():
        return  # another `up` came in between: its stack is not ours to end
    try:

        async def sweep() -> None:
            await end_leftovers(home)
            postgres = Postgres(home, locate(home))
            await postgres.stop()
            postgres.remove_socket_dir()

        asyncio.run(sweep())
    finally:
        lock.release()


def _launch(home: Home, worker: bool, tell: Tell, remote: Sequence[RemotePart]) -> None:
    """Start a supervisor and follow it until its stack is ready or another one has the home."""
    home.make()
    errors = home.logs / "supervisor.err"
    rotate(errors)
    reading, writing = os.pipe()
    argv = [sys.executable, "-m", "salience.local", "supervise", "--home", str(home.root), "--tell", str(writing)]
    with errors.open("ab") as output:
        process = subprocess.Popen(
            [*argv, *([] if worker else ["--no-worker"]), *(f"--no-{part}" for part in remote)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=CHECKOUT,
            pass_fds=(writing,),
            start_new_session=True,
        )
    os.close(writing)
    settled = False
    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            said = json.loads(line)
            if "step" in said:
                tell(said["step"], said["seconds"])
            elif "error" in said:
                process.wait()
                raise _error(said)
            else:
                settled = True
    if not settled:
        code = process.wait()
        raise BackendUnavailable(f"the supervisor ended with code {code} while starting", mend=f"see {errors}")


def _error(said: dict[str, object]) -> SalienceError:
    kind: Callable[..., SalienceError] = BackendUnavailable if said["exit_code"] == 5 else SalienceError
    return kind(str(said["error"]), mend=str(said["mend"]))
