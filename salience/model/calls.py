"""The contract between workflows and activities: names, inputs, results and failures, all small (design §2).

Workflow code imports this module and no activity; an activity imports it and no workflow. Contents never travel here,
only references and digests: an input or a result stays under 32 KiB.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from salience.model.bundle import BundleSummary
from salience.model.compaction import Checkpoint, CompactionChecks, CompactionTrigger, RefusalKind
from salience.model.event import Anchor, ModelFailureKind
from salience.model.frozen import Frozen, Names, type_of_sequence
from salience.model.message import StopReason, Usage
from salience.model.session import ContextConfig, Limits, ModelSettings, SessionConfig, TerminalReason
from salience.model.state import Plan
from salience.model.tool import ToolClass

WORKFLOW_TYPE: Final = "AgentSession"
ARCHIVE_WORKFLOW_TYPE: Final = "ArchiveRun"
TASK_QUEUE: Final = "salience"
MAX_PAYLOAD_BYTES: Final = 32 * 1024
PREVIEW_BYTES: Final = 100
"""Bytes of text a preview in history holds: the rule allows 1 KiB, and previews are most of what a turn writes."""
SPILL_BYTES: Final = 32 * 1024
"""A user text longer than this many bytes lies in a blob; history and journal hold its beginning."""
MAX_PROMPT_BYTES: Final = 50 * 1024 * 1024

MAX_HISTORY_EVENTS: Final = 1_200
"""A run continues as new beyond this: replay after a worker's death costs about 0.4 ms an event, and people wait for it.

