"""Every verb of a session, as update and as signal, on the real stack (spec LOOP-2, LOOP-2b, LOOP-2c)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.verification import Verification
from salience.client import Salience
from salience.errors import InputTooLarge, NotFound, UsageError
from salience.model import calls
from salience.model.session import Limits
from salience.projection.projection import Projection
from salience.settings import Settings
from salience.store.history import Histories
from tests.conftest import Scripted, ended, until

SLOW = {"tool_calls": [{"name": "run_command", "args": {"command": "echo begun > begun; sleep 60"}}]}


async def types_of(salience: Salience, session_id: str) -> list[str]:
    return [event.type async for event in salience.events(session_id)]


async def test_starting_twice_is_one_session(salience: Salience, scripted: Scripted, session_id: str) -> None:
    config = scripted([{"text": "one"}, {"text": "two"}], on_end="repeat_last")
    first = await salience.start(config, "do it", session_id=session_id)
    second = await salience.start(config, "do it", session_id=session_id)
    assert first == second == session_id
    events = await ended(salience, session_id)
    prompts = {event.payload.message_id for event in events if event.type == "UserPromptSubmitted"}  # type: ignore[attr-defined]
    assert len(prompts) == 1


async def test_a_message_id_is_delivered_once_also_across_runs(
    salience: Salience, scripted: Scripted, session_id: str
) -> None:
    await salience.start(scripted([{"text": "ok"}], on_end="repeat_last"), "task", session_id=session_id)
    await ended(salience, session_id)
    one = await salience.say(session_id, "again", message_id="m1")
    assert (one.accepted, one.position) == ("queued", 2)
    await salience.result(session_id)
    two = await salience.say(session_id, "again", message_id="m1")
    assert (two.accepted, two.position) == ("duplicate", 2)
    await ended(salience, session_id)
    entries = await salience.journal.transcript(session_id)
    assert [e.text for e in entries if e.kind == "prompt"] == ["task", "again"]


async def test_a_client_may_name_its_input_as_the_record_names_an_answer(
    salience: Salience, settings: Settings, scripted: Scripted, session_id: str
) -> None:
    await salience.start(scripted([{"text": "ok"}], on_end="repeat_last"), "task", session_id=session_id)
    await ended(salience, session_id)
    (answer,) = [e for e in await salience.journal.transcript(session_id) if e.kind == "response"]
    await salience.say(session_id, "again", message_id=answer.message_id)
    assert (await salience.result(session_id)).reason == "answered"
    await ended(salience, session_id)
    entries = await salience.journal.transcript(session_id)
    assert [e.text for e in entries if e.kind == "prompt"] == ["task", "again"]
    verification = Verification(salience.postgres, salience.journal, salience.blobs, Histories(salience.temporal))
    report = await verification.verify(session_id)
    assert report.ok, report.findings


async def test_an_ended_session_goes_on_with_its_record(
    salience: Salience, scripted: Scripted, session_id: str
) -> None:
    turns = [{"text": "first"}, {"text": "second"}]
    await salience.start(scripted(turns), "task", session_id=session_id)
    await ended(salience, session_id)
    await salience.say(session_id, "more")
    result = await salience.result(session_id)
    assert result.final_preview == "second"
    await until(lambda: _status(salience, session_id, "completed"))
    types = await types_of(salience, session_id)
    assert types.count("SessionStarted") == 1
    assert types.count("SessionResumed") == 1
    await until(lambda: _ended_times(salience, session_id, 2))
    runs = await salience.journal.runs(session_id)
    assert [run.generation for run in runs] == [1, 2]
    assert runs[0].archive_ref is not None


async def _status(salience: Salience, session_id: str, status: str) -> bool:
    return (await salience.session(session_id)).status == status


async def _ended_times(salience: Salience, session_id: str, times: int) -> bool:
    return (await types_of(salience, session_id)).count("SessionEnded") == times


async def test_interrupt_stops_a_tool_and_the_session_waits(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    await salience.start(scripted([SLOW, {"text": "after"}]), "task", session_id=session_id)
    await until(lambda: _exists(workspace / "begun"))
    await salience.interrupt(session_id, "too slow")
    status = await until(lambda: _waiting(salience, session_id))
    assert status["turn"] == 1
    await salience.say(session_id, "go on")
    events = await ended(salience, session_id)
    failed = [event.payload for event in events if event.type == "ToolCallFailed"]
    assert [payload.kind for payload in failed] == ["interrupted"]  # type: ignore[attr-defined]
    assert "TurnInterrupted" in [event.type for event in events]
    assert [e.path for e in _written(events)] == ["begun"]
    assert (await salience.result(session_id)).final_preview == "after"


def _written(events: Any) -> list[Any]:
    return [event.payload for event in events if event.type == "FileWritten"]


async def _exists(path: Path) -> bool:
    return path.exists()


async def _waiting(salience: Salience, session_id: str) -> Any:
    status = await salience.query(session_id, "status")
    return status if status and status["step"] == "waiting" else None


async def test_pause_holds_the_next_step_until_resume(salience: Salience, scripted: Scripted, session_id: str) -> None:
    turns = [{"delay_s": 0.5, "tool_calls": [{"name": "list_files", "args": {}}]}, {"text": "done"}]
    await salience.start(scripted(turns), "task", session_id=session_id)
    await until(lambda: salience.query(session_id, "status"))
    await salience.pause(session_id)
    status = await salience.query(session_id, "status")
    assert status is not None
    assert status["status"] == "paused"
    await asyncio.sleep(1.2)
    assert "ToolCallFinished" not in await types_of(salience, session_id)
    assert await salience.resume(session_id) == "active"
    types = [event.type for event in await ended(salience, session_id)]
    assert types.index("SessionPaused") < types.index("SessionResumed") < types.index("SessionEnded")


async def test_close_ends_and_resume_starts_the_next_run(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    await salience.start(scripted([SLOW, {"text": "after"}]), "task", session_id=session_id)
    await until(lambda: _exists(workspace / "begun"))
    assert await salience.close(session_id) == "closed"
    await ended(salience, session_id)
    assert (await salience.session(session_id)).end_reason == "closed"
    assert await salience.close(session_id) == "closed"
    assert await salience.resume(session_id) == "started"
    await until(lambda: _ended_times(salience, session_id, 2))
    assert (await salience.result(session_id)).final_preview == "after"


async def test_plain_temporal_client(settings: Settings, scripted: Scripted, session_id: str) -> None:
    """Nothing but temporalio: start, signal input, query the context (spec LOOP-2c)."""
    config = scripted([{"delay_s": 1, "text": "one"}, {"text": "two"}])
    client = await Client.connect(settings.temporal_address)
    handle = await client.start_workflow(
        "AgentSession",
        {"task": "look around", "cwd": config.cwd, "model": config.model_settings.model},
        id=session_id,
        task_queue="salience",
    )
    await until(lambda: _asked(handle))
    await handle.signal("submit", "one more thing")
    await handle.signal("submit", {"message_id": "p-1", "text": "and this", "of_no_interest": 1})
    await handle.signal("submit", {"message_id": "p-1", "text": "and this"})
    result = await asyncio.wait_for(handle.result(), 30)
    assert result["reason"] == "answered"
    assert result["final_preview"] == "two"
    context = await handle.query("context")
    assert context["bundle_ref"].startswith("b2-")
    assert context["view"]["history_message_count"] == 4
    assert context["tokens"]["by_section"]["transcript"] > 0
    assert len(str(context)) < 4096


async def _asked(handle: Any) -> bool:
    return (await handle.query("status"))["step"] == "calling_model"


async def test_signals_of_every_verb(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str
) -> None:
    client = await Client.connect(settings.temporal_address)
    config = scripted([{"delay_s": 20, "text": "never"}, {"text": "after"}])
    await salience.start(config, "task", session_id=session_id)
    handle = client.get_workflow_handle(session_id)
    await until(lambda: _calling(salience, session_id))
    await handle.signal("pause")
    await handle.signal("interrupt", "enough")
    await until(lambda: _waiting(salience, session_id))
    await handle.signal("resume")
    await handle.signal("close")
    events = await ended(salience, session_id)
    types = [event.type for event in events]
    for expected in ("SessionPaused", "TurnInterrupted", "SessionResumed", "SessionEnded", "ModelRequestFailed"):
        assert expected in types
    failed = [event.payload for event in events if event.type == "ModelRequestFailed"]
    assert failed[0].kind == "interrupted"  # type: ignore[attr-defined]


async def _calling(salience: Salience, session_id: str) -> bool:
    status = await salience.query(session_id, "status")
    return bool(status and status["step"] == "calling_model")


async def test_many_inputs_at_once_are_all_delivered(salience: Salience, scripted: Scripted, session_id: str) -> None:
    config = scripted([{"delay_s": 0.2, "text": "ok"}], on_end="repeat_last")
    await salience.start(config, "task", session_id=session_id)
    receipts = await asyncio.gather(*(salience.say(session_id, f"say {n}", message_id=f"n{n}") for n in range(9)))
    receipts += await asyncio.gather(*(salience.say(session_id, f"say {n}", message_id=f"n{n}") for n in range(9, 18)))
    assert {receipt.accepted for receipt in receipts} == {"queued"}
    await until(lambda: _all_delivered(salience, session_id, 19), timeout_s=60)


async def _all_delivered(salience: Salience, session_id: str, count: int) -> bool:
    entries = await salience.journal.transcript(session_id)
    ids = [e.message_id for e in entries if e.kind == "prompt"]
    assert len(ids) == len(set(ids))
    return len(ids) == count


async def test_continue_as_new_carries_everything(salience: Salience, scripted: Scripted, session_id: str) -> None:
    """About 130 turns cross at least one continue-as-new; ids acknowledged before it are duplicates after it."""
    turns: list[dict[str, Any]] = [{"tool_calls": [{"name": "list_files", "args": {}}]}] * 130 + [{"text": "end"}]
    await salience.start(scripted(turns), "task", session_id=session_id, message_id="first")
    await until(lambda: _several_runs(salience, session_id), timeout_s=90)
    again = await salience.say(session_id, "task", message_id="first")
    assert (again.accepted, again.position) == ("duplicate", 1)
    await ended(salience, session_id, timeout_s=90)
    runs = await salience.journal.runs(session_id)
    assert len(runs) >= 2
    assert all(run.archive_ref for run in runs[:-1])
    types = await types_of(salience, session_id)
    assert types.count("ModelResponseReceived") == 131
    assert types.count("SessionStarted") == 1
    assert types.count("UserPromptSubmitted") == 2
    # Far enough for snapshots: the state at a past event is the same from the nearest one as from the beginning.
    events = [event async for event in salience.events(session_id)]
    snapshot = await salience.journal.snapshot_before(session_id, len(events) - 20)
    assert snapshot is not None
    assert snapshot.cursor.seq >= 256
    folded = Projection.empty(session_id)
    for event in events[:-20]:
        folded.fold(event)
    assert await salience.state(session_id, at=str(len(events) - 20)) == folded.state
    histories = Histories(salience.temporal)
    verification = Verification(salience.postgres, salience.journal, salience.blobs, histories)
    report = await verification.verify(session_id)
    assert report.ok, report.findings
    assert (report.runs, report.bundles) == (len(runs), 131)


async def _several_runs(salience: Salience, session_id: str) -> bool:
    return len(await salience.journal.runs(session_id)) > 1


def test_the_carry_stays_small() -> None:
    from workflows.inbox import Inbox

    inbox = Inbox()
    for number in range(5_000):
        inbox.admit(f"{number:0200d}")
    carry = calls.SessionCarry(receipts=inbox.carried(), positions=inbox.positions)
    assert len(carry.model_dump_json()) < 64 * 1024
    assert inbox.admit(f"{4_999:0200d}").accepted == "duplicate"


async def test_unknown_sessions_and_bad_input(salience: Salience, scripted: Scripted, session_id: str) -> None:
    for verb in (salience.say("nobody", "hi"), salience.interrupt("nobody"), salience.resume("nobody")):
        with pytest.raises(NotFound):
            await verb
    with pytest.raises(UsageError):
        await salience.start(scripted([]), "x", session_id="a/b")
    with pytest.raises(InputTooLarge):
        await salience.start(scripted([]), "x" * (60 * 1024 * 1024), session_id=session_id)


@pytest.mark.parametrize("name", ["²", "9" * 40, "-1", "", "run:1:none", "a\0b", "\ud800"])
async def test_a_name_that_is_no_events_is_not_found(
    salience: Salience, scripted: Scripted, session_id: str, name: str
) -> None:
    await salience.start(scripted([{"text": "ok"}]), "task", session_id=session_id)
    await ended(salience, session_id)
    with pytest.raises(NotFound, match="has no event"):
        await salience.state(session_id, at=name)
    with pytest.raises(NotFound):
        await salience.context(session_id, at=f"b{name}")


async def test_large_and_broken_text(salience: Salience, scripted: Scripted, session_id: str) -> None:
    config = scripted(
        [{"text": "ok"}],
        on_end="repeat_last",
    )
    await salience.start(config, "nul \x00 and surrogate \ud800 end", session_id=session_id)
    await ended(salience, session_id)
    await salience.say(session_id, "five million: " + "word " * 1_000_000)
    await until(lambda: _ended_times(salience, session_id, 2))
    prompts = [e.payload async for e in salience.events(session_id) if e.type == "UserPromptSubmitted"]
    mended, large = prompts
    assert mended.text == "nul \ufffd and surrogate \ufffd end"  # type: ignore[attr-defined]
    assert await salience.blobs.get(mended.original_ref) == b"nul \x00 and surrogate \xed\xa0\x80 end"  # type: ignore[attr-defined]
    assert large.size_bytes == 5_000_014  # type: ignore[attr-defined]
    assert len(large.text) < 2_000  # type: ignore[attr-defined]
    # It does not fit the window; it is refused by name instead of being cut, and the session stays resumable.
    assert (await salience.session(session_id)).end_reason == "context_unfit"


async def test_bad_text_from_a_plain_client(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str
) -> None:
    client = await Client.connect(settings.temporal_address)
    config = scripted([{"delay_s": 0.5, "text": "ok"}], on_end="repeat_last")
    start = {"task": "go", "cwd": config.cwd, "model": config.model_settings.model}
    handle = await client.start_workflow("AgentSession", start, id=session_id, task_queue="salience")
    await handle.signal("submit", "lone \ud800 and nul \x00")
    await handle.signal("submit", 42)
    await handle.signal("submit", "big " * 50_000)
    await handle.signal("submit", "   ")
    await ended(salience, session_id)
    prompts = [e.payload async for e in salience.events(session_id) if e.type == "UserPromptSubmitted"]
    assert [p.text[:20] for p in prompts] == ["go", "lone \ufffd and nul \ufffd", "42", "big big big big big "]  # type: ignore[attr-defined]
    assert prompts[3].text_ref is not None  # type: ignore[attr-defined]
    assert await salience.blobs.get(prompts[3].text_ref) == b"big " * 50_000  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "start",
    [
        {"task": "x", "config": {"cwd": "relative", "model_config": {"model": "script:x"}}},
        {"task": "x", "unknown_key": 1},
        {"task": "x", "cwd": "/", "model": "no-slash"},
        {"task": "x", "config": {"cwd": "/", "model_config": {"model": "a/b"}, "tools": ["no_such_tool"]}},
    ],
)
async def test_an_invalid_start_ends_with_the_reason(
    settings: Settings, salience: Salience, session_id: str, start: dict[str, Any]
) -> None:
    from temporalio.client import WorkflowFailureError

    client = await Client.connect(settings.temporal_address)
    handle = await client.start_workflow("AgentSession", start, id=session_id, task_queue="salience")
    outcome = (await asyncio.gather(asyncio.wait_for(handle.result(), 20), return_exceptions=True))[0]
    if isinstance(outcome, WorkflowFailureError):
        assert "invalid start input" in str(outcome.cause)
        return
    assert outcome["reason"] == "internal_error"
    assert outcome["detail"]


async def test_step_limit(salience: Salience, scripted: Scripted, session_id: str) -> None:
    turns = [{"tool_calls": [{"name": "list_files", "args": {}}]}]
    config = scripted(turns, on_end="repeat_last", limits=Limits(max_model_calls=3))
    await salience.start(config, "loop", session_id=session_id)
    assert (await salience.result(session_id)).reason == "step_limit"
