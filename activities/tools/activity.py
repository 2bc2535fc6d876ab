"""The activities that run a tool: read-only ones freely, idempotent ones to the same end, effects once (spec LOOP-4).

The ledger row is the line that is crossed before an effect starts: no row, never started; a row without an outcome,
unknown; an outcome, never again. The work runs in a task of its own, so that a cancellation asks it to end and then
waits for what it has to say, instead of tearing it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import beating
from activities.tools import change, evidence
from activities.tools.arguments import checked
from activities.tools.catalog import CATALOG, offered
from activities.tools.outcome import refusal, settled
from activities.tools.patience import AFTER_S, BEFORE_S, Stopped, patiently
from activities.tools.result import Arguments, Refused, Result, Site, Tool
from salience.errors import BackendUnavailable
from salience.model.calls import INSPECT_EFFECT, RUN_TOOL, InspectEffect, RunTool
from salience.model.canonical import digest_of
from salience.model.message import ModelResponse, ToolCallBlock
from salience.model.session import SessionConfig
from salience.model.tool import ToolClass, ToolOutcome
from salience.settings import default_home
from salience.store.blobs import BlobStore
from salience.store.ledger import Claim, Ledger
from salience.store.sources import Sources
from salience.telemetry.failpoints import failpoint
from salience.workspace.command import end_leftovers, forget, spooled
from salience.workspace.manifest import EMPTY
from salience.workspace.paths import PathRefused, Workspace, WorkspaceGone

STOOD_STILL_S = 2.0
"""Between a claim and its effect lie microseconds. After so many seconds this process stood still, and as Temporal waits
three for a heartbeat, another worker may have been told to find out what became of the call."""
JOIN_S = 15.0
"""How long an inspection waits for a call that this very process is still ending."""

T = TypeVar("T")


class _Run:
    """One call while it runs in this process."""

    def __init__(self, call: RunTool | InspectEffect, seconds: float) -> None:
        self.call = call
        self.patience = seconds
        self.stop = asyncio.Event()
        self.lost = False
        self.said_bytes = 0
        self.started = time.monotonic()

    @property
    def tag(self) -> str:
        """A file-name-safe name of the call, the same in every process."""
        return digest_of([self.call.session_id, self.call.turn, self.call.index, self.call.tool_call_id])[:24]

    def progress(self, size: int) -> None:
        """Note how much output there is."""
        self.said_bytes = size

    def end(self) -> None:
        """Ask the call to end, remembering whether it was the user who asked."""
        details = activity.cancellation_details()
        self.lost = self.lost or details is None or not details.cancel_requested
        self.stop.set()

    async def before(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """A store access before the effect."""
        return await patiently(attempt, seconds=self.patience, stop=self.stop)

    async def after(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """A store access after the effect, which only the store can end."""
        return await patiently(attempt, seconds=AFTER_S if self.patience else 0)


class ToolActivities:
    """`run_tool` and `inspect_effect` over one blob store and one ledger.

    Args:
        blobs: where texts and contents are kept.
        ledger: what was started and how it ended.
        sessions: gives a session's configuration.
        sources: what sessions' records name.
        runtime: the runtime's own folders, out of reach of tools when they lie inside a workspace.
    """

    def __init__(
        self,
        blobs: BlobStore,
        ledger: Ledger,
        sessions: Callable[[str], Awaitable[SessionConfig]],
        sources: Sources,
        *,
        runtime: tuple[Path, ...] | None = None,
    ) -> None:
        self._blobs = blobs
        self._ledger = ledger
        self._sessions = sessions
        self._sources = sources
        self._runtime = (default_home(),) if runtime is None else runtime
        self._worker = f"{socket.gethostname()}:{os.getpid()}"
        self._running: dict[str, asyncio.Task[ToolOutcome]] = {}

    @activity.defn(name=RUN_TOOL)
    async def run_tool(self, call: RunTool) -> ToolOutcome:
        """Run one call of an answer.

        Returns:
            The outcome; everything the model can act on is an outcome with `ok` false, no error.

        Raises:
            ApplicationError: `workspace_gone` or `no_such_call`, neither worth a retry; `unavailable` when a store
                stayed away until an effect could no longer be started.
            BackendUnavailable: a store is away; Temporal retries all but effects.
            asyncio.CancelledError: a read-only call was cancelled because its worker stops.
        """
        tool = CATALOG.get(call.name)
        tool_class = tool.spec.tool_class if tool else "read"
        run = _Run(call, BEFORE_S if tool_class == "effect" else 0)
        task = asyncio.create_task(self._run(run, call, tool))
        self._running[run.tag] = task
        try:
            async with beating(lambda: ({"bytes": run.said_bytes},)):
                return await self._outlast(run, task, tool_class)
        finally:
            self._running.pop(run.tag, None)

    @activity.defn(name=INSPECT_EFFECT)
    async def inspect_effect(self, call: InspectEffect) -> ToolOutcome:
        """Find out what a call came to whose activity failed: not started, done after all, or unknown with evidence.

        Raises:
            ApplicationError: `workspace_gone`.
            BackendUnavailable: a store is away; Temporal retries.
        """
        run = _Run(call, 0)
        async with beating(lambda: ({"bytes": run.said_bytes},)):
            if (task := self._running.get(run.tag)) is not None:
                # Temporal gave this call up while it runs in this process; what it ends with is better than a guess.
                await asyncio.wait({task}, timeout=JOIN_S)
            with _refusing_gone():
                return await self._inspect(run)

    async def _outlast(self, run: _Run, task: asyncio.Task[ToolOutcome], tool_class: ToolClass) -> ToolOutcome:
        while True:
            try:
                with _refusing_gone():
                    return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise
                run.end()
                if tool_class == "read" and not task.done():
                    task.cancel()
                    await asyncio.wait({task})
                    if run.lost:
                        raise
                    return await self._finished(run, Result(b"interrupted by the user\n", ok=False, kind="interrupted"))

    async def _run(self, run: _Run, call: RunTool, tool: Tool | None) -> ToolOutcome:
        config: SessionConfig | None = None
        try:
            with _reporting_outage() if run.patience else nullcontext():
                config = _sharing(await run.before(lambda: self._sessions(call.session_id)), call.batch)
                block = await run.before(lambda: self._block(call))
            names = offered(config.tools)
            if tool is None or call.name not in names:
                raise Refused(f"there is no tool {call.name}; there are {', '.join(names)}", kind="unknown_tool")
            args = checked(tool.spec, block.args, block.raw_args)
            workspace = await asyncio.to_thread(Workspace.at, config.cwd, runtime=self._runtime)
            site = Site(
                workspace, config, self._blobs, self._sources, call.session_id, call.tool_call_id, run.tag, None,
                self._intending(call), run.stop, run.progress,
            )  # fmt: skip
            match tool.spec.tool_class:
                case "read":
                    failpoint("tool.before_run")
                    result = await _attempt(tool, site, args)
                    failpoint("tool.after_run")
                    return await self._finished(run, result, config)
                case "idempotent":
                    return await self._idempotent(run, call, tool, site, args)
                case "effect":
                    return await self._effect(run, call, tool, site, args)
        except Refused as refused:
            return await self._finished(run, refusal(refused), config)
        except Stopped:
            return await self._finished(run, evidence.account("not_started", (), None, b""), config)

    async def _idempotent(self, run: _Run, call: RunTool, tool: Tool, site: Site, args: Arguments) -> ToolOutcome:
        claim = await self._claim(call, "idempotent", None)
        if claim.outcome is not None:
            return ToolOutcome.model_validate(claim.outcome)
        failpoint("tool.before_run")
        result = await _attempt(tool, replace(site, intent=claim.intent), args)
        failpoint("tool.after_run")
        return await self._settle(run, result, site.config)

    async def _effect(self, run: _Run, call: RunTool, tool: Tool, site: Site, args: Arguments) -> ToolOutcome:
        if activity.info().attempt > 1:
            return await self._inspect(run)
        with _reporting_outage():
            before = await run.before(lambda: evidence.snapshot(site.workspace, self._blobs))
            asked = time.monotonic()
            claim = await run.before(lambda: self._claim(call, "effect", before.ref))
        if claim.outcome is not None:
            return ToolOutcome.model_validate(claim.outcome)
        if not claim.first:
            return await self._inspect(run)
        claimed = time.monotonic()
        failpoint("tool.before_run")
        if time.monotonic() - asked > STOOD_STILL_S and (ended := await self._given_up(run)):
            return ended
        if run.stop.is_set() or time.monotonic() - claimed > STOOD_STILL_S:
            return await self._settle(run, evidence.account("not_started", (), None, b""), site.config)
        result = await _attempt(tool, site, args)
        failpoint("tool.after_run")
        now = await run.after(lambda: evidence.after(site.workspace, self._blobs))
        effects, diff = await run.after(lambda: evidence.declared(before, now, self._blobs))
        if run.lost and result.kind == "interrupted":
            result = evidence.account("outcome_unknown", effects, diff, result.output)
        outcome = await self._settle(run, replace(result, effects=effects, diff=diff), site.config)
        forget(run.tag)
        return outcome

    async def _given_up(self, run: _Run) -> ToolOutcome | None:
        """What another worker has recorded of a call that this one has claimed and not started; None for nothing."""
        claim = await run.before(lambda: self._ledger.effect(run.call.session_id, run.call.tool_call_id))
        return ToolOutcome.model_validate(claim.outcome) if claim is not None and claim.outcome is not None else None

    async def _inspect(self, run: _Run) -> ToolOutcome:
        call = run.call
        claim = await run.before(lambda: self._ledger.effect(call.session_id, call.tool_call_id))
        if claim is not None and claim.outcome is not None:
            forget(run.tag)
            return ToolOutcome.model_validate(claim.outcome)
        config = await run.before(lambda: self._sessions(call.session_id))
        if claim is None:
            return await self._finished(run, evidence.account("not_started", (), None, b""), config)
        await asyncio.to_thread(end_leftovers, run.tag)
        workspace = await asyncio.to_thread(Workspace.at, config.cwd, runtime=self._runtime)
        if (intent := claim.intent) is not None:
            _, found = await asyncio.to_thread(change.look, workspace, intent["path"])
            said = change.describe(intent, found).encode()
            return await self._settle(run, evidence.account("outcome_unknown", (), None, said), config)
        before = await evidence.recorded(claim.manifest_ref, self._blobs) if claim.manifest_ref else EMPTY
        now = await run.before(lambda: evidence.snapshot(workspace, self._blobs))
        effects, diff = await run.before(lambda: evidence.declared(before, now, self._blobs))
        said = await asyncio.to_thread(spooled, run.tag)
        outcome = await self._settle(run, evidence.account("outcome_unknown", effects, diff, said), config)
        forget(run.tag)
        return outcome

    async def _block(self, call: RunTool) -> ToolCallBlock:
        response = ModelResponse.model_validate_json(await self._blobs.get(call.response_ref))
        for block in response.calls:
            if block.tool_call_id == call.tool_call_id:
                return block
        raise ApplicationError(
            f"no call {call.tool_call_id} in {call.response_ref}", type="no_such_call", non_retryable=True
        )

    async def _claim(self, call: RunTool, tool_class: ToolClass, manifest_ref: str | None) -> Claim:
        info = activity.info()
        return await self._ledger.claim(
            call.session_id,
            call.tool_call_id,
            run_id=info.workflow_run_id or "",
            name=call.name,
            tool_class=tool_class,
            attempt=info.attempt,
            manifest_ref=manifest_ref,
            worker=self._worker,
        )

    def _intending(self, call: RunTool) -> Callable[[dict[str, Any]], Awaitable[None]]:
        async def intend(intent: dict[str, Any]) -> None:
            if not await self._ledger.intend(call.session_id, call.tool_call_id, intent):
                # This process stood still while another made the same change, and the session has gone on from there.
                message = f"{call.tool_call_id} was done by another worker"
                raise ApplicationError(message, type="superseded", non_retryable=True)

        return intend

    async def _finished(self, run: _Run, result: Result, config: SessionConfig | None = None) -> ToolOutcome:
        most = config.context_config.tool_result_bytes if config else 16_384
        duration_ms = round((time.monotonic() - run.started) * 1000)
        call = run.call
        return await run.after(
            lambda: settled(call.tool_call_id, call.name, result, self._blobs, max_bytes=most, duration_ms=duration_ms)
        )

    async def _settle(self, run: _Run, result: Result, config: SessionConfig) -> ToolOutcome:
        outcome = await self._finished(run, result, config)
        call = run.call
        await run.after(lambda: self._ledger.settle(call.session_id, call.tool_call_id, outcome.plain()))
        failpoint("tool.after_settle")
        return outcome


def _sharing(config: SessionConfig, calls: int) -> SessionConfig:
    """The configuration of one of several calls: their results share the window, and the latest are never masked.

    Args:
        config: the session's.
        calls: how many calls the answer has; two results of full size are what a window bears.
    """
    if calls <= 2:
        return config
    context = config.context_config
    most = max(512, context.tool_result_bytes * 2 // calls)
    return config.model_copy(update={"context_config": context.model_copy(update={"max_tool_result_bytes": most})})


async def _attempt(tool: Tool, site: Site, args: Arguments) -> Result:
    """The tool's result; what it refuses is a result too, because the call has been claimed."""
    try:
        return await tool.run(site, args)
    except Refused as refused:
        return refusal(refused)
    except PathRefused as refused:
        return refusal(Refused(refused.line()))


@contextmanager
def _refusing_gone() -> Generator[None]:
    try:
        yield
    except WorkspaceGone as gone:
        raise ApplicationError(gone.line(), type="workspace_gone", non_retryable=True) from gone


@contextmanager
def _reporting_outage() -> Generator[None]:
    """Names an outage before an effect for what it is, so that nobody looks for changes (`calls.REPORTED_FAILURES`)."""
    try:
        yield
    except BackendUnavailable as away:
        raise ApplicationError(away.line(), type="unavailable") from away
