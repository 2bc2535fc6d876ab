"""An event is a fact that history recorded; what each type means stands at its payload (spec ONT-2).

Events are decoded, never written: `salience.log.decode` makes them from Temporal history, the journal keeps them, and
everything else is folded from them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, SerializeAsAny, model_validator

from salience.model.bundle import BundleSummary
from salience.model.compaction import Checkpoint, CompactionChecks, CompactionTrigger, RefusalKind
from salience.model.frozen import Frozen, type_of_sequence
from salience.model.message import StopReason, Usage
from salience.model.session import ContextConfig, Limits, ModelSettings, SessionConfig, TerminalReason
from salience.model.state import StatePatch
from salience.model.tool import FailureKind

Actor = Literal["user", "agent", "model", "tool", "system", "subagent"]
Delivery = Literal["start", "update", "signal"]

ModelFailureKind = Literal[
    "rate_limit",
    "overload",
    "timeout",
    "truncated_stream",
    "malformed_tool_arguments",
    "empty_response",
    "output_limit",
    "context_overflow",
    "lower_output_needed",
    "content_refusal",
    "auth",
    "bad_request",
    "unavailable",
    "interrupted",
    "worker_lost",
]
"""Why a model call gave no answer (spec LOOP-5)."""


class Payload(Frozen):
    """Base of the typed payloads; the class name is the event type."""

    actor: ClassVar[Actor]


class SessionStarted(Payload):
    """A session began. Its task, if any, follows as a UserPromptSubmitted of the same history event."""

    actor = "system"
    generation: int
    decoder_version: int
    config: SessionConfig | None = Field(
        default=None, description="None when the client left it to the worker's defaults."
    )
    root_session_id: str
    parent_session_id: str | None = None


class SessionConfigured(Payload):
    """The worker resolved what the client left open; from here on the whole configuration is known."""

    actor = "system"
    config: SessionConfig


class UserPromptSubmitted(Payload):
    """The user said something. A message_id seen before folds to nothing."""

    actor = "user"
    message_id: str
    text: str = Field(default="", description="The whole text, or its beginning when `text_ref` is set.")
    text_ref: str | None = None
    size_bytes: int = 0
    delivery: Delivery
    original_ref: str | None = Field(default=None, description="The text before bad characters were replaced.")


class SessionPaused(Payload):
    """The user paused the session: no model call or tool starts until it is resumed."""

    actor = "user"


class SessionResumed(Payload):
    """The session goes on: after a pause, or in a new run after it had ended."""

    actor = "user"
    after: Literal["pause", "end"]
    previous_run_id: str | None = None
    model_settings: ModelSettings | None = Field(default=None, alias="model_config")
    limits: Limits | None = None
    context_config: ContextConfig | None = None


class SessionForked(Payload):
    """The log branched: an operator's reset made a run that shares the base run's history up to a point.

    What the base run did after that point stays in the journal, because it happened.
    """

    actor = "system"
    how: Literal["reset"]
    base_run_id: str
    base_history_event_id: int


class TurnInterrupted(Payload):
    """The user interrupted what was running; unanswered calls get a paired result."""

    actor = "user"
    reason: str = ""


class SessionEnded(Payload):
    """A run of the session reached a terminal reason; saying something or resuming starts the next run."""

    actor = "system"
    reason: TerminalReason
    detail: str = ""


class Anchor(Frozen):
    """The journal as a projection left it: the last row's seq and the chain's head (spec EVT-4)."""

    seq: int
    head: str


class ContextBuilt(Payload):
    """The context of the next model call was compiled, from everything up to `source`."""

    actor = "system"
    bundle: BundleSummary
    source: Anchor
    transition: str = Field(description="Why the loop came here (spec LOOP-1).")
    duration_ms: int = 0


class ModelRequestStarted(Payload):
    """A compiled context was handed to a model."""

    actor = "system"
    turn: int
    bundle_id: str
    call_index: int
    model: str


class ModelResponseReceived(Payload):
    """A model answered; its blocks lie at `response_ref`, its calls follow as ToolCallRequested."""

    actor = "model"
    turn: int
    bundle_id: str
    response_ref: str
    text_preview: str = ""
    stop_reason: StopReason
    usage: Usage
    model: str
    call_count: int = 0
    duration_ms: int = 0
    attempt: int = 1


class ModelRequestFailed(Payload):
    """A model call gave no answer; the kind decides what the loop does about it."""

    actor = "system"
    turn: int
    bundle_id: str
    kind: ModelFailureKind
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    prompt_tokens: int | None = None
    limit_tokens: int | None = None


class ToolCallRequested(Payload):
    """The model asks for a call. Whole arguments lie in the response; the preview is for people."""

    actor = "model"
    tool_call_id: str
    name: str
    index: int
    args_preview: str = ""
    response_ref: str


class ToolCallStarted(Payload):
    """A worker began the call. A call that timed out in the queue was never started."""

    actor = "tool"
    tool_call_id: str
    name: str
    attempt: int


class ToolCallFinished(Payload):
    """The call ran to its end."""

    actor = "tool"
    tool_call_id: str
    name: str
    output_ref: str | None = None
    full_ref: str | None = None
    output_bytes: int = 0
    preview: str = ""
    truncated: bool = False
    exit_code: int | None = None
    duration_ms: int = 0
    finish: bool = False


class ToolCallFailed(Payload):
    """The call gave no result, or an error the model can act on; `outcome_unknown` carries what changed as evidence."""

    actor = "tool"
    tool_call_id: str
    name: str
    kind: FailureKind
    output_ref: str | None = None
    full_ref: str | None = None
    output_bytes: int = 0
    preview: str = ""
    truncated: bool = False
    exit_code: int | None = None
    duration_ms: int = 0


class FileRead(Payload):
    """A call read a file of the workspace."""

    actor = "tool"
    tool_call_id: str
    path: str
    content_hash: str | None = None


class FileWritten(Payload):
    """A call created, changed or deleted a file of the workspace, whatever the tool (INV 4)."""

    actor = "tool"
    tool_call_id: str
    path: str
    change: Literal["created", "modified", "deleted"]
    before_hash: str | None = None
    after_hash: str | None = None
    size_bytes: int | None = None


class DiffApplied(Payload):
    """The change of one call as a unified diff, kept as an artifact."""

    actor = "tool"
    tool_call_id: str
    diff_ref: str | None = None
    files: int
    added: int = 0
    removed: int = 0
    effects_ref: str | None = None


class StateUpdated(Payload):
    """A validated change of state the model asked for."""

    actor = "agent"
    tool_call_id: str | None = None
    patch: StatePatch


class CompactionStarted(Payload):
    """A compaction of the view was begun; its outcome follows as CompactionCompleted or CompactionFailed."""

    actor = "system"
    turn: int
    trigger: CompactionTrigger
    focus: str = ""
    window_tokens: int | None = Field(
        default=None, description="The window to compact for, where it is not the session's."
    )


class CompactionCompleted(Payload):
    """A checkpoint became active: from here on contexts are compiled with its summary instead of what it stands for."""

    actor = "system"
    trigger: CompactionTrigger
    checkpoint: Checkpoint
    policy: str
    checks: CompactionChecks
    duration_ms: int = 0


class CompactionFailed(Payload):
    """No checkpoint came of it, and the view stays as it was; a record that failed its checks is kept as evidence."""

    actor = "system"
    trigger: CompactionTrigger
    kind: RefusalKind
    message: str
    evidence_ref: str | None = None
    checks: CompactionChecks | None = None
    tokens_before: int = 0
    duration_ms: int = 0


class CompactionRolledBack(Payload):
    """The checkpoint that was active serves no longer; the one below does, or the full history is back (spec CMP-2)."""

    actor = "user"
    compaction_id: str
    checkpoint: Checkpoint | None = Field(default=None, description="What serves now; None: the full history.")
    tokens_before: int
    tokens_after: int


PAYLOADS: dict[str, type[Payload]] = {
    cls.__name__: cls
    for cls in (
        SessionStarted, SessionConfigured, UserPromptSubmitted, SessionPaused, SessionResumed, SessionForked,
        TurnInterrupted, SessionEnded, ContextBuilt, ModelRequestStarted, ModelResponseReceived, ModelRequestFailed,
        ToolCallRequested, ToolCallStarted, ToolCallFinished, ToolCallFailed, FileRead, FileWritten, DiffApplied,
        StateUpdated, CompactionStarted, CompactionCompleted, CompactionFailed, CompactionRolledBack,
    )
}  # fmt: skip
"""The closed union: an event type is here exactly when something emits it."""


class Causality(Frozen):
    """What the event is about (spec ONT-2)."""

    message_id: str | None = None
    tool_call_id: str | None = None
    artifact_id: str | None = None
    compaction_id: str | None = None


class Event(Frozen):
    """One fact of a session's log.

    `event_id` is Temporal run id : history event id : slot (spec EVT-2); `seq` is dense from 1 over all runs of the
    session; `timestamp` is when history recorded it and need not be monotone in seq (PRJ-1b).
    """

    schema_version: Literal[1] = 1
    event_id: str
    session_id: str
    run_id: str
    parent_event_id: str | None = None
    seq: int
    timestamp: str
    type: str
    actor: Actor
    payload: SerializeAsAny[Payload]
    causality: Causality = Field(default_factory=lambda: Causality())

    @model_validator(mode="before")
    @classmethod
    def _typed_payload(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        if isinstance(fields.get("payload"), Payload):
            return fields
        kind = PAYLOADS.get(fields.get("type", ""))
        if kind is None:
            raise ValueError(f"unknown event type {fields.get('type')!r}")
        return {**fields, "payload": kind.model_validate(fields.get("payload"))}


Events = Annotated[tuple[Event, ...], type_of_sequence]


def place_of(event_id: str) -> tuple[str, int]:
    """The run that an event id names, and its number there: of the history event, or of the imported file's line.

    Args:
        event_id: run : number : slot (spec EVT-2), or import : digest : line, whose run is import : digest (spec EVT-2b).
    """
    parts = event_id.split(":", 2)
    run, rest = (":".join(parts[:2]), parts[2:]) if parts[0] == "import" else (parts[0], parts[1:2])
    return run, int(rest[0]) if rest and rest[0].isdecimal() else 0


def event_json_schema() -> dict[str, Any]:
    """JSON Schema of an event with the union of payloads, one branch a type."""
    envelope = Event.model_json_schema()
    definitions: dict[str, Any] = envelope.pop("$defs", {})
    branches: list[dict[str, Any]] = []
    for name, cls in PAYLOADS.items():
        schema = cls.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(schema.pop("$defs", {}))
        definitions[name] = schema
        branches.append(
            {"properties": {"type": {"const": name}, "payload": {"$ref": f"#/$defs/{name}"}}, "required": ["type"]}
        )
    return {**envelope, "$defs": definitions, "oneOf": branches}
