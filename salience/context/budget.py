"""The budget of a build: trigger and target differ, and sizes are judged as the provider counts (spec CMP-3, CTX-6)."""

from __future__ import annotations

from dataclasses import dataclass

from salience.model.session import COMPRESSION_THRESHOLD, ContextConfig
from salience.projection.gauge import Gauge

HYSTERESIS = 0.9
"""A target at or above the trigger would make every build a reduction; it is at most this share of the trigger."""
SMALLEST_USABLE = 256


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one bundle, in tokens of our own estimate, so that parts can be compared with them as they are counted.

    Attributes:
        window: the window, as configured or as learned from an overflow, in the provider's tokens.
        reserved: what of it is kept for the answer, in the provider's tokens.
        usable: what a prompt may have.
        threshold: beyond it the view is made smaller.
        target: what making it smaller aims at.
        recent: verbatim history that a compaction aims to keep.
        measured: the whole bundle by the provider's count, where that is larger than the estimate.
    """

    window: int
    reserved: int
    usable: int
    threshold: int
    target: int
    recent: int
    measured: int | None


def window_of(config: ContextConfig, gauge: Gauge) -> int:
    """The window in the provider's tokens: the configured one, or a smaller one that an overflow has taught."""
    window = min(config.context_window_tokens, gauge.limit_tokens or config.context_window_tokens)
    if gauge.usable_tokens is not None:
        window = min(window, gauge.usable_tokens + config.reserved_output_tokens)
    return window


def budget_of(config: ContextConfig, gauge: Gauge, *, total: int, epoch: int, window: int | None = None) -> Budget:
    """The budget of a bundle.

    Args:
        config: the session's.
        gauge: what the provider's answers have taught.
        total: estimated tokens of the bundle as it would be without any reduction.
        epoch: the bundle's epoch: a report of usage counts for its own view only.
        window: the window to compile for, where it is not the session's.
    """
    window = window or window_of(config, gauge)
    measured = gauge.measured(total, epoch)
    # A bundle that the provider counts as more than we do has less room by our count, in the same proportion.
    share = total / measured if measured > total else 1.0
    usable = int(max(SMALLEST_USABLE, window - config.reserved_output_tokens) * share)
    threshold = int(usable * (config.compression_threshold or COMPRESSION_THRESHOLD))
    recent = usable // 4 if config.max_recent_tokens is None else int(config.max_recent_tokens * share)
    return Budget(
        window=window,
        reserved=config.reserved_output_tokens,
        usable=usable,
        threshold=threshold,
        target=int(min(usable * config.reduce_to, threshold * HYSTERESIS)),
        recent=recent,
        measured=measured if measured > total else None,
    )
