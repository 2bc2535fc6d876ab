"""An effect is started once, so nothing but its end may end its call: a store that is away is waited for (spec LOOP-3).

Temporal retries what only reads, and what is idempotent; it must not retry an effect. Waiting for stores is therefore
done here: before the effect as long as a restart of Postgres takes, after it as long as the outcome is worth keeping.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from salience.errors import BackendUnavailable

BEFORE_S = 90.0
AFTER_S = 300.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 3.0

T = TypeVar("T")


class Stopped(Exception):
    """The call was told to end while it waited."""


async def patiently(attempt: Callable[[], Awaitable[T]], *, seconds: float, stop: asyncio.Event | None = None) -> T:
    """The value of an attempt that is repeated while a store is away.

    Args:
        attempt: what to do; it must be harmless to repeat.
        seconds: how long to go on; 0 means once.
        stop: ends the waiting when set.

    Raises:
        BackendUnavailable: the store stayed away.
        Stopped: `stop` was set while waiting.
    """
    give_up = time.monotonic() + seconds
    wait = _FIRST_WAIT_S
    while True:
        try:
            return await attempt()
        except BackendUnavailable:
            if time.monotonic() + wait > give_up:
                raise
        if stop is None:
            await asyncio.sleep(wait)
        else:
            try:
                await asyncio.wait_for(stop.wait(), wait)
            except TimeoutError:
                pass
            else:
                raise Stopped
        wait = min(wait * 2, _LONGEST_WAIT_S)
