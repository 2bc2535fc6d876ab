"""Stresses age: one session of thousands of turns over continue-as-new, its window full, its state with 600 files and facts.

`python -m bench.long 2000`. Each turn is one scripted answer with one call: reads and writes of ever other files, outputs
beyond what a window takes, commands, failures, plans, decisions, and facts that cite what was called and read. What must not
depend on age is compared with itself: late turns with early ones of the same run. Exits with 1 when a ratio is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from temporalio.worker import Replayer

from activities.verification import Verification
from salience.client import Salience
from salience.local import Stack, resolve
from salience.model import event as ev
from salience.model.session import ContextConfig, Limits, ModelSettings, SessionConfig
from salience.settings import Settings
from salience.store.history import Histories
from salience.wire import DATA_CONVERTER
from workflows import WORKFLOWS

RESULTS = Path(__file__).parent / "results"
FILES = 600
WINDOW = 24_000
LARGE_LINES = 4_000
FACTS = 600
"""Facts of a session; once there are as many, further ones correct the oldest."""
DECISIONS = 60
EARLY = range(20, 121)
LATE = 100
"""Turns at the end of the session that are compared with the early ones."""
MOST = {"overhead": 1.2, "history": 1.1, "memory": 1.1, "postgres": 1.2}
"""Late against early, at most."""
REPLAY_S = 1.0


@dataclass(frozen=True)
class Sample:
    """The worker's memory, the database's size, and the processor time used so far when a turn was seen."""

    turn: int
    worker_mb: float
    worker_rss_mb: float
    postgres_mb: float
    worker_cpu_s: float
    temporal_cpu_s: float
    postgres_cpu_s: float


@dataclass(frozen=True)
class Long:
    """What one long session took. Times in milliseconds a turn unless named otherwise; bytes a turn."""

    turns: int
    wall_s: float
    early_ms: float
    late_ms: float
    slowest_ms: float
    runs: int
    turns_a_run: float
    history_first_run: float
    history_last_run: float
    replay_events: int
    replay_s: float
    epochs: int
    compactions: int
    files: int
    facts: int
    verified_facts: int
    decisions: int
    state_bytes: int
    samples: list[Sample]
    verify_s: float
    verified: bool
    by_hundred: list[float]

    @property
    def ratios(self) -> dict[str, float]:
        """Late against early, by name."""
        quarter = [self._at(share * self.turns // 4) for share in (1, 2, 3, 4)]
        grown = [later.postgres_mb - earlier.postgres_mb for earlier, later in pairwise(quarter)]
        return {
            "overhead": self.late_ms / self.early_ms,
            "history": self.history_last_run / self.history_first_run,
            "memory": quarter[-1].worker_mb / quarter[0].worker_mb,
            "postgres": grown[-1] / grown[0],
        }

    @property
    def missed(self) -> list[str]:
        """What is worse than it may be."""
        found = [f"{name} {ratio:.2f} > {MOST[name]}" for name, ratio in self.ratios.items() if ratio > MOST[name]]
        if self.replay_s >= REPLAY_S:
            found.append(f"replay {self.replay_s:.2f} s >= {REPLAY_S} s")
        if not self.verified:
            found.append("the session does not verify")
        return found

    def cpu_ms(self, part: str) -> tuple[float, float]:
        """Milliseconds of processor time a turn of a part of the stack, early and late: other work hardly moves them."""
        spans = ((EARLY[0], EARLY[-1]), (self.turns - 2 * LATE, self.turns))
        found: list[float] = []
        for first, last in spans:
            before, after = self._at(first), self._at(last)
            used = getattr(after, f"{part}_cpu_s") - getattr(before, f"{part}_cpu_s")
            found.append(used * 1e3 / (after.turn - before.turn))
        return found[0], found[1]

    def _at(self, turn: int) -> Sample:
        return min(self.samples, key=lambda sample: abs(sample.turn - turn))


def script_of(turns: int) -> list[dict[str, Any]]:
    """The answers of the model, one a turn; turn N of any session length is the same."""
    work = _Work()
    answers = [{"text": f"Step {turn}: go on.", "tool_calls": [work.call(turn)]} for turn in range(1, turns + 1)]
    return [*answers, {"text": "done"}]


class _Work:
    """The calls of a session in order: what a turn does depends on the turns before it, as that of a model does."""

    def __init__(self) -> None:
        self._visited = 0
        self._path = ""
        self._facts: list[str] = []
        self._decisions: list[str] = []

    def call(self, turn: int) -> dict[str, Any]:
        """The one call of a turn; turns count from 1."""
        match turn % 25:
            case 7:
                lines = {"start_line": turn % LARGE_LINES + 1, "end_line": LARGE_LINES}
                return {"name": "read_file", "args": {"path": "large.log", **lines}}
            case 11:
                return {"name": "read_file", "args": {"path": f"absent/{turn}.py"}}
            case 14:
                # Every other one exits with 3, which is a result; its output is beyond what history holds.
                return {"name": "run_command", "args": {"command": f"head -n 400 large.log; exit {turn % 2 * 3}"}}
            case 17:
                return {"name": "update_plan", "args": {"steps": _steps(turn)}}
            case 20:
                return {"name": "record_decision", "args": self._decision(turn)}
            case _ if turn % 3 == 1 and turn > 1:
                return {"name": "note_fact", "args": self._fact(turn)}
            case _:
                return self._visit(turn)

    def _visit(self, turn: int) -> dict[str, Any]:
        number = self._visited % FILES
        self._visited += 1
        self._path = f"src/part{number % 20:02}/module_{number:03}.py"
        if self._visited % 2:
            return {"name": "read_file", "args": {"path": self._path}}
        return {"name": "write_file", "args": {"path": self._path, "content": _module(number, turn)}}

    def _fact(self, turn: int) -> dict[str, Any]:
        """Cites the call before and a line of the file visited last; about one in fifty names what there is not."""
        known = self._facts
        sources = [f"call_{turn - 1}_0", f"{self._path}:1"]
        if turn % 50 == 1:
            sources.append(f"call_{turn}_9")
        args = {
            "content": f"{self._path} exports 8 names as of turn {turn}.",
            "confidence": 0.9,
            "source_refs": sources,
        }
        return _superseding(args, "fact_id", known, f"fact:call_{turn}_0", FACTS)

    def _decision(self, turn: int) -> dict[str, Any]:
        args = {
            "decision": f"Keep the names of {self._path}.",
            "rationale": f"Turn {turn} found no caller that another name would serve.",
            "alternatives": ["rename them", "drop them"],
            "evidence_refs": [f"call_{turn - 1}_0", self._path],
        }
        return _superseding(args, "decision_id", self._decisions, f"decision:call_{turn}_0", DECISIONS)


def _superseding(args: dict[str, Any], argument: str, known: list[str], made: str, most: int) -> dict[str, Any]:
    """A new statement while there are fewer than `most`; later the oldest one, corrected, which makes it the latest."""
    if len(known) < most:
        known.append(made)
        return args
    known.append(known.pop(0))
    return {**args, argument: known[-1]}


def _steps(turn: int) -> list[dict[str, str]]:
    status = ("done", "in_progress", "pending", "pending")
    return [{"step_id": f"s{turn}.{n}", "title": f"Part {turn + n} of the work", "status": status[n]} for n in range(4)]


def _module(number: int, version: int) -> str:
    lines = [f"def name_{number}_{n}(value):  # version {version}\n    return value + {n}\n" for n in range(8)]
    return "\n".join(lines)


def make_workspace(folder: Path) -> Path:
    """A workspace of `FILES` modules and one file larger than any window."""
    workspace = folder / "workspace"
    for number in range(FILES):
        path = workspace / f"src/part{number % 20:02}/module_{number:03}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_module(number, -1))
    (workspace / "large.log").write_text("".join(f"{n:06} line of a long log\n" for n in range(LARGE_LINES)))
    return workspace


@dataclass(frozen=True)
class Parts:
    """The processes of the stack."""

    worker: psutil.Process
    temporal: psutil.Process
    postgres: psutil.Process

    def sample(self, turn: int, postgres_bytes: int) -> Sample:
        """What they have used so far."""
        memory = self.worker.memory_full_info()
        return Sample(
            turn=turn,
            worker_mb=memory.uss / 1e6,
            worker_rss_mb=memory.rss / 1e6,
            postgres_mb=postgres_bytes / 1e6,
            worker_cpu_s=_cpu_s(self.worker),
            temporal_cpu_s=_cpu_s(self.temporal),
            postgres_cpu_s=_cpu_s(self.postgres),
        )


def _cpu_s(process: psutil.Process) -> float:
    """Seconds of processor time of a process and its children, ended ones included."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            used = member.cpu_times()
            total += used.user + used.system + used.children_user + used.children_system
    return total


