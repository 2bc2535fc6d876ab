"""A process is named by its pid *and* its start, so that a stranger with a recycled pid is never taken for ours.

A zombie counts as dead: some containers' first process reaps orphans late or never. A started process is tied to the
thread that started it (Linux parent-death signal), so that killing the supervisor leaves no orphan behind.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
ROTATE_BYTES = 5 * 1024 * 1024
"""A log larger than this is set aside (one generation) when its process starts."""


@dataclass(frozen=True)
class Account:
    """A user of the operating system under whom a process runs."""

    uid: int
    gid: int


class ProcessId(BaseModel):
    """One process for ever: its pid, and when it started in this boot of the machine."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The identity of a living process, None when there is none."""
        started = _started(pid)
        return cls(pid=pid, started=started) if started else None

    def alive(self) -> bool:
        """Whether exactly this process still lives (zombies do not)."""
        return _started(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if the process lives."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")[:8]
    except OSError:
        return "boot"


def _started(pid: int) -> str:
    """When a process started, empty for a dead one or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name in parentheses may itself hold spaces and parentheses; the fields after the last one cannot.
    fields = text.rsplit(")", 1)[1].split()
    return "" if fields[0] in "ZX" else f"{_boot()}:{fields[19]}"


def working_in(folder: Path, name: str) -> list[int]:
    """Pids of the living processes of that name whose working folder is `folder`."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text(encoding="utf-8", errors="replace").strip() != name:
                    continue
                if os.readlink(entry / "cwd") == str(folder):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def rotate(log: Path) -> None:
    """Set a grown log aside."""
    if log.exists() and log.stat().st_size > ROTATE_BYTES:
        log.replace(log.with_name(f"{log.name}.1"))


def last_line(log: Path) -> str:
    """The last line of a log that says something, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]


async def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    log: Path,
    cwd: Path | str = "/",
    account: Account | None = None,
    death: signal.Signals = signal.SIGKILL,
) -> asyncio.subprocess.Process:
    """Start a process in a session of its own, so that Ctrl-C in the user's terminal does not reach it.

    Args:
        argv: program and arguments.
        env: its whole environment.
        log: file that both its outputs are appended to.
        cwd: its working folder.
        account: the user to run as, None for the present one.
        death: the signal it gets when the thread that started it ends.

    Raises:
        OSError: the program cannot be started or the log not written.
    """
    rotate(log)
    parent = os.getpid()

    def leash() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(death), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the signal was asked for
            os._exit(1)

    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=leash,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )


async def end(process: asyncio.subprocess.Process, signals: Iterable[tuple[signal.Signals, float]]) -> None:
    """End a child: send each signal in turn and give it its grace in seconds, then kill it."""
    for number, grace_s in signals:
        if process.returncode is not None:
            return
        try:
            process.send_signal(number)
            await asyncio.wait_for(process.wait(), grace_s)
            return
        except ProcessLookupError:
            break
        except TimeoutError:
            continue
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
