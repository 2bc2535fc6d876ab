"""Record golden histories on a real stack: one session a scenario, every run's history and its events as JSON.

    python -m tests.golden.record

A change that makes the recorded histories decode or replay otherwise breaks sessions that are running somewhere: raise the
decoder's version or patch the workflow instead of recording again.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHistory

from salience.client import Salience
from salience.local import Stack, resolve
from salience.model.session import ContextConfig, Limits, ModelSettings, SessionConfig
from salience.settings import Settings
from salience.store.history import Histories
from tests.conftest import ended, until

HERE = Path(__file__).parent
READ = {"tool_calls": [{"name": "read_file", "args": {"path": "a.txt"}}]}


class Stage:
    """Where scenarios play: a stack, a client, and a worker that can be killed."""

    def __init__(self, stack: Stack, salience: Salience, folder: Path) -> None:
        self.stack = stack
        self.salience = salience
        self.folder = folder

    def config(self, turns: list[dict[str, Any]], *, window: int = 128_000, **top: Any) -> SessionConfig:
        """A scripted session in a workspace of its own."""
        workspace = self.folder / f"ws-{uuid.uuid4().hex[:6]}"
        workspace.mkdir()
        (workspace / "a.txt").write_text("hello\n")
        script = self.folder / f"{workspace.name}.json"
        script.write_text(json.dumps({"turns": turns, **top}))
        return SessionConfig(
            cwd=str(workspace),
            model_settings=ModelSettings(model=f"script:{script}"),
            context_config=ContextConfig(
                context_window_tokens=window, reserved_output_tokens=4_096 if window > 32_000 else 1_000
            ),
            limits=Limits(retry_base_s=0.05),
        )


async def tools(stage: Stage, session_id: str) -> None:
    """Parallel reads, an edit, a command, a plan, a refused call, an end by `finish`."""
    turns = [
        {"text": "look", "tool_calls": [READ["tool_calls"][0], {"name": "list_files", "args": {}}]},
        {"tool_calls": [{"name": "update_plan", "args": {"steps": [{"title": "fix", "status": "in_progress"}]}}]},
        {"tool_calls": [{"name": "edit_file", "args": {"path": "a.txt", "old_text": "hello", "new_text": "bye"}}]},
        {"tool_calls": [{"name": "run_command", "args": {"command": "echo made > b.txt"}}]},
        {"tool_calls": [{"name": "read_file", "args": {"path": "../outside"}}, {"name": "no_such_tool", "args": {}}]},
        {"tool_calls": [{"name": "finish", "args": {"summary": "done"}}]},
    ]
    await stage.salience.start(stage.config(turns), "fix it", session_id=session_id)
    await ended(stage.salience, session_id)


async def statements(stage: Stage, session_id: str) -> None:
    """A fact, an assumption, a decision and a question beside another call; the answer starts the run that finishes."""
    fact = {"content": "it says hello", "confidence": 1, "source_refs": ["call_1_0", "a.txt"]}
    turns = [
        READ,
        {
            "tool_calls": [
                {"name": "note_fact", "args": fact},
                {"name": "note_fact", "args": {**fact, "source_refs": []}},
            ]
        },
        {
            "tool_calls": [
                {
                    "name": "record_decision",
                    "args": {"decision": "keep it", "rationale": "polite", "alternatives": ["x"]},
                },
                {"name": "read_artifact", "args": {"ref": "call_1_0"}},
            ]
        },
        {
            "text": "one thing",
            "tool_calls": [
                {"name": "ask_user", "args": {"question": "Which?", "choices": ["a", "b"]}},
                {"name": "list_files", "args": {}},
            ],
        },
        {"tool_calls": [{"name": "finish", "args": {"summary": "done"}}]},
    ]
    await stage.salience.start(stage.config(turns), "decide", session_id=session_id)
    await ended(stage.salience, session_id)
    await stage.salience.say(session_id, "a", message_id="m2")
    await until(lambda: _has(stage, session_id, "SessionEnded", 2))


async def failures(stage: Stage, session_id: str) -> None:
    """A rate limit, then an answer; then a refused key ends the run; the session goes on afterwards."""
    turns = [{"error": {"kind": "rate_limit", "retry_after_s": 0.01}}, READ, {"error": "auth"}, {"text": "at last"}]
    await stage.salience.start(stage.config(turns), "try", session_id=session_id)
    await ended(stage.salience, session_id)
    await stage.salience.say(session_id, "again", message_id="m2")
    await until(lambda: _has(stage, session_id, "SessionEnded", 2))


async def verbs(stage: Stage, session_id: str) -> None:
    """Input by update and signal, repeated ids, an interrupt inside a command, pause and resume, close."""
    slow = {"tool_calls": [{"name": "run_command", "args": {"command": "echo begun > begun; sleep 60"}}]}
    config = stage.config([slow, {"text": "after"}], on_end="repeat_last")
    await stage.salience.start(config, "go", session_id=session_id)
    await until(lambda: _exists(Path(config.cwd) / "begun"))
    handle = stage.salience.temporal.get_workflow_handle(session_id)
    await handle.signal("submit", {"message_id": "s1", "text": "by signal \ud800"})
    await handle.signal("submit", {"message_id": "s1", "text": "by signal \ud800"})
    await stage.salience.pause(session_id)
    await stage.salience.interrupt(session_id, "enough")
    await stage.salience.resume(session_id)
    await ended(stage.salience, session_id)


async def worker_lost(stage: Stage, session_id: str) -> None:
    """The worker dies inside a command: the call ends as outcome unknown, with evidence."""
    slow = {"tool_calls": [{"name": "run_command", "args": {"command": "echo x > made; sleep 30"}}]}
    config = stage.config([slow, {"text": "it was lost"}])
    await stage.salience.start(config, "go", session_id=session_id)
    await until(lambda: _exists(Path(config.cwd) / "made"))
    stage.stack.kill("worker")
    await ended(stage.salience, session_id)


async def many_turns(stage: Stage, session_id: str) -> None:
    """Enough turns to continue as new once."""
    await stage.salience.start(stage.config([READ] * 125 + [{"text": "end"}]), "go", session_id=session_id)
    await ended(stage.salience, session_id, timeout_s=300)


async def reset(stage: Stage, session_id: str) -> None:
    """An operator resets a finished run to an earlier turn: a branch of the log."""
    await stage.salience.start(stage.config([READ, READ, {"text": "end"}]), "go", session_id=session_id)
    await ended(stage.salience, session_id)
    run_id = (await stage.salience.journal.runs(session_id))[0].run_id
    history = await Histories(stage.salience.temporal).whole(session_id, run_id)
    second = next(
        event.event_id
        for event in history
        if event.activity_task_scheduled_event_attributes.activity_id == "t2.context"
    )
    request = ResetWorkflowExecutionRequest(
        namespace="default",
        reason="golden",
        workflow_task_finish_event_id=second - 1,
        request_id=uuid.uuid4().hex,
    )
    request.workflow_execution.workflow_id = session_id
    request.workflow_execution.run_id = run_id
    await stage.salience.temporal.workflow_service.reset_workflow_execution(request)
    await until(lambda: _has(stage, session_id, "SessionEnded", 2))


def _reads(files: int) -> list[dict[str, Any]]:
    return [{"text": f"{n}", "tool_calls": [{"name": "read_file", "args": {"path": f"f{n}.txt"}}]} for n in range(files)]


async def compacted(stage: Stage, session_id: str) -> None:
    """Compactions before a turn, after an overflow and by hand; a rollback; runs of their own for the last two."""
    overflow = {"error": {"kind": "context_overflow", "message": "prompt is too long", "limit_tokens": 8_000}}
    config = stage.config([*_reads(30), overflow, *_reads(2), {"text": "read"}, {"text": "end"}], window=10_000)
    for n in range(30):
        (Path(config.cwd) / f"f{n}.txt").write_text(f"word{n} " * 200)
    await stage.salience.start(config, "read all, and never write", session_id=session_id)
    await ended(stage.salience, session_id)
    await stage.salience.compact(session_id, focus="the words")
    await until(lambda: _has(stage, session_id, "SessionEnded", 2))
    await stage.salience.rollback(session_id)
    await until(lambda: _has(stage, session_id, "SessionEnded", 3))
    await stage.salience.say(session_id, "go on", message_id="m2")
    await until(lambda: _has(stage, session_id, "SessionEnded", 4))


SCENARIOS: dict[str, Callable[[Stage, str], Awaitable[None]]] = {
    scenario.__name__: scenario
    for scenario in (tools, statements, failures, verbs, worker_lost, many_turns, reset, compacted)
}


EXPORT = "session"
"""The name that records the golden export: a session of the scenario `tools`, that went on once."""


async def export(stage: Stage) -> None:
    """Write an export and the state that it folds to."""
    session_id = "golden-session"
    await tools(stage, session_id)
    await stage.salience.say(session_id, "and now?", message_id="m2")
    await until(lambda: _has(stage, session_id, "SessionEnded", 2))
    written = stage.salience.export(session_id)
    (HERE / "session.export.jsonl").write_bytes(b"".join([line async for line in written.lines()]))
    state = (await stage.salience.state(session_id)).plain()
    (HERE / "session.state.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")
    print(f"{EXPORT}: {written.outcome.events} events, {written.outcome.blobs} blobs", file=sys.stderr)


async def _exists(path: Path) -> bool:
    return path.exists()


async def _has(stage: Stage, session_id: str, kind: str, times: int) -> bool:
    return [event.type async for event in stage.salience.events(session_id)].count(kind) == times


async def record(names: list[str]) -> None:
    """Play scenarios and write their histories."""
    with Stack(worker=True) as stack, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        async with await Salience.connect(resolve(Settings(home=stack.home.root))) as salience:
            for name in names:
                if name == EXPORT:
                    await export(Stage(stack, salience, Path(folder)))
                    continue
                session_id = f"golden-{name}"
                await SCENARIOS[name](Stage(stack, salience, Path(folder)), session_id)
                runs = []
                for run in await salience.journal.runs(session_id):
                    events = await Histories(salience.temporal).whole(session_id, run.run_id)
                    history = WorkflowHistory(session_id, events).to_json_dict()
                    runs.append({"run_id": run.run_id, "shared_until": run.shared_until, "history": history})
                journal = [event.plain() async for event in salience.events(session_id)]
                text = json.dumps({"session_id": session_id, "runs": runs, "events": journal}, indent=0, sort_keys=True)
                (HERE / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
                print(f"{name}: {len(runs)} runs, {len(journal)} events", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:] or [*SCENARIOS, EXPORT]))
