"""One session from its task to its end, on the real stack."""

from __future__ import annotations

from pathlib import Path

from activities.verification import Verification
from salience.client import Salience
from salience.store.history import Histories
from tests.conftest import Scripted, ended


async def test_a_session_reads_edits_runs_and_verifies(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    (workspace / "a.txt").write_text("hello\n")
    config = scripted(
        [
            {
                "text": "looking",
                "tool_calls": [{"name": "read_file", "args": {"path": "a.txt"}}, {"name": "list_files", "args": {}}],
            },
            {"tool_calls": [{"name": "run_command", "args": {"command": "echo hi > b.txt; ls"}}]},
            {"tool_calls": [{"name": "edit_file", "args": {"path": "a.txt", "old_text": "hello", "new_text": "bye"}}]},
            {"text": "All done."},
        ]
    )
    await salience.start(config, "please fix", session_id=session_id)
    events = await ended(salience, session_id)
    result = await salience.result(session_id)
    assert (result.reason, result.final_preview) == ("answered", "All done.")
    assert (workspace / "a.txt").read_text() == "bye\n"
    assert (workspace / "b.txt").read_text() == "hi\n"
    written = [event.payload.path for event in events if event.type == "FileWritten"]  # type: ignore[attr-defined]
    assert written == ["b.txt", "a.txt"]
    session = await salience.session(session_id)
    assert (session.status, session.end_reason) == ("completed", "answered")
    verification = Verification(salience.postgres, salience.journal, salience.blobs, Histories(salience.temporal))
    report = await verification.verify(session_id)
    assert report.ok, report.findings
    assert report.bundles == 4