It stands in the start input, so that a history always replays as it was made.
"""

REPORTED_FAILURES: Final = frozenset({"workspace_gone", "unavailable"})
"""Types of errors that `run_tool` raises before it has changed anything, effects included."""

OPEN_RUN: Final = "open_run"
BUILD_CONTEXT: Final = "build_context"
CALL_MODEL: Final = "call_model"
RUN_TOOL: Final = "run_tool"
INSPECT_EFFECT: Final = "inspect_effect"
PROJECT: Final = "project"
COMPACT: Final = "compact"
ROLLBACK: Final = "rollback"
AWAIT_CLOSE: Final = "await_close"
ARCHIVE_RUN: Final = "archive_run"
LIST_UNARCHIVED: Final = "list_unarchived"

Role = Literal["workflow", "context", "model", "tools"]
"""What a worker process may be there for; a fifth word, `all`, means the four of them in one process."""

ROLE_OF: Final[dict[str, Role]] = {
    OPEN_RUN: "context",
    BUILD_CONTEXT: "context",
    PROJECT: "context",
    COMPACT: "context",
    ROLLBACK: "context",
    AWAIT_CLOSE: "context",
    ARCHIVE_RUN: "context",
    LIST_UNARCHIVED: "context",
    CALL_MODEL: "model",
    RUN_TOOL: "tools",
    INSPECT_EFFECT: "tools",
}
"""Which role runs an activity: provider keys are in the processes of `model` only, workspaces are written by `tools` only."""


def queue_of(task_queue: str, role: str) -> str:
    """The task queue of a role, named from the queue that the sessions themselves are on."""
    return task_queue if role == "workflow" else f"{task_queue}.{role}"


ModelFailureRecovery = Literal["wait", "end"]


OWN: Final = ""
SessionId = str
"""An activity's session. A session calls its own activities with `OWN`: the worker fills in the workflow's id, and history
does not repeat it three times a turn."""


class Prompt(Frozen):
    """User input as a client sends it; plain clients may send a bare string instead (spec LOOP-2c)."""

    message_id: str = Field(default="", max_length=200)
    text: str = ""
    text_ref: str | None = Field(default=None, description="Blob with the whole text, when the client spilled it.")
    size_bytes: int = 0
    original_ref: str | None = None


class Receipt(Frozen):
    """The acknowledgement of user input: it is in the log, and will be in the next context built."""

    message_id: str
    accepted: Literal["queued", "duplicate"]
    position: int = Field(description="1 for the first input of the session that was acknowledged, and so on.")


class Tally(Frozen):
    """Counts a run keeps in memory for the `stats` query; the store has the whole of it."""

    model_failures: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    tool_failures: int = 0


class SessionCarry(Frozen):
    """What a run hands to the next: small, versioned, and enough to go on (spec LOOP-8); under 64 KiB."""

    schema_version: Literal[1] = 1
    turn: int = 0
    model_calls: int = 0
    run_model_calls: int = Field(default=0, description="Model calls since the session was last started or resumed.")
    positions: int = 0
    receipts: Annotated[tuple[tuple[str, int], ...], type_of_sequence] = Field(
        default=(), description="The latest message ids with their positions, oldest first."
    )
    undelivered: int = Field(default=0, description="Inputs acknowledged that no context has been built with.")
    transition: str = Field(default="", description="Why the next context is due; empty when nothing is.")
    retries: int = Field(default=0, description="Model calls in a row that gave no answer.")
    paused: bool = False
    plan: Plan | None = None
    tally: Tally = Field(default_factory=lambda: Tally())
    limits: Limits | None = None
    tool_classes: dict[str, ToolClass] = Field(default_factory=dict[str, ToolClass])
    model: str = ""
    last_bundle: BundleSummary | None = None
    overflows: Names = Field(default=(), description="What was tried since the provider last took a prompt.")


class SessionStart(Frozen):
    """The start input of a run. A plain client needs only `task`."""

    task: str | Prompt | None = None
    cwd: str | None = Field(default=None, description="Absolute path of the workspace, when no config is given.")
    model: str | None = Field(default=None, description="provider/model, when no config is given.")
    config: SessionConfig | None = None
    resume: bool = Field(default=False, description="The session has ended before; go on with its record.")
    adjust: bool = Field(
        default=False,
        description="Only compact or roll back what is asked for, then end; call no model unless told to.",
    )
    model_settings: ModelSettings | None = Field(
        default=None, alias="model_config", description="A new model, at resume."
    )
    limits: Limits | None = Field(default=None, description="New limits, at resume.")
    context_config: ContextConfig | None = Field(default=None, description="A new window and budget, at resume.")
    decoder_version: int = 1
    generation: int = 1
    max_history_events: int = Field(
        default=2_000,
        description="Continue as new beyond this; the run's own, so that its history replays as it was made.",
    )
    carry: SessionCarry | None = Field(default=None, description="Set by continue-as-new only.")


class SessionResult(Frozen):
    """How a run ended."""

    reason: TerminalReason
    detail: str = ""
    turn: int = 0
    final_ref: str | None = Field(default=None, description="Blob with the last response.")
    final_preview: str = ""


class OpenRun(Frozen):
    """Finish the record of the runs before, archive them, and configure this one."""

    session_id: str
    cwd: str | None = None
    model: str | None = None


class OpenedRun(Frozen):
    """What the run goes on with."""

    anchor: Anchor
    config: SessionConfig | None = Field(
        default=None, description="The whole configuration, when this activity resolved it."
    )
    carry: SessionCarry | None = Field(
        default=None, description="From the record, when the run was not continued as new."
    )
    limits: Limits
    model: str
    tool_classes: dict[str, ToolClass]


class BuildContext(Frozen):
    """Project what is new, then compile the next context."""

    session_id: SessionId = OWN
    turn: int
    transition: str


class BuiltContext(Frozen):
    """The compiled context by reference, and the journal as the projection left it."""

    bundle: BundleSummary
    source: Anchor
    duration_ms: int = 0


class Compact(Frozen):
    """Make a checkpoint of the view as it stands."""

    session_id: SessionId = OWN
    turn: int
    trigger: CompactionTrigger
    focus: str = ""
    window_tokens: int | None = Field(default=None, description="Compact for this window instead of the session's.")


class Compacted(Frozen):
    """The new checkpoint, or why there is none."""

    checkpoint: Checkpoint | None = None
    policy: str = ""
    checks: CompactionChecks | None = None
    kind: RefusalKind | None = None
    message: str = ""
    evidence_ref: str | None = None
    tokens_before: int = 0
    duration_ms: int = 0


class CompactRequest(Frozen):
    """What a person asks of a compaction (spec CMP-10)."""

    focus: str = Field(default="", max_length=2_000)
    window_tokens: int | None = Field(default=None, ge=1_000, le=100_000_000)


class Rollback(Frozen):
    """Deactivate the checkpoint that serves."""

    session_id: SessionId = OWN
    to: int | None = Field(
        default=None,
        description="Number of the checkpoint that shall serve, 0: the full history; None: as far as fits.",
    )


class RolledBack(Frozen):
    """What serves now, or why nothing was changed."""

    compaction_id: str = ""
    checkpoint: Checkpoint | None = None
    tokens_before: int = 0
    tokens_after: int = 0
    refused: str = ""


class RollbackRequest(Frozen):
    """What a person asks of a rollback (spec CMP-2)."""

    to: int | None = Field(default=None, ge=0)


class CallModel(Frozen):
    """Call the model with a compiled context."""

    session_id: SessionId = OWN
    turn: int
    bundle_id: str
    call_index: int
    model: str


class CallPreview(Frozen):
    """One call of an answer, as history shows it."""

    tool_call_id: str
    name: str
    args_preview: str = ""


class ModelAnswer(Frozen):
    """The answer by reference."""

    response_ref: str
    model: str = Field(default="", description="Empty: the model that was asked for.")
    stop_reason: StopReason
    usage: Usage
    text_preview: str = ""
    calls: Annotated[tuple[CallPreview, ...], type_of_sequence] = ()
    duration_ms: int = 0


class ModelFailure(Frozen):
    """Details of the ApplicationError that `call_model` raises; the error's type is `kind`."""

    kind: ModelFailureKind
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    prompt_tokens: int | None = None
    limit_tokens: int | None = None


class RunTool(Frozen):
    """Run one call of an answer; its arguments lie in the response."""

    session_id: SessionId = OWN
    turn: int
    index: int
    tool_call_id: str
    name: str
    response_ref: str
    tool_class: ToolClass = "effect"
    batch: int = Field(default=1, description="Calls in the answer: they share the room that results have in a window.")


class InspectEffect(Frozen):
    """Find out what a call changed whose worker died inside it."""

    session_id: SessionId = OWN
    turn: int
    index: int
    tool_call_id: str
    name: str


class Project(Frozen):
    """Bring the journal up to now."""

    session_id: str


class Projected(Frozen):
    """The journal as the projection left it."""

    anchor: Anchor


class ArchiveRun(Frozen):
    """Keep the whole history of one run for ever."""

    session_id: str
    run_id: str


class Archived(Frozen):
    """Where the history lies."""

    run_id: str
    archive_ref: str
    history_events: int
    anchor: Anchor


class Unarchived(Frozen):
    """Runs that closed without an archive workflow of their own."""

    runs: Annotated[tuple[ArchiveRun, ...], type_of_sequence] = ()
