"""Each role in a process of its own: a session passes through all four, and any of them may die (spec LOOP-3)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType

from activities.verification import Verification
from salience.client import Salience
from salience.local import Stack
from salience.model.calls import ROLE_OF, queue_of
from salience.model.session import ModelSettings, SessionConfig
from salience.settings import Settings
from salience.store.history import Histories
from tests.chat_server import ChatServer, text_stream
from tests.conftest import Scripted, ended, until
from tests.processes import Processes

SPLIT = ("workflow", "context", "model", "tools")


@pytest.fixture
async def processes(stack: Stack, tmp_path: Path) -> AsyncIterator[Processes]:
    """No process yet; those that a test starts end with it."""
    started = Processes(stack.home.root, f"roles-{uuid.uuid4().hex[:8]}", tmp_path)
    yield started
    await started.close()


@pytest.fixture
async def apart(settings: Settings, processes: Processes) -> AsyncIterator[Salience]:
    """A client whose sessions are on the processes' queue."""
    async with await Salience.connect(settings.model_copy(update={"task_queue": processes.queue})) as connected:
        yield connected


async def work_of(salience: Salience, session_id: str) -> list[tuple[str, str, int]]:
    """Of each activity of a session: its name, its task queue, and the process that ended it."""
    history = await salience.temporal.get_workflow_handle(session_id).fetch_history()
    scheduled = {event.event_id: event.activity_task_scheduled_event_attributes for event in history.events}
    found: list[tuple[str, str, int]] = []
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            asked = scheduled[started.scheduled_event_id]
            pid = int(started.identity.split("@")[0])
            found.append((asked.activity_type.name, asked.task_queue.name, pid))
    return found


async def whole(salience: Salience, session_id: str) -> bool:
    """Whether the record of a session agrees with itself and its history."""
    histories = Histories(salience.temporal)
    verification = Verification(salience.postgres, salience.journal, salience.blobs, histories)
    return (await verification.verify(session_id)).ok


async def calling_the_model(salience: Salience, session_id: str, turn: int) -> bool:
    """Whether a worker has begun the model call of a turn."""
    described = await salience.temporal.get_workflow_handle(session_id).describe()
    pending = described.raw_description.pending_activities
    return any(each.activity_id == f"t{turn}.model" and each.HasField("last_started_time") for each in pending)


@pytest.mark.timeout(240)
async def test_four_roles_serve_a_session_while_one_is_killed(
    apart: Salience, processes: Processes, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    for role in SPLIT:
        await processes.start(role)
    config = scripted(
        [
            {"tool_calls": [{"name": "run_command", "args": {"command": "echo once >> ran.txt"}}]},
            {"text": "slow", "delay_s": 4, "tool_calls": [{"name": "read_file", "args": {"path": "ran.txt"}}]},
            {"text": "Done."},
        ]
    )
    await apart.start(config, "work", session_id=session_id)
    await until(lambda: calling_the_model(apart, session_id, 2), timeout_s=90)
    await processes.kill("model")
    await processes.start("model")
    events = await ended(apart, session_id, timeout_s=120)
    assert (await apart.result(session_id)).final_preview == "Done."
    assert (workspace / "ran.txt").read_text() == "once\n"
    assert not [event for event in events if event.type == "ModelRequestFailed"]
    for name, queue, pid in await work_of(apart, session_id):
        assert queue == queue_of(processes.queue, ROLE_OF[name])
        assert pid in processes.pids[ROLE_OF[name]], name
    assert await whole(apart, session_id)


@pytest.mark.timeout(240)
async def test_a_session_goes_on_when_a_deployment_is_split_and_put_together_again(
    apart: Salience, processes: Processes, scripted: Scripted, session_id: str
) -> None:
    """What one topology has scheduled, the next one serves."""
    await processes.start("all")
    read = {"tool_calls": [{"name": "list_files", "args": {}}]}
    config = scripted([{"delay_s": 4, **read}, {"delay_s": 4, **read}, {"text": "Done."}])
    await apart.start(config, "work", session_id=session_id)
    await until(lambda: calling_the_model(apart, session_id, 1), timeout_s=90)
    await processes.kill("all")
    for role in SPLIT:
        await processes.start(role)
    await until(lambda: calling_the_model(apart, session_id, 2), timeout_s=90)
    for role in SPLIT:
        await processes.kill(role)
    await processes.start("all")
    await ended(apart, session_id, timeout_s=120)
    assert (await apart.result(session_id)).final_preview == "Done."
    queues = {(name, queue) for name, queue, _ in await work_of(apart, session_id) if name == "call_model"}
    assert queues == {("call_model", processes.queue), ("call_model", queue_of(processes.queue, "model"))}
    assert await whole(apart, session_id)


@pytest.mark.timeout(180)
async def test_provider_keys_are_needed_in_the_model_role_only(
    apart: Salience, processes: Processes, workspace: Path, session_id: str
) -> None:
    key = f"sk-{uuid.uuid4().hex}"
    async with ChatServer(text_stream("Hello.")) as server:
        for role in SPLIT:
            await processes.start(role, {"OPENAI_API_KEY": key} if role == "model" else None)
        settings = ModelSettings(model="openai/gpt-4.1", api_base=server.url)
        await apart.start(SessionConfig(cwd=str(workspace), model_settings=settings), "hi", session_id=session_id)
        await ended(apart, session_id, timeout_s=120)
        assert (await apart.result(session_id)).final_preview == "Hello."
        assert set(server.keys) == {f"Bearer {key}"}
    holders = {
        role
        for role, pids in processes.pids.items()
        for pid in pids
        if key in Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace")
    }
    assert holders == {"model"}
