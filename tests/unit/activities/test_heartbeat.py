"""An activity beats from its first pause on, and tells what it is asked to."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.heartbeat import BEAT_S, beating


async def test_beats_while_the_block_runs_and_not_after() -> None:
    environment = ActivityEnvironment()
    beats: list[Any] = []
    environment.on_heartbeat = lambda *details: beats.append(details)

    async def work() -> None:
        async with beating(lambda: (len(beats),)):
            await asyncio.sleep(BEAT_S * 2.5)
        await asyncio.sleep(BEAT_S * 1.5)

    await environment.run(work)
    assert beats == [(0,), (1,)]
