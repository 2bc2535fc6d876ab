"""One real stack a test process: Temporal, Postgres and a worker, started from wheels into a home of their own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from salience.client import Salience
from salience.local import Stack, resolve
from salience.model.event import Event
from salience.model.session import ContextConfig, Limits, ModelSettings, PermissionConfig, SessionConfig
from salience.settings import Settings
from tests.chaos.seed import seed
from tests.chaos.toll import Report


def pytest_configure(config: pytest.Config) -> None:
    """Add up what the crash tests cost; here, because the process that reports reads no other file of the tests."""
    # Drawn before pytest's own workers are started, which inherit it: they must all come to the same tests.
    seed()
    config.pluginmanager.register(Report(), "chaos-report")


if TYPE_CHECKING:
    from tests.s3_server import S3Server


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """The embedded stack with its worker; one for all tests of the process."""
    with Stack(worker=True) as running:
        yield running


@pytest.fixture(scope="session")
def settings(stack: Stack) -> Settings:
    """Settings that name the running stack."""
    return resolve(Settings(home=stack.home.root))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server; one for all tests of the process that do not harm it."""
    from tests.s3_server import S3Server  # its client takes longer to import than a unit test to run

    with S3Server() as running:
        yield running


@pytest.fixture
async def salience(settings: Settings) -> AsyncIterator[Salience]:
    """A connected client."""
    async with await Salience.connect(settings) as connected:
        yield connected


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def session_id() -> str:
    """A session id that no other test uses."""
    return f"t-{uuid.uuid4().hex[:10]}"


Turns = list[dict[str, Any]]
Scripted = Callable[..., SessionConfig]


@pytest.fixture
def scripted(tmp_path: Path, workspace: Path) -> Scripted:
    """Makes a session configuration whose model plays the given turns: `scripted([{"text": "hi"}], window=…)`."""

    def make(
        turns: Turns,
        *,
        window: int = 128_000,
        sandbox: str = "workspace_write",
        limits: Limits | None = None,
        **top: Any,
    ) -> SessionConfig:
        path = tmp_path / f"turns-{uuid.uuid4().hex[:8]}.json"
        path.write_text(json.dumps({"turns": turns, **top}))
        return SessionConfig(
            cwd=str(workspace),
            model_settings=ModelSettings(model=f"script:{path}"),
            context_config=ContextConfig(context_window_tokens=window, reserved_output_tokens=min(4096, window // 8)),
            permission_config=PermissionConfig.model_validate({"sandbox_mode": sandbox}),
            limits=limits or Limits(retry_base_s=0.05),
        )

    return make


async def until(check: Callable[[], Awaitable[Any]], *, timeout_s: float = 30, every_s: float = 0.05) -> Any:
    """The first truthy answer of `check`; fails the test when there is none in time."""

    async def ask() -> Any:
        while True:
            if found := await check():
                return found
            await asyncio.sleep(every_s)

    return await asyncio.wait_for(ask(), timeout_s)


async def ended(salience: Salience, session_id: str, *, timeout_s: float = 60) -> list[Event]:
    """All events of a session once its end is in the journal."""
    await asyncio.wait_for(salience.result(session_id), timeout_s)

    async def journaled() -> list[Event] | None:
        events = [event async for event in salience.events(session_id)]
        return events if events and events[-1].type == "SessionEnded" else None

    return await until(journaled)
