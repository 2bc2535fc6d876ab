"""A play is a scripted session on a queue of its own: the same turns and the same workspace, wherever it is played."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.history.v1 import HistoryEvent

from activities.verification import Verification
from salience.client import Salience
from salience.model.calls import SessionResult
from salience.model.event import Event
from salience.model.session import Limits, ModelSettings, PermissionConfig, SandboxMode, SessionConfig
from salience.settings import Settings
from salience.store.history import Histories
from tests.chaos.record import Fact, contents, facts
from tests.conftest import ended

Turn = Mapping[str, Any]


def call(name: str, **args: Any) -> dict[str, Any]:
    """A tool call of a scripted turn."""
    return {"name": name, "args": args}


TURNS: list[Turn] = [
    {"text": "I look first.", "tool_calls": [call("read_file", path="notes.txt"), call("list_files")]},
    {"tool_calls": [call("edit_file", path="notes.txt", old_text="first", new_text="last")]},
    {"tool_calls": [call("write_file", path="docs/new.md", content="# New\n\nwritten once\n")]},
    {"tool_calls": [call("update_plan", steps=[{"title": "look again", "status": "in_progress"}])]},
    {"tool_calls": [call("read_file", path="docs/new.md"), call("search", pattern="once")]},
    {"tool_calls": [call("finish", summary="The files are as they should be.")]},
]
FILES = {"notes.txt": "the first line\nthe second line\n", "src/main.py": "print('hi')\n"}
"""Reads and idempotent work only, side by side and one after the other: no crash may show in their record."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended, and everything it left behind."""

    session_id: str
    result: SessionResult
    events: list[Event]
    facts: list[Fact]
    files: dict[str, bytes]
    histories: list[Sequence[HistoryEvent]]


class Play:
    """A script and the workspace it begins with.

    Args:
        folder: where its script and its workspaces lie.
        turns: what the model says.
        files: what a workspace holds at first.
        sandbox: how commands are confined.
        top: more of the script's own settings, such as `on_end`.
    """

    def __init__(
        self,
        folder: Path,
        turns: Sequence[Turn],
        files: Mapping[str, str],
        *,
        sandbox: SandboxMode = "workspace_write",
        **top: Any,
    ) -> None:
        self._folder = folder
        self._script = folder / "script.json"
        self._script.write_text(json.dumps({"turns": list(turns), **top}))
        self._files = dict(files)
        self._sandbox = sandbox

    def workspace(self, session_id: str) -> Path:
        """The folder of a session."""
        return self._folder / session_id

    async def start(self, salience: Salience) -> str:
        """Start a session; returns its id."""
        session_id = f"c-{uuid.uuid4().hex[:10]}"
        workspace = self.workspace(session_id)
        for name, text in self._files.items():
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            (workspace / name).write_text(text)
        config = SessionConfig(
            cwd=str(workspace),
            model_settings=ModelSettings(model=f"script:{self._script}"),
            permission_config=PermissionConfig(sandbox_mode=self._sandbox),
            limits=Limits(retry_base_s=0.05),
        )
        return await salience.start(config, "do as the script says", session_id=session_id, message_id="task")

    async def end(self, salience: Salience, session_id: str, *, timeout_s: float = 120) -> Outcome:
        """Wait until a session has ended and its last run is archived; whatever it left must verify."""
        result = await asyncio.wait_for(salience.result(session_id), timeout_s)
        handle = salience.temporal.get_workflow_handle(session_id)
        run_id = (await handle.describe()).run_id
        archive = salience.temporal.get_workflow_handle(f"archive/{session_id}/{run_id}")
        await asyncio.wait_for(archive.result(), timeout_s)
        events = await ended(salience, session_id)
        await verified(salience, session_id)
        workspace = self.workspace(session_id)
        return Outcome(
            session_id=session_id,
            result=result,
            events=events,
            facts=facts(events, workspace),
            files=contents(workspace),
            histories=[(await handle.fetch_history()).events, (await archive.fetch_history()).events],
        )


async def verified(salience: Salience, session_id: str) -> None:
    """Fail unless the record of a session holds in every way."""
    verification = Verification(
        salience.postgres, salience.journal, salience.bundles, salience.blobs, Histories(salience.temporal)
    )
    report = await verification.verify(session_id)
    assert report.ok, report.findings
    assert report.runs_not_retained == report.bundles_not_comparable == 0


@asynccontextmanager
async def client_on(settings: Settings, queue: str) -> AsyncIterator[Salience]:
    """A client whose sessions run on a queue."""
    async with await Salience.connect(settings.model_copy(update={"task_queue": queue})) as connected:
        yield connected
