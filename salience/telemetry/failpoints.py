"""A failpoint is a named place in production code where a test may kill or freeze the process; nothing happens unasked.

`SALIENCE_FAILPOINTS` names a folder that outlives the process. Each passing of a failpoint is counted there, so that the
worker that is started next does not die at the same place again; a file `armed` in it says `name:occurrence:action`.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

NAMES = (
    "context.before_project",
    "context.after_project",
    "context.after_build",
    "compact.before_record",
    "compact.after_record",
    "model.before_call",
    "model.after_call",
    "model.after_store",
    "tool.before_run",
    "tool.after_run",
    "tool.after_settle",
    "archive.before_write",
    "archive.after_write",
)
"""Every failpoint there is; a test runs through them all."""

ACTIONS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
"""What may happen at a failpoint: the process dies, or stands still until it gets SIGCONT."""

_FOLDER = os.environ.get("SALIENCE_FAILPOINTS", "")


def failpoint(name: str) -> None:
    """Count this passing, and die or stop here if this is the armed name and occurrence."""
    if not _FOLDER:
        return
    folder = Path(_FOLDER)
    with (folder / name).open("ab", buffering=0) as count:
        count.write(b".")
        seen = count.tell()  # whoever appends at the same time gets another number
    with suppress(FileNotFoundError):
        armed, occurrence, action = (folder / "armed").read_text(encoding="ascii").split(":")
        if (armed, int(occurrence)) == (name, seen):
            os.kill(os.getpid(), ACTIONS[action])
