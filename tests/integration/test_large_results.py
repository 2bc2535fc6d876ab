"""A session goes on after a result of any size, and reads from it what it needs (spec EVT-6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from salience.client import Salience
from salience.model import event as ev
from tests.conftest import Scripted, ended

LINES = 10_000_000


@pytest.mark.timeout(300)
async def test_a_session_goes_on_after_200_mb_of_output(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    turns = [
        {"tool_calls": [{"name": "run_command", "args": {"command": f"yes 'nineteen characters' | head -n {LINES}"}}]},
        {"tool_calls": [{"name": "read_artifact", "args": {"ref": "call_1_0", "start_line": LINES}}]},
        {"text": "seen"},
    ]
    await salience.start(scripted(turns), "say much", session_id=session_id)
    events = await ended(salience, session_id, timeout_s=240)
    done = [event.payload for event in events if isinstance(event.payload, ev.ToolCallFinished)]
    assert [one.name for one in done] == ["run_command", "read_artifact"]
    assert (done[0].output_bytes, done[0].truncated, done[0].exit_code) == (20 * LINES, True, 0)
    artifacts = {artifact.artifact_id: artifact for artifact in await salience.artifacts(session_id)}
    assert artifacts["output:call_1_0"].content_hash == done[0].full_ref
    assert len(await salience.blobs.get(done[0].full_ref or "")) == 20 * LINES
    assert f"{LINES}\tnineteen characters\n" in (await salience.blobs.get(done[1].output_ref or "")).decode()
    result = await salience.result(session_id)
    assert (result.reason, result.final_preview) == ("answered", "seen")
