"""State is where the work stands, folded from events and from nothing else (spec ONT-4, PRJ-1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from salience.model.artifact import ArtifactKind
from salience.model.frozen import Frozen, Names, type_of_sequence

PlanStatus = Literal["planning", "executing", "blocked", "verifying", "done"]
StepStatus = Literal["pending", "in_progress", "done", "blocked", "skipped"]


class Goal(Frozen):
    """What the user wants."""

    user_goal: str = ""
    user_goal_ref: str | None = Field(
        default=None, description="Blob with the whole text, when it is longer than shown here."
    )
    current_task: str | None = None
    acceptance_criteria: Names = ()


class PlanStep(Frozen):
    """One step of the plan."""

    step_id: str = Field(min_length=1, max_length=64)
    title: str = Field(min_length=1, max_length=500)
    status: StepStatus = "pending"


class Plan(Frozen):
    """The plan as the model last stated it."""

    steps: Annotated[tuple[PlanStep, ...], type_of_sequence] = ()
    current_step_id: str | None = None
    status: PlanStatus = "planning"


class Constraints(Frozen):
    """What must hold; kept outside the text that can be compressed (design §4)."""

    hard: Names = ()
    soft: Names = ()
    user_preferences: Names = ()


class Fact(Frozen):
    """Something established, with its sources; one that is not verified is an assumption (spec PRJ-3)."""

    fact_id: str
    content: str
    confidence: float = Field(ge=0, le=1)
    source_refs: Names = Field(default=(), description="What it rests on, as far as the session's record has it.")
    verified: bool = Field(default=False, description="It names sources, and the session's record has every one.")


class Decision(Frozen):
    """Something decided, with its reasons; one that is not verified rests on an assumption (spec PRJ-3)."""

    decision_id: str
    decision: str
    rationale_summary: str
    alternatives: Names = ()
    evidence_refs: Names = Field(default=(), description="What it rests on, as far as the session's record has it.")
    verified: bool = Field(default=False, description="It names evidence, and the session's record has every piece.")


class OpenQuestion(Frozen):
    """Something only the user can answer; it stays in every context until it is answered (spec CTX-3)."""

    question_id: str
    question: str
    choices: Names = ()
    tool_call_id: str | None = None

    def __str__(self) -> str:
        return f"{self.question} ({' | '.join(self.choices)})" if self.choices else self.question


class StateArtifact(Frozen):
    """An artifact or file the work has produced or used."""

    artifact_id: str
    kind: ArtifactKind
    path_or_uri: str
    summary: str = ""


class FileState(Frozen):
    """What is known of one path of the workspace."""

    read: bool = False
    modified: bool = False
    content_hash: str | None = None
    last_event_id: str
    last_seq: int = Field(default=0, description="Its place in the session's log, over all runs.")
    change_summary: str = ""


class ToolFailure(Frozen):
    """A failed call and how often the same tool failed in a row."""

    tool_call_id: str
    name: str
    kind: str
    message: str
    event_id: str
    retries: int = 0


class State(Frozen):
    """The working state after `source_event_id`."""

    session_id: str
    source_event_id: str = ""
    version: int = 0
    goal: Goal = Field(default_factory=lambda: Goal())
    plan: Plan = Field(default_factory=lambda: Plan())
    constraints: Constraints = Field(default_factory=lambda: Constraints())
    facts: Annotated[tuple[Fact, ...], type_of_sequence] = ()
    decisions: Annotated[tuple[Decision, ...], type_of_sequence] = ()
    artifacts: Annotated[tuple[StateArtifact, ...], type_of_sequence] = ()
    files: dict[str, FileState] = Field(default_factory=dict[str, FileState])
    tool_failures: Annotated[tuple[ToolFailure, ...], type_of_sequence] = ()
    open_questions: Annotated[tuple[OpenQuestion, ...], type_of_sequence] = ()
    last_compaction_id: str | None = None


class StatePatch(Frozen):
    """A validated change of state asked for by a tool call; absent parts stay as they are.

    What a fact or a decision rests on was checked when the tool ran, and the patch carries the result: folding it asks
    nobody (spec PRJ-1, PRJ-3). Absent is None and not empty, so that a patch recorded before a part existed keeps its
    digest.
    """

    plan: Plan | None = None
    facts: Annotated[tuple[Fact, ...], type_of_sequence] | None = Field(
        default=None, description="Added; one with the id of a known fact takes its place."
    )
    decisions: Annotated[tuple[Decision, ...], type_of_sequence] | None = Field(
        default=None, description="Added; one with the id of a known decision takes its place."
    )
    open_questions: Annotated[tuple[OpenQuestion, ...], type_of_sequence] | None = Field(
        default=None, description="Asked of the user, and to stay in every context until answered."
    )
    resolved_questions: Names | None = Field(default=None, description="Ids of questions that are open no longer.")
