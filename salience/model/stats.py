"""Stats count what the work costs; they never say what the work is (spec ONT-5)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from salience.model.frozen import Frozen

Risk = Literal["low", "medium", "high"]


class TokenStats(Frozen):
    """Tokens summed over the session; window, used and reserved are of the latest bundle."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    window: int = 0
    used: int = 0
    reserved: int = 0


class LatencyStats(Frozen):
    """Milliseconds summed over the session, measured by the activity that did the work."""

    context_build_ms: int = 0
    retrieval_ms: int = 0
    model_call_ms: int = 0
    tool_ms: int = 0
    end_to_end_ms: int = 0


class CompressionStats(Frozen):
    """What compaction and reduction saved."""

    count: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    ratio: float | None = None


class ToolStats(Frozen):
    """Tool calls by outcome."""

    calls: int = 0
    failed: int = 0
    approvals_asked: int = 0
    approvals_denied: int = 0
    outcome_unknown: int = 0


class QualityStats(Frozen):
    """Judgements on the result; None until something has judged."""

    verifier_passed: bool | None = None
    context_missing_risk: Risk | None = None
    hallucination_risk: Risk | None = None


class Stats(Frozen):
    """All figures of one session."""

    session_id: str
    events: int = 0
    turns: int = 0
    model_calls: int = 0
    model_failures: int = 0
    tokens: TokenStats = Field(default_factory=lambda: TokenStats())
    latency: LatencyStats = Field(default_factory=lambda: LatencyStats())
    compression: CompressionStats = Field(default_factory=lambda: CompressionStats())
    tools: ToolStats = Field(default_factory=lambda: ToolStats())
    cost_usd: float | None = None
    quality: QualityStats = Field(default_factory=lambda: QualityStats())
