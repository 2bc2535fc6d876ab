"""A session is a durable workplace — folder, model, permissions, budgets, leaf — not a chat (spec ONT-1)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from salience.model.frozen import Frozen, Names

SessionStatus = Literal["active", "paused", "completed", "failed", "archived"]
BranchType = Literal["main", "fork", "subagent", "what_if"]
COMPRESSION_THRESHOLD = 0.8
MIN_ROUNDS = 2
SandboxMode = Literal["read_only", "workspace_write", "danger_full_access"]
ApprovalPolicy = Literal["never", "on_request", "on_failure", "always"]
CompressionPolicy = Literal["deterministic-1"]

TerminalReason = Literal[
    "answered",  # the model replied without calling a tool and nothing was waiting
    "finished",  # the model called `finish`
    "closed",  # the user closed the session
    "asked",  # the model called `ask_user`; what the user says next answers it
    "step_limit",  # the model-call limit of this run was reached
    "context_unfit",  # what may never be evicted exceeds the window (CTX-3)
    "model_recovery_failed",  # the provider says the prompt is too long, and compacting has not helped (CMP-3)
    "context_overflow",  # the same in runs of releases without compaction
    "adjusted",  # a run that only compacted or rolled back the view of an ended session
    "model_auth",  # missing or refused credentials
    "model_rate_limited",  # still rate limited after the last wait
    "model_unavailable",  # the provider refused connections, timed out or failed, after the last wait
    "model_bad_request",  # the provider refused the request as such, or does not know the model
    "workspace_gone",  # the session's folder does not exist any more
    "backend_unavailable",  # a store stayed away longer than activities wait
    "internal_error",  # a fault of Salience's own; the failure is in the history
    "terminated",  # ended from outside: terminated, cancelled or timed out by Temporal
]
"""Every way a run of a session can end (spec LOOP-1)."""

GOOD_ENDINGS: frozenset[str] = frozenset({"answered", "finished", "closed", "asked", "adjusted"})
"""Reasons that leave the session `completed`, or `paused` when it asked; all others leave it `failed`.

