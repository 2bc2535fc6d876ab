"""Every run's history is kept, however it ended, and a session reads the same without Temporal (spec EVT-5)."""

from __future__ import annotations

import asyncio

from activities.archive import ArchiveManifest, unpack
from activities.verification import Verification
from salience.client import Salience
from salience.log.decode import is_close
from salience.settings import Settings
from tests.conftest import Scripted, ended, until
from workflows.archive import SWEEP_WORKFLOW_TYPE


async def archived(salience: Salience, session_id: str) -> bool:
    runs = await salience.journal.runs(session_id)
    return bool(runs) and all(run.archive_ref for run in runs)


async def test_a_finished_run_is_archived_whole(salience: Salience, scripted: Scripted, session_id: str) -> None:
    await salience.start(scripted([{"text": "done"}]), "task", session_id=session_id)
    await ended(salience, session_id)
    await until(lambda: archived(salience, session_id))
    (run,) = await salience.journal.runs(session_id)
    manifest = ArchiveManifest.model_validate_json(await salience.blobs.get(run.archive_ref or ""))
    history = unpack(await salience.blobs.get(manifest.history_ref))
    assert len(history) == manifest.history_events == run.history_events
    assert is_close(history[-1])
    position = await salience.journal.position(session_id)
    assert position is not None
    assert (manifest.anchor.seq, manifest.anchor.head) == (position.seq, position.head)
    named = await salience.blobs.named(f"archive/{session_id}")
    assert named == {f"archive/{session_id}/{run.run_id}": run.archive_ref}


async def test_a_terminated_run_is_swept(
    settings: Settings, salience: Salience, scripted: Scripted, session_id: str
) -> None:
    await salience.start(scripted([{"delay_s": 60, "text": "never"}]), "task", session_id=session_id)
    await until(lambda: salience.query(session_id, "status"))
    await salience.temporal.get_workflow_handle(session_id).terminate("by an operator")
    sweep = await salience.temporal.start_workflow(
        SWEEP_WORKFLOW_TYPE, id=f"sweep-{session_id}", task_queue=settings.task_queue
    )
    assert await asyncio.wait_for(sweep.result(), 60) >= 1
    events = [event async for event in salience.events(session_id)]
    assert (events[-1].type, events[-1].payload.plain()["reason"]) == ("SessionEnded", "terminated")
    assert (await salience.session(session_id)).status == "failed"
    assert await archived(salience, session_id)
    verification = Verification(salience.postgres, salience.journal, salience.blobs, None)
    report = await verification.verify(session_id)
    assert (report.ok, report.runs_from_archive) == (True, 1), report.findings


async def test_a_terminated_session_goes_on(salience: Salience, scripted: Scripted, session_id: str) -> None:
    """What was acknowledged before the end is in the next run's first context."""
    await salience.start(scripted([{"delay_s": 4, "text": "here"}]), "task", session_id=session_id)
    await until(lambda: salience.query(session_id, "status"))
    await salience.say(session_id, "acknowledged, never delivered", message_id="m2")
    await salience.temporal.get_workflow_handle(session_id).terminate("by an operator")
    await salience.resume(session_id)
    result = await asyncio.wait_for(salience.result(session_id), 60)
    assert (result.reason, result.final_preview) == ("answered", "here")
    entries = await salience.journal.transcript(session_id)
    assert [entry.message_id for entry in entries if entry.kind == "prompt"][-1] == "m2"
