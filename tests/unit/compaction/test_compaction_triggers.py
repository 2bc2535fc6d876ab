"""When a view is made smaller, by the estimate, the provider's report and what an overflow taught (spec CMP-3, CTX-6)."""

from __future__ import annotations

from typing import Any

import pytest

from salience.compaction import Compaction
from salience.context.budget import SMALLEST_USABLE, budget_of
from salience.model import event as ev
from salience.model.bundle import BundleSummary, BundleTokens, View
from salience.model.compaction import Checkpoint, CompactionChecks
from salience.model.message import Usage
from salience.model.session import ContextConfig, ModelSettings
from salience.projection.gauge import MAX_CALIBRATION, QUIET_MESSAGES, UNSAID_SHRINK, Gauge, fold_gauge
from tests.unit.compaction.compacted_session import LONG, Work

POINT = Checkpoint(
    compaction_id="c1-a", number=1, record_ref="a" * 64, summary_ref="b" * 64, from_message_id="u0", to_message_id="r1",
    first_kept=2, first_kept_message_id="m2", prompts_from=0, messages=1, tokens_before=9, tokens_after=5,
)  # fmt: skip


def event(payload: ev.Payload) -> ev.Event:
    """An event with a payload, all else made up."""
    return ev.Event.model_construct(
        event_id="run:1:x", session_id="s", run_id="run", seq=1, type=type(payload).__name__, payload=payload
    )


def built(turn: int = 1, *, epoch: int = 1, total: int = 1_000) -> ev.ContextBuilt:
    """A context of some size."""
    bundle = BundleSummary(
        bundle_hash="d" * 64, turn=turn, call_index=1, epoch=epoch, epoch_reason="start",
        tokens=BundleTokens(total=total, window=8_000, reserved=1_000, by_section={}),
        view=View(projection_mode="full_history", source_message_count=1, history_message_count=1, system_message_count=1),
        environment_ref="e", builder_version="b", tokenizer="t",
    )  # fmt: skip
    return ev.ContextBuilt(bundle=bundle, source=ev.Anchor(seq=1, head="h"), transition="t")


BUNDLE = built().bundle.bundle_id
SHOWN = Gauge(bundle_id=BUNDLE, epoch=1, estimate=1_000)


def answered(tokens: int | None, bundle: str = BUNDLE) -> ev.ModelResponseReceived:
    """An answer, with what the provider says the prompt had."""
    return ev.ModelResponseReceived(
        turn=1, bundle_id=bundle, response_ref="r", stop_reason="end_turn", usage=Usage(input_tokens=tokens), model="m"
    )


def failed(
    prompt: int | None, limit: int | None, *, kind: Any = "context_overflow", bundle: str = BUNDLE
) -> ev.Payload:
    """A call without an answer."""
    return ev.ModelRequestFailed(
        turn=1, bundle_id=bundle, kind=kind, message="m", prompt_tokens=prompt, limit_tokens=limit
    )


def resumed(model: str | None, after: Any = "end") -> ev.SessionResumed:
    """A session that goes on, perhaps with another model."""
    return ev.SessionResumed(after=after, model_settings=ModelSettings(model=model) if model else None)


LEARNED = {"limit_tokens": 5_000, "usable_tokens": 800, "calibration": 2.0, "usage_epoch": 1, "usage_tokens": 7}


