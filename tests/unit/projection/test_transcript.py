"""The transcript stands in delivery order, and every call in it has its result, whatever the log's order (PRJ-1b)."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from salience.model import event as ev
from salience.model.bundle import BundleSummary, BundleTokens, View
from salience.model.message import Usage
from salience.projection.transcript import NOT_RUN, OpenTranscript, Transcript
from salience.verify.invariants import transcript_pairs


class Log:
    """Builds a log event by event."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.turn = 0

    def add(self, payload: ev.Payload) -> int:
        seq = len(self.events) + 1
        self.events.append(
            ev.Event(
                event_id=f"run:{seq}:x",
                session_id="s",
                run_id="run",
                seq=seq,
                timestamp="2026-01-01T00:00:00.000000Z",
                type=type(payload).__name__,
                actor=payload.actor,
                payload=payload,
            )
        )
        return seq

    def prompt(self, message_id: str) -> int:
        return self.add(ev.UserPromptSubmitted(message_id=message_id, text=message_id, delivery="update"))

    def built(self, source: int) -> int:
        self.turn += 1
        summary = BundleSummary(
            bundle_hash="h",
            turn=self.turn,
            call_index=0,
            epoch=1,
            epoch_reason="start",
            decision="below_threshold",
            fits=True,
            tokens=BundleTokens(total=1, window=2, reserved=0, by_section={}),
            view=View(
                projection_mode="full_history", source_message_count=0, history_message_count=0, system_message_count=0
            ),
            environment_ref="e",
            builder_version="b",
            tokenizer="t",
        )
        return self.add(ev.ContextBuilt(bundle=summary, source=ev.Anchor(seq=source, head=""), transition="user_input"))

    def response(self, *calls: str) -> None:
        self.add(
            ev.ModelResponseReceived(
                turn=self.turn, bundle_id="b", response_ref="r", stop_reason="end_turn", usage=Usage(), model="m"
            )
        )
        for index, call in enumerate(calls):
            self.add(ev.ToolCallRequested(tool_call_id=call, name="read_file", index=index, response_ref="r"))

    def result(self, call: str) -> None:
        self.add(ev.ToolCallFinished(tool_call_id=call, name="read_file", preview=f"of {call}"))

    def fold(self) -> Transcript:
        transcript = Transcript()
        for event in self.events:
            transcript.fold(event)
        return transcript


def names(transcript: Transcript) -> list[str]:
    return [entry.tool_call_id or entry.text or entry.kind for entry in transcript.entries]


def test_a_prompt_enters_with_the_first_bundle_built_after_it() -> None:
    log = Log()
    source = log.prompt("one")
    log.prompt("late")  # accepted while the bundle was being built
    log.built(source)
    log.response("a")
    log.result("a")
    log.built(len(log.events))
    assert names(log.fold()) == ["one", "response", "a", "late"]


def test_results_stand_in_request_order() -> None:
    log = Log()
    log.built(log.prompt("go"))
    log.response("a", "b", "c")
    for call in ("c", "a", "b"):
        log.result(call)
    log.built(len(log.events))
    assert names(log.fold()) == ["go", "response", "a", "b", "c"]


def test_a_repeated_message_id_folds_to_nothing() -> None:
    log = Log()
    log.prompt("m")
    log.built(log.prompt("m"))
    log.built(log.prompt("m"))
    assert names(log.fold()) == ["m"]


def test_an_unanswered_call_gets_a_paired_result() -> None:
    log = Log()
    log.built(log.prompt("go"))
    log.response("a", "b")
    log.result("a")
    log.built(log.prompt("stop that"))
    transcript = log.fold()
    assert names(transcript) == ["go", "response", "a", "b", "stop that"]
    assert transcript.entries[3].text == NOT_RUN
    assert transcript_pairs(transcript.entries) == []


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_any_log_gives_pairs_and_the_same_fold_in_any_portions(seed: int) -> None:
    """A random log: pairs hold, positions are dense, and saving the fold at any event changes nothing."""
    dice = random.Random(seed)
    log = Log()
    log.prompt("first")
    for _ in range(dice.randint(1, 8)):
        source = len(log.events)
        if dice.random() < 0.3:
            log.prompt(f"p{dice.randint(0, 5)}")
        log.built(source)
        calls = [f"c{log.turn}_{n}" for n in range(dice.randint(0, 3))]
        log.response(*calls)
        dice.shuffle(calls)
        for call in calls[: dice.randint(0, len(calls))]:
            log.result(call)
            if dice.random() < 0.2:
                log.prompt(f"q{dice.randint(0, 9)}")
    log.built(len(log.events))
    whole = log.fold()
    assert transcript_pairs(whole.entries) == []
    assert [entry.position for entry in whole.entries] == list(range(len(whole.entries)))
    cut = dice.randint(0, len(log.events))
    first = Transcript()
    for event in log.events[:cut]:
        first.fold(event)
    saved = OpenTranscript.model_validate_json(first.open.model_dump_json())
    second = Transcript(seen=set(first.seen), open=saved)
    for event in log.events[cut:]:
        second.fold(event)
    assert second.entries.first == len(first.entries)
    assert [*first.entries, *second.entries.held] == list(whole.entries)
