"""At most one process runs a home's stack: an OS lock that dies with its holder, so that no crash leaves it behind."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from salience.local.process import ProcessId

DYING_S = 5.0


class HomeLock:
    """The lock on one home.

    The file is removed on release, so a lock counts only when the locked file is still the one at the path: otherwise
    two processes could each lock a file of the same name.

    Args:
        path: the lock file; it names its holder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self) -> bool:
        """Take the lock if it is free; False when a living process holds it.

        A killed holder counts as dead a moment before the last of its threads has let go: that moment is waited for.
        """
        deadline = time.monotonic() + DYING_S
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_ino == self._path.stat().st_ino:
                    break
            except BlockingIOError:
                os.close(fd)
                if holder(self._path) or time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
                continue
            except FileNotFoundError:
                pass
            os.close(fd)
        me = ProcessId.of(os.getpid())
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{me.pid} {me.started}\n".encode() if me else b"", 0)
        self._fd = fd
        return True

    def release(self) -> None:
        """Remove the file and give the lock back."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def holder(path: Path) -> ProcessId | None:
    """The living process that holds a lock, as far as its file tells."""
    try:
        pid, started = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    found = ProcessId(pid=int(pid), started=started)
    return found if found.alive() else None