async def measure(salience: Salience, folder: Path, turns: int, parts: Parts) -> Long:
    """Run one session and read its figures off journal, histories and the worker's process."""
    script = folder / "script.json"
    script.write_text(json.dumps({"turns": script_of(turns)}))
    config = SessionConfig(
        cwd=str(make_workspace(folder)),
        model_settings=ModelSettings(model=f"script:{script}"),
        context_config=ContextConfig(context_window_tokens=WINDOW, reserved_output_tokens=1_000),
        limits=Limits(max_model_calls=turns + 10),
    )
    began = time.perf_counter()
    session_id = await salience.start(config, "Go through all parts.")
    samples = await _watched(salience, session_id, parts)
    wall = time.perf_counter() - began
    events = [event async for event in salience.events(session_id)]
    overheads = overheads_of(events)
    last = max(overheads)
    state = await salience.state(session_id)
    history, turns_of_run, longest = await _histories(salience, session_id, events)
    verified_from = time.perf_counter()
    verification = Verification(salience.postgres, salience.journal, salience.blobs, Histories(salience.temporal))
    report = await verification.verify(session_id)
    verify_s = time.perf_counter() - verified_from
    replay_s = await _replay_s(salience, session_id, longest)
    return Long(
        turns=turns,
        wall_s=wall,
        early_ms=statistics.median(overheads[turn] for turn in EARLY),
        late_ms=statistics.median(overheads[turn] for turn in range(last - LATE, last + 1)),
        slowest_ms=max(overheads.values()),
        runs=len(history),
        turns_a_run=statistics.median(turns_of_run),
        history_first_run=history[0],
        history_last_run=history[-2] if len(history) > 1 else history[-1],
        replay_events=longest[1],
        replay_s=replay_s,
        epochs=max(event.payload.bundle.epoch for event in events if isinstance(event.payload, ev.ContextBuilt)),
        compactions=sum(isinstance(event.payload, ev.CompactionCompleted) for event in events),
        files=len(state.files),
        facts=len(state.facts),
        verified_facts=sum(fact.verified for fact in state.facts),
        decisions=len(state.decisions),
        state_bytes=len(state.model_dump_json()),
        samples=samples,
        verify_s=verify_s,
        verified=report.ok,
        by_hundred=[
            round(statistics.median(overheads[turn] for turn in range(first, min(first + 100, last + 1))), 1)
            for first in range(1, last + 1, 100)
        ],
    )


