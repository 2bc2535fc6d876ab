"""Each invariant holds on a good hand-made record and names what is wrong in a bad one (spec INV)."""

from __future__ import annotations

from typing import Any

import pytest

from salience.model import event as ev
from salience.model.bundle import Segment
from salience.model.compaction import Checkpoint, CompactionRecord, RecordGoal, RecordProvenance, SummarizedRange
from salience.model.message import Message, Provenance, SummaryBlock, TextBlock, ToolCallBlock, ToolResultBlock
from salience.model.state import Goal, OpenQuestion, State, StateArtifact
from salience.projection.transcript import Entry
from salience.verify import invariants


def event(seq: int, payload: ev.Payload) -> ev.Event:
    return ev.Event(
        event_id=f"run:{seq}:slot",
        session_id="s",
        run_id="run",
        parent_event_id=None,
        seq=seq,
        timestamp="2026-01-01T00:00:00.000000Z",
        type=type(payload).__name__,
        actor=payload.actor,
        payload=payload,
    )


def asked(seq: int, call: str) -> ev.Event:
    return event(seq, ev.ToolCallRequested(tool_call_id=call, name="read_file", index=0, response_ref="r"))


def answered(seq: int, call: str) -> ev.Event:
    return event(seq, ev.ToolCallFinished(tool_call_id=call, name="read_file"))


def message(message_id: str, *content: Any, role: Any = "assistant") -> Message:
    return Message(
        message_id=message_id,
        session_id="s",
        run_id="r",
        role=role,
        content=content,
        provenance=Provenance(source="model"),
    )


def record(**change: Any) -> CompactionRecord:
    fields: dict[str, Any] = {
        "compaction_id": "c1",
        "session_id": "s",
        "summarized_range": SummarizedRange(from_message_id="m1", to_message_id="m2"),
        "first_kept_message": "m3",
        "tokens_before": 2,
        "tokens_after": 1,
        "goal": RecordGoal(user_goal="g", current_task="t"),
        "provenance": RecordProvenance(policy="deterministic-1"),
        **change,
    }
    return CompactionRecord(**fields)


def test_1_results_follow_calls() -> None:
    assert invariants.results_follow_calls([asked(1, "a"), answered(2, "a")]) == []
    (orphan,) = invariants.results_follow_calls([answered(1, "a")])
    assert (orphan.rule, orphan.seq) == ("INV 1", 1)
    (second,) = invariants.results_follow_calls([asked(1, "a"), answered(2, "a"), answered(3, "a")])
    assert "second result" in second.message


def test_1_for_messages() -> None:
    call = message("m1", ToolCallBlock(tool_call_id="a", name="read_file"))
    result = message("m2", ToolResultBlock(tool_call_id="a", text="x"), role="tool")
    assert invariants.message_pairs([call, result]) == []
    assert invariants.message_pairs([result, call])[0].rule == "INV 1"


def test_1_for_the_transcript() -> None:
    def entry(position: int, kind: Any, group: str) -> Entry:
        return Entry(
            message_id=f"m{position}", position=position, kind=kind, group=group, turn=1, event_id="e", seq=position + 1
        )

    good = [entry(0, "prompt", "p1"), entry(1, "response", "g2"), entry(2, "result", "g2"), entry(3, "prompt", "p4")]
    assert invariants.transcript_pairs(good) == []
    assert invariants.transcript_pairs([good[0], good[2], good[1]])[0].rule == "INV 1"
    assert invariants.transcript_pairs([good[1], good[3], good[2]])[0].seq == 3


def test_2_pending_calls_stay() -> None:
    pending = message("m1", ToolCallBlock(tool_call_id="a", name="read_file"))
    result = message("m2", ToolResultBlock(tool_call_id="a"), role="tool")
    removing = record(provenance=RecordProvenance(policy="p", message_ids=("m1", "m2")))
    assert invariants.keeps_pending_calls(removing, [pending, result]) == []
    (finding,) = invariants.keeps_pending_calls(removing, [pending])
    assert (finding.rule, "pending call a" in finding.message) == ("INV 2", True)
    assert invariants.keeps_pending_calls(record(), [pending]) == []


@pytest.mark.parametrize("span", [None, SummarizedRange(from_message_id="", to_message_id="m2")])
def test_3_summaries_name_their_range(span: SummarizedRange | None) -> None:
    assert invariants.names_its_range(record()) == []
    assert invariants.names_its_range(record(summarized_range=span))[0].rule == "INV 3"


def test_4_files_are_known() -> None:
    written = event(1, ev.FileWritten(tool_call_id="a", path="x.py", change="created"))
    artifact = StateArtifact(artifact_id="file:x.py", kind="file", path_or_uri="x.py")
    assert invariants.files_are_known([written], State(session_id="s", artifacts=(artifact,))) == []
    (finding,) = invariants.files_are_known([written], State(session_id="s"))
    assert (finding.rule, finding.seq) == ("INV 4", 1)


