"""Every activity beats while it runs: a worker that died is noticed, and a cancellation is heard (design §3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity

BEAT_S = 0.8
"""The worker's throttle is 1 s and the heartbeat timeout 3 s: two beats may be lost before a worker counts as dead."""


@asynccontextmanager
async def beating(details: Callable[[], tuple[Any, ...]] = tuple) -> AsyncGenerator[None]:
    """Beat while the block runs.

    The first beat comes after a pause: most activities end before it, and each beat is a request to the server.

    Args:
        details: what a beat tells; called at each.
    """

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            activity.heartbeat(*details())

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
