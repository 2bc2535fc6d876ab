"""A supervisor held by the present process until a signal; both `up --foreground` and the detached one run this way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from salience.local.supervisor import Supervisor


def hold(supervisor: Supervisor, ready: Callable[[], None] = lambda: None) -> None:
    """Run a stack until SIGTERM, SIGINT or SIGHUP, then end it in order.

    Args:
        supervisor: the stack.
        ready: called when every part has answered.

    Raises:
        SalienceError: as `Supervisor.run`.
    """

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        # Only the first signal counts: a second Ctrl-C would cut the orderly end short.
        end = iter((task.cancel,))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, lambda: next(end, lambda: False)())
        await supervisor.run(ready)

    with suppress(asyncio.CancelledError):
        asyncio.run(run())
