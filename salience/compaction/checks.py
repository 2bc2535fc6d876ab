"""No record becomes active that is not checked against what the system itself knows (spec CMP-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from salience.compaction.text import sections_of
from salience.context.sections import SHORTEST_BYTES, one_line
from salience.model.compaction import CompactionChecks, CompactionRecord
from salience.model.state import State
from salience.projection.transcript import Entry

SHORTEST_CHARACTERS = (SHORTEST_BYTES - 3) // 4
"""A character has up to four bytes, and the mark of a cut three."""

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
    bounded = {left.what for left in record.left_behind}
    named = {error.tool_call_id for error in record.errors}
    unnamed = [call for call in failed if call not in named]
    holds(not failed or bool(record.errors), f"{len(failed)} calls of the range failed, and it names no error")
    holds(
        not (unnamed and record.errors) or "errors" in bounded,
        f"it does not name {len(unnamed)} failed calls of the range, among them {_first(unnamed)}",
    )
    sources = holds(
        record.summarized_range is not None
        and bool(record.provenance.source_event_ids)
        and bool(record.provenance.message_ids),
        "it does not say what it was made of",
    )
    holds(record.tokens_after < record.tokens_before, not_smaller(record))
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
    facts = {fact.fact_id for fact in record.facts}
    decisions = {decision.decision_id for decision in record.decisions}
    done = set(record.progress.done)
    for what, lost in (
        (
            "important results",
            [r.tool_call_id for r in previous.tools.important_results if r.tool_call_id not in calls],
        ),
        ("errors", [e.tool_call_id for e in previous.errors if e.tool_call_id not in failed]),
        ("user messages", [s.message_id for s in previous.said if s.message_id not in said]),
        ("changed files", [f.path for f in previous.files.modified if f.path not in modified]),
        ("facts", [f.fact_id for f in previous.facts if f.fact_id not in facts]),
        ("decisions", [d.decision_id for d in previous.decisions if d.decision_id not in decisions]),
        ("notes on what was done", [note for note in previous.progress.done if note not in done]),
    ):
        holds(not lost or what in bounded, f"{what} of the record before are lost without a reason: {_first(lost)}")


def _loss(record: CompactionRecord, text: str) -> float:
    """The share of what the record names that its text does not: reachable by reference, but not in sight."""
    named = Counter(_beginning(item) for part in sections_of(record) for item in part.items)
    shown = Counter(_beginning(line[2:]) for line in text.split("\n") if line.startswith("- "))
    total = named.total()
    return round(1 - (named & shown).total() / total, 3) if total else 0.0


def _beginning(item: str) -> str:
    """What of an item no text cuts off."""
    return one_line(item)[:SHORTEST_CHARACTERS]


def not_smaller(record: CompactionRecord) -> str:
    """The problem of a record that frees nothing."""
    return f"the view would have {record.tokens_after} tokens with it and {record.tokens_before} without"


def _first(items: Iterable[str]) -> str:
    return next(iter(items), "")[:120]
