"""A worker in the foreground, for deployments where something else keeps it alive."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from salience.cli.options import Json
from salience.cli.output import json_out, tell
from salience.errors import UsageError


def worker(
    role: Annotated[str, typer.Option("--role", help="Which queues it serves; this release has `all`.")] = "all",
    json_: Json = False,
) -> None:
    """Run a worker in the foreground until it is stopped.

    SIGTERM and Ctrl-C let running tools end for ten seconds. `salience up` starts one by itself.
    """
    from salience.local import resolve
    from salience.settings import Settings
    from salience.worker import ROLES, main

    if role not in ROLES:
        raise UsageError(f"no role {role!r}", mend=f"one of {', '.join(ROLES)}")
    settings = resolve(Settings())
    if json_:
        json_out({"pid": os.getpid(), "role": role, "task_queue": settings.task_queue})
    else:
        tell(f"worker {os.getpid()} for queue {settings.task_queue} at {settings.temporal_address}; Ctrl-C stops it")
    main(["--role", role])
