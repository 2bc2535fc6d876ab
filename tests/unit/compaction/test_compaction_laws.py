"""The laws of compaction, on transcripts nobody thought of (spec CMP-2, CMP-4, CMP-8, CMP-9, CTX-7, INV 2, 3, 5, 8)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from salience.compaction import Compaction, Refusal
from salience.compaction.ladder import LADDER, SMALLEST_SUMMARY
from salience.context import Built, build, prefix_bytes, refs_needed
from salience.context.groups import groups_of
from salience.model.compaction import CompactionRecord, CompactionTrigger
from salience.projection.gauge import Gauge
from tests.unit.compaction.compacted_session import GOAL, STEPS, Work, play, played, shown, summary_of, told
from tests.unit.context.context_record import NO_COMPACTION

WINDOWS = st.sampled_from([3_000, 4_000, 6_000, 12_000, 40_000])
TRIGGERS: st.SearchStrategy[CompactionTrigger] = st.sampled_from(["proactive", "reactive", "manual"])


def law(examples: int) -> Any:
    """Settings of one law."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def bound_of_text(work: Work) -> int:
    """Most tokens of a summary."""
    return max(SMALLEST_SUMMARY, int((work.window - work.reserved) * LADDER[0].summary))


def judged(work: Work, before: Built, made: Compaction) -> Built:
    """Let a compaction serve and see that the next bundle is what it promised."""
    entries, point = work.record.entries, made.checkpoint
    assert made.checks.passed
    assert made.record.tokens_after == point.tokens_after < point.tokens_before
    for group in groups_of(entries):
        assert entries[group.first].position >= point.first_kept or entries[group.last].position < point.first_kept
    answers = [entry.position for entry in entries if entry.kind == "response"]
    assert point.first_kept <= answers[-1], "what no model has seen is summarised"
    span = made.record.summarized_range
    assert span is not None
    assert span.to_message_id == entries[point.first_kept - 1].message_id
    assert made.record.first_kept_message == entries[point.first_kept].message_id
    from_position = work.checkpoint.first_kept if work.checkpoint else 0
    assert span.from_message_id == entries[from_position].message_id
    assert made.record.provenance.message_ids == tuple(e.message_id for e in entries[from_position : point.first_kept])

    visible_before = shown(before)
    work.take(made)
    after = work.build()
    summary = after.summary
    assert build(work.inputs(), before.epoch).summary == summary, "a warm process builds another one"
    assert summary.epoch_reason == "compaction"
    assert summary.fits
    assert summary.tokens.total == point.tokens_after <= work.window - work.reserved
    assert [part.text for part in after.tail[:1]] == [part.text for part in before.tail[:1]]
    visible = shown(after)
    assert list(visible) == sorted(visible)
    assert visible.keys() <= visible_before.keys()
    assert all(visible[at] == visible_before[at] for at in visible)
    prompts = [e.position for e in entries if e.kind == "prompt"]
    assert [at for at in prompts if at in visible] == [at for at in prompts if at >= min(visible)]
    assert point.messages == len(entries) - len(visible)
    current = next(e for e in entries if e.message_id == work.record.current_request)
    words = current.text if current.text is not None else work.record.blobs[current.ref or ""].decode()
    assert told(after, current.position) == words
    assert summary_of(after)[1] <= bound_of_text(work)
    return after


@law(60)
@given(STEPS, WINDOWS, TRIGGERS)
def test_a_compaction_is_what_it_promised_or_is_refused_by_its_sizes(
    steps: list[tuple[Any, ...]], window: int, trigger: CompactionTrigger
) -> None:
    work = played(steps, window)
    before = work.build()
    work.record.asked.clear()
    made = work.planned(trigger)
    assert set(work.record.asked) <= set(refs_needed(work.inputs(), work.epoch)), "a text was not preloaded"
    if isinstance(made, Refusal):
        assert made.kind in ("nothing_to_summarise", "frees_too_little", "does_not_fit")
        if made.kind != "nothing_to_summarise" or not before.summary.fits:
            assert str(made.tokens_before) in made.message or "usable" in made.message
        if made.kind == "does_not_fit":
            assert "(" in made.message.partition("the largest:")[2]
        if made.kind == "frees_too_little":
            assert made.record is not None, "what was measured is kept as evidence"
    else:
        judged(work, before, made)


@law(25)
@given(STEPS, WINDOWS, TRIGGERS)
def test_the_same_inputs_give_the_same_checkpoint(
    steps: list[tuple[Any, ...]], window: int, trigger: CompactionTrigger
) -> None:
    one, other = played(steps, window), played(steps, window)
    one.build()
    other.build()
    assert one.planned(trigger) == other.planned(trigger)
    made, again = one.planned(trigger), one.planned(trigger, generation=7)
    if isinstance(made, Compaction):
        assert isinstance(again, Compaction)
        assert made.checkpoint.compaction_id != again.checkpoint.compaction_id


def carried(before: CompactionRecord, after: CompactionRecord) -> None:
    """What one record names the next one names, or says how much it leaves behind."""
    bounded = {left.what: left for left in after.left_behind}
    for what, was, now in (
        ("facts", before.facts, after.facts),
        ("decisions", before.decisions, after.decisions),
        ("changed files", [f.path for f in before.files.modified], [f.path for f in after.files.modified]),
        ("hard constraints", before.constraints.hard, after.constraints.hard),
        ("open questions", before.open_questions, after.open_questions),
        ("errors", [e.tool_call_id for e in before.errors], [e.tool_call_id for e in after.errors]),
        ("user messages", before.said, after.said),
        ("important results", before.tools.important_results, after.tools.important_results),
        ("notes on what was done", before.progress.done, after.progress.done),
    ):
        lost = [item for item in was if item not in now]
        assert len(lost) == (min(bounded[what].count, len(was)) if what in bounded else 0), (what, lost)