def segment(**change: Any) -> Segment:
    fields: dict[str, Any] = {
        "segment_id": "tr0",
        "section": "transcript",
        "role": "user",
        "reason": "the current request",
        "source_refs": ("e1",),
        "trust": "user",
        "freshness": "current",
        "priority": 100,
        "tokens": 3,
        "digest": "d",
        **change,
    }
    return Segment(**fields)


def test_5_essentials_are_in() -> None:
    request = Entry(message_id="m", position=0, kind="prompt", group="p1", turn=1, event_id="e1", seq=1)
    state = State(
        session_id="s", goal=Goal(user_goal="fix it"), open_questions=(OpenQuestion(question_id="q", question="why?"),)
    )
    card = segment(segment_id="state", section="state_card", role="summary")
    assert invariants.essentials_are_in([segment(), card], request.event_id, state, 9) == []
    (no_request,) = invariants.essentials_are_in([card], request.event_id, state, 9)
    assert (no_request.rule, no_request.seq) == ("INV 5", 9)
    assert invariants.essentials_are_in([segment(masked=True), card], request.event_id, state, 9)
    (no_card,) = invariants.essentials_are_in([segment()], request.event_id, state, 9)
    assert "goal" in no_card.message


def test_7_is_append_only() -> None:
    assert invariants.is_append_only(["a", "b"], ["a", "b", "c"]) == []
    assert invariants.is_append_only(["a", "b"], ["a", "x", "c"])[0].seq == 2
    assert invariants.is_append_only(["a", "b"], ["a"])[0].seq == 2


def test_8_summaries_leave_the_transcript_alone() -> None:
    before = [message("m1", TextBlock(text="one")), message("m2", TextBlock(text="two"))]
    summary = message("sum", SummaryBlock(summary_id="c1", text="1, 2"), role="summary")
    assert invariants.leaves_transcript_alone(record(), before, [*before, summary]) == []
    assert invariants.leaves_transcript_alone(record(), before, [before[0], summary])[0].rule == "INV 8"
    changed = message("m1", TextBlock(text="other"))
    assert "m1" in invariants.leaves_transcript_alone(record(), before, [changed, before[1]])[0].message


@pytest.mark.parametrize(("change", "missing"), [({"reason": ""}, "reason"), ({"source_refs": ()}, "source")])
def test_12_segments_are_explained(change: dict[str, Any], missing: str) -> None:
    assert invariants.segments_are_explained([segment()], 1) == []
    (finding,) = invariants.segments_are_explained([segment(**change)], 4)
    assert (finding.rule, finding.seq, missing in finding.message) == ("INV 12", 4, True)


def entry(position: int, kind: str = "result") -> Entry:
    return Entry(
        message_id=f"m{position}",
        position=position,
        kind=kind,
        group="g",
        turn=1,
        event_id=f"e{position}",
        seq=position,
    )  # type: ignore[arg-type]


def checkpoint(**change: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "compaction_id": "c1", "number": 1, "record_ref": "r", "summary_ref": "s", "from_message_id": "m0",
        "to_message_id": "m1", "first_kept": 2, "first_kept_message_id": "m3", "prompts_from": 0, "messages": 2,
        "tokens_before": 2, "tokens_after": 1,
    }  # fmt: skip
    return Checkpoint(**{**fields, **change})


def test_2_a_cut_between_a_call_and_its_result_is_found() -> None:
    entries = [entry(0, "response"), entry(1), entry(2)]
    (finding,) = invariants.splits_no_group(checkpoint(first_kept=2), entries)
    assert finding.rule == "INV 2"
    assert invariants.splits_no_group(checkpoint(first_kept=2), [*entries[:2], entry(2, "response")]) == []


@pytest.mark.parametrize(
    ("change", "ids"),
    [
        ({"compaction_id": "c2"}, ("m0", "m1")),
        ({"first_kept_message_id": "m9"}, ("m0", "m1")),
        ({"tokens_after": 9}, ("m0", "m1")),
        ({}, ("m0",)),
        ({}, ("m0", "m1", "m2")),
    ],
)
def test_3_a_record_stands_for_its_range(change: dict[str, Any], ids: tuple[str, ...]) -> None:
    named = record(provenance=RecordProvenance(policy="p", message_ids=ids))
    span = [entry(0), entry(1)]
    (finding,) = invariants.stands_for(named, checkpoint(**change), span)
    assert finding.rule == "INV 3"
    good = record(provenance=RecordProvenance(policy="p", message_ids=("m0", "m1")))
    assert invariants.stands_for(good, checkpoint(), span) == []


def test_8_a_changed_message_is_found() -> None:
    folded = [entry(0, "prompt"), entry(1)]
    assert invariants.transcript_is_kept(folded, folded) == []
    (finding,) = invariants.transcript_is_kept(folded, [folded[0].model_copy(update={"text": "x"}), folded[1]])
    assert (finding.rule, finding.seq) == ("INV 8", 0)
