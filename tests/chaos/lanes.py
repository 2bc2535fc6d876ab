"""Cases run side by side, a few at a time, and each is awaited by the test that is about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

LANES = 3
"""A crash is mostly waiting for timeouts: three at a time keep two cores busy without starving one another."""

T = TypeVar("T")


class Lanes(Generic[T]):
    """Started at once in the order given; an outcome or an error stays until it is asked for."""

    def __init__(self, cases: Mapping[str, Callable[[], Awaitable[T]]], *, at_once: int = LANES) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._tasks = {name: asyncio.create_task(self._run(case)) for name, case in cases.items()}

    async def outcome(self, name: str) -> T:
        """What a case came to; raises what it raised."""
        return await asyncio.shield(self._tasks[name])

    async def close(self) -> None:
        """End the cases that nobody waits for any more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, case: Callable[[], Awaitable[T]]) -> T:
        async with self._free:
            return await case()