def overheads_of(events: list[ev.Event]) -> dict[int, float]:
    """Milliseconds of each turn, from one built context to the next, without the time of model and tools."""
    began: dict[int, datetime] = {}
    inside: dict[int, int] = defaultdict(int)
    turn = 0
    for event in events:
        match event.payload:
            case ev.ContextBuilt(bundle=bundle):
                turn = bundle.turn
                began[turn] = datetime.fromisoformat(event.timestamp)
            case ev.ModelResponseReceived() | ev.ToolCallFinished() | ev.ToolCallFailed():
                inside[turn] += event.payload.duration_ms
            case _:
                pass
    return {
        turn: (began[turn + 1] - start).total_seconds() * 1e3 - inside[turn]
        for turn, start in began.items()
        if turn + 1 in began
    }


async def _watched(salience: Salience, session_id: str, parts: Parts) -> list[Sample]:
    """Samples twice a second until the session's end is in the journal."""
    samples: list[Sample] = []
    while True:
        row = await _row(salience, session_id)
        if row is not None:
            turn, status, size = row
            samples.append(parts.sample(turn, size))
            if status != "active":
                return samples
        await asyncio.sleep(0.5)


async def _row(salience: Salience, session_id: str) -> tuple[int, str, int] | None:
    async with salience.postgres.connection() as connection:
        found = await connection.execute(
            "SELECT (projection::json->'workplace'->>'turn')::int, status, pg_database_size(current_database())"
            " FROM sessions WHERE session_id = %s AND projection IS NOT NULL",
            (session_id,),
        )
        return await found.fetchone()


async def _histories(
    salience: Salience, session_id: str, events: list[ev.Event]
) -> tuple[list[float], list[int], tuple[str, int]]:
    """Bytes a turn of each run, turns of each run, and the run with the most history events with their number."""
    turns: dict[str, int] = defaultdict(int)
    for event in events:
        if isinstance(event.payload, ev.ContextBuilt):
            turns[event.run_id] += 1
    sizes: list[float] = []
    longest = ("", 0)
    for run in await salience.journal.runs(session_id):
        handle = salience.temporal.get_workflow_handle(session_id, run_id=run.run_id)
        info = (await handle.describe()).raw_description.workflow_execution_info
        sizes.append(info.history_size_bytes / turns[run.run_id])
        if info.history_length > longest[1]:
            longest = (run.run_id, info.history_length)
    return sizes, list(turns.values()), longest


async def _replay_s(salience: Salience, session_id: str, run: tuple[str, int]) -> float:
    """Seconds to replay a run; the second of two, because the first also loads code."""
    history = await salience.temporal.get_workflow_handle(session_id, run_id=run[0]).fetch_history()
    took = 0.0
    for _ in range(2):
        began = time.perf_counter()
        await Replayer(workflows=WORKFLOWS, data_converter=DATA_CONVERTER).replay_workflow(history)
        took = time.perf_counter() - began
    return took