@pytest.mark.parametrize(
    ("before", "payload", "change"),
    [
        (Gauge(), built(), {"bundle_id": BUNDLE, "epoch": 1, "estimate": 1_000}),
        (SHOWN, answered(1_200), {"usage_epoch": 1, "usage_estimate": 1_000, "usage_tokens": 1_200}),
        (SHOWN, answered(None), {}),
        (SHOWN, answered(0), {}),
        (SHOWN, answered(1_200, "another"), {}),
        # An overflow with both sizes teaches the limit, and how much too low we count.
        (SHOWN, failed(1_500, 1_200), {"limit_tokens": 1_200, "calibration": 1.5}),
        (SHOWN, failed(900, 800), {"limit_tokens": 800}),
        (SHOWN, failed(None, 800), {"limit_tokens": 800}),
        (SHOWN, failed(None, 1_499), {"limit_tokens": 1_499, "calibration": 1.5}),
        (SHOWN, failed(10**6, 10**5), {"limit_tokens": 10**5, "calibration": MAX_CALIBRATION}),
        (SHOWN.model_copy(update={"limit_tokens": 700}), failed(900, 800), {}),
        (SHOWN.model_copy(update={"calibration": 2.0}), failed(1_500, 1_200), {"limit_tokens": 1_200}),
        # Without a limit the next prompt is smaller than the one that was sent, as the provider counts both.
        (SHOWN, failed(None, None), {"usable_tokens": int(1_000 * UNSAID_SHRINK)}),
        (
            SHOWN.model_copy(update={"calibration": 2.0}),
            failed(None, None),
            {"usable_tokens": int(2_000 * UNSAID_SHRINK)},
        ),
        (SHOWN, failed(2_000, None), {"calibration": 2.0, "usable_tokens": int(2_000 * UNSAID_SHRINK)}),
        (SHOWN.model_copy(update={"usable_tokens": 500}), failed(None, None), {}),
        # What was reported of the same view says how we count, where the overflow does not.
        (
            SHOWN.model_copy(update={"usage_epoch": 1, "usage_estimate": 900, "usage_tokens": 2_400}),
            failed(None, None),
            {"calibration": 2.5, "usable_tokens": 2_000},
        ),
        (
            SHOWN.model_copy(update={"usage_epoch": 2, "usage_estimate": 900, "usage_tokens": 2_400}),
            failed(None, None),
            {"usable_tokens": 800},
        ),
        # A prompt that is under the limit by itself is too long with its answer; the limit alone would change nothing.
        (SHOWN, failed(1_100, 1_200), {"limit_tokens": 1_200, "calibration": 1.1, "usable_tokens": 880}),
        (SHOWN, failed(900, 800, bundle="another"), {}),
        (SHOWN, failed(900, 800, kind="rate_limit"), {}),
        (SHOWN, failed(900, 800, kind="lower_output_needed"), {}),
        # After a checkpoint, a rollback or a refusal it is quiet for a while; a refusal by hand says nothing.
        (
            SHOWN.model_copy(update={"refused_until": 99}),
            ev.CompactionCompleted(trigger="manual", checkpoint=POINT, policy="p", checks=CompactionChecks()),
            {"settled_until": 40 + QUIET_MESSAGES, "refused_until": 0},
        ),
        (
            SHOWN,
            ev.CompactionRolledBack(compaction_id="c", tokens_before=1, tokens_after=2),
            {"settled_until": 40 + QUIET_MESSAGES},
        ),
        (
            SHOWN,
            ev.CompactionFailed(trigger="proactive", kind="does_not_fit", message="m"),
            {"refused_until": 40 + QUIET_MESSAGES},
        ),
        (
            SHOWN,
            ev.CompactionFailed(trigger="reactive", kind="activity_failed", message="m"),
            {"refused_until": 40 + QUIET_MESSAGES},
        ),
        (SHOWN, ev.CompactionFailed(trigger="manual", kind="does_not_fit", message="m"), {}),
        # What was learned is true of the model it was learned from; a guess is worth another try.
        (
            SHOWN.model_copy(update={**LEARNED, "refused_until": 9}),
            resumed("openai/other"),
            {**{name: Gauge.model_fields[name].default for name in LEARNED}, "refused_until": 0},
        ),
        (SHOWN.model_copy(update=LEARNED), resumed(None), {"usable_tokens": None}),
        (SHOWN.model_copy(update=LEARNED), resumed(None, "pause"), {}),
        (SHOWN, ev.SessionPaused(), {}),
    ],
)
def test_what_each_event_teaches(before: Gauge, payload: ev.Payload, change: dict[str, Any]) -> None:
    assert fold_gauge(before, event(payload), 40) == before.model_copy(update=change)


def test_a_report_counts_for_the_view_it_is_of_and_what_is_new() -> None:
    gauge = fold_gauge(SHOWN, event(answered(1_500)), 1)
    assert gauge.measured(1_000, 1) == 1_500
    assert gauge.measured(1_300, 1) == 1_800
    assert gauge.measured(1_000, 2) == 1_000
    assert gauge.model_copy(update={"calibration": 2.0}).measured(1_000, 1) == 2_000
    assert gauge.model_copy(update={"usage_tokens": 500}).measured(1_000, 1) == 1_000


CONFIG = ContextConfig(context_window_tokens=10_000, reserved_output_tokens=2_000)


@pytest.mark.parametrize(
    ("gauge", "given", "usable", "threshold", "target"),
    [
        (Gauge(), {}, 8_000, 6_400, 4_800),
        (Gauge(), {"window": 6_000}, 4_000, 3_200, 2_400),
        (Gauge(), {"window": 1_000}, SMALLEST_USABLE, 204, 153),
        (Gauge(limit_tokens=6_000), {}, 4_000, 3_200, 2_400),
        (Gauge(limit_tokens=60_000), {}, 8_000, 6_400, 4_800),
        (Gauge(usable_tokens=3_000), {}, 3_000, 2_400, 1_800),
        (Gauge(calibration=2.0), {}, 4_000, 3_200, 2_400),
        (Gauge(calibration=2.0, usable_tokens=3_000), {}, 1_500, 1_200, 900),
        (Gauge(usage_epoch=1, usage_estimate=1_000, usage_tokens=2_000), {}, 4_000, 3_200, 2_400),
        (Gauge(usage_epoch=2, usage_estimate=1_000, usage_tokens=2_000), {}, 8_000, 6_400, 4_800),
    ],
)
def test_the_budget(gauge: Gauge, given: dict[str, Any], usable: int, threshold: int, target: int) -> None:
    budget = budget_of(CONFIG, gauge, total=1_000, epoch=1, **given)
    assert (budget.usable, budget.threshold, budget.target) == (usable, threshold, target)
    assert budget.target < budget.threshold <= budget.usable


