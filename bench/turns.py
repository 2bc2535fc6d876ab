"""Stresses the loop: N turns of one scripted model call and one read of a 1,000-byte file, on the embedded stack."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from temporalio.worker import Replayer

from salience.client import Salience
from salience.local import Stack, resolve
from salience.model.session import Limits, ModelSettings, SessionConfig
from salience.settings import Settings
from salience.wire import DATA_CONVERTER
from workflows import WORKFLOWS

TOOL_BYTES = 1_000


@dataclass(frozen=True)
class Turns:
    """What one session of N turns took; times in milliseconds a turn, sizes in bytes."""

    turns: int
    wall_ms: float
    model_ms: float
    tool_ms: float
    runs: int
    events_per_turn: float
    history_bytes_per_turn: float
    first_half_bytes_per_turn: float
    model_input_first: int
    model_input_last: int
    postgres_bytes: int
    replay_s: float

    @property
    def overhead_ms(self) -> float:
        """Everything but model and tool time."""
        return self.wall_ms - self.model_ms - self.tool_ms


async def measure(salience: Salience, folder: Path, turns: int) -> Turns:
    """Run one session of `turns` turns and read its figures off history and stats."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    (workspace / "a.txt").write_text("r" * (TOOL_BYTES - 1) + "\n")
    script = folder / f"turns-{turns}.json"
    call = {"tool_calls": [{"name": "read_file", "args": {"path": "a.txt"}}]}
    script.write_text(json.dumps({"turns": [call] * turns + [{"text": "done"}]}))
    config = SessionConfig(
        cwd=str(workspace),
        model_settings=ModelSettings(model=f"script:{script}"),
        limits=Limits(max_model_calls=turns + 10),
    )
    before = await _postgres_bytes(salience)
    began = time.perf_counter()
    session_id = await salience.start(config, "measure")
    await salience.result(session_id)
    wall = time.perf_counter() - began
    while (await salience.session(session_id)).status == "active":  # noqa: ASYNC110 - the store has no event for it
        await asyncio.sleep(0.05)
    stats = await salience.stats(session_id)
    runs = await salience.journal.runs(session_id)
    size = events = 0
    inputs: list[int] = []
    halves: list[int] = []
    replay = 0.0
    for run in runs:
        handle = salience.temporal.get_workflow_handle(session_id, run_id=run.run_id)
        info = (await handle.describe()).raw_description.workflow_execution_info
        history = await handle.fetch_history()
        size += info.history_size_bytes
        events += len(history.events)
        halves += [event.ByteSize() for event in history.events]
        for event in history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if event.event_type == 10 and scheduled.activity_type.name == "call_model":
                inputs.append(sum(len(payload.data) for payload in scheduled.input.payloads))
        start = time.perf_counter()
        await Replayer(workflows=WORKFLOWS, data_converter=DATA_CONVERTER).replay_workflow(history)
        replay = max(replay, time.perf_counter() - start)
    return Turns(
        turns=turns,
        wall_ms=wall / turns * 1e3,
        model_ms=stats.latency.model_call_ms / turns,
        tool_ms=stats.latency.tool_ms / turns,
        runs=len(runs),
        events_per_turn=events / turns,
        history_bytes_per_turn=size / turns,
        first_half_bytes_per_turn=sum(halves[: len(halves) // 2]) / (turns / 2),
        model_input_first=inputs[0],
        model_input_last=inputs[-1],
        postgres_bytes=await _postgres_bytes(salience) - before,
        replay_s=replay,
    )


async def _postgres_bytes(salience: Salience) -> int:
    async with salience.postgres.connection() as connection:
        row = await (await connection.execute("SELECT pg_database_size(current_database())")).fetchone()
    return int(row[0]) if row else 0


async def run(lengths: list[int], folder: Path) -> list[Turns]:
    """Measure sessions of the given lengths on a stack of their own."""
    with Stack(worker=True) as stack:
        async with await Salience.connect(resolve(Settings(home=stack.home.root))) as salience:
            await measure(salience, folder, 10)
            return [await measure(salience, folder, turns) for turns in lengths]
