"""Whole sessions whose blobs lie in an S3 store, which is killed in the middle of one (spec EVT-6, LOOP-3)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.verification import Verification
from salience.client import Salience
from salience.errors import BackendUnavailable
from salience.local import Stack, resolve
from salience.model.canonical import digest
from salience.settings import Settings
from salience.store.history import Histories
from tests.conftest import Scripted, ended, until
from tests.s3_server import S3Server


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A server that these tests may harm."""
    with S3Server() as running:
        yield running


@pytest.fixture(scope="module")
def stack(server: S3Server) -> Iterator[Stack]:
    """A stack whose worker keeps its blobs in that server."""
    variables = [f"{name}={value}" for name, value in server.environment().items()]
    with Stack(worker=True, worker_command=("env", *variables, sys.executable, "-m", "salience.worker")) as running:
        yield running


@pytest.fixture(scope="module")
def settings(stack: Stack, server: S3Server) -> Settings:
    """Settings that name the stack and the server."""
    return server.settings(resolve(Settings(home=stack.home.root)))


@pytest.fixture
async def salience(settings: Settings) -> AsyncIterator[Salience]:
    """A connected client that remembers no blob."""
    async with await Salience.connect(settings) as connected:
        yield connected


async def verified(settings: Settings, session_id: str) -> None:
    """Fail unless the record holds, as one sees it who has read nothing before."""
    async with await Salience.connect(settings) as fresh:
        stores = fresh.postgres, fresh.journal, fresh.blobs
        report = await Verification(*stores, Histories(fresh.temporal)).verify(session_id)
    assert report.ok, report.findings
    assert report.blobs > 0


async def test_a_session_has_its_blobs_in_the_bucket_and_verifies(
    salience: Salience,
    settings: Settings,
    server: S3Server,
    scripted: Scripted,
    workspace: Path,
    session_id: str,
    stack: Stack,
) -> None:
    (workspace / "a.txt").write_text("hello\n")
    config = scripted(
        [
            {"text": "looking", "tool_calls": [{"name": "read_file", "args": {"path": "a.txt"}}]},
            {"tool_calls": [{"name": "run_command", "args": {"command": "seq 100000; echo hi > b.txt"}}]},
            {"tool_calls": [{"name": "edit_file", "args": {"path": "a.txt", "old_text": "hello", "new_text": "bye"}}]},
            {"text": "All done."},
        ]
    )
    task = "please read this: " + "word " * 50_000
    await salience.start(config, task, session_id=session_id)
    await ended(salience, session_id)
    assert (await salience.result(session_id)).reason == "answered"
    assert digest(await salience.blobs.get(digest(task))) == digest(task)

    async def archived() -> dict[str, str]:
        return await salience.blobs.named(f"archive/{session_id}")

    assert await until(archived)
    artifacts = await salience.artifacts(session_id)
    assert artifacts
    keys = set(server.objects())
    assert {f"{each.content_hash[:2]}/{each.content_hash}" for each in artifacts} <= keys
    assert not settings.blobs.exists(), "nothing went into the file store"
    await verified(settings, session_id)


async def test_a_session_goes_on_when_the_store_was_killed_in_the_middle(
    salience: Salience, settings: Settings, server: S3Server, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    """The command ends while the store is away: its outcome waits for the store, and the command is not run again."""
    command = "echo run >> runs; seq 100000; while [ ! -e go ]; do sleep 0.05; done; touch over"
    config = scripted([{"tool_calls": [{"name": "run_command", "args": {"command": command}}]}, {"text": "Done."}])
    await salience.start(config, "run it", session_id=session_id)
    await until(lambda: asyncio.sleep(0, (workspace / "runs").exists()))
    server.kill()
    with pytest.raises(BackendUnavailable):
        await salience.say(session_id, "long " * 50_000, message_id="refused")
    (workspace / "go").touch()
    await until(lambda: asyncio.sleep(0, (workspace / "over").exists()))
    await asyncio.sleep(1)
    assert await salience.running(session_id)
    await asyncio.to_thread(server.start)
    await ended(salience, session_id, timeout_s=90)
    result = await salience.result(session_id)
    assert (result.reason, result.final_preview) == ("answered", "Done.")
    assert (workspace / "runs").read_text() == "run\n"
    await verified(settings, session_id)


async def test_a_session_goes_on_when_the_store_was_away_before_its_first_turn(
    salience: Salience, settings: Settings, server: S3Server, scripted: Scripted, session_id: str
) -> None:
    """Nothing of a start needs the store but a long task; the worker waits for it."""
    server.kill()
    await salience.start(scripted([{"text": "word " * 20_000}]), "task", session_id=session_id)
    await asyncio.sleep(1)
    await asyncio.to_thread(server.start)
    await ended(salience, session_id, timeout_s=90)
    assert (await salience.result(session_id)).reason == "answered"
    await verified(settings, session_id)
