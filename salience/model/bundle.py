"""A bundle is one model call's compiled input: every segment has a reason and a source (spec ONT-10, CTX-2, INV 12)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from salience.model.frozen import Frozen, Names, type_of_sequence
from salience.model.message import CompiledMessage, Role

Section = Literal[
    "tools",
    "constitution",
    "project_instructions",
    "session_memory",
    "summary",
    "transcript",
    "state_card",
    "budget_note",
]
"""The order of a bundle, most stable first (design §4)."""

Trust = Literal["system", "user", "project", "model", "untrusted"]
ProjectionMode = Literal["full_history", "masked", "compact_checkpoint"]
EpochReason = Literal[
    "start", "resume", "reduction", "model_changed", "tools_changed", "instructions_changed", "compaction", "rollback"
]
Decision = Literal[
    "below_threshold",
    "threshold_exceeded",  # over the threshold: a compaction comes before the model call
    "messages_not_enough",  # over the threshold, with fewer messages than a compaction needs
    "cooling_down",  # over the threshold shortly after a compaction, a refused one or a rollback
    "reduced",  # results masked, and as the last resort messages left out
    "unfit",  # what may not be left out is larger than the window
]
"""What a build decided about its size (spec CMP-3)."""
Rendering = Literal["tools", "text", "response", "result"]
"""How a segment's bytes become a message: the tool contracts (sent beside the messages), a text, a stored
ModelResponse, a tool result."""


class Segment(Frozen):
    """One piece of a bundle. `digest` addresses its bytes; the id is unique in the bundle and stable in the session."""

    segment_id: str
    section: Section
    role: Role
    reason: str
    source_refs: Names
    trust: Trust
    freshness: Literal["fixed", "current", "recent", "old"]
    priority: int
    tokens: int
    digest: str
    group: str = Field(default="", description="Segments of one group are kept or left out together.")
    evictable: bool = True
    masked: bool = False
    render: Rendering = "text"
    label: str | None = Field(
        default=None, description="What data is that is not the user's words (spec CTX-8, CTX-10)."
    )
    tool_call_id: str | None = None
    output_ref: str | None = None
    is_error: bool = False
    truncated: bool = False


class Excluded(Frozen):
    """A candidate that was left out, and why."""

    segment_id: str
    section: Section
    role: Role
    source_refs: Names
    tokens: int
    why: str


class Horizon(Frozen):
    """How far one kind of reduction went: everything of its kind before a transcript position, and what that freed."""

    below: int = 0
    messages: int = 0
    tokens: int = 0


class Masks(Frozen):
    """The mask set of an epoch. Reduction goes oldest first and never back, so three positions say all of it."""

    results: Horizon = Field(default_factory=lambda: Horizon(), description="Results shown as preview and reference.")
    chatter: Horizon = Field(default_factory=lambda: Horizon(), description="Assistant messages and results left out.")
    prompts: Horizon = Field(default_factory=lambda: Horizon(), description="User messages left out.")


class View(Frozen):
    """How the view relates to the whole (spec CTX-9)."""

    projection_mode: ProjectionMode
    source_message_count: int
    history_message_count: int
    system_message_count: int
    checkpoint_id: str | None = None


class BundleManifest(Frozen):
    """What is stored of a bundle, as the difference to the bundle before it in its epoch, so that N bundles cost O(N).

    The bundle's prefix is the first `start` prefix segments of `previous`, then `appended`; `tail` is its own.
    `excluded` is told when an epoch starts and holds for all of it.
    """

    bundle_id: str
    bundle_hash: str
    session_id: str
    turn: int
    call_index: int
    source_event_id: str
    source_seq: int
    epoch: int
    epoch_reason: EpochReason
    previous: str | None = Field(
        default=None, description="Bundle of the same epoch this one extends; None when it starts it."
    )
    start: int = 0
    appended: Annotated[tuple[Segment, ...], type_of_sequence] = ()
    tail: Annotated[tuple[Segment, ...], type_of_sequence] = ()
    excluded: Annotated[tuple[Excluded, ...], type_of_sequence] = ()
    current_request: str = Field(default="", description="Segment id of the user message that is being worked on.")
    builder_version: str
    tokenizer: str


class BundleTokens(Frozen):
    """The budget, in tokens; counts stand outside the bundle's hash (spec CTX-5)."""

    total: int
    window: int
    reserved: int
    by_section: dict[str, int]
    measured: int | None = Field(
        default=None, description="The total by the provider's own count, where that is larger than the estimate."
    )


class ContextBundle(Frozen):
    """The explained form of a bundle, as `salience context` shows it."""

    bundle_id: str
    bundle_hash: str
    session_id: str
    turn: int
    call_index: int
    source_event_id: str
    source_seq: int
    epoch: int
    epoch_reason: EpochReason
    decision: Decision
    builder_version: str
    tokenizer: str
    tokens: BundleTokens
    segments: Annotated[tuple[Segment, ...], type_of_sequence]
    excluded: Annotated[tuple[Excluded, ...], type_of_sequence]
    view: View
    messages: Annotated[tuple[CompiledMessage, ...], type_of_sequence] = ()


class BundleSummary(Frozen):
    """What history, the journal and the `context` query hold of a bundle: at most 4 KiB (spec LOOP-2c)."""

    bundle_hash: str
    turn: int
    call_index: int
    epoch: int
    epoch_reason: EpochReason
    decision: Decision = "below_threshold"
    fits: bool = True
    tokens: BundleTokens
    view: View
    largest: dict[str, int] = Field(
        default_factory=dict[str, int], description="The 20 largest segments, largest first, with their tokens."
    )
    excluded_counts: dict[str, int] = Field(default_factory=dict[str, int])
    masks: Masks | None = Field(
        default=None, description="The epoch's mask set; None when nothing is masked or left out."
    )
    environment_ref: str
    builder_version: str
    tokenizer: str
    problem: str | None = Field(default=None, description="Why it does not fit, naming the sizes.")

    @property
    def bundle_id(self) -> str:
        """The bundle's id in its session; not written, because history holds turn and hash already."""
        return bundle_id_of(self.turn, self.bundle_hash)


def bundle_id_of(turn: int, bundle_hash: str) -> str:
    """The id of a bundle: unique in its session and readable."""
    return f"b{turn}-{bundle_hash[:16]}"
