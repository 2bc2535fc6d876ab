"""What a model is told of the tools, and what happens when it gets them wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.tools import search
from activities.tools.catalog import CATALOG, classes, specs
from activities.tools.result import Arguments, Result, Site, Tool
from salience.errors import BackendUnavailable, UsageError
from tests.integration.tools.scene import Scene


def test_specs_are_sorted_valid_and_closed() -> None:
    assert [spec.name for spec in specs(())] == sorted(CATALOG)
    assert specs(("search", "finish")) == specs(("finish", "search"))
    for spec in specs(()):
        Draft202012Validator.check_schema(spec.parameters)
        assert spec.parameters["additionalProperties"] is False
        assert set(spec.parameters["required"]) <= set(spec.parameters["properties"])
    assert classes(("edit_file", "run_command", "search")) == {
        "edit_file": "idempotent", "run_command": "effect", "search": "read",
    }  # fmt: skip
    with pytest.raises(UsageError, match="no such tool: zzz"):
        specs(("zzz",))


def test_the_catalog_needs_no_worker() -> None:
    code = "import sys, activities.tools.catalog; sys.exit('temporalio.worker' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("read_file", {}, "'path' is a required property"),
        ("read_file", {"path": 1}, "path: 1 is not of type 'string'"),
        ("read_file", {"path": "a", "start_line": 0}, "start_line: 0 is less than the minimum of 1"),
        ("read_file", {"path": "a", "nope": 1}, "'nope' was unexpected"),
        ("read_file", {"path": "a\x00b"}, "path of read_file contains NUL"),
        ("update_plan", {"steps": [{"title": "a", "status": "maybe"}]}, "steps[0].status: 'maybe' is not one of"),
        ("edit_file", {"path": "a", "old_text": "a", "new_text": "b", "expected_hash": "abc"}, "expected_hash: 'abc'"),
    ],
)
async def test_wrong_arguments_are_named(scene: Scene, name: str, args: dict[str, Any], words: str) -> None:
    outcome = await scene.run(name, args)
    assert (outcome.ok, outcome.kind) == (False, "invalid_arguments")
    text = await scene.seen(outcome)
    assert words in text
    assert "Expected: " in text or "NUL" in text
    assert await scene.claimed() is None


@pytest.mark.parametrize(("raw", "words"), [('{"path": ', "Expecting value"), ("[1]", "it is a JSON list")])
async def test_arguments_that_are_no_object_are_said_to_be(scene: Scene, raw: str, words: str) -> None:
    outcome = await scene.run("read_file", {}, raw=raw)
    assert outcome.kind == "invalid_arguments"
    assert words in await scene.seen(outcome)


async def test_unknown_and_unoffered_tools_are_told_what_there_is(scene: Scene) -> None:
    scene.tools = ("finish", "read_file")
    for name in ("rm_rf", "run_command"):
        outcome = await scene.run(name, {"command": "true"})
        assert outcome.kind == "unknown_tool"
        assert f"there is no tool {name}; there are finish, read_file" in await scene.seen(outcome)


async def test_a_call_that_is_not_in_the_response_is_a_fault(scene: Scene) -> None:
    call = (await scene.request("finish", {"summary": "x"})).model_copy(update={"tool_call_id": "other"})
    with pytest.raises(ApplicationError) as fault:
        await ActivityEnvironment().run(scene.activities.run_tool, call)
    assert fault.value.type == "no_such_call"


async def test_plan_becomes_a_patch(scene: Scene) -> None:
    steps = [{"title": "look", "status": "done"}, {"title": "do", "status": "in_progress", "step_id": "two"}]
    outcome = await scene.run("update_plan", {"steps": steps})
    assert outcome.state_patch is not None
    plan = outcome.state_patch.plan
    assert plan is not None
    assert [(s.step_id, s.title, s.status) for s in plan.steps] == [("1", "look", "done"), ("two", "do", "in_progress")]
    assert (plan.current_step_id, plan.status) == ("two", "executing")
    assert await scene.seen(outcome) == "plan executing\n[x] 1: look\n[>] two: do\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"steps": [{"title": "a", "status": "done", "step_id": "x"}] * 2}, "more than one step has x"),
        ({"steps": [], "current_step_id": "x"}, "current_step_id x is no step"),
        ({"steps": [{"title": "t" * 500, "status": "done"}] * 20}, "6144 is the most"),
        ({"steps": [{"title": "t", "status": "done"}] * 51}, "steps"),
    ],
)
async def test_plan_refuses_with_what_to_do(scene: Scene, args: dict[str, Any], words: str) -> None:
    outcome = await scene.run("update_plan", args)
    assert not outcome.ok
    assert outcome.state_patch is None
    assert words in await scene.seen(outcome)


async def test_finish_ends_with_its_summary(scene: Scene) -> None:
    outcome = await scene.run("finish", {"summary": "done: all of it"})
    assert (outcome.ok, outcome.finish, outcome.preview) == (True, True, "done: all of it")


async def test_a_read_is_interrupted_by_the_user_and_retried_after_a_shutdown(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(site: Site, args: Arguments) -> Result:
        del site, args
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setitem(CATALOG, "search", Tool(search.SPEC, forever))
    environment = ActivityEnvironment()
    asyncio.get_running_loop().call_later(0.2, environment.cancel)
    outcome = await scene.run("search", {"pattern": "x"}, environment=environment)
    assert outcome.kind == "interrupted"
    other = ActivityEnvironment()
    shutdown = ActivityCancellationDetails(worker_shutdown=True)
    asyncio.get_running_loop().call_later(0.2, lambda: other.cancel(shutdown))
    with pytest.raises(asyncio.CancelledError):
        await scene.run("search", {"pattern": "x"}, environment=other)


async def test_an_absent_store_makes_temporal_retry_a_change(scene: Scene) -> None:
    scene.postgres.away = 1
    with pytest.raises(BackendUnavailable):
        await scene.run("write_file", {"path": "a", "content": "x"})
    assert (await scene.run("write_file", {"path": "a", "content": "x"}, attempt=2)).ok
