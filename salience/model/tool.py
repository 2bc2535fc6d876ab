"""A tool is a contract: schema, effect class, boundary; its outcome declares every file touched (spec LOOP-4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from salience.model.frozen import Frozen, type_of_sequence
from salience.model.state import StatePatch

ToolClass = Literal["read", "idempotent", "effect"]
"""`read` is retried freely, `idempotent` re-runs to the same end, `effect` is started at most once (design §5)."""

FailureKind = Literal[
    "invalid_arguments",  # the arguments do not fit the schema, or were no JSON
    "unknown_tool",  # no such tool is offered
    "denied",  # the permissions of the session forbid it
    "error",  # the tool ran and failed: not found, no match, wrong precondition
    "timed_out",  # the tool was stopped at its time limit
    "interrupted",  # the user interrupted the turn
    "outcome_unknown",  # the worker died inside an effect; the evidence says what changed
    "not_started",  # the call was never started, so it changed nothing
    "unavailable",  # a store or the sandbox was not there
]


class ToolSpec(Frozen):
    """What a model is told of a tool."""

    name: str
    description: str
    parameters: dict[str, Any] = Field(description="JSON Schema (2020-12) of the arguments object.")
    tool_class: ToolClass


class FileEffect(Frozen):
    """One file a call read or changed; hashes are sha256 of the content, paths relative to the workspace."""

    op: Literal["read", "created", "modified", "deleted"]
    path: str
    before_hash: str | None = None
    after_hash: str | None = None
    size_bytes: int | None = None


class ToolOutcome(Frozen):
    """What `run_tool` returns and history keeps: small, with the whole output by reference (spec EVT-6)."""

    tool_call_id: str
    name: str
    ok: bool
    kind: FailureKind | None = None
    output_ref: str | None = Field(default=None, description="Blob with the text a model sees.")
    full_ref: str | None = Field(default=None, description="Blob with the whole output, when the model sees less.")
    output_bytes: int = 0
    preview: str = ""
    truncated: bool = False
    exit_code: int | None = None
    effects: Annotated[tuple[FileEffect, ...], type_of_sequence] = ()
    effects_ref: str | None = Field(
        default=None, description="Blob with all effects, when there are too many for history."
    )
    effects_count: int = Field(default=0, description="How many there are, when they are not listed here.")
    diff_ref: str | None = None
    diff_added: int = 0
    diff_removed: int = 0
    state_patch: StatePatch | None = None
    finish: bool = Field(default=False, description="The model declares its task finished.")
    ask: bool = Field(default=False, description="The model waits for the user's answer to an open question.")
    duration_ms: int = 0
