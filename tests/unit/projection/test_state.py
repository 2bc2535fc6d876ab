"""Patches are applied as they were validated, and folding the same events gives the same state (spec PRJ-1, PRJ-3)."""

from __future__ import annotations

from functools import reduce

import pytest

from salience.model import event as ev
from salience.model.session import ModelSettings, SessionConfig
from salience.model.state import Decision, Fact, OpenQuestion, Plan, PlanStep, State, StatePatch
from salience.projection.projection import Projection
from salience.projection.state import fold_state

QUESTION = OpenQuestion(question_id="question:c1", question="Which?", tool_call_id="c1")
FACT = Fact(fact_id="fact:c1", content="a", confidence=0.5)
DECISION = Decision(decision_id="decision:c1", decision="a", rationale_summary="b", verified=True)


def event(seq: int, payload: ev.Payload) -> ev.Event:
    return ev.Event(
        event_id=f"r:{seq}:x",
        session_id="s",
        run_id="r",
        seq=seq,
        timestamp="2026-01-01T00:00:00.000000Z",
        type=type(payload).__name__,
        actor=payload.actor,
        payload=payload,
    )


def folded(*payloads: ev.Payload) -> State:
    return reduce(fold_state, (event(seq, one) for seq, one in enumerate(payloads, 1)), State(session_id="s"))


def patched(**parts: object) -> ev.StateUpdated:
    return ev.StateUpdated(tool_call_id="c", patch=StatePatch.model_validate(parts))


def said(words: str) -> ev.UserPromptSubmitted:
    return ev.UserPromptSubmitted(message_id=words, text=words, delivery="update")


def test_each_part_of_a_patch_is_applied_and_absent_ones_stay() -> None:
    plan = Plan(steps=(PlanStep(step_id="1", title="look"),))
    before = folded(said("go"), patched(plan=plan, facts=(FACT,), decisions=(DECISION,), open_questions=(QUESTION,)))
    assert (before.plan, before.facts, before.decisions, before.open_questions) == (
        plan, (FACT,), (DECISION,), (QUESTION,),
    )  # fmt: skip
    assert before.goal.current_task == "look"
    after = fold_state(before, event(9, patched()))
    assert after is before


def test_the_fold_keeps_what_was_checked_and_checks_nothing_again() -> None:
    """A fact that names sources is as verified as its patch says: what exists was decided when the tool ran."""
    unshown = FACT.model_copy(update={"source_refs": ("call_9_9",), "verified": False})
    assert folded(patched(facts=(unshown,))).facts == (unshown,)


def test_the_same_id_supersedes_and_counts_as_the_latest() -> None:
    other = FACT.model_copy(update={"fact_id": "fact:c2"})
    corrected = FACT.model_copy(update={"content": "b", "verified": True})
    assert folded(patched(facts=(FACT, other)), patched(facts=(corrected,))).facts == (other, corrected)
    changed = DECISION.model_copy(update={"decision": "c"})
    assert folded(patched(decisions=(DECISION,)), patched(decisions=(changed,))).decisions == (changed,)
    again = QUESTION.model_copy(update={"question": "Which one?"})
    assert folded(patched(open_questions=(QUESTION,)), patched(open_questions=(again,))).open_questions == (again,)


def test_what_the_user_says_next_answers_every_open_question() -> None:
    second = OpenQuestion(question_id="question:c2", question="And?")
    asked = folded(said("go"), patched(open_questions=(QUESTION,)), patched(open_questions=(second,)))
    assert asked.open_questions == (QUESTION, second)
    answered = fold_state(asked, event(9, said("this one")))
    assert answered.open_questions == ()
    assert answered.goal.current_task == "this one"


def test_a_prompt_before_the_question_is_no_answer() -> None:
    assert folded(said("also this"), patched(open_questions=(QUESTION,))).open_questions == (QUESTION,)


def test_questions_are_resolved_by_id() -> None:
    second = OpenQuestion(question_id="question:c2", question="And?")
    state = folded(patched(open_questions=(QUESTION, second)), patched(resolved_questions=("question:c1", "none")))
    assert state.open_questions == (second,)


def test_nothing_is_dropped_however_much_there_is() -> None:
    facts = [patched(facts=(FACT.model_copy(update={"fact_id": f"fact:{at}"}),)) for at in range(3_000)]
    assert len(folded(*facts).facts) == 3_000


@pytest.mark.parametrize(
    ("reason", "status"),
    [("asked", "paused"), ("answered", "completed"), ("finished", "completed"), ("step_limit", "failed")],
)
def test_a_session_that_asked_is_paused_until_it_goes_on(reason: str, status: str) -> None:
    projection = Projection.empty("s")
    config = SessionConfig(cwd="/w", model_settings=ModelSettings(model="script:x"))
    started = ev.SessionStarted(generation=1, decoder_version=1, config=config, root_session_id="s")
    for seq, payload in enumerate([started, ev.SessionEnded.model_validate({"reason": reason})], 1):
        projection.fold(event(seq, payload))
    assert (projection.workplace.status, projection.workplace.end_reason) == (status, reason)
    projection.fold(event(3, ev.SessionResumed(after="end")))
    assert (projection.workplace.status, projection.workplace.end_reason) == ("active", None)
