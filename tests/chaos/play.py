"""A play is a scripted session on a queue of its own: the same turns and the same workspace, wherever it is played."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.api.history.v1 import HistoryEvent

from activities.verification import Verification
from salience.client import Salience
from salience.errors import BackendUnavailable
from salience.model.calls import SessionResult
from salience.model.event import Event, ToolCallRequested
from salience.model.session import ContextConfig, Limits, ModelSettings, PermissionConfig, SandboxMode, SessionConfig
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


EFFECT = re.compile(r"echo (\w+) >> \.\./counts/")


def effect(name: str) -> dict[str, Any]:
    """A call whose effect is counted outside the workspace, where nothing but the command itself writes."""
    return call(
        "run_command", command=f"echo {name} >> ../counts/${{PWD##*/}}; echo {name} >> log.txt; echo said {name}"
    )


TWELVE: list[Turn] = [
    {"text": "I look first.", "tool_calls": [call("read_file", path="notes.txt"), call("list_files")]},
    {"tool_calls": [effect("e1")]},
    {"tool_calls": [call("edit_file", path="notes.txt", old_text="first", new_text="last")]},
    {"tool_calls": [call("write_file", path="docs/new.md", content="# New\n\nwritten once\n")]},
    {"tool_calls": [call("update_plan", steps=[{"title": "look again", "status": "in_progress"}])]},
    {"tool_calls": [effect("e2"), call("read_file", path="docs/new.md")]},
    {"tool_calls": [call("search", pattern="once"), call("read_file", path="notes.txt")]},
    {"tool_calls": [call("edit_file", path="docs/new.md", old_text="once", new_text="one time")]},
    {"tool_calls": [effect("e3")]},
    {"tool_calls": [call("update_plan", steps=[{"title": "look again", "status": "completed"}])]},
    {"tool_calls": [call("read_file", path="notes.txt"), call("list_files", path="docs")]},
    {"tool_calls": [call("finish", summary="The files are as they should be.")]},
]
"""All three classes of tools; only an effect's own call may show that a worker died."""

LONG_FILES = {**FILES, "notes.txt": "the first line\n" + "a line of the notes that fills the window\n" * 60}
TIGHT = {"window": 8_000}
"""With the long files, a window in which the twelve steps do not fit: what was seen first has to go."""


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
        window: tokens of the model's window.
        top: more of the script's own settings, such as `on_end`.
    """

    def __init__(
        self,
        folder: Path,
        turns: Sequence[Turn],
        files: Mapping[str, str],
        *,
        sandbox: SandboxMode = "workspace_write",
        window: int = 128_000,
        **top: Any,
    ) -> None:
        self._folder = folder
        (folder / "counts").mkdir(exist_ok=True)
        self._window = window
        self._script = folder / "script.json"
        self._script.write_text(json.dumps({"turns": list(turns), **top}))
        self._files = dict(files)
        self._sandbox = sandbox

    def workspace(self, session_id: str) -> Path:
        """The folder of a session."""
        return self._folder / session_id

    def counted(self, session_id: str) -> Counter[str]:
        """How often each effect of a session was done, as the effects themselves have noted it."""
        counts = self._folder / "counts" / session_id
        return Counter(counts.read_text().split()) if counts.exists() else Counter()

    @staticmethod
    def allowed(events: Iterable[Event]) -> Counter[str]:
        """How often each effect may have been done: once for each time the model asked for it."""
        asked = (event.payload for event in events if isinstance(event.payload, ToolCallRequested))
        return Counter(found.group(1) for call in asked if (found := EFFECT.search(call.args_preview)))

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
            context_config=ContextConfig(
                context_window_tokens=self._window, reserved_output_tokens=min(4_096, self._window // 8)
            ),
            permission_config=PermissionConfig(sandbox_mode=self._sandbox),
            limits=Limits(retry_base_s=0.05),
        )
        return await salience.start(config, "do as the script says", session_id=session_id, message_id="task")

    async def end(self, salience: Salience, session_id: str, *, timeout_s: float = 300) -> Outcome:
        """Wait until a session has ended and its last run is archived; whatever it left must verify.

        Raises:
            TimeoutError: it does not end.
            AssertionError: its record does not hold.
        """
        async with asyncio.timeout(timeout_s):
            result = await self._result(salience, session_id)
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

    async def _result(self, salience: Salience, session_id: str) -> SessionResult:
        """The result of a session whose server may be away at any time."""
        while True:
            try:
                return await salience.result(session_id)
            except BackendUnavailable:
                await asyncio.sleep(0.2)


async def verified(salience: Salience, session_id: str) -> None:
    """Fail unless the record of a session holds in every way."""
    verification = Verification(salience.postgres, salience.journal, salience.blobs, Histories(salience.temporal))
    report = await verification.verify(session_id)
    assert report.ok, report.findings
    assert report.runs_not_retained == report.bundles_not_comparable == 0


@asynccontextmanager
async def client_on(settings: Settings, queue: str) -> AsyncIterator[Salience]:
    """A client whose sessions run on a queue."""
    async with await Salience.connect(settings.model_copy(update={"task_queue": queue})) as connected:
        yield connected
