"""Recorded histories decode to recorded events, byte for byte, and replay with today's workflow (spec EVT-2)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from salience.log.decode import Cursor, begin_run, decode, reset_point
from salience.model.canonical import canonical_json
from salience.projection.projection import Projection
from salience.wire import DATA_CONVERTER
from workflows import WORKFLOWS

RECORDED = sorted(Path(__file__).parent.glob("*.json.gz"))
WHAT_TO_DO = """\
The workflow gives other commands than this history holds, so sessions that are running now could not go on after an upgrade.
Put the new behaviour behind `if workflow.patched("a-name"):` and keep the old one in the other branch (see
COMPACTS_ON_OVERFLOW in workflows/session.py). Do not record this history again: it stands for the runs that are out there.
For new behaviour add a scenario to tests/golden/record.py."""
pytestmark = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.split(".")[0])


def load(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def runs_of(golden: dict[str, Any]) -> list[tuple[str, int, list[HistoryEvent]]]:
    return [
        (
            run["run_id"],
            run["shared_until"],
            list(WorkflowHistory.from_json(golden["session_id"], run["history"]).events),
        )
        for run in golden["runs"]
    ]


def test_decodes_to_the_recorded_events(path: Path) -> None:
    golden = load(path)
    cursor = Cursor(session_id=golden["session_id"])
    events: list[dict[str, Any]] = []
    for run_id, shared_until, history in runs_of(golden):
        decoded, cursor = decode(history, begin_run(cursor, run_id, shared_until=shared_until))
        events += [event.plain() for event in decoded.events]
    assert canonical_json(events) == canonical_json(golden["events"])


def test_decodes_the_same_in_any_portions(path: Path) -> None:
    """Where a projection stops must not matter: one event at a time, with the cursor through JSON, gives the same."""
    golden = load(path)
    cursor = Cursor(session_id=golden["session_id"])
    events: list[dict[str, Any]] = []
    for run_id, shared_until, history in runs_of(golden)[:2]:
        cursor = begin_run(cursor, run_id, shared_until=shared_until)
        for one in history:
            decoded, cursor = decode([one], cursor)
            cursor = Cursor.model_validate_json(cursor.model_dump_json())
            events += [event.plain() for event in decoded.events]
    assert events == golden["events"][: len(events)]


def test_reset_runs_are_recognised(path: Path) -> None:
    golden = load(path)
    for run_id, shared_until, history in runs_of(golden):
        point = reset_point(history)
        assert (point[1] if point else 0) == shared_until
        assert run_id not in (point or ())
    assert path.name.startswith("reset") == any(event["type"] == "SessionForked" for event in golden["events"])


def test_folds_to_the_same_state_twice(path: Path) -> None:
    from salience.model.event import Event

    golden = load(path)
    states = []
    for _ in range(2):
        projection = Projection.empty(golden["session_id"])
        for event in golden["events"]:
            projection.fold(Event.model_validate(event))
        states.append(projection.save().model_dump_json())
    assert states[0] == states[1]


async def replay(golden: dict[str, Any]) -> None:
    """Replay every run inside the sandbox, which also finds clocks, randomness and I/O in workflow code."""
    replayer = Replayer(workflows=WORKFLOWS, data_converter=DATA_CONVERTER)
    for run in golden["runs"]:
        # The replayer takes the original run id for the run's own, which in a reset run is another one.
        started = run["history"]["events"][0]["workflowExecutionStartedEventAttributes"]
        started["originalExecutionRunId"] = run["run_id"]
        history = WorkflowHistory.from_json(golden["session_id"], run["history"])
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        if result.replay_failure is not None:
            pytest.fail(f"{golden['session_id']} does not replay: {result.replay_failure}\n\n{WHAT_TO_DO}")


async def test_replays_with_todays_workflow(path: Path) -> None:
    await replay(load(path))


async def test_a_breaking_change_fails_with_what_to_do(path: Path) -> None:
    """A history with another activity where the workflow schedules a context stands for a workflow that was changed."""
    golden = load(path)
    for event in golden["runs"][0]["history"]["events"]:
        scheduled = event.get("activityTaskScheduledEventAttributes", {})
        if scheduled.get("activityType", {}).get("name") == "build_context":
            scheduled["activityType"]["name"] = "build_another_context"
    with pytest.raises(pytest.fail.Exception, match="workflow.patched"):
        await replay(golden)
