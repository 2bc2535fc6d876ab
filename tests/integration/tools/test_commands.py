"""`run_command`: at most one start, every changed file declared, and an outcome whatever ends it (LOOP-4, INV 4)."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.tools import activity as module
from activities.tools import patience
from salience.errors import BackendUnavailable
from salience.model.canonical import digest_of
from salience.workspace.command import spool_path, spooled
from tests.integration.tools.scene import Scene


@pytest.fixture
def scene(scene: Scene) -> Scene:
    (scene.root / "a.txt").write_text("one\ntwo\n")
    return scene


async def until(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.02)


async def test_declares_what_sed_did(scene: Scene) -> None:
    outcome = await scene.run(
        "run_command", {"command": "sed -i s/two/2/ a.txt; echo new > b.txt; mkdir c; echo hi; exit 3"}
    )
    assert (outcome.ok, outcome.exit_code) == (True, 3)
    assert await scene.seen(outcome) == "hi\n[exit code 3]\n"
    assert [(e.op, e.path) for e in outcome.effects] == [("modified", "a.txt"), ("created", "b.txt")]
    assert (outcome.diff_added, outcome.diff_removed) == (2, 1)
    assert "-two\n+2\n" in await scene.diff(outcome)


async def test_many_effects_go_to_a_blob(scene: Scene) -> None:
    outcome = await scene.run("run_command", {"command": "for i in $(seq 500); do echo $i > f$i; done"})
    assert (outcome.effects, outcome.effects_count) == ((), 500)
    assert outcome.effects_ref is not None
    assert len(outcome.model_dump_json()) < 8192


async def test_runs_in_a_folder_and_refuses_others(scene: Scene) -> None:
    (scene.root / "sub").mkdir()
    outcome = await scene.run("run_command", {"command": "basename $PWD", "cwd": "sub"})
    assert (await scene.seen(outcome)).startswith("sub\n")
    refused = await scene.run("run_command", {"command": "pwd", "cwd": "../"}, "c2")
    assert "outside" in await scene.seen(refused)


async def test_long_output_is_cut_for_the_model_and_kept_whole(scene: Scene) -> None:
    outcome = await scene.run("run_command", {"command": "seq 100000; exit 1"})
    assert outcome.truncated
    assert outcome.full_ref is not None
    assert (await scene.blobs.get(outcome.full_ref)).count(b"\n") == 100_000
    text = await scene.seen(outcome)
    assert text.endswith("100000\n[exit code 1]\n")
    assert len(text.encode()) <= 16_384


async def test_time_limit_is_the_sessions_at_most(scene: Scene) -> None:
    scene.tool_timeout_s = 0.5
    outcome = await scene.run("run_command", {"command": "echo x > done; echo said; sleep 60", "timeout_s": 600})
    assert (outcome.ok, outcome.kind) == (False, "timed_out")
    assert "ended after 0.5 s" in await scene.seen(outcome)
    assert [e.path for e in outcome.effects] == ["done"]


async def test_read_only_runs_without_effects(scene: Scene) -> None:
    scene.mode = "read_only"
    outcome = await scene.run("run_command", {"command": "cat a.txt; echo x > b.txt"})
    assert outcome.effects == ()
    assert "Read-only file system" in await scene.seen(outcome)


async def test_no_sandbox_no_run(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("salience.workspace.sandbox._bubblewrap", lambda: "/nowhere/bwrap")
    outcome = await scene.run("run_command", {"command": "echo x > b.txt"})
    assert outcome.kind == "unavailable"
    assert "bubblewrap" in await scene.seen(outcome)
    assert not (scene.root / "b.txt").exists()


async def test_a_second_start_is_refused_with_evidence(scene: Scene) -> None:
    await scene.run("run_command", {"command": "echo x >> log; echo said"})
    await scene.unsettle()
    spool_path(tag := tag_of(scene)).write_bytes(b"said before death\n")
    outcome = await scene.run("run_command", {"command": "echo x >> log; echo said"}, attempt=2)
    assert (outcome.ok, outcome.kind) == (False, "outcome_unknown")
    assert [(e.op, e.path) for e in outcome.effects] == [("created", "log")]
    assert (scene.root / "log").read_text() == "x\n"
    text = await scene.seen(outcome)
    assert "A log\n" in text
    assert "said before death" in text
    assert spooled(tag) == b""
    assert await scene.inspect() == outcome


async def test_a_claimed_row_is_enough_to_refuse(scene: Scene) -> None:
    await scene.run("run_command", {"command": "echo x >> log"})
    await scene.unsettle()
    outcome = await scene.run("run_command", {"command": "echo x >> log"})
    assert outcome.kind == "outcome_unknown"
    assert (scene.root / "log").read_text() == "x\n"


async def test_inspection_knows_what_never_started_and_what_ended(scene: Scene) -> None:
    never = await scene.inspect()
    assert never.kind == "not_started"
    assert never.effects == ()
    ended = await scene.run("run_command", {"command": "echo x > log"})
    assert await scene.inspect() == ended


async def test_inspection_after_a_death_without_changes(scene: Scene) -> None:
    await scene.run("run_command", {"command": "true"})
    await scene.unsettle()
    outcome = await scene.inspect()
    assert "No file of the workspace changed" in await scene.seen(outcome)


async def test_interrupt_keeps_output_and_effects(scene: Scene) -> None:
    environment = ActivityEnvironment()
    running = asyncio.create_task(
        scene.run("run_command", {"command": "echo begun; echo x > mark; sleep 60"}, environment=environment)
    )
    await until(scene.root / "mark")
    started = time.monotonic()
    environment.cancel()
    outcome = await running
    assert time.monotonic() - started < 2.5
    assert (outcome.ok, outcome.kind) == (False, "interrupted")
    assert (await scene.seen(outcome)).startswith("begun\n")
    assert [e.path for e in outcome.effects] == ["mark"]
    assert await scene.inspect() == outcome


async def test_worker_shutdown_leaves_the_outcome_unknown(scene: Scene) -> None:
    environment = ActivityEnvironment()
    running = asyncio.create_task(
        scene.run("run_command", {"command": "echo begun; echo x > mark; sleep 60"}, environment=environment)
    )
    await until(scene.root / "mark")
    environment.cancel(ActivityCancellationDetails(worker_shutdown=True))
    outcome = await running
    assert outcome.kind == "outcome_unknown"
    assert [e.path for e in outcome.effects] == ["mark"]
    assert "begun" in await scene.seen(outcome)


async def test_inspection_joins_a_call_that_still_ends_here(scene: Scene) -> None:
    running = asyncio.create_task(scene.run("run_command", {"command": "echo x > mark; sleep 0.5; echo y > late"}))
    await until(scene.root / "mark")
    inspected = await scene.inspect()
    assert inspected == await running
    assert inspected.ok


async def test_heartbeats_tell_how_much_was_said(scene: Scene) -> None:
    environment = ActivityEnvironment()
    beats: list[dict[str, int]] = []
    environment.on_heartbeat = lambda *details: beats.append(details[0])
    await scene.run("run_command", {"command": "echo 12345; sleep 1.2"}, environment=environment)
    assert beats[-1] == {"bytes": 6}


async def test_a_store_that_comes_back_loses_nothing(scene: Scene) -> None:
    scene.postgres.away = 3
    outcome = await scene.run("run_command", {"command": "echo x >> log"})
    assert outcome.ok
    assert (scene.root / "log").read_text() == "x\n"


async def test_a_store_that_goes_away_after_the_effect_loses_nothing(scene: Scene) -> None:
    async def leave() -> None:
        await until(scene.root / "log")
        scene.postgres.away = 3

    leaving = asyncio.create_task(leave())
    outcome = await scene.run("run_command", {"command": "echo x >> log; sleep 0.3"})
    await leaving
    assert outcome.ok
    claim = await scene.claimed()
    assert claim is not None
    assert claim.outcome == outcome.plain()


async def test_a_store_that_stays_away_starts_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEFORE_S", 0.3)
    scene.postgres.away = 1_000
    with pytest.raises(ApplicationError) as refused:
        await scene.run("run_command", {"command": "echo x >> log"})
    assert refused.value.type == "unavailable"
    assert not (scene.root / "log").exists()


async def test_an_interrupt_while_waiting_for_a_store_starts_nothing(scene: Scene) -> None:
    scene.postgres.away = 1_000
    environment = ActivityEnvironment()
    running = asyncio.create_task(scene.run("run_command", {"command": "echo x > log"}, environment=environment))
    await asyncio.sleep(0.3)
    environment.cancel()
    outcome = await running
    assert outcome.kind == "not_started"
    assert not (scene.root / "log").exists()


async def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_FIRST_WAIT_S", 0.01)

    async def away() -> None:
        raise BackendUnavailable("away")

    with pytest.raises(BackendUnavailable):
        await patience.patiently(away, seconds=0.1)


async def test_a_workspace_that_is_gone_ends_the_run(scene: Scene) -> None:
    scene.root.rename(scene.folder / "elsewhere")
    for name, args in (
        ("run_command", {"command": "true"}),
        ("read_file", {"path": "a"}),
        ("search", {"pattern": "a"}),
    ):
        with pytest.raises(ApplicationError) as gone:
            await scene.run(name, args)
        assert (gone.value.type, gone.value.non_retryable) == ("workspace_gone", True)


async def test_a_command_that_removes_the_workspace_declares_it(scene: Scene) -> None:
    scene.mode = "danger_full_access"
    outcome = await scene.run("run_command", {"command": 'rm -r "$PWD"'})
    assert [(e.op, e.path) for e in outcome.effects] == [("deleted", "a.txt")]


async def test_spools_do_not_pile_up(scene: Scene) -> None:
    await scene.run("run_command", {"command": "echo x"})
    assert not spool_path(tag_of(scene)).exists()
    assert os.stat(spool_path("x").parent).st_mode & 0o077 == 0


def tag_of(scene: Scene) -> str:
    return digest_of([scene.session_id, 1, 0, "c1"])[:24]
