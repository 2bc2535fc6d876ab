"""A compaction record says what it summarises and where verbatim history starts; the log stays untouched (spec CMP-2).

Three sizes of one thing: the `CompactionRecord` is the whole of it and lies in a blob, its rendered text is what a model
sees, and the `Checkpoint` is the few numbers that history and the fold need to compile with it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from salience.model.frozen import Frozen, Names, type_of_sequence
from salience.model.state import Constraints, Decision, Fact, PlanStep

CompactionTrigger = Literal["proactive", "reactive", "manual"]
"""Before a turn over the threshold; after a provider's overflow error; because someone asked (spec CMP-3, CMP-10)."""

RefusalKind = Literal[
    "nothing_to_summarise",  # no completed group of messages stands before what must stay verbatim
    "frees_too_little",  # the smallest view still frees less than the stated share of the window
    "does_not_fit",  # not even the smallest view fits the window
    "check_failed",  # the record is not what the checks ask for; it is kept as evidence
    "activity_failed",  # the activity that compacts gave no result
]
"""Why there is no new checkpoint; the view stays as it was."""


class Checkpoint(Frozen):
    """Where verbatim history starts, and what stands for the messages before it.

    `first_kept` and `prompts_from` are transcript positions: exchanges before the first and user messages before the second
    are summarised; user messages between the two stay verbatim.
    """

    compaction_id: str
    number: int = Field(ge=1, description="Place in the stack: 1 for the first compaction of a branch.")
    record_ref: str = Field(description="Blob with the CompactionRecord.")
    summary_ref: str = Field(description="Blob with the text a model sees.")
    from_message_id: str
    to_message_id: str
    first_kept: int
    first_kept_message_id: str
    prompts_from: int
    messages: int = Field(
        description="Messages that are not in the view any more, those of earlier checkpoints included."
    )
    tokens_before: int
    tokens_after: int
    previous: str | None = Field(default=None, description="The checkpoint below in the stack.")


class SummarizedRange(Frozen):
    """First and last message that a summary stands for, verbatim user messages between them excepted."""

    from_message_id: str
    to_message_id: str


class RecordGoal(Frozen):
    """What the work is for."""

    user_goal: str = ""
    user_goal_ref: str | None = None
    current_task: str | None = None


class Progress(Frozen):
    """How far the work is: steps of the plan, and without one what the model said of it."""

    done: Names = ()
    in_progress: Names = ()


class ModifiedFile(Frozen):
    """A file the session changed."""

    path: str
    change_summary: str = ""
    content_hash: str | None = None


class RecordFiles(Frozen):
    """Every file the session has touched so far."""

    read: Names = ()
    modified: Annotated[tuple[ModifiedFile, ...], type_of_sequence] = ()


class ImportantResult(Frozen):
    """A result worth finding again: its beginning, and where the whole of it lies."""

    tool_call_id: str
    name: str
    summary: str
    artifact_ref: str | None = None
    message_id: str = ""


class RecordTools(Frozen):
    """What calls gave."""

    important_results: Annotated[tuple[ImportantResult, ...], type_of_sequence] = ()
    pending: Names = Field(default=(), description="Ids of calls that had no result; none of them is ever summarised.")


class RecordedError(Frozen):
    """A failed call, and how often the same tool had failed before it."""

    tool_call_id: str
    name: str
    kind: str
    message: str = ""
    retries: int = 0


class Saying(Frozen):
    """What the user said, where it left the view: its beginning, and where the whole of it lies."""

    message_id: str
    text: str
    ref: str | None = None
    size_bytes: int = 0


class LeftBehind(Frozen):
    """What an earlier record named and this one does not, and why (spec CMP-8)."""

    what: str
    count: int
    why: str


class RecordProvenance(Frozen):
    """What a record was made of, and by which rules."""

    source_event_ids: Names = ()
    message_ids: Names = ()
    policy: str
    prompt_version: str | None = Field(default=None, description="None for a record written by code.")
    model: str | None = Field(default=None, description="None for a record written by code.")
    previous: str | None = Field(default=None, description="The record this one carries on.")


class CompactionRecord(Frozen):
    """All that stands for a range of messages (spec CMP-5), written by code from the state (CMP-6)."""

    schema_version: Literal[1] = 1
    compaction_id: str
    session_id: str
    summarized_range: SummarizedRange | None
    first_kept_message: str
    tokens_before: int
    tokens_after: int
    goal: RecordGoal
    constraints: Constraints = Field(default_factory=lambda: Constraints())
    progress: Progress = Field(default_factory=lambda: Progress())
    plan: Annotated[tuple[PlanStep, ...], type_of_sequence] = ()
    files: RecordFiles = Field(default_factory=lambda: RecordFiles())
    tools: RecordTools = Field(default_factory=lambda: RecordTools())
    errors: Annotated[tuple[RecordedError, ...], type_of_sequence] = ()
    facts: Annotated[tuple[Fact, ...], type_of_sequence] = ()
    decisions: Annotated[tuple[Decision, ...], type_of_sequence] = ()
    open_questions: Names = ()
    next_steps: Names = ()
    said: Annotated[tuple[Saying, ...], type_of_sequence] = ()
    focus: str = Field(default="", description="What the user asked to pay attention to (`/compact FOCUS`).")
    left_behind: Annotated[tuple[LeftBehind, ...], type_of_sequence] = ()
    provenance: RecordProvenance


class CompactionChecks(Frozen):
    """What was checked of a record before it became active (spec CMP-7)."""

    preserves_goal: bool = True
    preserves_constraints: bool = True
    preserves_current_plan: bool = True
    preserves_open_tool_pairs: bool = True
    preserves_file_state: bool = True
    has_source_refs: bool = True
    estimated_information_loss: float = Field(
        default=0.0, ge=0, le=1, description="Share of the range's named items that the rendered text does not name."
    )
    problems: Names = Field(default=(), description="Every rule that was broken, one line each; empty: it passed.")

    @property
    def passed(self) -> bool:
        """Whether the record may become active."""
        return not self.problems
