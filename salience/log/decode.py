"""Temporal history decodes to the same events anywhere, byte for byte (spec EVT-1, EVT-2).

This module is the only place where events are made. It is a pure fold over history protobufs: a `Cursor` says where the
fold stands and what it must remember, `Decoder.take` turns one history event into no, one or several AgentEvents by the
table at the end of the class. Nothing here reads a clock, a store or a server.

An event id is run id : history event id : slot. A slot is a fixed name per event type, never an ordinal;
`docs/event-log.md` has the table. Order within one history event is the order in which the table's function yields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from pydantic import Field, ValidationError
from temporalio.api.common.v1 import Payload as WirePayload
from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from salience.log import outcome
from salience.log import prompt as prompts
from salience.log.outcome import NOTHING, Slotted
from salience.model import calls, text
from salience.model import event as ev
from salience.model.frozen import Frozen
from salience.model.session import ContextConfig, Limits, ModelSettings, SessionConfig
from salience.model.tool import ToolClass, ToolOutcome

DECODER_VERSION: Final = 1
_Valid = TypeVar("_Valid", bound=Frozen)


class UnknownDecoder(ValueError):
    """The run was recorded for a decoder version that this release does not have."""


class OpenActivity(Frozen):
    """An activity that was scheduled and has not ended."""

    type: str
    activity_id: str
    input: dict[str, Any] = Field(default_factory=dict[str, Any])
    attempt: int = 0


class Cursor(Frozen):
    """Where decoding stands: everything up to `history_id` of run `run_id` has been taken."""

    session_id: str
    run_id: str = ""
    generation: int = 0
    history_id: int = 0
    seq: int = 0
    last_event_id: str | None = None
    decoder_version: int = DECODER_VERSION
    open: dict[str, OpenActivity] = Field(default_factory=dict[str, OpenActivity])
    ended: bool = False
    shared_until: int = Field(default=0, description="In a reset run: the last history event shared with its base run.")


@dataclass(slots=True)
class Decoded:
    """New events, and the blobs that must be stored before they are appended."""

    events: list[ev.Event] = field(default_factory=list[ev.Event])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])


def decode(history: Iterable[HistoryEvent], cursor: Cursor) -> tuple[Decoded, Cursor]:
    """Decode history events that follow a cursor.

    Args:
        history: events of one run, in order, starting right after `cursor.history_id`.
        cursor: from `begin_run` or an earlier call.

    Returns:
        What was decoded, and the cursor after it.

    Raises:
        ValueError: the history has a gap, or starts elsewhere than the cursor stands.
        UnknownDecoder: the run is pinned to a decoder version that is not here.
    """
    decoder = Decoder(cursor)
    for event in history:
        decoder.take(event)
    return decoder.decoded, decoder.cursor


def begin_run(cursor: Cursor, run_id: str, *, shared_until: int = 0) -> Cursor:
    """The cursor at the beginning of the session's next run.

    Args:
        cursor: where the previous run ended, or an empty cursor.
        run_id: the new run.
        shared_until: for a reset run, see `reset_point`: what it shares was decoded with the run it came from.
    """
    return cursor.model_copy(
        update={
            "run_id": run_id,
            "generation": cursor.generation + 1,
            "history_id": 0,
            "open": {},
            "ended": False,
            "shared_until": shared_until,
        }
    )


def reset_point(history: Iterable[HistoryEvent]) -> tuple[str, int] | None:
    """For a run that Temporal made by reset: the base run's id and the last history event shared with it."""
    for event in history:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
                return failed.base_run_id, event.event_id - 1
    return None


def is_close(event: HistoryEvent) -> bool:
    """Whether the event ends its run."""
    return event.event_type in _CLOSING


def wire_json(payloads: Iterable[WirePayload]) -> Any:
    """The first payload as JSON data; None when there is none or it is no JSON."""
    for payload in payloads:
        if payload.metadata.get("encoding") == b"json/plain":
            return json.loads(payload.data)
        return None
    return None


