"""Runs tool activities as a worker does, over real files, blobs and processes and the real ledger."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from temporalio.testing import ActivityEnvironment

from activities.tools.activity import ToolActivities
from salience.errors import BackendUnavailable
from salience.local.info import owner_dsn
from salience.log.chain import Row, row_of
from salience.model import event as ev
from salience.model.artifact import Artifact
from salience.model.calls import InspectEffect, RunTool
from salience.model.message import ModelResponse, ToolCallBlock
from salience.model.session import ContextConfig, Limits, ModelSettings, PermissionConfig, SandboxMode, SessionConfig
from salience.model.tool import ToolOutcome
from salience.projection.projection import Projection, artifacts_of
from salience.settings import Settings
from salience.store.blobs import FileBlobs
from salience.store.journal import Batch, Journal, Position
from salience.store.ledger import Claim, Ledger
from salience.store.postgres import Connection, Postgres
from salience.store.sources import Sources


class LeavingPostgres(Postgres):
    """The pool; `away` makes the next connections fail as they do when Postgres is not there."""

    away = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection, unless one is to fail."""
        if self.away:
            self.away -= 1
            raise BackendUnavailable("Postgres did not answer")
        async with super().connection() as connection:
            yield connection


@dataclass
class Scene:
    """One session with a workspace, and what runs its tools."""

    folder: Path
    settings: Settings
    mode: SandboxMode = "workspace_write"
    max_bytes: int = 16_384
    tool_timeout_s: float = 30
    tools: tuple[str, ...] = ()
    session_id: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:10]}")

    def __post_init__(self) -> None:
        self.root = self.folder / "ws"
        self.root.mkdir(exist_ok=True)
        self.blobs = FileBlobs(self.folder / "blobs")
        self.postgres = LeavingPostgres(self.settings.postgres_dsn, max_size=2)
        self.ledger = Ledger(self.postgres, self.settings.tenant)
        self.journal = Journal(self.postgres, self.settings.tenant)
        self.sources = Sources(self.postgres, self.journal, self.settings.tenant)
        self.activities = ToolActivities(self.blobs, self.ledger, self._config, self.sources, runtime=())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.postgres.close()

    async def record(self, *payloads: ev.Payload) -> list[str]:
        """Journal events, and have the model see them; returns their ids."""
        projection = await self.journal.load(self.session_id) or Projection.empty(self.session_id)
        expected, length = Position(projection.cursor.seq, projection.head), len(projection.transcript.entries)
        rows, artifacts, ids = list[Row](), list[Artifact](), list[str]()
        for seq, payload in enumerate(payloads, projection.cursor.seq + 1):
            event = ev.Event(
                event_id=f"r1:{seq}:{type(payload).__name__}",
                session_id=self.session_id,
                run_id="r1",
                seq=seq,
                timestamp="2026-01-01T00:00:00.000000Z",
                type=type(payload).__name__,
                actor=payload.actor,
                payload=payload,
            )
            rows.append(row_of(event, rows[-1].hash if rows else projection.head, 1))
            artifacts += artifacts_of(event)
            ids.append(event.event_id)
            projection.fold(event)
        projection.transcript.seal(expected.seq + len(rows))
        projection.cursor = projection.cursor.model_copy(update={"seq": expected.seq + len(rows)})
        projection.head = rows[-1].hash
        entries = projection.transcript.entries[length:]
        async with self.postgres.connection() as connection:
            assert await self.journal.record(connection, expected, Batch(projection, rows, entries, artifacts))
        return ids

    async def record_outcome(self, outcome: ToolOutcome) -> None:
        """Journal the end of a call and what it declares, as the next context would have it."""
        fields = ("tool_call_id", "name", "output_ref", "full_ref", "output_bytes", "preview", "truncated")
        told = {name: getattr(outcome, name) for name in fields}
        call = ev.ToolCallRequested(
            tool_call_id=outcome.tool_call_id, name=outcome.name, index=0, response_ref="f" * 64
        )
        ended = ev.ToolCallFinished(**told) if outcome.ok else ev.ToolCallFailed(**told, kind=outcome.kind or "error")
        read = [
            ev.FileRead(tool_call_id=outcome.tool_call_id, path=effect.path, content_hash=effect.after_hash)
            for effect in outcome.effects
        ]
        patch = outcome.state_patch
        updated = [ev.StateUpdated(tool_call_id=outcome.tool_call_id, patch=patch)] if patch else []
        await self.record(call, ended, *read, *updated)

    async def claimed(self, call_id: str = "c1") -> Claim | None:
        """The ledger's row of a call."""
        return await self.ledger.effect(self.session_id, call_id)

    async def unsettle(self, call_id: str = "c1") -> None:
        """Forget an outcome, as when the worker died before it could record it."""
        async with await psycopg.AsyncConnection.connect(owner_dsn(self.settings.home)) as connection:
            done = await connection.execute(
                "UPDATE effects SET outcome = NULL, settled_at = NULL"
                " WHERE tenant = %s AND session_id = %s AND tool_call_id = %s AND outcome IS NOT NULL",
                (self.settings.tenant, self.session_id, call_id),
            )
            assert done.rowcount == 1

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

    async def request(
        self, name: str, args: dict[str, Any], call_id: str = "c1", raw: str | None = None, batch: int = 1
    ) -> RunTool:
        """The activity's input, with the response it points at stored."""
        block = ToolCallBlock(tool_call_id=call_id, name=name, args=args, raw_args=raw)
        response = ModelResponse(model="m", content=(block,), stop_reason="tool_calls")
        ref = await self.blobs.put(response.model_dump_json().encode())
        return RunTool(
            session_id=self.session_id, turn=1, index=0, tool_call_id=call_id, name=name, response_ref=ref, batch=batch
        )

    async def run(
        self,
        name: str,
        args: dict[str, Any],
        call_id: str = "c1",
        *,
        raw: str | None = None,
        attempt: int = 1,
        batch: int = 1,
        environment: ActivityEnvironment | None = None,
    ) -> ToolOutcome:
        """One attempt of a call."""
        environment = environment or ActivityEnvironment()
        environment.info = replace(ActivityEnvironment.default_info(), attempt=attempt)
        return await environment.run(self.activities.run_tool, await self.request(name, args, call_id, raw, batch))

    async def inspect(self, name: str = "run_command", call_id: str = "c1") -> ToolOutcome:
        """What the workflow asks when a worker died inside a call."""
        call = InspectEffect(session_id=self.session_id, turn=1, index=0, tool_call_id=call_id, name=name)
        return await ActivityEnvironment().run(self.activities.inspect_effect, call)

    async def seen(self, outcome: ToolOutcome) -> str:
        """What the model sees of an outcome."""
        assert outcome.output_ref is not None
        return (await self.blobs.get(outcome.output_ref)).decode()

    async def diff(self, outcome: ToolOutcome) -> str:
        """The diff of an outcome."""
        assert outcome.diff_ref is not None
        return (await self.blobs.get(outcome.diff_ref)).decode()
