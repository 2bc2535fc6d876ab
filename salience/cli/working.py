"""A worker in the foreground, for deployments where something else keeps it alive."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from salience.cli.options import Json
from salience.cli.output import json_out, tell
from salience.errors import UsageError


def worker(
    role: Annotated[
        str, typer.Option("--role", help="Which work it takes: workflow, context, model, tools, or all.")
    ] = "all",
    json_: Json = False,
) -> None:
    """Run a worker in the foreground until it is stopped.

    Role model alone needs provider keys, role tools alone runs commands; a deployment needs each role at least once.
    SIGTERM and Ctrl-C let running tools end for ten seconds. `salience up` starts one by itself.
    """
    from salience.local import resolve
    from salience.model.calls import queue_of
    from salience.queues import ALL, ROLES
    from salience.settings import Settings
    from salience.worker import main

    if role not in ROLES:
        raise UsageError(f"no role {role!r}", mend=f"one of {', '.join(ROLES)}")
    settings = resolve(Settings(), postgres=role != "workflow")
    queue = queue_of(settings.task_queue, "workflow" if role == ALL else role)
    if json_:
        json_out({"pid": os.getpid(), "role": role, "task_queue": queue})
    else:
        tell(f"worker {os.getpid()}, role {role}, for queue {queue} at {settings.temporal_address}; Ctrl-C stops it")
    main(["--role", role])
