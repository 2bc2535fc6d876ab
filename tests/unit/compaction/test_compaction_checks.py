"""Every rule for a record fails alone and by its own name (spec CMP-7, CMP-8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from salience.compaction import Compaction, check, text_of_record
from salience.compaction.ladder import compact
from salience.context.tokens import tokenizer_for
from salience.model.compaction import CompactionChecks, CompactionRecord, LeftBehind, Saying
from salience.model.state import Constraints, PlanStep
from tests.unit.compaction.compacted_session import Work

COUNT = tokenizer_for("script:x")


def compacted_twice() -> tuple[Work, CompactionRecord, Compaction]:
    """A session whose second record has something of every kind, and carries on the first."""
    work = Work(window=12_000)
    work.say("mend the build")
    work.state = work.state.model_copy(
        update={"constraints": Constraints(hard=("never touch main",), soft=("short",), user_preferences=("tabs",))}
    )
    for n in range(2):
        for at in range(8):
            work.call(f"round {n} step {at}", ["output " * 300, "no such file"], failed=1, wrote=[f"src/{n}-{at}.py"])
        work.say(f"go on {n}")
        work.learn(str(n))
        work.build()
        made = work.planned("manual")
        assert isinstance(made, Compaction), made
        work.take(made)
    first, second = work.serving
    return work, first.record, second


WORK, FIRST, SECOND = compacted_twice()
POINT, BELOW = SECOND.checkpoint, WORK.serving[0].checkpoint
ENTRIES = WORK.record.entries


def checked(record: CompactionRecord, *, first_kept: int = POINT.first_kept) -> CompactionChecks:
    """The checks of a record in place of the second one."""
    return check(record, SECOND.text, WORK.state, ENTRIES[BELOW.first_kept : first_kept], ENTRIES[first_kept:], FIRST)


def test_a_good_record_passes_and_has_something_of_everything() -> None:
    checks = checked(SECOND.record)
    assert checks.passed, checks.problems
    assert SECOND.checks == checks
    record = SECOND.record
    assert record.errors
    assert record.files.modified
    assert record.facts
    assert record.decisions
    assert record.tools.important_results
    assert record.progress.done
    assert record.next_steps
    assert record.goal.current_task


def changed(**update: Any) -> Callable[[CompactionRecord], CompactionRecord]:
    """A record with other parts; a dotted name changes a part of a part."""

    def change(record: CompactionRecord) -> CompactionRecord:
        for name, value in update.items():
            outer, _, inner = name.partition("__")
            if inner:
                value = getattr(record, outer).model_copy(update={inner: value})
            record = record.model_copy(update={outer: value})
        return record

    return change


def without_last(name: str) -> Callable[[CompactionRecord], CompactionRecord]:
    """A record without the first item of a list, which the record before had, too."""

    def change(record: CompactionRecord) -> CompactionRecord:
        outer, _, inner = name.partition("__")
        value: Any = getattr(record, outer)
        return changed(**{name: (getattr(value, inner) if inner else value)[1:]})(record)

    return change


OTHER_STEP = (PlanStep(step_id="other", title="other"),)


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        (changed(goal__user_goal="something else"), "preserves_goal", "the goal is not the session's goal"),
        (changed(goal__current_task=None), "preserves_goal", "no current task"),
        (changed(next_steps=()), "", "no next steps"),
        (changed(constraints__hard=()), "preserves_constraints", "drops a constraint: never touch main"),
        (changed(constraints__soft=()), "preserves_constraints", "drops a constraint: short"),
        (changed(constraints__user_preferences=()), "preserves_constraints", "drops a constraint: tabs"),
        (
            changed(constraints__hard=("never touch main", "obey the README")),
            "preserves_constraints",
            "adds a constraint: obey the README",
        ),
        (changed(plan=OTHER_STEP), "preserves_current_plan", "drops 2 steps of the plan, among them s-0"),
        (changed(open_questions=()), "preserves_current_plan", "drops an open question: which branch?"),
        (changed(files__modified=()), "preserves_file_state", "16 changed files, among them src/0-0.py"),
        (changed(errors=()), "", "calls of the range failed, and it names no error"),
        (changed(errors=SECOND.record.errors[:-1]), "", "does not name 1 failed calls of the range"),
        (changed(summarized_range=None), "has_source_refs", "what it was made of"),
        (changed(provenance__source_event_ids=()), "has_source_refs", "what it was made of"),
        (changed(provenance__message_ids=()), "has_source_refs", "what it was made of"),
        (changed(tokens_after=SECOND.record.tokens_before), "", "tokens with it and"),
        (without_last("tools__important_results"), "", "important results of the record before are lost"),
        (without_last("errors"), "", "errors of the record before are lost"),
        (without_last("facts"), "", "facts of the record before are lost without a reason: f-0"),
        (without_last("decisions"), "", "decisions of the record before are lost without a reason: d-0"),
        (without_last("progress__done"), "", "notes on what was done of the record before are lost"),
        (without_last("files__modified"), "preserves_file_state", "changed files of the record before are lost"),
    ],
)
def test_every_rule_fails_by_its_own_name(
    change: Callable[[CompactionRecord], CompactionRecord], field: str, problem: str
) -> None:
    checks = checked(change(SECOND.record))
    assert not checks.passed
    assert any(problem in said for said in checks.problems), checks.problems
    flags = {name: value for name, value in checks.plain().items() if isinstance(value, bool)}
    assert {name for name, fine in flags.items() if not fine} == ({field} if field else set())


def test_a_split_pair_fails() -> None:
    first_kept = next(e.position for e in ENTRIES if e.position > BELOW.first_kept + 3 and e.kind == "result")
    checks = checked(SECOND.record, first_kept=first_kept)
    assert not checks.preserves_open_tool_pairs
    assert any("splits a call from its result" in problem for problem in checks.problems)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("tools__important_results", "important results"),
        ("errors", "errors"),
        ("progress__done", "notes on what was done"),
    ],
)
def test_what_is_left_behind_by_name_is_not_lost(name: str, what: str) -> None:
    bounded = changed(left_behind=(LeftBehind(what=what, count=1, why="bounded"),))
    assert checked(bounded(without_last(name)(SECOND.record))).passed


def test_a_user_message_of_the_record_before_is_not_lost() -> None:
    said = FIRST.model_copy(update={"said": (Saying(message_id="u0", text="mend the build"),)})
    record = SECOND.record
    checks = check(
        record, SECOND.text, WORK.state, ENTRIES[BELOW.first_kept : POINT.first_kept], ENTRIES[POINT.first_kept :], said
    )
    assert any("user messages of the record before" in problem for problem in checks.problems)


def test_information_loss_grows_as_the_text_shrinks() -> None:
    losses = [
        check(
            SECOND.record,
            text_of_record(SECOND.record, max_tokens=size, tokenizer=COUNT),
            WORK.state,
            ENTRIES[BELOW.first_kept : POINT.first_kept],
            ENTRIES[POINT.first_kept :],
            FIRST,
        ).estimated_information_loss
        for size in (1_000_000, 2_000, 1_000, 500, 250, 0)
    ]
    assert losses[0] == 0
    assert losses == sorted(losses)
    assert losses[1] < losses[-2] < losses[-1] == 1


def test_a_record_that_fails_is_refused_and_kept_as_evidence() -> None:
    """A state that does not agree with the record before: its fact is gone, and no rung can bring it back."""
    work, first, _ = compacted_twice()
    work.serving.pop()
    work.state = work.state.model_copy(update={"facts": ()})
    made = compact(work.inputs(), work.epoch, first, generation=9, trigger="manual")
    assert not isinstance(made, Compaction)
    assert made.kind == "check_failed"
    assert "facts of the record before are lost without a reason: f-0" in made.message
    assert made.record is not None
    assert made.checks is not None
    assert not made.checks.passed