@law(8)
@given(st.lists(STEPS, min_size=10, max_size=10), st.sampled_from([6_000, 12_000, 24_000]))
def test_ten_compactions_do_not_decay(rounds: list[list[tuple[Any, ...]]], window: int) -> None:
    work = Work(window=window)
    work.say(GOAL)
    before = work.build()
    hidden: set[int] = set()
    for steps in rounds:
        for step in steps:
            play(work, step)
            now = work.build()
            same = now.summary.epoch == before.summary.epoch
            assert not same or prefix_bytes(now).startswith(prefix_bytes(before))
            assert same or now.summary.epoch_reason in ("compaction", "reduction")
            assert hidden.isdisjoint(shown(now)), "what was left out is back"
            hidden = set(range(len(work.record.entries))) - set(shown(now))
            before = now
        made = work.planned("manual")
        if isinstance(made, Refusal):
            # As the loop goes on after a refusal: what does not fit is reduced.
            work.gauge = NO_COMPACTION
            before = work.build()
            hidden = set(range(len(work.record.entries))) - set(shown(before))
            work.gauge = Gauge()
            continue
        was = work.previous
        before = judged(work, before, made)
        if was is not None:
            carried(was, made.record)
            assert made.record.provenance.previous == was.compaction_id
        hidden = set(range(len(work.record.entries))) - set(shown(before))
        assert made.record.goal.user_goal == GOAL
        assert made.record.tokens_before == made.checkpoint.tokens_before
        assert GOAL.encode() in (before.tail[0].text or b"")
        assert b"which branch?" in (before.tail[0].text or b"")
    numbers = [made.checkpoint.number for made in work.serving]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len({made.checkpoint.compaction_id for made in work.serving}) == len(numbers)

    assume(work.serving)
    work.roll_back()
    work.window = 10_000_000
    back = work.build()
    assert back.summary.epoch_reason == "rollback"
    assert back.summary.view.projection_mode == "full_history"
    assert shown(back) == dict.fromkeys(range(len(work.record.entries)), False)
    assert not any(part.segment.section == "summary" for part in back.prefix)


@law(15)
@given(STEPS, st.sampled_from([6_000, 12_000]))
def test_what_was_reduced_before_stays_out_and_is_told_once(steps: list[tuple[Any, ...]], window: int) -> None:
    work = played([*steps, ("many", 30)], window, gauge=NO_COMPACTION)
    before = work.build()
    assume(before.summary.decision == "reduced")
    work.gauge = Gauge()
    made = work.planned("manual")
    assume(isinstance(made, Compaction))
    assert isinstance(made, Compaction)
    after = judged(work, before, made)
    assert "dropped" not in after.summary.excluded_counts, "what is summarised is not left out"
    for step in [("say", "and now?"), ("many", 1)]:
        play(work, step)
        later = work.build()
        assert min(shown(later)) >= min(shown(after))


@pytest.mark.parametrize(("rounds", "kept"), [(None, 2), (0, 1), (1, 1), (3, 3), (5, 5)])
def test_the_latest_rounds_stay_where_they_fit(rounds: int | None, kept: int) -> None:
    """More than the recent history that is aimed at; what does not fit does not stay."""
    work = Work(window=20_000, context={"min_rounds": rounds, "max_recent_tokens": 1_600})
    starts: list[int] = []
    for n in range(30):
        starts.append(len(work.record.entries))
        work.say(f"request {n}")
        work.call("a", ["word " * 500])
        work.call("b", ["word " * 500])
    work.build()
    made = work.planned("proactive")
    assert isinstance(made, Compaction), made
    assert made.checkpoint.first_kept == starts[-kept]

    work.context["min_rounds"] = 100
    fitting = work.planned("proactive")
    assert isinstance(fitting, Compaction), fitting
    assert fitting.checkpoint.first_kept in starts
    assert 0.45 < fitting.checkpoint.tokens_after / 19_000 <= 0.6, "as many as there is room for"


def test_a_rollback_to_the_checkpoint_below_and_a_new_compaction_on_it() -> None:
    work = Work(window=30_000)
    work.say(GOAL)
    for _ in range(3):
        play(work, ("many", 12))
        judged(work, work.build(), compacted(work))
    first, second, _ = work.serving
    work.serving = [first]
    back = work.build()
    assert back.summary.epoch_reason == "rollback"
    assert back.summary.view.checkpoint_id == first.checkpoint.compaction_id
    assert [at for at in shown(back) if at >= first.checkpoint.first_kept] == list(
        range(first.checkpoint.first_kept, len(work.record.entries))
    )
    again = compacted(work)
    judged(work, back, again)
    assert again.checkpoint.number == 2
    assert again.checkpoint.previous == again.record.provenance.previous == first.checkpoint.compaction_id
    assert again.checkpoint.compaction_id != second.checkpoint.compaction_id
    carried(first.record, again.record)


def compacted(work: Work) -> Compaction:
    """A compaction by hand."""
    made = work.planned("manual")
    assert isinstance(made, Compaction), made
    return made