Every one leaves it resumable.
"""


def status_after(reason: str) -> SessionStatus:
    """The status of a session whose run ended for this reason."""
    if reason == "asked":
        return "paused"
    return "completed" if reason in GOOD_ENDINGS else "failed"


class ModelSettings(Frozen):
    """Which model answers and how.

    `model` is any `provider/model` string that litellm takes, or `script:FILE` for the scripted model. Credentials are
    never here: they live in the environment of the process that runs model activities.
    """

    model: str = Field(min_length=1, max_length=500)
    max_output_tokens: int = Field(
        default=4096, ge=1, le=1_000_000, description="Upper limit of one answer, in tokens."
    )
    temperature: float | None = Field(default=None, ge=0, le=2)
    api_base: str | None = Field(default=None, max_length=2000, description="Base URL of an OpenAI-compatible server.")
    timeout_s: float = Field(default=600, gt=0, le=3600, description="Longest wait for one answer, in seconds.")
    stream: bool = True

    @field_validator("model")
    @classmethod
    def _named(cls, value: str) -> str:
        if value.startswith("script:"):
            if len(value) == len("script:"):
                raise ValueError("script: needs a file, as in script:turns.yaml")
        elif "/" not in value or value.startswith("/") or value.endswith("/"):
            raise ValueError(f"model {value!r} is not of the form provider/model (or script:FILE)")
        return value

    @property
    def provider(self) -> str:
        """The part before the first slash, or `script`."""
        return "script" if self.model.startswith("script:") else self.model.split("/", 1)[0]


class ContextConfig(Frozen):
    """How much a model may see and when the view is made smaller; all sizes in tokens."""

    context_window_tokens: int = Field(default=128_000, ge=1_000)
    reserved_output_tokens: int = Field(default=4_096, ge=0)
    reduce_to: float = Field(
        default=0.6, gt=0, lt=1, description="Share of the usable window that a reduction or compaction aims at."
    )
    # What came after the first release is None where nothing was said, so that what was recorded before decodes as it did.
    compression_threshold: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the usable window beyond which the view is made smaller; None: 0.8.",
    )
    compression_policy_id: CompressionPolicy | None = Field(
        default=None, description="How a compaction record is written; None: `deterministic-1`, by code from the state."
    )
    max_recent_tokens: int | None = Field(
        default=None,
        ge=0,
        description="Verbatim history that a compaction aims to keep; None: a quarter of the usable window.",
    )
    min_rounds: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Latest rounds (a user message and its work) that stay, where they fit; None: 2.",
    )
    max_instruction_bytes: int = Field(
        default=32_768, ge=0, description="Most bytes of project instructions that are read."
    )
    max_tool_result_bytes: int = Field(
        default=16_384, ge=512, description="Most bytes of one tool result that a model sees."
    )

    @model_validator(mode="after")
    def _usable(self) -> ContextConfig:
        if self.reserved_output_tokens >= self.context_window_tokens:
            raise ValueError(
                f"reserved_output_tokens ({self.reserved_output_tokens}) leaves nothing of "
                f"context_window_tokens ({self.context_window_tokens})"
            )
        return self

    @property
    def usable_tokens(self) -> int:
        """What a prompt may use: the window without the reserve for the answer."""
        return self.context_window_tokens - self.reserved_output_tokens

    @property
    def tool_result_bytes(self) -> int:
        """Most bytes of one result that a model sees: one result must not fill a small window, which nothing could mend.

        The latest result is never masked, so half a byte a usable token (about a fifth of the window) is the bound.
        """
        return max(512, min(self.max_tool_result_bytes, self.usable_tokens // 2))


class PermissionConfig(Frozen):
    """What tools may touch. Approvals are not built yet, so every policy but `never` is refused instead of ignored."""

    sandbox_mode: SandboxMode = "workspace_write"
    network: bool = Field(default=False, description="Whether sandboxed commands may use the network.")
    approval_policy: ApprovalPolicy = "never"

    @field_validator("approval_policy")
    @classmethod
    def _built(cls, value: ApprovalPolicy) -> ApprovalPolicy:
        if value != "never":
            raise ValueError(f"approval_policy {value!r} needs approvals, which this release does not have; use never")
        return value


class Limits(Frozen):
    """Bounds of one run of a session."""

    max_model_calls: int = Field(default=10_000, ge=1, description="Finished model calls of one run before it ends.")
    max_model_retries: int = Field(
        default=4, ge=0, le=20, description="Waits in a row for a rate limit or an absent provider."
    )
    retry_base_s: float = Field(
        default=2.0, gt=0, le=300, description="First wait, in seconds; doubled each time, up to 60."
    )
    tool_timeout_s: float = Field(default=600, gt=0, le=86_400, description="Longest run of one tool call, in seconds.")


class SessionConfig(Frozen):
    """What a session is started with and keeps for life; an `update` at resume replaces single parts."""

    cwd: str = Field(min_length=1, description="Absolute path of the workspace.")
    repo_root: str | None = None
    model_settings: ModelSettings = Field(alias="model_config")
    context_config: ContextConfig = Field(default_factory=lambda: ContextConfig())
    permission_config: PermissionConfig = Field(default_factory=lambda: PermissionConfig())
    limits: Limits = Field(default_factory=lambda: Limits())
    tools: Names = Field(default=(), description="Names of the tools offered; empty: all.")
    hard_constraints: Names = ()
    acceptance_criteria: Names = ()

    @field_validator("cwd")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError(f"cwd {value!r} is not an absolute path")
        return value


class Session(Frozen):
    """The session as seen from outside (spec ONT-1)."""

    session_id: str
    root_session_id: str
    parent_session_id: str | None = None
    branch_id: str = "main"
    branch_type: BranchType = "main"
    leaf_event_id: str | None = None
    status: SessionStatus = "active"
    end_reason: TerminalReason | None = None
    cwd: str
    repo_root: str | None = None
    model_settings: ModelSettings = Field(alias="model_config")
    context_config: ContextConfig
    permission_config: PermissionConfig
    limits: Limits = Field(default_factory=lambda: Limits())
    created_at: str
    updated_at: str


class SessionNode(Frozen):
    """One node of the session tree (spec ONT-2b)."""

    node_id: str
    session_id: str
    parent_node_id: str | None = None
    event_id: str
    message_id: str | None = None
    branch_type: BranchType = "main"
    branch_summary: str | None = None
    created_at: str
