"""No record becomes active that is not checked against what the system itself knows (spec CMP-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from salience.model.compaction import CompactionChecks, CompactionRecord
from salience.model.state import State
from salience.projection.transcript import Entry

Holds = Callable[[bool, str], bool]
"""Notes a rule that does not hold, and returns whether it does."""


def check(
    record: CompactionRecord,
    text: str,
    state: State,
    entries: Sequence[Entry],
    kept: Sequence[Entry],
    previous: CompactionRecord | None = None,
) -> CompactionChecks:
    """What is right and wrong with a record.

    Args:
        record: the record.
        text: what a model would see of it.
        state: the state at the compaction.
        entries: the messages that it summarises.
        kept: the messages that stay verbatim behind them.
        previous: the record that it carries on.
    """
    problems: list[str] = []

    def holds(fact: bool, problem: str) -> bool:
        if not fact:
            problems.append(problem)
        return fact

    goal = holds(record.goal.user_goal == state.goal.user_goal, "the goal is not the session's goal")
    goal &= holds(bool(record.goal.current_task), "it has no current task")
    holds(bool(record.next_steps), "it has no next steps")
    constraints = _constraints(record, state, holds)
    plan = _plan(record, state, holds)
    pairs = _pairs(entries, kept, holds)
    modified = {file.path for file in record.files.modified}
    missing = [path for path, file in state.files.items() if file.modified and path not in modified]
    files = holds(not missing, f"it does not name {len(missing)} changed files, among them {_first(missing)}")
    failed = [e.tool_call_id or "" for e in entries if e.kind == "result" and e.is_error]
    holds(not failed or bool(record.errors), f"{len(failed)} calls of the range failed, and it names no error")
    sources = holds(
        record.summarized_range is not None
        and bool(record.provenance.source_event_ids)
        and bool(record.provenance.message_ids),
        "it does not say what it was made of",
    )
    holds(
        record.tokens_after < record.tokens_before,
        f"the view would have {record.tokens_after} tokens with it and {record.tokens_before} without",
    )
    if previous is not None:
        _carried(record, previous, holds)
    return CompactionChecks(
        preserves_goal=goal,
        preserves_constraints=constraints,
        preserves_current_plan=plan,
        preserves_open_tool_pairs=pairs,
        preserves_file_state=files,
        has_source_refs=sources,
        estimated_information_loss=_loss(record, text),
        problems=tuple(problems),
    )


def _constraints(record: CompactionRecord, state: State, holds: Holds) -> bool:
    fine = True
    for name in ("hard", "soft", "user_preferences"):
        told: tuple[str, ...] = getattr(state.constraints, name)
        written: tuple[str, ...] = getattr(record.constraints, name)
        lost = [item for item in told if item not in written]
        added = [item for item in written if item not in told]
        fine &= holds(not lost, f"it drops a constraint: {_first(lost)}")
        fine &= holds(not added, f"it adds a constraint: {_first(added)}")
    return fine


def _plan(record: CompactionRecord, state: State, holds: Holds) -> bool:
    named = {step.step_id for step in record.plan}
    lost = [step.step_id for step in state.plan.steps if step.step_id not in named]
    lost_questions = [str(asked) for asked in state.open_questions if str(asked) not in record.open_questions]
    fine = holds(not lost, f"it drops {len(lost)} steps of the plan, among them {_first(lost)}")
    return fine & holds(not lost_questions, f"it drops an open question: {_first(lost_questions)}")


def _pairs(entries: Sequence[Entry], kept: Sequence[Entry], holds: Holds) -> bool:
    """No group stands on both sides of the cut: a response, its calls and all their results stay together."""
    behind = {entry.group for entry in kept if entry.kind != "prompt"}
    split = [entry.message_id for entry in entries if entry.kind != "prompt" and entry.group in behind]
    return holds(not split, f"the cut splits a call from its result at {_first(split)}")


def _carried(record: CompactionRecord, previous: CompactionRecord, holds: Holds) -> None:
    """Facts that the record before carried are here, or a reason is (spec CMP-8)."""
    bounded = {left.what for left in record.left_behind}
    calls = {result.tool_call_id for result in record.tools.important_results}
    failed = {error.tool_call_id for error in record.errors}
    said = {saying.message_id for saying in record.said}
    modified = {file.path for file in record.files.modified}
    for what, lost in (
        (
            "important results",
            [r.tool_call_id for r in previous.tools.important_results if r.tool_call_id not in calls],
        ),
        ("errors", [e.tool_call_id for e in previous.errors if e.tool_call_id not in failed]),
        ("user messages", [s.message_id for s in previous.said if s.message_id not in said]),
        ("changed files", [f.path for f in previous.files.modified if f.path not in modified]),
    ):
        holds(not lost or what in bounded, f"{what} of the record before are lost without a reason: {_first(lost)}")


def _loss(record: CompactionRecord, text: str) -> float:
    """The share of what the record names that its text does not: reachable by reference, but not in sight."""
    named: list[str] = [
        *(file.path for file in record.files.modified),
        *(result.tool_call_id for result in record.tools.important_results),
        *(" ".join(error.message.split())[:40] or error.name for error in record.errors),
        *(" ".join(decision.decision.split())[:40] for decision in record.decisions),
        *(" ".join(saying.text.split())[:40] for saying in record.said),
    ]
    if not named:
        return 0.0
    return round(sum(item not in text for item in named) / len(named), 3)


def _first(items: Iterable[str]) -> str:
    return next(iter(items), "")[:120]
