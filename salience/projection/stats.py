"""Stats are folded from the figures that events carry; nothing here decides anything (spec ONT-5)."""

from __future__ import annotations

from datetime import datetime

from salience.model import event as ev
from salience.model.compaction import Checkpoint
from salience.model.stats import CompressionStats, LatencyStats, Stats, TokenStats, ToolStats


def fold_stats(stats: Stats, event: ev.Event, *, started_at: str | None = None) -> Stats:
    """The stats after one more event.

    Args:
        stats: the stats before it.
        event: the next event of the session.
        started_at: when the running or last run began (RFC 3339), for the end-to-end latency.
    """
    change: dict[str, object] = {"events": stats.events + 1}
    match event.payload:
        case ev.ContextBuilt(bundle=bundle, duration_ms=duration):
            change["turns"] = max(stats.turns, bundle.turn)
            change["tokens"] = _tokens(
                stats.tokens, window=bundle.tokens.window, used=bundle.tokens.total, reserved=bundle.tokens.reserved
            )
            change["latency"] = _latency(stats.latency, context_build_ms=duration)
        case ev.ModelResponseReceived(usage=usage, duration_ms=duration):
            change["model_calls"] = stats.model_calls + 1
            change["tokens"] = stats.tokens.model_copy(
                update={
                    "input": stats.tokens.input + (usage.input_tokens or 0),
                    "output": stats.tokens.output + (usage.output_tokens or 0),
                    "cached": stats.tokens.cached + (usage.cached_tokens or 0),
                    "reasoning": stats.tokens.reasoning + (usage.reasoning_tokens or 0),
                }
            )
            change["latency"] = _latency(stats.latency, model_call_ms=duration)
        case ev.ModelRequestFailed():
            change["model_calls"] = stats.model_calls + 1
            change["model_failures"] = stats.model_failures + 1
        case ev.ToolCallFinished(duration_ms=duration):
            change["tools"] = _tools(stats.tools)
            change["latency"] = _latency(stats.latency, tool_ms=duration)
        case ev.ToolCallFailed(kind=kind, duration_ms=duration):
            change["tools"] = _tools(stats.tools, failed=1, outcome_unknown=int(kind == "outcome_unknown"))
            change["latency"] = _latency(stats.latency, tool_ms=duration)
        case ev.CompactionCompleted(checkpoint=checkpoint):
            change["compression"] = _compression(stats.compression, checkpoint)
        case ev.SessionEnded():
            if started_at is not None:
                change["latency"] = _latency(stats.latency, end_to_end_ms=_between_ms(started_at, event.timestamp))
        case _:
            pass
    return stats.model_copy(update=change)


def _tokens(tokens: TokenStats, *, window: int, used: int, reserved: int) -> TokenStats:
    return tokens.model_copy(update={"window": window, "used": used, "reserved": reserved})


def _compression(compression: CompressionStats, checkpoint: Checkpoint) -> CompressionStats:
    before = compression.tokens_before + checkpoint.tokens_before
    after = compression.tokens_after + checkpoint.tokens_after
    ratio = round(after / before, 4) if before else None
    return CompressionStats(count=compression.count + 1, tokens_before=before, tokens_after=after, ratio=ratio)


def _latency(latency: LatencyStats, **added: int) -> LatencyStats:
    return latency.model_copy(update={name: getattr(latency, name) + value for name, value in added.items()})


def _tools(tools: ToolStats, *, failed: int = 0, outcome_unknown: int = 0) -> ToolStats:
    return tools.model_copy(
        update={
            "calls": tools.calls + 1,
            "failed": tools.failed + failed,
            "outcome_unknown": tools.outcome_unknown + outcome_unknown,
        }
    )


def _between_ms(start: str, end: str) -> int:
    span = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    return max(0, round(span.total_seconds() * 1000))
