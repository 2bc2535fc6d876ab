"""Signals of plain clients come by the thousand, twice, late, and while parts die; each is delivered once (LOOP-2, LOOP-3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from temporalio.service import RPCError

from salience.client import Salience
from salience.local import Stack
from salience.settings import Settings
from tests.chaos.conftest import Say
from tests.chaos.judge import judged
from tests.chaos.keeper import Keeper
from tests.chaos.play import FILES, Play, client_on
from tests.chaos.seed import FULL, chance
from tests.chaos.toll import Toll
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

SIGNALS = 10_000 if FULL else 2_200
"""Temporal takes 10,000 in one run; a session hands over to a fresh run when its history has 2,000 events."""
AT_ONCE = 100
AGAIN = 300
EVENTS_A_RUN = 51_200
"""Temporal ends a run whose history grows beyond this."""


async def signal(salience: Salience, session_id: str, message_id: str) -> None:
    """Send an input until the server has taken it, as a plain client that minds its inputs does."""
    handle = salience.temporal.get_workflow_handle(session_id)
    while True:
        try:
            return await handle.signal("submit", {"message_id": message_id, "text": f"words of {message_id}."})
        except RPCError:
            await asyncio.sleep(0.2)


async def _reached(count: Callable[[], int], number: float) -> bool:
    return count() >= number


async def test_a_burst_is_delivered_once(
    stack: Stack, settings: Settings, tmp_path: Path, toll: Toll, say: Say
) -> None:
    play = Play(tmp_path, [{"text": "I heard that.", "delay_s": 3}], FILES, on_end="repeat_last", window=1_000_000)
    ids = [f"m{number}" for number in range(SIGNALS)]
    draw = chance("signals")
    twice = draw.sample(ids, SIGNALS // 10)
    sent = 0

    async def send(salience: Salience, session_id: str, message_ids: list[str]) -> None:
        nonlocal sent
        waiting = iter(message_ids)

        async def sender() -> None:
            nonlocal sent
            for message_id in waiting:
                await signal(salience, session_id, message_id)
                sent += 1

        async with asyncio.TaskGroup() as senders:
            for _ in range(AT_ONCE):
                senders.create_task(sender())

    async def kill_meanwhile(keeper: Keeper) -> None:
        for at, part in sorted((draw.random() * SIGNALS, part) for part in ("worker", "temporal", "worker")):
            await until(partial(_reached, lambda: sent, at), timeout_s=300)
            toll.faults[f"{part} killed"] += 1
            if part == "worker":
                keeper.kill()
            else:
                await asyncio.to_thread(stack.wait_restarted, "temporal", stack.kill("temporal"), 60)

    queue = "signals"
    async with client_on(settings, queue) as salience, Keeper(stack.home.root, queue, tmp_path / "keeper") as keeper:
        session_id = await play.start(salience)
        began = time.monotonic()
        together = [*ids, *twice]
        draw.shuffle(together)
        await asyncio.gather(send(salience, session_id, together), kill_meanwhile(keeper))
        took = time.monotonic() - began
        # These come when their first copies have long been acknowledged, and mostly delivered.
        await send(salience, session_id, draw.sample(ids, AGAIN))
        outcome = await judged(play, salience, session_id, toll, acknowledged=["task", *ids])
        runs = [run async for run in salience.temporal.list_workflows(f"WorkflowId = '{session_id}'")]
        lengths = [run.history_length for run in runs]
    say(
        f"{len(together)} signals in {took:.0f} s, {AGAIN} more late; {outcome.result.turn} turns, "
        f"runs of {', '.join(map(str, reversed(lengths)))} events"
    )
    assert outcome.result.reason == "answered"
    assert all(length < EVENTS_A_RUN for length in lengths)
    assert len(runs) > 1
