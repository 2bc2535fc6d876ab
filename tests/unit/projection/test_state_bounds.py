"""The state does not grow with the number of calls; of files it keeps every one (spec PRJ-2, INV 4)."""

from __future__ import annotations

from salience.context.state_card import state_card
from salience.model import event as ev
from salience.model.state import State
from salience.projection.state import KEPT_ARTIFACTS, KEPT_FAILURES, fold_state


def folded(payloads: list[ev.Payload]) -> State:
    state = State(session_id="s")
    for seq, payload in enumerate(payloads, start=1):
        state = fold_state(
            state,
            ev.Event(
                event_id=f"run:{seq}:x",
                session_id="s",
                run_id="run",
                seq=seq,
                timestamp="2026-01-01T00:00:00.000000Z",
                type=type(payload).__name__,
                actor=payload.actor,
                payload=payload,
            ),
        )
    return state


def test_outputs_and_diffs_leave_oldest_first_and_files_never() -> None:
    payloads: list[ev.Payload] = []
    for turn in range(2 * KEPT_ARTIFACTS):
        call = f"call_{turn}"
        path = f"{turn % 400}.py"
        payloads += [
            ev.FileWritten(tool_call_id=call, path=path, change="modified", after_hash="a" * 64),
            ev.DiffApplied(tool_call_id=call, diff_ref="d" * 64, files=1, added=1, removed=0),
            ev.ToolCallFinished(tool_call_id=call, name="run_command", full_ref="f" * 64, output_bytes=9),
            ev.ToolCallFailed(tool_call_id=call, name="search", kind="error"),
        ]
    state = folded(payloads)
    files = [artifact.path_or_uri for artifact in state.artifacts if artifact.kind == "file"]
    assert sorted(files) == sorted(state.files) == sorted(f"{at}.py" for at in range(400))
    calls = [artifact.artifact_id for artifact in state.artifacts if artifact.kind != "file"]
    newest = range(2 * KEPT_ARTIFACTS - KEPT_ARTIFACTS // 2, 2 * KEPT_ARTIFACTS)
    assert calls == [f"{kind}:call_{turn}" for turn in newest for kind in ("diff", "output")]
    assert len(state.tool_failures) == KEPT_FAILURES
    assert state.tool_failures[-1].tool_call_id == f"call_{2 * KEPT_ARTIFACTS - 1}"


def test_a_file_knows_its_place_in_the_session_whatever_run_it_was_touched_in() -> None:
    """History events are counted anew in each run, so the number in an event's id orders nothing across runs."""
    touched = [("run1", 900, "old.py"), ("run2", 7, "new.py"), ("run2", 9, "newest.py")]
    state = State(session_id="s")
    for seq, (run, number, path) in enumerate(touched, start=1):
        payload = ev.FileRead(tool_call_id=f"c{seq}", path=path, content_hash="a" * 64)
        event = ev.Event(
            event_id=f"{run}:{number}:read",
            session_id="s",
            run_id=run,
            seq=seq,
            timestamp="2026-01-01T00:00:00.000000Z",
            type="FileRead",
            actor=payload.actor,
            payload=payload,
        )
        state = fold_state(state, event)
    assert {path: file.last_seq for path, file in state.files.items()} == {"old.py": 1, "new.py": 2, "newest.py": 3}
    card = state_card(state, vcs_head=None, told=(), criteria=())
    shown = [line.split()[1] for line in card.splitlines() if line.startswith("- ")]
    assert shown == ["newest.py", "new.py", "old.py"]
