"""What the providers' answers teach of sizes is folded from events, so that a rebuild decides as the first build did (CTX-5).

Sizes come from two sources: our own estimate, and what the provider reports of a prompt it took. A report holds for the view it
was made of and what is added to it, never for another one.
"""

from __future__ import annotations

import math

from pydantic import Field

from salience.model import event as ev
from salience.model.bundle import BundleSummary
from salience.model.frozen import Frozen

UNSAID_SHRINK = 0.8
"""An overflow that names no numbers: the window is taken to be this share of what was sent."""
QUIET_MESSAGES = 16
"""Messages that come before a compaction is tried again after one that was refused, or after a rollback."""
MAX_CALIBRATION = 4.0


class Gauge(Frozen):
    """The state of the fold.

    Attributes:
        limit_tokens: the model's window as learned from an overflow; None: nothing was learned.
        usable_tokens: the largest prompt to try, where an overflow named no limit, or none that the prompt alone exceeds.
        calibration: factor on estimates, at least 1, from an overflow that the estimate had not seen coming.
        bundle_id: the bundle that was built last.
        epoch: its epoch.
        estimate: its estimated tokens.
        usage_epoch: epoch of the view that the provider's last report is of; 0: there is none.
        usage_estimate: what that view was estimated at.
        usage_tokens: what the provider counted.
        refused_until: transcript length below which no compaction is asked for, since one was refused.
        settled_until: the same after a checkpoint or a rollback, where the view still fits.
    """

    limit_tokens: int | None = None
    usable_tokens: int | None = None
    calibration: float = 1.0
    bundle_id: str = ""
    epoch: int = 0
    estimate: int = 0
    usage_epoch: int = 0
    usage_estimate: int = 0
    usage_tokens: int = 0
    refused_until: int = Field(default=0)
    settled_until: int = Field(default=0)

    def measured(self, estimate: int, epoch: int) -> int:
        """The larger of the estimate and what the provider counted of this view plus what is new (spec CTX-6).

        Args:
            estimate: tokens of the whole bundle by our own count.
            epoch: the bundle's epoch.
        """
        return max(math.ceil(estimate * self.calibration), self.reported(estimate, epoch))

    def reported(self, estimate: int, epoch: int) -> int:
        """What the provider counted of this view, and what is new; 0 where it reported nothing of this epoch."""
        if self.usage_epoch != epoch or not self.usage_tokens:
            return 0
        return self.usage_tokens + estimate - self.usage_estimate


def fold_gauge(gauge: Gauge, event: ev.Event, messages: int) -> Gauge:
    """The gauge after one more event.

    Args:
        gauge: the gauge before it.
        event: the next event of the session.
        messages: length of the transcript at the event.
    """
    match event.payload:
        case ev.ContextBuilt(bundle=bundle):
            return _built(gauge, bundle)
        case ev.ModelResponseReceived(bundle_id=bundle_id, usage=usage):
            if bundle_id != gauge.bundle_id or not usage.input_tokens:
                return gauge
            return gauge.model_copy(
                update={
                    "usage_epoch": gauge.epoch,
                    "usage_estimate": gauge.estimate,
                    "usage_tokens": usage.input_tokens,
                }
            )
        case ev.ModelRequestFailed(kind="context_overflow") as failed:
            return _overflowed(gauge, failed) if failed.bundle_id == gauge.bundle_id else gauge
        case ev.CompactionCompleted() | ev.CompactionRolledBack():
            return gauge.model_copy(update={"settled_until": messages + QUIET_MESSAGES, "refused_until": 0})
        case ev.CompactionFailed(trigger=trigger):
            if trigger == "manual":
                return gauge
            return gauge.model_copy(update={"refused_until": messages + QUIET_MESSAGES})
        case ev.SessionResumed(after="end", model_settings=settings, context_config=context):
            if settings is not None or context is not None:
                # What was learned is true of the model it was learned from, and of the window it was told to have.
                return Gauge(bundle_id=gauge.bundle_id, epoch=gauge.epoch, estimate=gauge.estimate)
            # A limit that the provider named stays; a guess is worth another try.
            return gauge.model_copy(update={"usable_tokens": None})
        case _:
            return gauge


def _built(gauge: Gauge, bundle: BundleSummary) -> Gauge:
    return gauge.model_copy(
        update={"bundle_id": bundle.bundle_id, "epoch": bundle.epoch, "estimate": bundle.tokens.total}
    )


def _overflowed(gauge: Gauge, failed: ev.ModelRequestFailed) -> Gauge:
    """A prompt that we took to fit did not: either the window is smaller than configured, or we count too low."""
    change: dict[str, object] = {}
    limit, prompt = failed.limit_tokens, failed.prompt_tokens
    if limit is not None:
        change["limit_tokens"] = min(limit, gauge.limit_tokens or limit)
    # Without a number for the prompt, it is over the limit, and what was reported of this view before says how we count.
    counted = (
        prompt
        if prompt is not None
        else max(limit + 1 if limit is not None else 0, gauge.reported(gauge.estimate, gauge.epoch))
    )
    calibration = gauge.calibration
    if counted > gauge.estimate > 0:
        calibration = min(MAX_CALIBRATION, max(calibration, counted / gauge.estimate))
        change["calibration"] = calibration
    if limit is None or (prompt is not None and prompt <= limit):
        # No limit, or one that only the prompt with its answer exceeds, says too little of how much smaller it must be.
        smaller = int(gauge.estimate * calibration * UNSAID_SHRINK)
        change["usable_tokens"] = min(smaller, gauge.usable_tokens or smaller)
    return gauge.model_copy(update=change)
