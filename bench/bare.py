"""Stresses Temporal alone: the same number of activities a turn with inputs and results of the same sizes, and empty bodies."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass

from temporalio.client import Client
from temporalio.worker import Worker

from bench.bare_workflow import Bare, empty
from salience.local import Stack, resolve
from salience.settings import Settings


@dataclass(frozen=True)
class BareTurns:
    """Milliseconds and history bytes a turn."""

    turns: int
    wall_ms: float
    history_bytes_per_turn: float


async def run(lengths: list[int]) -> list[BareTurns]:
    """Measure runs of the given lengths on a stack of their own, with the flags and pragmas Salience uses."""
    measured: list[BareTurns] = []
    with Stack(worker=False) as stack:
        client = await Client.connect(resolve(Settings(home=stack.home.root)).temporal_address)
        async with Worker(client, task_queue="bare", workflows=[Bare], activities=[empty]):
            for turns in [10, *lengths]:
                began = time.perf_counter()
                # A session of N turns has three activities more: it is opened, and the answer that ends it is a turn, too.
                handle = await client.start_workflow(
                    Bare.run, turns + 1, id=f"bare-{uuid.uuid4().hex}", task_queue="bare"
                )
                await handle.result()
                wall = time.perf_counter() - began
                size = (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes
                measured.append(BareTurns(turns, wall / turns * 1e3, size / turns))
    return measured[1:]


if __name__ == "__main__":
    for line in asyncio.run(run([20, 80, 200])):
        print(line)
