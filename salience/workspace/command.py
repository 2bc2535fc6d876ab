"""A command runs until it ends, is stopped or fills its spool; its processes end with it and its output stays.

Output goes to a spool file as it comes, named after the call: when the worker dies, another on this machine finds what
had been said so far.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from salience.workspace.sandbox import Confinement

MAX_OUTPUT_BYTES = 256 * 1024 * 1024
GRACE_S = 2.0
"""Seconds between asking a command to end and ending it."""
MARK = "SALIENCE_CALL"
"""Variable of a command's first process: by its tag another worker finds what a dead or frozen one still runs."""
_CHUNK = 64 * 1024
# Without a pid namespace a daemon may hold the pipe open for ever; what the command itself said is there by then.
_DRAIN_S = {True: 30.0, False: 1.0}

Ending = Literal["exited", "timed_out", "stopped", "output_limit"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `exit_code` is 128 + n after signal n, as a shell says it; None when it was ended by us."""

    ending: Ending
    exit_code: int | None
    output: bytes


def spool_path(tag: str) -> Path:
    """Where the output of a call is collected; the folder is this user's alone.

    Raises:
        PermissionError: the folder belongs to someone else.
    """
    folder = Path(tempfile.gettempdir()) / f"salience-spool-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise PermissionError(f"{folder} is not this user's alone; remove it")
    return folder / tag


def spooled(tag: str) -> bytes:
    """What a call had said before its worker died, if it ran on this machine."""
    with suppress(OSError):
        return spool_path(tag).read_bytes()
    return b""


def forget(tag: str) -> None:
    """Remove the spool of a call whose outcome is recorded."""
    with suppress(OSError):
        spool_path(tag).unlink()


def end_leftovers(tag: str) -> None:
    """End what a call still runs on this machine after its worker was given up. Blocks until nothing of it lives.

    It would go on changing files after its changes were taken down. A sandboxed command ends with a worker that died, but
    not with one that only stands still.
    """
    mark = f"{MARK}={tag}".encode()
    while left := [pid for pid in _pids() if mark in _environment(pid)]:
        # What is inside a sandbox bears no mark: it ends with the process outside that does, a moment later.
        within = [inner for pid in left for inner in _descendants(pid)]
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        while any(map(_lives, within)):
            time.sleep(0.01)
        time.sleep(0.01)


async def run(
    command: str,
    confinement: Confinement,
    *,
    tag: str,
    timeout_s: float,
    stop: asyncio.Event,
    progress: Callable[[int], None],
) -> Ended:
    """Run a command line with bash and collect its output, standard error included, in the order it came.

    Args:
        command: what `bash -c` gets.
        confinement: how it is started (`sandbox.confine`).
        tag: name of its spool.
        timeout_s: seconds before it is ended.
        stop: set to end it early.
        progress: told how many bytes were said so far.
    """
    spool = spool_path(tag)
    with spool.open("w+b", buffering=0) as file:
        ending, code = await _run_into(file, command, confinement, tag, timeout_s, stop, progress)
        file.seek(0)
        output = file.read()
    if ending != "exited":
        code = None
    return Ended(ending, 128 - code if code is not None and code < 0 else code, output)


async def _run_into(
    file: BinaryIO,
    command: str,
    confinement: Confinement,
    tag: str,
    timeout_s: float,
    stop: asyncio.Event,
    progress: Callable[[int], None],
) -> tuple[Ending, int | None]:
    full = asyncio.Event()
    async with _pipe() as (stream, feed):
        process = await asyncio.create_subprocess_exec(
            *confinement.argv, "/bin/bash", "-c", command,
            stdin=asyncio.subprocess.DEVNULL, stdout=feed, stderr=feed,
            env={**confinement.env, MARK: tag}, cwd=confinement.cwd, start_new_session=True,
        )  # fmt: skip
        feed.close()
        reading = asyncio.create_task(_collect(stream, file, full, progress))
        exiting = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stop.wait())
        filling = asyncio.create_task(full.wait())
        try:
            await asyncio.wait({exiting, stopping, filling}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            ending = _ending(exiting.done(), stopping.done(), filling.done())
            if ending != "exited":
                await _end(process, exiting, namespaced=confinement.namespaced)
            if not confinement.namespaced:
                _signal_group(process.pid, signal.SIGKILL)
            await asyncio.wait({reading}, timeout=_DRAIN_S[confinement.namespaced])
        finally:
            for task in (reading, stopping, filling):
                task.cancel()
            if not exiting.done():
                _signal_group(process.pid, signal.SIGKILL)
    return "output_limit" if full.is_set() and ending == "exited" else ending, process.returncode


def _ending(exited: bool, stopped: bool, full: bool) -> Ending:
    return "exited" if exited else "stopped" if stopped else "output_limit" if full else "timed_out"


@asynccontextmanager
async def _pipe() -> AsyncGenerator[tuple[asyncio.StreamReader, BinaryIO]]:
    """A stream and the file that feeds it, which the caller closes.

    With a pipe of asyncio's own, `Process.wait` would not return while a daemon of the command holds the other end.
    """
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    with os.fdopen(writing, "wb", buffering=0) as feed:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", buffering=0)
        )
        try:
            yield stream, feed
        finally:
            transport.close()


async def _collect(
    stream: asyncio.StreamReader, file: BinaryIO, full: asyncio.Event, progress: Callable[[int], None]
) -> None:
    """Copy output to the spool until there is no more, or more than it holds."""
    size = 0
    while chunk := await stream.read(_CHUNK):
        try:
            file.write(chunk[: MAX_OUTPUT_BYTES - size])
        except OSError:  # the disk is full: a command nobody listens to would hang
            full.set()
            return
        size += len(chunk)
        progress(min(size, MAX_OUTPUT_BYTES))
        if size > MAX_OUTPUT_BYTES:
            full.set()
            return


async def _end(process: asyncio.subprocess.Process, exiting: asyncio.Task[int], *, namespaced: bool) -> None:
    """Ask the processes to end, and end them after the grace."""
    # Inside a sandbox the command leads a session of its own, and ending bubblewrap would end it without grace.
    inside = _descendants(process.pid) if namespaced else []
    for pid in inside:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    if not inside:
        _signal_group(process.pid, signal.SIGTERM)
    await asyncio.wait({exiting}, timeout=GRACE_S)
    if not exiting.done():
        _signal_group(process.pid, signal.SIGKILL)
        await exiting


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    pending = [pid]
    while pending:
        with suppress(OSError):
            for task in Path(f"/proc/{pending.pop()}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                pending += children
    return found


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no Linux
        return []


def _environment(pid: int) -> list[bytes]:
    """The variables a process was started with; none for a dead one, or for another user's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _lives(pid: int) -> bool:
    """Whether there is such a process and it is no zombie."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False