async def run(turns: int, folder: Path) -> Long:
    """Measure a session of this length on a stack of its own."""
    with Stack(worker=True) as stack:
        assert stack.info.worker is not None
        pids = (stack.info.worker.pid, stack.info.temporal.pid, stack.info.postgres.pid)
        async with await Salience.connect(resolve(Settings(home=stack.home.root))) as salience:
            return await measure(salience, folder, turns, Parts(*map(psutil.Process, pids)))


def table_of(long: Long, command: str, measured_at: str) -> str:
    """The figures as a page."""
    ratios = long.ratios
    lines = [
        f"# {long.turns} turns of one session",
        "",
        f"`{command}` · {measured_at} · {platform.machine()}, {platform.python_version()}",
        "",
        "A turn's overhead is everything but model and tool time. Late against early turns of the same session.",
        "",
        "| | early | late | ratio | at most |",
        "|---|---|---|---|---|",
        f"| overhead, ms (median of turns {EARLY[0]}-{EARLY[-1]}, of the last {LATE}) | {long.early_ms:.1f}"
        f" | {long.late_ms:.1f} | {ratios['overhead']:.2f} | {MOST['overhead']} |",
        f"| history, bytes a turn (first run, last whole run) | {long.history_first_run:.0f}"
        f" | {long.history_last_run:.0f} | {ratios['history']:.2f} | {MOST['history']} |",
    ]
    quarters = [long._at(share * long.turns // 4) for share in (1, 2, 3, 4)]
    for part in ("worker", "temporal", "postgres"):
        early, late = long.cpu_ms(part)
        lines.append(f"| processor time of {part}, ms a turn | {early:.1f} | {late:.1f} | {late / early:.2f} | |")
    lines += [
        f"| worker, MB of its own (turn {quarters[0].turn}, turn {quarters[-1].turn}) | {quarters[0].worker_mb:.0f}"
        f" | {quarters[-1].worker_mb:.0f} | {ratios['memory']:.2f} | {MOST['memory']} |",
        f"| Postgres, bytes a turn (second quarter, last quarter) | {_a_turn(quarters[0], quarters[1]):.0f}"
        f" | {_a_turn(quarters[2], quarters[3]):.0f} | {ratios['postgres']:.2f} | {MOST['postgres']} |",
        "",
        f"{long.runs} runs by continue-as-new, {long.turns_a_run:.0f} turns each; {long.compactions} compactions;"
        f" {long.epochs} epochs.",
        f"State at the end: {long.files} files, {long.facts} facts ({long.verified_facts} verified), {long.decisions}"
        f" decisions, {long.state_bytes} bytes.",
        f"Worker's resident memory at each quarter, MB: {', '.join(f'{at.worker_rss_mb:.0f}' for at in quarters)};"
        f" its own: {', '.join(f'{at.worker_mb:.0f}' for at in quarters)}.",
        f"Replay of the longest run ({long.replay_events} history events): {long.replay_s:.2f} s."
        f" Whole session: {long.wall_s:.0f} s; `verify` of it: {long.verify_s:.1f} s, {'ok' if long.verified else 'NOT ok'}.",
        f"Overhead by hundred turns, ms: {', '.join(f'{value:g}' for value in long.by_hundred)}.",
        f"Slowest turn: {long.slowest_ms:.0f} ms, one with continue-as-new.",
    ]
    return "\n".join(lines) + "\n"


def _a_turn(earlier: Sample, later: Sample) -> float:
    return (later.postgres_mb - earlier.postgres_mb) * 1e6 / (later.turn - earlier.turn)


def main() -> None:
    """Measure, print the table, write it with all figures to `bench/results`; exit 1 when a ratio is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.long", description=__doc__)
    parser.add_argument("turns", type=int, nargs="?", default=2_000, help="turns of the session, at least 400")
    asked = parser.parse_args()
    if asked.turns < 400:
        parser.error("at least 400 turns: early and late ones are compared")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        long = asyncio.run(run(asked.turns, Path(folder)))
    command, measured_at = (
        "python -m bench.long " + " ".join(sys.argv[1:]),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
    figures = {"command": command, "measured_at": measured_at, "ratios": long.ratios, **asdict(long)}
    figures["samples"] = [asdict(sample) for sample in long.samples[:: max(1, len(long.samples) // 100)]]
    RESULTS.mkdir(exist_ok=True)
    name = f"long-{asked.turns}"
    (RESULTS / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    table = table_of(long, command, measured_at)
    (RESULTS / f"{name}.md").write_text(table)
    print(table)
    for line in long.missed:
        print(f"missed: {line}", file=sys.stderr)
    sys.exit(bool(long.missed))


if __name__ == "__main__":
    main()
