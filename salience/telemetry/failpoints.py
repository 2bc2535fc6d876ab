"""A failpoint is a named place in production code where a test may kill the process; it does nothing unless asked.

`SALIENCE_FAILPOINT` is `name:occurrence:kill`, `SALIENCE_FAILPOINT_STATE` a folder that outlives the process: occurrences are
counted there, so that the worker that is started next does not die at the same place again.
"""

from __future__ import annotations

import os
import signal
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

_ARMED = os.environ.get("SALIENCE_FAILPOINT", "")


def failpoint(name: str) -> None:
    """Die here with SIGKILL, if this is the armed name and occurrence."""
    if not _ARMED:
        return
    armed, occurrence, action = _ARMED.split(":")
    if name != armed or action != "kill":
        return
    folder = Path(os.environ["SALIENCE_FAILPOINT_STATE"])
    seen = sum(1 for _ in folder.glob(f"{name}.*")) + 1
    (folder / f"{name}.{seen}").touch()
    if seen == int(occurrence):
        os.kill(os.getpid(), signal.SIGKILL)
