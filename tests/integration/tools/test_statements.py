"""Facts, decisions and questions: what the record shows is verified, all else stays an assumption (spec PRJ-3)."""

from __future__ import annotations

from typing import Any

import pytest

from salience.model import event as ev
from salience.model.canonical import canonical_json
from salience.model.state import Decision, Fact, StatePatch
from salience.model.tool import ToolOutcome
from tests.integration.tools.scene import Scene


@pytest.fixture
async def seen(scene: Scene) -> str:
    """The id of an event; the session has read src/a.py with call_1_0 and was told m1."""
    (scene.root / "src").mkdir()
    (scene.root / "src" / "a.py").write_text("x = 1\n")
    (event, *_) = await scene.record(ev.UserPromptSubmitted(message_id="m1", text="look", delivery="start"))
    await scene.record_outcome(await scene.run("read_file", {"path": "src/a.py"}, "call_1_0"))
    return event


async def note(scene: Scene, call_id: str = "call_2_0", **args: Any) -> tuple[Fact | None, str]:
    outcome = await scene.run("note_fact", {"content": "x is 1", "confidence": 0.9, **args}, call_id)
    return _fact(outcome), await scene.seen(outcome)


def _fact(outcome: ToolOutcome) -> Fact | None:
    return outcome.state_patch.facts[0] if outcome.state_patch and outcome.state_patch.facts else None


async def test_every_kind_of_existing_source_verifies(scene: Scene, seen: str) -> None:
    kinds = [seen, "call_1_0", "m1", "output:call_1_0", "src/a.py", "src/a.py:3", "src/a.py:3-9", "./src/a.py"]
    for ref in [*kinds, f"{scene.root}/src/a.py"]:
        fact, words = await note(scene, source_refs=[ref])
        assert fact is not None
        assert fact.verified, ref
        assert fact.source_refs == (ref.removeprefix(f"{scene.root}/"),)
        assert words == "fact:call_2_0 noted, verified\n"
    fact, _ = await note(scene, source_refs=kinds)
    assert fact is not None
    assert fact.source_refs == tuple(kinds)


async def test_a_source_that_is_not_there_makes_an_assumption(scene: Scene, seen: str) -> None:
    fact, words = await note(scene, source_refs=["call_1_0", "call_9_0", "src/b.py"])
    assert fact == Fact(
        fact_id="fact:call_2_0", content="x is 1", confidence=0.9, source_refs=("call_1_0",), verified=False
    )
    assert "Kept as an assumption: this session's record has no call_9_0, src/b.py." in words
    fact, words = await note(scene)
    assert fact is not None
    assert not fact.verified
    assert "names no source" in words


async def test_a_call_of_the_same_answer_is_no_source(scene: Scene, seen: str) -> None:
    (scene.root / "b.txt").write_text("b\n")
    outcome = await scene.run("read_file", {"path": "b.txt"}, "call_2_0")
    for ref in ("call_2_0", "b.txt", "call_2_1", "fact:call_2_1"):
        fact, words = await note(scene, "call_2_1", source_refs=[ref])
        assert fact is not None
        assert not fact.verified
        assert "A call of this same answer is no source yet" in words
    await scene.record_outcome(outcome)
    fact, _ = await note(scene, "call_3_0", source_refs=["call_2_0", "b.txt"])
    assert fact is not None
    assert fact.verified


async def test_another_sessions_sources_are_none(scene: Scene, seen: str) -> None:
    scene.session_id = "another"
    fact, _ = await note(scene, source_refs=[seen, "call_1_0", "m1", "src/a.py"])
    assert fact is not None
    assert (fact.verified, fact.source_refs) == (False, ())