def session(calls: int, *, window: int = 8_000, result: str = LONG, **fields: Any) -> Work:
    """One request and so many calls."""
    work = Work(window=window, **fields)
    work.say("mend the build")
    for n in range(calls):
        work.call(f"step {n}", [result])
    return work


SMALL = "short " * 20
QUIET = 2**40


@pytest.mark.parametrize(
    ("work", "decision", "fits"),
    [
        (session(2), "below_threshold", True),
        # Between the threshold and the window.
        (session(40, window=5_500, result=SMALL), "threshold_exceeded", True),
        (session(40, window=5_500, result=SMALL, gauge=Gauge(settled_until=QUIET)), "cooling_down", True),
        (session(40, window=5_500, result=SMALL, gauge=Gauge(refused_until=QUIET)), "cooling_down", True),
        # A request alone, over the threshold: nothing to compact, nothing to reduce.
        (session(0, window=1_300, reserved=300), "messages_not_enough", True),
        # Beyond the window a checkpoint that was just made does not wait, a refusal does.
        (session(80, result=SMALL), "threshold_exceeded", False),
        (session(80, result=SMALL, gauge=Gauge(settled_until=QUIET)), "threshold_exceeded", False),
        (session(80, result=SMALL, gauge=Gauge(refused_until=QUIET)), "reduced", True),
        (session(1, window=3_000, result="word " * 4_000), "threshold_exceeded", False),
        (session(1, window=3_000, result="word " * 4_000, gauge=Gauge(refused_until=QUIET)), "unfit", False),
        # Old results that are large enough are masked, and that is enough.
        (session(9, window=9_000, result=LONG * 2), "reduced", True),
    ],
)
def test_what_a_build_decides(work: Work, decision: str, fits: bool) -> None:
    made = work.build().summary
    assert (made.decision, made.fits) == (decision, fits), (made.tokens, made.problem)
    assert (made.problem is None) == fits


def test_the_providers_count_of_the_same_epoch_triggers_and_of_another_does_not() -> None:
    work = session(20, window=5_000, result=SMALL)
    first = work.build().summary
    assert first.decision == "below_threshold"
    work.gauge = fold_gauge(fold_gauge(Gauge(), event(built(total=first.tokens.total)), 1), event(answered(3_900)), 1)
    work.call("one more", [SMALL])
    second = work.build().summary
    assert second.decision == "threshold_exceeded"
    assert second.tokens.measured == 3_900 + second.tokens.total - first.tokens.total
    work.epoch = work.epoch.model_copy(update={"number": 7}) if work.epoch else None
    assert work.build().summary.decision == "below_threshold"


@pytest.mark.parametrize(
    ("prompt", "limit"), [(None, None), (6_000, None), (6_000, 5_000), (None, 3_000), (2_600, 2_700)]
)
def test_after_an_overflow_the_compacted_view_is_smaller_as_the_provider_counts(
    prompt: int | None, limit: int | None
) -> None:
    """Whatever the provider said, the next prompt has at most four fifths of the one that was too long, or fits the limit."""
    work = session(20, window=64_000, result=SMALL)
    sent = work.build().summary
    gauge = fold_gauge(
        Gauge(), event(ev.ContextBuilt(bundle=sent, source=ev.Anchor(seq=1, head="h"), transition="t")), 1
    )
    work.gauge = fold_gauge(gauge, event(failed(prompt, limit, bundle=sent.bundle_id)), len(work.record.entries))
    made = work.planned("reactive")
    assert isinstance(made, Compaction), made
    work.take(made)
    after = work.build().summary
    assert after.fits
    assert after.tokens.total < sent.tokens.total
    truly = after.tokens.total * work.gauge.calibration
    assert truly <= (
        limit - work.reserved if limit and (prompt or limit + 1) > limit else 0.8 * (prompt or sent.tokens.total)
    )


def test_compacting_by_hand() -> None:
    """A short session is compacted too, if that makes it smaller; for another window than the session's it fits that one."""
    two = session(2, window=64_000)
    made = two.planned("manual")
    assert isinstance(made, Compaction), made
    assert two.planned("manual", focus="numbers") != made
    tiny = session(2, window=64_000, result="ok")
    refused = tiny.planned("manual")
    assert not isinstance(refused, Compaction)
    assert refused.kind == "frees_too_little"
    assert "have to be freed" in refused.message
    one = session(1, window=64_000)
    nothing = one.planned("manual")
    assert not isinstance(nothing, Compaction)
    assert nothing.kind == "nothing_to_summarise"

    long = session(60, window=64_000)
    for window in (6_000, 16_000, 200_000):
        fitted = long.planned("manual", window=window)
        assert isinstance(fitted, Compaction), fitted
        assert fitted.checkpoint.tokens_after <= window - long.reserved
    # For a larger window than the view about half of the history stays.
    assert fitted.checkpoint.first_kept <= 70


def test_the_focus_stands_in_record_and_text() -> None:
    made = session(40, window=64_000).planned("manual", focus="the numbers of the third table")
    assert isinstance(made, Compaction)
    assert made.record.focus == "the numbers of the third table"
    assert "The user asked to pay attention to:\n- the numbers of the third table" in made.text