class Decoder:
    """The fold. One table, at the end of the class, says what each history event type means."""

    def __init__(self, cursor: Cursor) -> None:
        if cursor.decoder_version != DECODER_VERSION:
            raise UnknownDecoder(f"no decoder version {cursor.decoder_version} in this release")
        self.decoded = Decoded()
        self._start = cursor
        self._history_id = cursor.history_id
        self._seq = cursor.seq
        self._last = cursor.last_event_id
        self._open = dict(cursor.open)
        self._ended = cursor.ended
        self._time = ""

    @property
    def cursor(self) -> Cursor:
        """Where the fold stands now."""
        return self._start.model_copy(
            update={
                "history_id": self._history_id,
                "seq": self._seq,
                "last_event_id": self._last,
                "open": self._open,
                "ended": self._ended,
            }
        )

    def take(self, event: HistoryEvent) -> None:
        """Take the next history event in."""
        if event.event_id != self._history_id + 1:
            raise ValueError(f"history event {event.event_id} follows {self._history_id} in run {self._start.run_id}")
        self._history_id = event.event_id
        read = self._TABLE.get(event.event_type)
        if read is None:
            return
        # Nanoseconds are cut to the microseconds that Python's clocks can compare with.
        self._time = event.event_time.ToDatetime().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        silent = event.event_id <= self._start.shared_until
        for slot, payload, causality in read(self, event):
            if not silent:
                self._emit(event.event_id, slot, payload, causality)

    def _emit(self, history_id: int, slot: str, payload: ev.Payload, causality: ev.Causality) -> None:
        event_id = f"{self._start.run_id}:{history_id}:{slot}"
        self._seq += 1
        self.decoded.events.append(
            ev.Event.model_construct(
                schema_version=1,
                event_id=event_id,
                session_id=self._start.session_id,
                run_id=self._start.run_id,
                parent_event_id=self._last,
                seq=self._seq,
                timestamp=self._time,
                type=type(payload).__name__,
                actor=payload.actor,
                payload=payload,
                causality=causality,
            )
        )
        self._last = event_id

    # --- the run itself -------------------------------------------------------------------------------------------

    def _started(self, event: HistoryEvent) -> Iterator[Slotted]:
        raw = wire_json(event.workflow_execution_started_event_attributes.input.payloads)
        start = _object(raw) if isinstance(raw, dict) else {"task": raw}
        if start.get("carry") is not None:
            return
        if self._start.generation == 1:
            yield (
                "session",
                ev.SessionStarted(
                    generation=1,
                    decoder_version=self._start.decoder_version,
                    config=_valid(SessionConfig, start.get("config")),
                    root_session_id=self._start.session_id,
                ),
                NOTHING,
            )
        else:
            yield (
                "session",
                ev.SessionResumed(
                    after="end",
                    previous_run_id=ev.place_of(self._last)[0] if self._last else None,
                    model_config=_valid(ModelSettings, start.get("model_config", start.get("model_settings"))),
                    limits=_valid(Limits, start.get("limits")),
                    context_config=_valid(ContextConfig, start.get("context_config")),
                ),
                NOTHING,
            )
        if start.get("task") is not None:
            yield from self._prompt("task", start["task"], "start", fallback_id=f"{self._start.run_id}:1")

    def _closed(self, event: HistoryEvent) -> Iterator[Slotted]:
        self._ended = True
        kind = event.event_type
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
            return
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            raw = wire_json(event.workflow_execution_completed_event_attributes.result.payloads)
            result = _valid(calls.SessionResult, raw)
            if result is not None:
                yield "ended", ev.SessionEnded(reason=result.reason, detail=result.detail), NOTHING
                return
        detail = EventType.Name(kind).removeprefix("EVENT_TYPE_WORKFLOW_EXECUTION_").lower()
        if kind == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            message = event.workflow_execution_failed_event_attributes.failure.message
            yield "ended", ev.SessionEnded(reason="internal_error", detail=_line(message)), NOTHING
        else:
            yield "ended", ev.SessionEnded(reason="terminated", detail=detail), NOTHING

    def _task_failed(self, event: HistoryEvent) -> Iterator[Slotted]:
        """A reset leaves its mark here; every other failed workflow task is retried and says nothing of the session."""
        failed = event.workflow_task_failed_event_attributes
        if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            yield (
                "reset",
                ev.SessionForked(how="reset", base_run_id=failed.base_run_id, base_history_event_id=event.event_id - 1),
                NOTHING,
            )

    # --- what people send -----------------------------------------------------------------------------------------

    def _signaled(self, event: HistoryEvent) -> Iterator[Slotted]:
        signal = event.workflow_execution_signaled_event_attributes
        fallback = f"{self._start.run_id}:{event.event_id}"
        yield from self._verb(signal.signal_name, wire_json(signal.input.payloads), "signal", fallback)

    def _updated(self, event: HistoryEvent) -> Iterator[Slotted]:
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        yield from self._verb(
            request.input.name, wire_json(request.input.args.payloads), "update", request.meta.update_id
        )

    def _verb(self, name: str, raw: Any, delivery: ev.Delivery, fallback_id: str) -> Iterator[Slotted]:
        match name:
            case "submit":
                yield from self._prompt("prompt", raw, delivery, fallback_id)
            case "interrupt":
                yield "interrupt", ev.TurnInterrupted(reason=_line(raw) if isinstance(raw, str) else ""), NOTHING
            case "pause":
                yield "pause", ev.SessionPaused(), NOTHING
            case "resume":
                yield "resume", ev.SessionResumed(after="pause"), NOTHING
            case _:
                pass

    def _prompt(self, slot: str, raw: Any, delivery: ev.Delivery, fallback_id: str) -> Iterator[Slotted]:
        sent = prompts.parse_prompt(raw)
        if prompts.is_empty(sent):
            return
        kept = prompts.keep(sent)
        self.decoded.blobs.update(kept.blobs)
        message_id = kept.prompt.message_id or fallback_id
        yield (
            slot,
            ev.UserPromptSubmitted(
                message_id=message_id,
                text=kept.prompt.text,
                text_ref=kept.prompt.text_ref,
                size_bytes=kept.prompt.size_bytes,
                delivery=delivery,
                original_ref=kept.prompt.original_ref,
            ),
            ev.Causality(message_id=message_id),
        )

    # --- activities -----------------------------------------------------------------------------------------------

    def _scheduled(self, event: HistoryEvent) -> Iterator[Slotted]:
        attributes = event.activity_task_scheduled_event_attributes
        raw = wire_json(attributes.input.payloads)
        opened = OpenActivity(
            type=attributes.activity_type.name,
            activity_id=attributes.activity_id,
            input=_object(raw),
        )
        self._open[str(event.event_id)] = opened
        if opened.type == calls.COMPACT:
            asked = calls.Compact.model_validate(opened.input)
            yield (
                "compaction",
                ev.CompactionStarted(
                    turn=asked.turn, trigger=asked.trigger, focus=asked.focus, window_tokens=asked.window_tokens
                ),
                NOTHING,
            )
        if opened.type == calls.CALL_MODEL:
            call = calls.CallModel.model_validate(opened.input)
            yield (
                "request",
                ev.ModelRequestStarted(
                    turn=call.turn, bundle_id=call.bundle_id, call_index=call.call_index, model=call.model
                ),
                NOTHING,
            )

    def _began(self, event: HistoryEvent) -> Iterator[Slotted]:
        attributes = event.activity_task_started_event_attributes
        key = str(attributes.scheduled_event_id)
        opened = self._open[key] = self._open[key].model_copy(update={"attempt": attributes.attempt})
        if opened.type == calls.RUN_TOOL:
            call = calls.RunTool.model_validate(opened.input)
            yield (
                f"started:{call.tool_call_id}",
                ev.ToolCallStarted(tool_call_id=call.tool_call_id, name=call.name, attempt=attributes.attempt),
                ev.Causality(tool_call_id=call.tool_call_id),
            )

    def _completed(self, event: HistoryEvent) -> Iterator[Slotted]:
        attributes = event.activity_task_completed_event_attributes
        opened = self._open.pop(str(attributes.scheduled_event_id))
        raw = wire_json(attributes.result.payloads)
        match opened.type:
            case calls.OPEN_RUN:
                result = calls.OpenedRun.model_validate(raw)
                if result.config is not None:
                    yield "configured", ev.SessionConfigured(config=result.config), NOTHING
            case calls.BUILD_CONTEXT:
                built = calls.BuiltContext.model_validate(raw)
                transition = str(opened.input.get("transition", ""))
                yield (
                    "context",
                    ev.ContextBuilt(
                        bundle=built.bundle, source=built.source, transition=transition, duration_ms=built.duration_ms
                    ),
                    NOTHING,
                )
            case calls.COMPACT:
                yield outcome.compacted(calls.Compact.model_validate(opened.input), calls.Compacted.model_validate(raw))
            case calls.ROLLBACK:
                yield from outcome.rolled_back(calls.RolledBack.model_validate(raw))
            case calls.CALL_MODEL:
                yield from self._answered(opened, calls.ModelAnswer.model_validate(raw))
            case calls.RUN_TOOL | calls.INSPECT_EFFECT:
                yield from outcome.ended(ToolOutcome.model_validate(raw))
            case _:
                pass

    def _answered(self, opened: OpenActivity, answer: calls.ModelAnswer) -> Iterator[Slotted]:
        call = calls.CallModel.model_validate(opened.input)
        yield (
            "response",
            ev.ModelResponseReceived(
                turn=call.turn,
                bundle_id=call.bundle_id,
                response_ref=answer.response_ref,
                text_preview=answer.text_preview,
                stop_reason=answer.stop_reason,
                usage=answer.usage,
                model=answer.model or call.model,
                call_count=len(answer.calls),
                duration_ms=answer.duration_ms,
                attempt=max(opened.attempt, 1),
            ),
            NOTHING,
        )
        for index, asked in enumerate(answer.calls):
            yield (
                f"call:{asked.tool_call_id}",
                ev.ToolCallRequested(
                    tool_call_id=asked.tool_call_id,
                    name=asked.name,
                    index=index,
                    args_preview=asked.args_preview,
                    response_ref=answer.response_ref,
                ),
                ev.Causality(tool_call_id=asked.tool_call_id),
            )

    def _failed(self, event: HistoryEvent) -> Iterator[Slotted]:
        attributes = event.activity_task_failed_event_attributes
        opened = self._open.pop(str(attributes.scheduled_event_id))
        failure = attributes.failure
        if opened.type == calls.COMPACT:
            yield _compaction_lost(opened, _line(failure.message))
        elif opened.type == calls.CALL_MODEL:
            raw = wire_json(failure.application_failure_info.details.payloads)
            details = _valid(calls.ModelFailure, raw)
            yield self._model_failed(
                opened, details or calls.ModelFailure(kind="unavailable", message=_line(failure.message))
            )
        else:
            # A failure that the tool itself reports was raised before anything was changed.
            reported = failure.application_failure_info.type in calls.REPORTED_FAILURES
            yield from self._tool_lost(opened, "unavailable", _line(failure.message), started=not reported)

    def _timed_out(self, event: HistoryEvent) -> Iterator[Slotted]:
        attributes = event.activity_task_timed_out_event_attributes
        opened = self._open.pop(str(attributes.scheduled_event_id))
        which = attributes.failure.timeout_failure_info.timeout_type
        started = which != TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START and opened.attempt > 0
        message = _line(attributes.failure.message)
        if opened.type == calls.COMPACT:
            yield _compaction_lost(opened, message)
        elif opened.type == calls.CALL_MODEL:
            yield self._model_failed(opened, calls.ModelFailure(kind="worker_lost", message=message))
        else:
            yield from self._tool_lost(opened, "timed_out" if started else "not_started", message, started=started)

    def _canceled(self, event: HistoryEvent) -> Iterator[Slotted]:
        attributes = event.activity_task_canceled_event_attributes
        opened = self._open.pop(str(attributes.scheduled_event_id))
        if opened.type == calls.COMPACT:
            yield _compaction_lost(opened, "cancelled")
        elif opened.type == calls.CALL_MODEL:
            yield self._model_failed(opened, calls.ModelFailure(kind="interrupted", message="interrupted by the user"))
        else:
            message = "interrupted by the user" if opened.attempt else "interrupted by the user before it started"
            yield from self._tool_lost(opened, "interrupted", message, started=bool(opened.attempt))

    def _model_failed(self, opened: OpenActivity, failure: calls.ModelFailure) -> Slotted:
        call = calls.CallModel.model_validate(opened.input)
        return (
            "failed",
            ev.ModelRequestFailed(
                turn=call.turn,
                bundle_id=call.bundle_id,
                kind=failure.kind,
                message=failure.message,
                status=failure.status,
                retry_after_s=failure.retry_after_s,
                prompt_tokens=failure.prompt_tokens,
                limit_tokens=failure.limit_tokens,
            ),
            NOTHING,
        )

    def _tool_lost(
        self, opened: OpenActivity, kind: ev.FailureKind, message: str, *, started: bool
    ) -> Iterator[Slotted]:
        """A tool activity that ended without an outcome.

        An effect that was started is inspected next, and the inspection's outcome is the call's only end; an inspection
        that fails itself still ends the call, as unknown and without evidence.
        """
        if opened.type == calls.RUN_TOOL:
            call = calls.RunTool.model_validate(opened.input)
            effect: ToolClass = "effect"
            if call.tool_class == effect and started and kind != "interrupted":
                return
        elif opened.type == calls.INSPECT_EFFECT:
            call = calls.InspectEffect.model_validate(opened.input)
            kind = "outcome_unknown"
            message = f"The worker died inside this call, and what it changed is not known: {message}"
        else:
            return
        yield (
            f"ended:{call.tool_call_id}",
            ev.ToolCallFailed(
                tool_call_id=call.tool_call_id,
                name=call.name,
                kind=kind,
                preview=message,
                output_bytes=len(message.encode()),
            ),
            ev.Causality(tool_call_id=call.tool_call_id),
        )

    _TABLE: Final[dict[int, Callable[[Decoder, HistoryEvent], Iterator[Slotted]]]] = {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: _started,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: _closed,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: _closed,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: _closed,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: _closed,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: _closed,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: _closed,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: _task_failed,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: _signaled,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: _updated,
        EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: _scheduled,
        EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: _began,
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: _completed,
        EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: _failed,
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: _timed_out,
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: _canceled,
    }


_CLOSING: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)


def _compaction_lost(opened: OpenActivity, message: str) -> Slotted:
    trigger = calls.Compact.model_validate(opened.input).trigger
    return (
        "compaction_failed",
        ev.CompactionFailed(trigger=trigger, kind="activity_failed", message=message),
        NOTHING,
    )


def _valid(kind: type[_Valid], raw: Any) -> _Valid | None:
    """The value if it is one; a plain client's malformed start input must not stop the record."""
    if raw is None:
        return None
    try:
        return kind.model_validate(raw)
    except ValidationError:
        return None


def _object(raw: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


def _line(message: str) -> str:
    return text.preview(text.mend(" ".join(message.split())), 500)