async def test_an_assumption_verifies_nothing_and_a_correction_supersedes(scene: Scene, seen: str) -> None:
    assumed = await scene.run("note_fact", {"content": "x is 2", "confidence": 0.5}, "call_2_0")
    await scene.record_outcome(assumed)
    decision = {"decision": "keep x", "rationale": "it is right", "evidence_refs": ["fact:call_2_0"]}
    outcome = await scene.run("record_decision", decision, "call_3_0")
    assert outcome.state_patch is not None
    assert outcome.state_patch.decisions == (
        Decision(decision_id="decision:call_3_0", decision="keep x", rationale_summary="it is right"),
    )
    corrected = {"content": "x is 1", "confidence": 1, "source_refs": ["call_1_0"], "fact_id": "fact:call_2_0"}
    outcome = await scene.run("note_fact", corrected, "call_4_0")
    assert await scene.seen(outcome) == "fact:call_2_0 corrected, verified\n"
    await scene.record_outcome(outcome)
    (fact,) = (await scene.sources.state(scene.session_id)).facts
    assert (fact.fact_id, fact.content, fact.verified) == ("fact:call_2_0", "x is 1", True)
    outcome = await scene.run("record_decision", {**decision, "alternatives": ["drop x"]}, "call_5_0")
    assert outcome.state_patch is not None
    (made,) = outcome.state_patch.decisions or ()
    assert (made.verified, made.evidence_refs, made.alternatives) == (True, ("fact:call_2_0",), ("drop x",))
    await scene.record_outcome(outcome)
    changed = {**decision, "decision": "drop x", "decision_id": "decision:call_5_0"}
    assert "decision:call_5_0 changed" in await scene.seen(await scene.run("record_decision", changed, "call_6_0"))


async def test_nothing_verifies_itself(scene: Scene, seen: str) -> None:
    outcome = await scene.run("note_fact", {"content": "a", "confidence": 1, "source_refs": ["m1"]}, "call_2_0")
    await scene.record_outcome(outcome)
    fact, _ = await note(scene, "call_3_0", fact_id="fact:call_2_0", source_refs=["fact:call_2_0"])
    assert fact is not None
    assert not fact.verified


async def test_a_correction_of_nothing_is_refused(scene: Scene, seen: str) -> None:
    fact, words = await note(scene, fact_id="fact:none")
    assert fact is None
    assert "there is no fact_id fact:none to correct; the latest are: none" in words


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("note_fact", {"content": "c" * 2_001, "confidence": 1}, "content: "),
        ("note_fact", {"content": "c", "confidence": 1.1}, "confidence: 1.1 is greater than the maximum of 1"),
        ("note_fact", {"content": "\U0001f642" * 2_000, "confidence": 1}, "6144 is the most: shorten content"),
        ("record_decision", {"decision": "d"}, "'rationale' is a required property"),
        ("record_decision", {"decision": "ä" * 1_000, "rationale": "ä" * 1_000, "alternatives": ["ä" * 300] * 10},
         "6144 is the most: shorten decision"),
        ("ask_user", {"question": ""}, "question: "),
        ("ask_user", {"question": "?" * 2_001}, "question: "),
    ],
)  # fmt: skip
async def test_what_is_too_long_is_refused_whole(scene: Scene, name: str, args: dict[str, Any], words: str) -> None:
    outcome = await scene.run(name, args)
    assert (outcome.ok, outcome.kind, outcome.state_patch) == (False, "invalid_arguments", None)
    assert words in await scene.seen(outcome)


async def test_the_longest_patch_leaves_the_outcome_small(scene: Scene) -> None:
    refs = ["r" * 100 + str(at) for at in range(20)]
    outcome = await scene.run("note_fact", {"content": "c" * 2_000, "confidence": 1, "source_refs": refs})
    assert len(canonical_json(outcome.plain())) < 8 * 1024


async def test_a_question_asks_and_is_in_the_patch(scene: Scene) -> None:
    outcome = await scene.run("ask_user", {"question": "Which?", "choices": ["a", "b"]}, "call_1_0")
    assert (outcome.ok, outcome.ask, outcome.finish) == (True, True, False)
    assert outcome.state_patch is not None
    (asked,) = outcome.state_patch.open_questions or ()
    assert (asked.question_id, asked.tool_call_id, str(asked)) == ("question:call_1_0", "call_1_0", "Which? (a | b)")
    assert (await scene.seen(outcome)).startswith("Which? (a | b)\n[the user was asked")
    assert outcome.preview.startswith("Which? (a | b)")


def test_a_patch_of_an_older_release_keeps_its_bytes() -> None:
    assert StatePatch.model_validate({"plan": {"steps": [{"step_id": "1", "title": "a"}]}}).plain().keys() == {"plan"}
