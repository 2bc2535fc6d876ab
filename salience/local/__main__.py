"""The programs of this package; users reach the first through `salience up`.

    python -m salience.local supervise --home HOME [--tell FD] [--no-worker] [--no-temporal] [--no-postgres]
                                                                                the detached supervisor
    python -m salience.local copy SOURCE TARGET                                 copies a home that is down

The supervisor tells its starter through an inherited pipe, one JSON object a line, and goes on when that one is gone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from salience.errors import SalienceError
from salience.local.belongings import copy_home
from salience.local.foreground import hold
from salience.local.home import Home
from salience.local.info import RemotePart
from salience.local.supervisor import AlreadyHeld, Supervisor

REMOTE_PARTS: tuple[RemotePart, ...] = get_args(RemotePart)


def main() -> int:
    """Run one of the programs; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m salience.local")
    programs = parser.add_subparsers(dest="program", required=True)
    supervising = programs.add_parser("supervise")
    supervising.add_argument("--home", type=Path, required=True)
    supervising.add_argument("--tell", type=int, default=-1, help="file descriptor that is told of progress")
    supervising.add_argument("--no-worker", action="store_true")
    for part in REMOTE_PARTS:
        supervising.add_argument(f"--no-{part}", action="store_true", help="another one is named in the settings")
    copying = programs.add_parser("copy")
    copying.add_argument("source", type=Path)
    copying.add_argument("target", type=Path)
    wanted = parser.parse_args()
    if wanted.program == "supervise":
        remote = [part for part in REMOTE_PARTS if getattr(wanted, f"no_{part}")]
        return supervise(wanted.home, worker=not wanted.no_worker, pipe=wanted.tell, remote=remote)
    try:
        copy_home(wanted.source, wanted.target)
    except SalienceError as error:
        print(error.line(), file=sys.stderr)
        return error.exit_code
    return 0


def supervise(home: Path, *, worker: bool, pipe: int, remote: Sequence[RemotePart] = ()) -> int:
    """Run a stack until SIGTERM or SIGINT."""

    def tell(**what: object) -> None:
        with suppress(OSError):  # whoever started us no longer listens, or never did
            os.write(pipe, f"{json.dumps(what)}\n".encode())

    def ready() -> None:
        tell(ready=True)
        if pipe >= 0:
            os.close(pipe)

    try:
        supervisor = Supervisor(
            Home(home),
            worker=worker,
            mode="detached",
            tell=lambda step, seconds: tell(step=step, seconds=seconds),
            remote=remote,
        )
        hold(supervisor, ready)
    except AlreadyHeld:
        tell(held=True)
    except SalienceError as error:
        tell(error=error.message, mend=error.mend, exit_code=error.exit_code)
        return error.exit_code
    except Exception as error:  # the starter must hear of it, whatever it is
        traceback.print_exc()
        tell(error=f"the supervisor failed: {error!r}", mend="see logs/supervisor.err in the home", exit_code=1)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
