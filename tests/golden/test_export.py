"""The export of a release imports, folds and exports the same in every later one (spec EVT-7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from salience.client import Salience
from salience.log.imported import imported_log
from salience.log.reading import Reading
from salience.projection.projection import Projection
from tests.integration.homes import verified

HERE = Path(__file__).parent
FILE = HERE / "session.export.jsonl"


def recorded() -> dict[str, Any]:
    return json.loads((HERE / "session.state.json").read_text())


def named(state: dict[str, Any]) -> str:
    """A state without the ids of events, which an import renames."""
    return json.dumps({name: value for name, value in _without_ids(state).items() if name != "session_id"}, sort_keys=True)


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_ids(item) for key, item in value.items() if not key.endswith("event_id")}
    return value


def test_it_folds_to_the_recorded_state() -> None:
    reading = Reading()
    for _ in (*reading.feed(FILE.read_bytes()), *reading.finish()):
        pass
    assert reading.faults == []
    log = imported_log(reading.sections, "0" * 64, "golden-session", None)
    projection = Projection.empty("golden-session")
    recorded_too = Projection.empty("golden-session")
    for event, own in zip(log.events, log.own, strict=True):
        assert event is not None
        assert own.event is not None
        projection.fold(event)
        recorded_too.fold(own.event)
    assert recorded_too.state.plain() == recorded()
    assert named(projection.state.plain()) == named(recorded())


async def test_it_imports_verifies_and_exports_to_the_same_bytes(salience: Salience, session_id: str) -> None:
    """When only bundles compile to another hash, the builder changed under its old version: raise `BUILDER_VERSION`."""
    done = await salience.import_file(FILE, session_id=session_id)
    assert (done.status, done.faults) == ("imported", ())
    assert named((await salience.state(session_id)).plain()) == named(recorded())
    report = await verified(salience, session_id)
    assert report.ok, report.findings
    lines = [line async for line in salience.export(session_id).lines()]
    assert b"".join(lines) == FILE.read_bytes()
