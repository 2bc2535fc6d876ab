"""A view is compacted before it is too large and after a provider says so; nothing of the log is lost (spec CMP-2, CMP-3)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from activities.verification import Verification
from salience.client import Salience
from salience.compaction import Compaction
from salience.model import event as ev
from salience.model.event import Event
from salience.model.session import SessionConfig
from salience.store.history import Histories
from tests.conftest import Scripted, ended

CONSTRAINT = "Whatever you do, never write to the folder vendor."


def reading(files: int, *, each: int = 1, text: str = "looking") -> list[dict[str, Any]]:
    """Turns that read one file after the other."""
    return [
        {"text": f"{text} {n}", "tool_calls": [{"name": "read_file", "args": {"path": f"f{n % files}.txt"}}] * each}
        for n in range(files)
    ]


def filled(workspace: Path, files: int, *, size: int = 1_500) -> None:
    """Files with different words, so that no two results are alike."""
    for n in range(files):
        (workspace / f"f{n}.txt").write_text(f"file number {n}: " + f"word{n} " * (size // 7))


def of_type(events: list[Event], kind: str) -> list[Any]:
    """The payloads of one type."""
    return [event.payload for event in events if event.type == kind]


async def verified(salience: Salience, session_id: str) -> None:
    """The session verifies against its history, every bundle compiled again."""
    report = await Verification(
        salience.postgres, salience.journal, salience.blobs, Histories(salience.temporal)
    ).verify(session_id)
    assert report.ok, report.findings
    assert report.bundles > 0
    assert report.bundles_not_comparable == 0


async def test_one_long_round_is_compacted_inside_again_and_again(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    """One user message and sixty calls: the words stay, the middle is summarised, each record goes on from the last."""
    filled(workspace, 60)
    config = scripted([*reading(60), {"text": "All read."}], window=12_000)
    await salience.start(config, CONSTRAINT, session_id=session_id)
    events = await ended(salience, session_id)
    assert (await salience.result(session_id)).reason == "answered"

    made: list[ev.CompactionCompleted] = of_type(events, "CompactionCompleted")
    assert len(made) >= 2
    assert not of_type(events, "CompactionFailed")
    for done in made:
        assert done.trigger == "proactive"
        assert done.checks.passed
        assert done.checkpoint.tokens_after < done.checkpoint.tokens_before
    for below, above in pairwise(made):
        assert above.checkpoint.previous == below.checkpoint.compaction_id
        assert above.checkpoint.number == below.checkpoint.number + 1
        # The second starts where verbatim history started after the first.
        assert above.checkpoint.from_message_id == below.checkpoint.first_kept_message_id

    built: list[ev.ContextBuilt] = of_type(events, "ContextBuilt")
    assert {b.bundle.decision for b in built} >= {"below_threshold", "threshold_exceeded"}
    sent = {request.bundle_id for request in of_type(events, "ModelRequestStarted")}
    for b in built:
        if b.bundle.bundle_id in sent:
            assert b.bundle.tokens.total <= b.bundle.tokens.window - b.bundle.tokens.reserved
            assert b.bundle.decision != "threshold_exceeded"
    context = await salience.context(session_id, messages=True)
    assert context.view.projection_mode == "compact_checkpoint"
    assert context.view.checkpoint_id == made[-1].checkpoint.compaction_id
    assert any(message.role == "user" and CONSTRAINT in message.content[0].text for message in context.messages)  # type: ignore[union-attr]
    roles = [message.role for message in context.messages]
    assert roles.count("summary") >= 2  # the summary and the state card
    state = await salience.state(session_id)
    assert state.last_compaction_id == made[-1].checkpoint.compaction_id
    assert (await salience.stats(session_id)).compression.count == len(made)
    await verified(salience, session_id)


async def test_an_overflow_the_estimate_did_not_see_compacts_and_goes_on(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    filled(workspace, 12)
    overflow = {"error": {"kind": "context_overflow", "message": "prompt is too long: 9001 tokens > 6000 maximum"}}
    config = scripted([*reading(12), overflow, {"text": "Done."}], window=64_000)
    await salience.start(config, CONSTRAINT, session_id=session_id)
    events = await ended(salience, session_id)
    assert (await salience.result(session_id)).reason == "answered"
    (done,) = of_type(events, "CompactionCompleted")
    assert done.trigger == "reactive"
    transitions = [b.transition for b in of_type(events, "ContextBuilt")]
    assert "context_overflow:1" in transitions
    await verified(salience, session_id)


async def test_recovery_is_limited_and_says_what_was_tried(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    filled(workspace, 12)
    overflow = {"error": {"kind": "context_overflow", "message": "too long"}}
    config = scripted([*reading(12), *[overflow] * 9], window=64_000)
    await salience.start(config, "read all", session_id=session_id)
    events = await ended(salience, session_id)
    result = await salience.result(session_id)
    assert result.reason == "model_recovery_failed"
    assert "tried: compaction c1-" in result.detail
    assert 2 <= len(of_type(events, "ModelRequestFailed")) <= 4
    # Every prompt after an overflow was a smaller one.
    totals = {b.bundle.bundle_id: b.bundle.tokens.total for b in of_type(events, "ContextBuilt")}
    failed = [totals[f.bundle_id] for f in of_type(events, "ModelRequestFailed")]
    assert failed == sorted(failed, reverse=True)
    assert len(set(failed)) == len(failed)


async def test_lower_output_needed_is_never_compacted(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    filled(workspace, 6)
    asks = {"error": {"kind": "lower_output_needed", "message": "max_tokens is too large"}}
    config = scripted([*reading(6), asks], window=64_000)
    await salience.start(config, "read all", session_id=session_id)
    events = await ended(salience, session_id)
    assert not [event for event in events if event.type.startswith("Compaction")]


async def _ended_with_history(
    salience: Salience, config: SessionConfig, workspace: Path, session_id: str, files: int
) -> None:
    filled(workspace, files)
    await salience.start(config, CONSTRAINT, session_id=session_id)
    await ended(salience, session_id)


async def test_by_hand_on_an_ended_session_and_back(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    """Compacting by hand and rolling back give runs of their own, call no model, and leave the log as it was."""
    config = scripted([*reading(10), {"text": "Done."}, {"text": "And again."}], window=64_000)
    await _ended_with_history(salience, config, workspace, session_id, 10)
    before = [event async for event in salience.events(session_id)]
    planned = await salience.plan_compaction(session_id, focus="the numbers")
    assert isinstance(planned, Compaction)
    assert [event async for event in salience.events(session_id)] == before

    done = await salience.compact(session_id, focus="the numbers")
    assert done.checkpoint is not None
    assert done.checkpoint.compaction_id == planned.checkpoint.compaction_id
    assert done.checkpoint.tokens_after < done.checkpoint.tokens_before
    after = await ended(salience, session_id)
    assert after[: len(before)] == before
    assert [e.payload.reason for e in after if e.type == "SessionEnded"] == ["answered", "adjusted"]  # type: ignore[attr-defined]
    assert (await salience.session(session_id)).status == "completed"
    assert (await salience.session(session_id)).end_reason == "answered"

    back = await salience.rollback(session_id)
    assert (back.refused, back.checkpoint) == ("", None)
    assert back.tokens_after > back.tokens_before
    await ended(salience, session_id)
    again = await salience.rollback(session_id)
    assert "no compaction is active" in again.refused

    await salience.say(session_id, "go on")
    events = await ended(salience, session_id)
    context = await salience.context(session_id)
    assert context.view.projection_mode == "full_history"
    assert context.view.checkpoint_id is None
    assert len(of_type(events, "ModelResponseReceived")) == 12
    await verified(salience, session_id)


async def test_rolling_back_what_does_not_fit_goes_to_the_checkpoint_below(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    config = scripted([*reading(60), {"text": "All read."}], window=12_000)
    await _ended_with_history(salience, config, workspace, session_id, 60)
    serving = (await salience.journal.latest(session_id)).workplace.checkpoint
    assert serving is not None
    full = await salience.rollback(session_id, to=0)
    assert "the full history has" in full.refused
    assert "are usable" in full.refused
    beyond = await salience.rollback(session_id, to=serving.number)
    assert "--to takes 0 to" in beyond.refused
    stack = [c for c in await salience.journal.checkpoints(session_id) if c.number < serving.number]
    back = await salience.rollback(session_id)
    if back.refused:
        assert f"checkpoint {serving.number - 1} has" in back.refused
    else:
        assert back.checkpoint == stack[-1]
    await verified(salience, session_id)


async def test_while_it_runs_a_compaction_waits_for_the_turn(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    filled(workspace, 10)
    turns = [*reading(10), {"text": "slow", "delay_s": 1.5}]
    await salience.start(scripted(turns, window=64_000), CONSTRAINT, session_id=session_id)
    done = await salience.compact(session_id)
    events = await ended(salience, session_id)
    assert (done.checkpoint is not None) == bool(of_type(events, "CompactionCompleted"))
    assert (await salience.result(session_id)).reason == "answered"


@pytest.mark.parametrize("window", [4_000, 6_000])
async def test_what_may_not_be_left_out_and_does_not_fit_is_named(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str, window: int
) -> None:
    config = scripted([{"text": "never"}], window=window)
    await salience.start(config, "word " * window * 2, session_id=session_id)
    await ended(salience, session_id)
    result = await salience.result(session_id)
    assert result.reason == "context_unfit"
    assert "current request" in result.detail
    assert "are usable" in result.detail


async def test_a_smaller_window_at_resume_goes_through_the_same_ladder(
    salience: Salience, scripted: Scripted, workspace: Path, session_id: str
) -> None:
    """And a larger one lets a session go on that ended because nothing fitted."""
    config = scripted([*reading(20), {"text": "Done."}, {"text": "Small."}, {"text": "Large."}], window=64_000)
    await _ended_with_history(salience, config, workspace, session_id, 20)
    smaller = config.context_config.model_copy(
        update={"context_window_tokens": 12_000, "reserved_output_tokens": 1_500}
    )
    await salience.say(session_id, "go on", context_config=smaller)
    events = await ended(salience, session_id)
    (done,) = of_type(events, "CompactionCompleted")
    assert done.trigger == "proactive"
    assert (await salience.session(session_id)).context_config == smaller

    tiny = smaller.model_copy(update={"context_window_tokens": 3_000, "reserved_output_tokens": 500})
    await salience.say(session_id, "and on", context_config=tiny)
    events = await ended(salience, session_id)
    assert (await salience.result(session_id)).reason == "context_unfit"
    await salience.resume(session_id, context_config=config.context_config)
    await ended(salience, session_id)
    assert (await salience.result(session_id)).reason == "answered"
    await verified(salience, session_id)
