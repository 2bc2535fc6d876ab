"""Events become lines; what comes together stands together."""

from __future__ import annotations

import pytest

from salience.cli.timeline import Timeline, clock, describe
from salience.model import event as ev
from salience.model.bundle import BundleSummary, BundleTokens
from salience.model.compaction import Checkpoint
from salience.model.event import Anchor, Event
from salience.model.message import Usage
from salience.model.session import ModelSettings, SessionConfig
from salience.model.state import Plan, PlanStep, StatePatch


def event(payload: ev.Payload) -> Event:
    return Event.model_construct(
        event_id="r:1:x",
        session_id="s",
        run_id="r",
        parent_event_id=None,
        seq=1,
        timestamp="2026-01-02T03:04:05.000006Z",
        type=type(payload).__name__,
        actor=payload.actor,
        payload=payload,
    )


def built(decision: str = "below_threshold", problem: str | None = None) -> ev.ContextBuilt:
    bundle = BundleSummary.model_construct(
        turn=4,
        decision=decision,
        fits=problem is None,
        tokens=BundleTokens(total=1_234, window=10_000, reserved=1_000, by_section={}),
        excluded_counts={"masked": 3} if decision == "reduced" else {},
        problem=problem,
    )
    return ev.ContextBuilt.model_construct(bundle=bundle, source=Anchor.model_construct(), transition="user_input")


def request() -> ev.ModelRequestStarted:
    return ev.ModelRequestStarted(turn=4, bundle_id="b", call_index=0, model="a/b")


def lines(*payloads: ev.Payload) -> list[str]:
    return [str(line) for line in Timeline().take([event(p) for p in payloads])]


def test_a_context_that_is_sent_stands_in_the_line_of_its_model_call() -> None:
    found = lines(built(), request())
    assert len(found) == 1
    assert found[0].split()[1:] == [
        "t4",
        "system",
        "ModelRequestStarted",
        "a/b",
        "sees",
        "1,234",
        "of",
        "9,000",
        "tokens",
    ]


def test_a_reduction_and_an_unfit_context_have_lines_of_their_own() -> None:
    assert "reduced, 1,234 of 9,000 tokens, 3 masked" in lines(built("reduced"), request())[0]
    assert "too large" in lines(built("unfit", "too large"))[0]


def test_files_of_one_call_share_a_line() -> None:
    written = [ev.FileWritten(tool_call_id="c", path=f"f{n}", change="created") for n in range(6)]
    reads = [ev.FileRead(tool_call_id="c", path="g")]
    found = lines(*reads, *written, ev.DiffApplied(tool_call_id="c", files=1, added=2, removed=3))
    assert len(found) == 3
    assert found[1].endswith("f0 (created), f1 (created), f2 (created), f3 (created) and 2 more")
    assert found[2].endswith("1 file, +2 -3")


def test_the_start_of_a_call_is_left_out() -> None:
    assert lines(ev.ToolCallStarted(tool_call_id="c", name="search", attempt=1)) == []


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (ev.SessionEnded(reason="model_auth", detail="no key"), "model_auth: no key"),
        (ev.SessionEnded(reason="answered"), "answered"),
        (ev.TurnInterrupted(), "by the user"),
        (
            ev.ToolCallRequested(tool_call_id="c", name="search", index=0, args_preview="{}", response_ref="r"),
            "search {}",
        ),
        (
            ev.ModelResponseReceived(
                turn=1,
                bundle_id="b",
                response_ref="r",
                text_preview="hi",
                stop_reason="end_turn",
                usage=Usage(input_tokens=1_000, output_tokens=2),
                model="a/b",
                call_count=1,
            ),
            "[1,000 in, 2 out, 1 call] hi",
        ),
        (
            ev.CompactionFailed(trigger="manual", kind="nothing_to_summarise", message="too short"),
            "nothing_to_summarise: too short",
        ),
        (
            ev.CompactionRolledBack(compaction_id="c2", checkpoint=None, tokens_before=1_000, tokens_after=2_000),
            "c2; the full history is back, 1,000 → 2,000 tokens",
        ),
        (
            ev.StateUpdated(patch=StatePatch(plan=Plan(steps=(PlanStep(step_id="1", title="x", status="done"),)))),
            "plan planning, 1 of 1 steps done",
        ),
    ],
)
def test_what_events_say(payload: ev.Payload, said: str) -> None:
    assert describe(payload) == said


def test_text_is_one_bounded_line() -> None:
    prompt = ev.UserPromptSubmitted(message_id="m", text="a\nb\x1b[31m " * 100, delivery="start")
    (line,) = lines(prompt)
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 220


def test_every_event_type_has_a_line() -> None:
    for kind in ev.PAYLOADS.values():
        if kind is not ev.ContextBuilt:
            assert isinstance(describe(kind.model_construct(**_blank(kind))), str)


_TEXTS = ("compaction_id", "record_ref", "summary_ref", "from_message_id", "to_message_id", "first_kept_message_id")
_NUMBERS = ("number", "first_kept", "prompts_from", "messages", "tokens_before", "tokens_after")


def _blank(kind: type[ev.Payload]) -> dict[str, object]:
    config = SessionConfig(cwd="/w", model_settings=ModelSettings(model="a/b"))
    made = Checkpoint.model_validate(dict.fromkeys(_TEXTS, "x") | dict.fromkeys(_NUMBERS, 1))
    blanks: dict[str, object] = {"usage": Usage(), "patch": StatePatch(), "config": config, "checkpoint": made}
    return {
        name: blanks.get(name, 1 if field.annotation is int else "x")
        for name, field in kind.model_fields.items()
        if field.is_required()
    }


def test_clock_takes_anything() -> None:
    assert clock("nonsense") == "--:--:--"
    assert len(clock("2026-01-02T03:04:05.000006Z")) == 8
