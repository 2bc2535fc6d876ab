"""The state card keeps whole what may never be lost, bounds the rest, and reads the same from any order (INV 5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from salience.context.constitution import constitution
from salience.context.session_memory import KEPT_RUNS, session_memory
from salience.context.state_card import CARD_BYTES, KEPT_FACTS, KEPT_FILES, state_card
from salience.model.environment import EarlierRun
from salience.model.session import PermissionConfig
from salience.model.state import (
    Constraints,
    Decision,
    Fact,
    FileState,
    Goal,
    OpenQuestion,
    Plan,
    PlanStep,
    State,
    ToolFailure,
)


def card(state: State, *, vcs_head: str | None = "abc", told: tuple[str, ...] = ()) -> str:
    return state_card(state, vcs_head=vcs_head, told=told, criteria=("tests pass",))


def asked(questions: Iterable[str]) -> tuple[OpenQuestion, ...]:
    return tuple(OpenQuestion(question_id=f"q{at}", question=question) for at, question in enumerate(questions))


def full_state() -> State:
    return State(
        session_id="s",
        goal=Goal(user_goal="g" * 3_900, user_goal_ref="f" * 64, current_task="now this"),
        plan=Plan(steps=tuple(PlanStep(step_id=f"s{at}", title=f"step {at} " * 20) for at in range(60))),
        constraints=Constraints(hard=("never push", "told already"), soft=("be brief",)),
        files={
            f"src/{at}.py": FileState(modified=at % 2 == 0, last_event_id=f"run{at}:1:read", last_seq=at)
            for at in range(100)
        },
        tool_failures=tuple(
            ToolFailure(tool_call_id="c", name="run", kind="error", message=f"boom {at}", event_id="e")
            for at in range(9)
        ),
        open_questions=asked(f"question {at}?" for at in range(20)),
    )


def test_what_may_never_be_lost_is_whole_and_the_rest_bounded() -> None:
    text = card(full_state(), told=("told already",))
    assert "g" * 3_900 in text
    assert "f" * 64 in text
    assert all(f"question {at}?" in text for at in range(20))
    assert "never push" in text
    assert "told already" not in text
    assert "tests pass" in text
    assert len(text.encode()) <= CARD_BYTES
    assert "more not shown" in text


def test_long_open_questions_are_never_cut() -> None:
    questions = tuple("why " * 1_000 + str(at) for at in range(5))
    text = card(State(session_id="s", open_questions=asked(questions)))
    assert all(question in text for question in questions)


def test_facts_stand_apart_from_assumptions() -> None:
    facts = tuple(
        Fact(fact_id=f"fact:c{at}", content=f"thing {at}", confidence=0.9, verified=at % 2 == 0) for at in range(60)
    )
    decisions = (
        Decision(decision_id="decision:c1", decision="old way", rationale_summary="why", verified=True),
        Decision(decision_id="decision:c2", decision="new way " * 100, rationale_summary="because"),
    )
    text = card(State(session_id="s", facts=facts, decisions=decisions, open_questions=asked(["which?"])))
    sections = dict(_sections(text))
    assert sections["Facts, latest first:"][0] == "- fact:c58 (90%): thing 58"
    assert sections["Assumptions, not verified, latest first:"][0] == "- fact:c59 (90%): thing 59"
    assert len(sections["Facts, latest first:"]) == KEPT_FACTS
    made = sections["Decisions, latest first:"]
    assert made[0].startswith("- decision:c2 (rests on an assumption): new way")
    assert made[1] == "- decision:c1: old way — why"
    assert sections["Open questions:"] == ["- which?"]
    assert len(text.encode()) <= CARD_BYTES


def test_facts_never_push_out_an_open_question() -> None:
    facts = tuple(
        Fact(fact_id=f"fact:c{at}", content="x" * 2_000, confidence=1, verified=at % 2 == 0) for at in range(500)
    )
    questions = [f"question {at}? " + "y" * 1_000 for at in range(12)]
    text = card(State(session_id="s", facts=facts, open_questions=asked(questions)))
    assert all(question in text for question in questions)


def test_a_question_shows_its_choices() -> None:
    question = OpenQuestion(question_id="q", question="Which?", choices=("left", "right"))
    assert "- Which? (left | right)" in card(State(session_id="s", open_questions=(question,)))


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    title, body = "", list[str]()
    for line in text.splitlines():
        if line.startswith("- "):
            body.append(line)
        else:
            yield title, body
            title, body = line, []
    yield title, body


def test_files_are_the_latest_whatever_the_order_of_the_dict() -> None:
    state = full_state().model_copy(update={"goal": Goal(), "plan": Plan()})
    text = card(state)
    assert text == card(state.model_copy(update={"files": dict(reversed(state.files.items()))}))
    shown = [line for line in text.splitlines() if line.startswith("- src/")]
    assert len(shown) == KEPT_FILES
    assert shown[0].startswith("- src/99.py")
    assert "src/5.py" not in text
    assert "boom 8" in text
    assert "boom 3" not in text


def test_earlier_runs_are_bounded() -> None:
    runs = tuple(
        EarlierRun(
            run_id=str(at), reason="answered", turns=at, ended_at=f"2026-01-{at:02d}", first_prompt="x " * 4_000,
            last_words="y\n" * 4_000,
        )
        for at in range(1, 30)
    )  # fmt: skip
    text = session_memory(runs)
    assert len(text.encode()) < 8_192
    assert text.count("ended as") == KEPT_RUNS
    assert "2026-01-29" in text
    assert "29 earlier runs" in text
    assert session_memory(()) == ""


def test_the_constitution_holds_the_constraints_verbatim() -> None:
    text = constitution(("/w", None, "linux"), PermissionConfig(sandbox_mode="read_only"), ["keep  this\tas is"])
    assert "- keep  this\tas is" in text
    assert "read_only" in text
    assert "not allowed" in text
    assert "outcome unknown" in text
