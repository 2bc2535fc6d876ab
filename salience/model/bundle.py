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
EpochReason = Literal["start", "resume", "reduction", "model_changed", "tools_changed", "instructions_changed"]
Decision = Literal["below_threshold", "reduced", "unfit"]


class Segment(Frozen):
    """One piece of a bundle. `digest` addresses its text; the id is a function of section, source and text."""

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
    group: str = Field("", description="Segments of one group are kept or left out together.")
    evictable: bool = True
    masked: bool = False


class Excluded(Frozen):
    """A candidate that was left out, and why."""

    segment_id: str
    section: Section
    role: Role
    source_refs: Names
    tokens: int
    why: str


class View(Frozen):
    """How the view relates to the whole (spec CTX-9)."""

    projection_mode: ProjectionMode
    source_message_count: int
    history_message_count: int
    system_message_count: int
    checkpoint_id: str | None = None


class BundleTokens(Frozen):
    """The budget, in tokens; counts stand outside the bundle's hash (spec CTX-5)."""

    total: int
    window: int
    reserved: int
    by_section: dict[str, int]


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

    bundle_id: str
    bundle_hash: str
    turn: int
    call_index: int
    epoch: int
    epoch_reason: EpochReason
    decision: Decision
    fits: bool
    tokens: BundleTokens
    view: View
    largest: Annotated[tuple[tuple[str, int], ...], type_of_sequence] = Field(
        (), description="The 20 largest segments as (segment id, tokens)."
    )
    excluded_counts: dict[str, int] = Field(default_factory=dict[str, int])
    masks_ref: str | None = Field(None, description="Blob with the epoch's masked and dropped groups; None when empty.")
    environment_ref: str
    builder_version: str
    tokenizer: str
    problem: str | None = Field(None, description="Why it does not fit, naming the sizes.")
