"""One session is one workflow: an inbox, a loop of turns, and nothing large in its memory (spec LOOP-1, design §3).

A turn is one model call and its tools: `build_context` (which projects what is new first), `call_model`, `run_tool` for each
call. Contents never pass through here; activities exchange references and this file decides what happens next. The
history this makes is the raw event log: `salience.log.decode` reads it back, so an activity's name, id and input are
part of the record's format and changed only together with the decoder.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from salience.log.prompt import is_empty, parse_prompt
    from salience.model import calls
    from salience.model.bundle import BundleSummary
    from salience.model.compaction import CompactionTrigger
    from salience.model.session import Limits, TerminalReason
    from salience.model.state import Plan
    from salience.model.tool import ToolOutcome
    from workflows import calling
    from workflows.errands import Errands
    from workflows.inbox import Inbox

LONGEST_WAIT_S = 60.0
MAX_OVERFLOWS = 3
"""Prompts in a row that the provider calls too long, each after a smaller view, before the run ends (spec CMP-3)."""
MAX_COMPACTIONS_A_TURN = 2
COMPACTS_ON_OVERFLOW = "compacts-on-overflow"
"""Patch id: runs of releases without compaction ended there, and their histories still replay."""


@dataclass(frozen=True)
class End:
    """The run is over."""

    reason: TerminalReason
    detail: str = ""


@workflow.defn(name=calls.WORKFLOW_TYPE)
class AgentSession:
    """A session. Updates acknowledge, signals serve plain clients, queries answer from memory."""

    @workflow.init
    def __init__(self, raw: RawValue) -> None:
        parsed = _parse_start(raw)
        # Raised in `run`: an error here would fail the workflow task for ever instead of ending the workflow.
        self._invalid = parsed if isinstance(parsed, ApplicationError) else None
        self._start = calls.SessionStart() if isinstance(parsed, ApplicationError) else parsed
        carry = self._start.carry or calls.SessionCarry()
        self._take_over(carry)
        self._archiving = False
        self._turns_taken = 0
        self._running: list[asyncio.Task[Any]] = []
        self._interrupted = False
        self._closing = False
        self._step = "opening"
        self._updates = 0
        self._errands = Errands()
        self._compactions = 0
        # Until the record of earlier runs is read, nobody knows which message ids were seen before.
        self._opened = self._start.carry is not None
        self._early: list[str] = []
        if self._start.carry is None and self._start.task is not None:
            task = parse_prompt(
                self._start.task.model_dump() if isinstance(self._start.task, calls.Prompt) else self._start.task
            )
            if not is_empty(task):
                self._early.append(task.message_id or f"{workflow.info().run_id}:1")

    def _take_over(self, carry: calls.SessionCarry) -> None:
        self._turn = carry.turn
        self._model_calls = carry.model_calls
        self._run_model_calls = carry.run_model_calls
        self._inbox = Inbox(carry.receipts, carry.positions, carry.undelivered)
        self._transition = carry.transition
        self._retries = carry.retries
        self._paused = carry.paused
        self._limits = carry.limits or Limits()
        self._tool_classes = dict(carry.tool_classes)
        self._model = carry.model
        self._bundle: BundleSummary | None = carry.last_bundle
        self._plan: Plan | None = carry.plan
        self._tally = carry.tally
        self._overflows = list(carry.overflows)
        self._answer: calls.ModelAnswer | None = None

    # --- the run ----------------------------------------------------------------------------------------------------

    @workflow.run
    async def run(self, raw: RawValue) -> calls.SessionResult:
        """Work until a terminal reason; raises ContinueAsNewError when the history has grown enough."""
        del raw
        if self._invalid is not None:
            raise self._invalid
        try:
            await self._open()
            end = await self._loop()
        except ActivityError as error:
            # What reaches this place is no model's or tool's failure: a store stayed away, or Salience itself is at fault.
            end = End(_ending_of(error), str(error.cause or error)[:500])
            self._admit_early()
        while not await self._leave(end):
            end = await self._loop()
        answer = self._answer
        return calls.SessionResult(
            reason=end.reason,
            detail=end.detail,
            turn=self._turn,
            final_ref=answer.response_ref if answer else None,
            final_preview=answer.text_preview if answer else "",
        )

    async def _open(self) -> None:
        """Close the record of the runs before and learn what this one works with."""
        start = self._start
        model = start.model_settings.model if start.model_settings else start.model
        asked = calls.OpenRun(session_id=workflow.info().workflow_id, cwd=start.cwd, model=model)
        opened = await calling.start(calls.OPEN_RUN, asked, "open", calls.OpenedRun)
        if start.carry is None and opened.carry is not None:
            paused = self._paused
            self._take_over(opened.carry)
            self._paused = paused
            self._transition = "resumed" if start.resume and not start.adjust else ""
        self._admit_early()
        self._limits = opened.limits
        self._tool_classes = dict(opened.tool_classes)
        self._model = opened.model

    def _admit_early(self) -> None:
        """Acknowledge what came before the record of earlier runs was read."""
        self._opened = True
        for message_id in self._early:
            self._inbox.admit(message_id)
        self._early.clear()

    async def _loop(self) -> End:
        """Turns until something ends the run."""
        while True:
            self._step = "waiting"
            await self._errands.run()
            if self._start.adjust and not self._turns_taken and not self._due:
                return End("adjusted")
            await workflow.wait_condition(
                lambda: self._closing or bool(self._errands) or (self._due and not self._paused)
            )
            if self._errands:
                continue
            if self._closing:
                return End("closed")
            if self._should_continue_as_new():
                await self._continue_as_new()
            if self._run_model_calls >= self._limits.max_model_calls:
                return End("step_limit", f"{self._run_model_calls} model calls in this run")
            self._interrupted = False
            end = await self._take_turn()
            if end is not None and not self._inbox.undelivered:
                return end

    @property
    def _due(self) -> bool:
        return bool(self._transition) or self._inbox.undelivered > 0

    async def _take_turn(self) -> End | None:
        """One model call and its tools; None when the session goes on or waits for input."""
        self._turn += 1
        self._turns_taken += 1
        transition = self._transition or "user_input"
        self._transition = ""
        built = await self._build(transition)
        for again in range(MAX_COMPACTIONS_A_TURN):
            if built.bundle.decision != "threshold_exceeded":
                break
            await self._compact("proactive")
            built = await self._build("compacted", f".{again + 2}")
        if not built.bundle.fits:
            problem = built.bundle.problem or ""
            if self._overflows:
                return End("model_recovery_failed", f"{problem}; tried: {'; '.join(self._overflows)}")
            return End("context_unfit", problem)
        if await self._stopped():
            return None
        try:
            answer = await self._call_model(built.bundle)
        except ActivityError as error:
            return await self._recover(error)
        self._retries = 0
        self._overflows.clear()
        self._answer = answer
        if not answer.calls:
            return End("answered")
        outcomes = await self._run_tools(answer)
        if self._interrupted or self._closing:
            return None
        self._transition = "tool_results"
        if outcomes is None:
            return None
        if asking := next((outcome for outcome in outcomes if outcome.ask), None):
            return End("asked", asking.preview)
        return End("finished") if any(outcome.finish for outcome in outcomes) else None

    async def _build(self, transition: str, again: str = "") -> calls.BuiltContext:
        self._step = "building"
        # From here on an input waits for the next context: this one is built from history up to its own schedule event.
        self._inbox.delivered()
        built = await calling.start(
            calls.BUILD_CONTEXT,
            calls.BuildContext(turn=self._turn, transition=transition),
            f"t{self._turn}.context{again}",
            calls.BuiltContext,
        )
        self._bundle = built.bundle
        return built

    async def _compact(self, trigger: CompactionTrigger, asked: calls.CompactRequest | None = None) -> calls.Compacted:
        """Put a summary in the place of older history (spec CMP-3); the view stays as it was where that cannot be."""
        self._step = "compacting"
        self._compactions += 1
        value = calls.Compact(
            turn=self._turn,
            trigger=trigger,
            focus=asked.focus if asked else "",
            window_tokens=asked.window_tokens if asked else None,
        )
        try:
            return await calling.start(calls.COMPACT, value, f"compact.{self._compactions}", calls.Compacted)
        except ActivityError as error:
            return calls.Compacted(kind="activity_failed", message=str(error.cause or error)[:500])

    async def _roll_back(self, asked: calls.RollbackRequest) -> calls.RolledBack:
        self._step = "rolling_back"
        self._compactions += 1
        value = calls.Rollback(to=asked.to)
        return await calling.start(calls.ROLLBACK, value, f"rollback.{self._compactions}", calls.RolledBack)

    async def _call_model(self, bundle: BundleSummary) -> calls.ModelAnswer:
        self._step = "calling_model"
        self._model_calls += 1
        self._run_model_calls += 1
        value = calls.CallModel(
            turn=self._turn,
            bundle_id=bundle.bundle_id,
            call_index=bundle.call_index,
            model=self._model,
        )
        answer = await self._interruptible(
            calling.start(calls.CALL_MODEL, value, f"t{self._turn}.model", calls.ModelAnswer)
        )
        self._count(input_tokens=answer.usage.input_tokens or 0, output_tokens=answer.usage.output_tokens or 0)
        return answer

    async def _recover(self, error: ActivityError) -> End | None:
        """What a model call without an answer leads to (spec LOOP-5): wait and ask again, or end and say why."""
        if calling.was_cancelled(error):
            return None
        failure = calling.model_failure(error)
        self._count(model_failures=1)
        match failure.kind:
            case "auth":
                return End("model_auth", failure.message)
            case "bad_request" | "content_refusal" | "lower_output_needed" | "output_limit":
                return End("model_bad_request", failure.message)
            case "context_overflow":
                return await self._shrink(failure)
            case _:
                pass
        if self._retries >= self._limits.max_model_retries:
            reason: TerminalReason = "model_rate_limited" if failure.kind == "rate_limit" else "model_unavailable"
            return End(reason, f"{failure.message} (after {self._retries} waits)")
        wait = min(self._limits.retry_base_s * 2**self._retries, LONGEST_WAIT_S)
        self._retries += 1
        self._transition = f"model_retry:{failure.kind}"
        self._step = "waiting_to_retry"
        await self._wait(max(wait, min(failure.retry_after_s or 0, 3600)))
        return None

    async def _shrink(self, failure: calls.ModelFailure) -> End | None:
        """The provider says the prompt is too long: compact and ask again, a limited number of times (spec CMP-3)."""
        if not workflow.patched(COMPACTS_ON_OVERFLOW):
            return End("context_overflow", _sizes(failure))
        if len(self._overflows) >= MAX_OVERFLOWS:
            tried = "; ".join(self._overflows)
            return End("model_recovery_failed", f"{_sizes(failure)}; tried: {tried}")
        done = await self._compact("reactive")
        self._overflows.append(_attempt(done))
        self._transition = f"context_overflow:{len(self._overflows)}"
        return None

    async def _run_tools(self, answer: calls.ModelAnswer) -> list[ToolOutcome] | None:
        """All calls of an answer: neighbouring reads side by side, everything else in request order.

        None when a call ended without an outcome; the record then has its failure, and the model will see it.
        """
        outcomes: list[ToolOutcome] = []
        missing = False
        for batch in self._batches(answer):
            if await self._stopped():
                break
            self._step = "running_tools"
            for outcome in await asyncio.gather(*(self._run_tool(call) for call in batch)):
                if outcome is None:
                    missing = True
                    continue
                outcomes.append(outcome)
                if outcome.state_patch is not None and outcome.state_patch.plan is not None:
                    self._plan = outcome.state_patch.plan
        return None if missing else outcomes

    def _batches(self, answer: calls.ModelAnswer) -> list[list[calls.RunTool]]:
        batches: list[list[calls.RunTool]] = []
        reading = False
        for index, call in enumerate(answer.calls):
            tool_class = self._tool_classes.get(call.name, "read")
            value = calls.RunTool(
                turn=self._turn,
                index=index,
                tool_call_id=call.tool_call_id,
                name=call.name,
                response_ref=answer.response_ref,
                tool_class=tool_class,
                batch=len(answer.calls),
            )
            if tool_class == "read" and reading:
                batches[-1].append(value)
            else:
                batches.append([value])
            reading = tool_class == "read"
        return batches

    async def _run_tool(self, call: calls.RunTool) -> ToolOutcome | None:
        activity_id = f"t{call.turn}.tool.{call.index}"
        self._count(tool_calls=1)
        try:
            outcome = await self._interruptible(
                calling.start_tool(call, activity_id, ToolOutcome, self._limits.tool_timeout_s)
            )
        except ActivityError as error:
            self._count(tool_failures=1)
            kind = calling.failure_type(error)
            if kind == "workspace_gone":
                raise
            if calling.was_cancelled(error) or calling.never_started(error) or call.tool_class != "effect":
                return None
            if kind in calls.REPORTED_FAILURES:
                return None
            return await self._inspect(call)
        if not outcome.ok:
            self._count(tool_failures=1)
        return outcome

    async def _inspect(self, call: calls.RunTool) -> ToolOutcome | None:
        """The worker died inside an effect: find out what it changed, and let the model decide (spec LOOP-4)."""
        value = calls.InspectEffect(
            turn=call.turn,
            index=call.index,
            tool_call_id=call.tool_call_id,
            name=call.name,
        )
        try:
            return await calling.start(calls.INSPECT_EFFECT, value, f"t{call.turn}.inspect.{call.index}", ToolOutcome)
        except ActivityError as error:
            if calling.failure_type(error) == "workspace_gone":
                raise
            return None

    # --- pausing, waiting, leaving ------------------------------------------------------------------------------------

    async def _stopped(self) -> bool:
        """Hold while paused; whether the turn must not go on."""
        await workflow.wait_condition(lambda: not self._paused or self._interrupted or self._closing)
        return self._interrupted or self._closing

    async def _wait(self, seconds: float) -> None:
        """A durable timer that an interrupt or a close cuts short."""
        try:
            await workflow.wait_condition(
                lambda: self._interrupted or self._closing, timeout=timedelta(seconds=seconds)
            )
        except TimeoutError:
            return
        if self._interrupted:
            self._transition = ""

    async def _interruptible(self, handle: workflow.ActivityHandle[Any]) -> Any:
        self._running.append(handle)
        try:
            return await handle
        finally:
            self._running.remove(handle)

    def _stop_running(self) -> None:
        self._interrupted = True
        for handle in list(self._running):
            handle.cancel()

    def _should_continue_as_new(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() > self._start.max_history_events
            or self._updates > 1_500
        )

    async def _continue_as_new(self) -> None:
        """Hand over at a turn boundary, after every handler has answered: an accepted update would die here otherwise."""
        self._step = "continuing"
        await self._settle()
        start = self._start.model_copy(
            update={
                "task": None,
                "config": None,
                "resume": False,
                "model_settings": None,
                "limits": None,
                "context_config": None,
                "adjust": False,
                "max_history_events": calls.MAX_HISTORY_EVENTS,
                "generation": self._start.generation + 1,
                "carry": self._carry(),
            }
        )
        workflow.continue_as_new(start)

    def _carry(self) -> calls.SessionCarry:
        return calls.SessionCarry(
            turn=self._turn,
            model_calls=self._model_calls,
            run_model_calls=self._run_model_calls,
            positions=self._inbox.positions,
            receipts=self._inbox.carried(),
            undelivered=self._inbox.undelivered,
            transition=self._transition,
            retries=self._retries,
            paused=self._paused,
            limits=self._limits,
            tool_classes=self._tool_classes,
            model=self._model,
            last_bundle=self._bundle,
            plan=self._plan,
            tally=self._tally,
            overflows=tuple(self._overflows),
        )

    async def _settle(self) -> None:
        """Wait until everyone who asked has an answer; errands are done meanwhile, or their askers would wait for ever."""
        while self._errands or not workflow.all_handlers_finished():
            await self._errands.run()
            await workflow.wait_condition(lambda: bool(self._errands) or workflow.all_handlers_finished())

    async def _leave(self, end: End) -> bool:
        """Have the run archived after its end, and answer everyone; False when input came in meanwhile."""
        self._step = "ending"
        if not self._archiving:
            self._archiving = True
            info = workflow.info()
            await workflow.start_child_workflow(
                calls.ARCHIVE_WORKFLOW_TYPE,
                calls.ArchiveRun(session_id=info.workflow_id, run_id=info.run_id),
                id=f"archive/{info.workflow_id}/{info.run_id}",
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            )
        await self._settle()
        going_on = end.reason in ("answered", "finished", "asked", "adjusted")
        return not (going_on and self._inbox.undelivered)

    def _count(self, **added: int) -> None:
        tally = self._tally
        self._tally = tally.model_copy(update={name: getattr(tally, name) + n for name, n in added.items()})

    # --- what people send ---------------------------------------------------------------------------------------------

    @workflow.update(name="submit")
    async def submit(self, raw: RawValue) -> calls.Receipt:
        """Take user input: a string or {message_id, text}. It is in the log when this returns."""
        self._updates += 1
        prompt = parse_prompt(_json(raw))
        info = workflow.current_update_info()
        await workflow.wait_condition(lambda: self._opened)
        return self._inbox.admit(prompt.message_id or (info.id if info else ""))

    @submit.validator
    def check_submit(self, raw: RawValue) -> None:
        """Refuse an input with nothing in it, and one that comes after the session was closed."""
        if is_empty(parse_prompt(_json(raw))):
            raise ApplicationError("the input is empty", type="empty_input", non_retryable=True)
        if self._closing:
            raise ApplicationError("the session is closing; say it again in a moment", type="closing")

    @workflow.signal(name="submit")
    def submit_signal(self, raw: RawValue) -> None:
        """Take user input from a plain client."""
        prompt = parse_prompt(_json(raw))
        if is_empty(prompt):
            return
        message_id = prompt.message_id or str(workflow.uuid4())
        if self._opened:
            self._inbox.admit(message_id)
        else:
            self._early.append(message_id)

    @workflow.update(name="interrupt")
    async def interrupt(self, reason: str = "") -> str:
        """Stop what is running; what it has done so far stays in the record. Returns what was running."""
        del reason
        self._updates += 1
        step = self._step
        self._stop_running()
        return step

    @workflow.signal(name="interrupt")
    def interrupt_signal(self, reason: str = "") -> None:
        """Stop what is running."""
        del reason
        self._stop_running()

    @workflow.update(name="pause")
    async def pause(self) -> str:
        """Start no further model call or tool; what runs goes on to its end."""
        self._updates += 1
        self._paused = True
        return "paused"

    @workflow.signal(name="pause")
    def pause_signal(self) -> None:
        """Start no further model call or tool."""
        self._paused = True

    @workflow.update(name="resume")
    async def resume(self) -> str:
        """Go on after a pause."""
        self._updates += 1
        self._paused = False
        return "active"

    @workflow.signal(name="resume")
    def resume_signal(self) -> None:
        """Go on after a pause."""
        self._paused = False

    @workflow.update(name="close")
    async def close(self) -> str:
        """End the session: what runs is interrupted, and nothing more is started."""
        self._updates += 1
        self._closing = True
        self._stop_running()
        return "closed"

    @workflow.signal(name="close")
    def close_signal(self) -> None:
        """End the session."""
        self._closing = True
        self._stop_running()

    @workflow.update(name="compact")
    async def compact(self, asked: calls.CompactRequest) -> calls.Compacted:
        """Compact the view between two turns; returns the checkpoint, or why there is none (spec CMP-10)."""
        self._updates += 1
        return await self._errands.ask(lambda: self._compact("manual", asked)).result()

    @workflow.signal(name="compact")
    def compact_signal(self, asked: calls.CompactRequest) -> None:
        """Compact the view between two turns."""
        self._errands.ask(lambda: self._compact("manual", asked))

    @workflow.update(name="rollback")
    async def rollback(self, asked: calls.RollbackRequest) -> calls.RolledBack:
        """Deactivate the checkpoint that serves, between two turns; returns what serves now, or why nothing changed."""
        self._updates += 1
        return await self._errands.ask(lambda: self._roll_back(asked)).result()

    @workflow.signal(name="rollback")
    def rollback_signal(self, asked: calls.RollbackRequest) -> None:
        """Deactivate the checkpoint that serves, between two turns."""
        self._errands.ask(lambda: self._roll_back(asked))

    # --- what people ask ------------------------------------------------------------------------------------------------

    @workflow.query(name="context")
    def context(self) -> dict[str, Any]:
        """The latest bundle by its figures, at most 4 KiB; its contents lie in the store under `bundle_ref`."""
        if self._bundle is None:
            return {"session_id": workflow.info().workflow_id, "bundle_ref": None}
        summary = self._bundle.plain()
        return {"session_id": workflow.info().workflow_id, "bundle_ref": self._bundle.bundle_id, **summary}

    @workflow.query(name="status")
    def status(self) -> dict[str, Any]:
        """Where the loop stands."""
        return {
            "session_id": workflow.info().workflow_id,
            "status": "paused" if self._paused else "active",
            "step": self._step,
            "turn": self._turn,
            "undelivered": self._inbox.undelivered,
            "model": self._model,
        }

    @workflow.query(name="state")
    def state(self) -> dict[str, Any]:
        """What the loop knows of the state; the whole of it is in the store."""
        return {**self.status(), "plan": self._plan.plain() if self._plan else None}

    @workflow.query(name="stats")
    def stats(self) -> dict[str, Any]:
        """What the loop has counted; the whole of it is in the store."""
        return {"turns": self._turn, "model_calls": self._model_calls, **self._tally.model_dump()}


def _json(raw: RawValue) -> Any:
    try:
        return json.loads(raw.payload.data)
    except ValueError:
        return None


def _parse_start(raw: RawValue) -> calls.SessionStart | ApplicationError:
    """The start input; a bare string is the task. For an input that cannot be one, the error that ends the run."""
    value = _json(raw)
    try:
        return calls.SessionStart.model_validate(value if isinstance(value, dict) else {"task": value})
    except ValueError as error:
        message = "; ".join(str(error).splitlines()[:6])
        return ApplicationError(f"invalid start input: {message}", type="invalid_session", non_retryable=True)


def _ending_of(error: ActivityError) -> TerminalReason:
    match calling.failure_type(error):
        case "workspace_gone":
            return "workspace_gone"
        case "model_bad_request":
            return "model_bad_request"
        case "" | "BackendUnavailable":
            return "backend_unavailable"
        case _:
            return "internal_error"


def _attempt(done: calls.Compacted) -> str:
    """What a compaction came to, for the account of what was tried."""
    made = done.checkpoint
    if made is None:
        return f"no compaction ({done.kind}: {done.message})"
    return f"compaction {made.compaction_id} ({made.tokens_before} to {made.tokens_after} tokens)"


def _sizes(failure: calls.ModelFailure) -> str:
    known = [
        f"{name} {value} tokens"
        for name, value in (("prompt", failure.prompt_tokens), ("limit", failure.limit_tokens))
        if value is not None
    ]
    return f"{failure.message} ({', '.join(known)})" if known else failure.message
