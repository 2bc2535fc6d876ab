"""Runs tool activities as a worker does, over real files, blobs and processes and a ledger in memory.

The ledger keeps the promises of `salience.store.ledger`: one row a call, the first outcome stays. Sessions are tested
over the real one in `tests/integration`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.tools.activity import ToolActivities
from salience.errors import BackendUnavailable
from salience.model.calls import InspectEffect, RunTool
from salience.model.message import ModelResponse, ToolCallBlock
from salience.model.session import ContextConfig, Limits, ModelSettings, PermissionConfig, SandboxMode, SessionConfig
from salience.model.tool import ToolClass, ToolOutcome
from salience.store.blobs import FileBlobs
from salience.store.ledger import Claim


class MemoryLedger:
    """Rows of effects; `away` makes the next accesses fail as Postgres does when it is not there."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Claim] = {}
        self.away = 0

    async def claim(
        self,
        session_id: str,
        tool_call_id: str,
        *,
        run_id: str,
        name: str,
        tool_class: ToolClass,
        attempt: int,
        manifest_ref: str | None,
        worker: str,
    ) -> Claim:
        self._answer()
        if known := self.rows.get((session_id, tool_call_id)):
            return known
        self.rows[session_id, tool_call_id] = Claim(False, manifest_ref, attempt, None, None)
        return Claim(True, manifest_ref, attempt, None, None)

    async def effect(self, session_id: str, tool_call_id: str) -> Claim | None:
        self._answer()
        return self.rows.get((session_id, tool_call_id))

    async def intend(self, session_id: str, tool_call_id: str, intent: dict[str, Any]) -> None:
        self._answer()
        self._set(session_id, tool_call_id, intent=intent)

    async def settle(self, session_id: str, tool_call_id: str, outcome: dict[str, Any]) -> None:
        self._answer()
        self._set(session_id, tool_call_id, outcome=outcome)

    def unsettle(self, tool_call_id: str = "c1") -> None:
        """Forget an outcome, as when the worker died before it could record it."""
        self.rows["s", tool_call_id] = replace(self.rows["s", tool_call_id], outcome=None)

    def _set(self, session_id: str, tool_call_id: str, **values: Any) -> None:
        row = self.rows[session_id, tool_call_id]
        if row.outcome is None:
            self.rows[session_id, tool_call_id] = replace(row, **json.loads(json.dumps(values)))

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise BackendUnavailable("Postgres did not answer")


@dataclass
class Scene:
    """One session with a workspace, and what runs its tools."""

    folder: Path
    mode: SandboxMode = "workspace_write"
    max_bytes: int = 16_384
    tool_timeout_s: float = 30
    tools: tuple[str, ...] = ()
    ledger: MemoryLedger = field(default_factory=MemoryLedger)

    def __post_init__(self) -> None:
        self.root = self.folder / "ws"
        self.root.mkdir(exist_ok=True)
        self.blobs = FileBlobs(self.folder / "blobs")
        self.activities = ToolActivities(self.blobs, self.ledger, self._config, runtime=())

    async def _config(self, session_id: str) -> SessionConfig:
        del session_id
        return SessionConfig(
            cwd=str(self.root),
            model_settings=ModelSettings(model="script:x"),
            context_config=ContextConfig(max_tool_result_bytes=self.max_bytes),
            permission_config=PermissionConfig(sandbox_mode=self.mode),
            limits=Limits(tool_timeout_s=self.tool_timeout_s),
            tools=self.tools,
        )

    async def request(self, name: str, args: dict[str, Any], call_id: str = "c1", raw: str | None = None) -> RunTool:
        """The activity's input, with the response it points at stored."""
        block = ToolCallBlock(tool_call_id=call_id, name=name, args=args, raw_args=raw)
        response = ModelResponse(model="m", content=(block,), stop_reason="tool_calls")
        ref = await self.blobs.put(response.model_dump_json().encode())
        return RunTool(session_id="s", turn=1, index=0, tool_call_id=call_id, name=name, response_ref=ref)

    async def run(
        self,
        name: str,
        args: dict[str, Any],
        call_id: str = "c1",
        *,
        raw: str | None = None,
        attempt: int = 1,
        environment: ActivityEnvironment | None = None,
    ) -> ToolOutcome:
        """One attempt of a call."""
        environment = environment or ActivityEnvironment()
        environment.info = replace(ActivityEnvironment.default_info(), attempt=attempt)
        return await environment.run(self.activities.run_tool, await self.request(name, args, call_id, raw))

    async def inspect(self, name: str = "run_command", call_id: str = "c1") -> ToolOutcome:
        """What the workflow asks when a worker died inside a call."""
        call = InspectEffect(session_id="s", turn=1, index=0, tool_call_id=call_id, name=name)
        return await ActivityEnvironment().run(self.activities.inspect_effect, call)

    async def seen(self, outcome: ToolOutcome) -> str:
        """What the model sees of an outcome."""
        assert outcome.output_ref is not None
        return (await self.blobs.get(outcome.output_ref)).decode()

    async def diff(self, outcome: ToolOutcome) -> str:
        """The diff of an outcome."""
        assert outcome.diff_ref is not None
        return (await self.blobs.get(outcome.diff_ref)).decode()
