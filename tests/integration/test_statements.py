"""A session that notes a fact, decides, asks, is answered and finishes, on the real stack (spec PRJ-3, PRJ-4, CTX-3)."""

from __future__ import annotations

from pathlib import Path

from activities.verification import Verification
from salience.client import Salience
from salience.model import event as ev
from salience.model.state import State
from salience.store.history import Histories
from tests.conftest import Scripted, ended

ASKING = [
    {"tool_calls": [{"name": "read_file", "args": {"path": "a.txt"}}]},
    {
        "tool_calls": [
            {"name": "note_fact", "args": {"content": "a is 1", "confidence": 0.9, "source_refs": ["call_1_0"]}},
            {"name": "note_fact", "args": {"content": "b is 2", "confidence": 0.4, "source_refs": ["call_7_7"]}},
        ]
    },
    {
        "tool_calls": [
            {
                "name": "record_decision",
                "args": {"decision": "use a", "rationale": "it is known", "evidence_refs": ["fact:call_2_0", "a.txt"]},
            }
        ]
    },
    {
        "text": "One thing I cannot know.",
        "tool_calls": [
            {"name": "ask_user", "args": {"question": "Which colour?", "choices": ["red", "blue"]}},
            {"name": "write_file", "args": {"path": "beside.txt", "content": "still run\n"}},
        ],
    },
]


async def test_a_question_ends_the_run_and_the_next_words_answer_it(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    (workspace / "a.txt").write_text("a = 1\n")
    finish = {"tool_calls": [{"name": "finish", "args": {"summary": "It is blue."}}]}
    await salience.start(scripted([*ASKING, finish]), "decide", session_id=session_id)
    events = await ended(salience, session_id)
    result = await salience.result(session_id)
    assert (result.reason, result.detail.splitlines()[0]) == ("asked", "Which colour? (red | blue)")
    assert (workspace / "beside.txt").read_text() == "still run\n"
    session = await salience.session(session_id)
    assert (session.status, session.end_reason) == ("paused", "asked")

    state = await salience.state(session_id)
    assert {fact.fact_id: (fact.verified, fact.source_refs) for fact in state.facts} == {
        "fact:call_2_0": (True, ("call_1_0",)),
        "fact:call_2_1": (False, ()),
    }
    (made,) = state.decisions
    assert (made.decision_id, made.verified) == ("decision:call_3_0", True)
    (asked,) = state.open_questions
    assert (asked.question, asked.tool_call_id) == ("Which colour?", "call_4_0")
    bundle = await salience.context(session_id, messages=True)
    card = str(bundle.messages[-1]) + str(bundle.messages[-2])
    assert "fact:call_2_0 (90%): a is 1" in card
    assert "Assumptions, not verified" in card

    await salience.say(session_id, "Blue, please.")
    events = await ended(salience, session_id)
    result = await salience.result(session_id)
    assert (result.reason, result.final_preview) == ("finished", "")
    assert (await salience.session(session_id)).status == "completed"
    now = await salience.state(session_id)
    assert now.open_questions == ()
    assert now.facts == state.facts

    # The state at any event is the fold up to there, and the record agrees with itself.
    folded: list[State] = [await salience.state(session_id, at=str(event.seq)) for event in events]
    asking = next(e.seq for e in events if isinstance(e.payload, ev.StateUpdated) and e.payload.patch.open_questions)
    answering = next(e.seq for e in events if isinstance(e.payload, ev.UserPromptSubmitted) and e.seq > asking)
    assert [bool(one.open_questions) for one in folded] == [asking <= e.seq < answering for e in events]
    verification = Verification(salience.postgres, salience.journal, salience.blobs, Histories(salience.temporal))
    report = await verification.verify(session_id)
    assert report.ok, report.findings


async def test_an_open_question_is_in_every_context_until_it_is_answered(
    salience: Salience, scripted: Scripted, session_id: str
) -> None:
    question = {"tool_calls": [{"name": "ask_user", "args": {"question": "Which colour of all?"}}]}
    await salience.start(scripted([question, {"text": "I go on."}]), "decide", session_id=session_id)
    await ended(salience, session_id)
    await salience.resume(session_id)  # without a word: the question stays open
    await ended(salience, session_id)
    assert (await salience.result(session_id)).reason == "answered"
    assert "Which colour of all?" in str((await salience.context(session_id, messages=True)).messages[-1])
    assert [asked.question for asked in (await salience.state(session_id)).open_questions] == ["Which colour of all?"]


async def test_many_large_results_of_one_answer_leave_room_in_a_small_window(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    (workspace / "a.txt").write_text("a line of the file\n" * 10_000)
    reads = {"tool_calls": [{"name": "read_file", "args": {"path": "a.txt", "start_line": at + 1}} for at in range(10)]}
    again = {"tool_calls": [{"name": "read_artifact", "args": {"ref": "call_1_0"}}]}
    config = scripted([reads, again, {"text": "read"}], window=12_000)
    await salience.start(config, "read it all", session_id=session_id)
    await ended(salience, session_id)
    result = await salience.result(session_id)
    assert (result.reason, result.final_preview) == ("answered", "read"), result.detail
