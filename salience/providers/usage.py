"""Token counts in one meaning: the input is the total, cached ⊂ input, reasoning ⊂ output; doubtful counts are unknown.

Providers count beside or inside each other, report 0 for "did not count", and sometimes more cached than read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from salience.model.message import Usage

MAX_COUNT = 100_000_000
"""A token count above this is no count."""


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Tokens as a provider reports them, in canonical form; what it did not or cannot have counted is None."""
    total_in = _first(usage, "prompt_tokens")
    details = _inner(usage, "prompt_tokens_details", "input_tokens_details")
    cached = _first(details, "cached_tokens") or _first(
        usage, "cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens"
    )
    if total_in is None and (beside := _first(usage, "input_tokens")) is not None:
        # Where the field is named so, what was read from or written to the cache may stand beside it.
        read = _first(usage, "cache_read_input_tokens") or 0
        total_in = beside + read + (_first(usage, "cache_creation_input_tokens") or 0)
    output = _first(usage, "completion_tokens", "output_tokens")
    reasoning = _first(_inner(usage, "completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
    reasoning = reasoning or _first(usage, "reasoning_tokens")
    if reasoning and output and total_in and _first(usage, "total_tokens") == total_in + output + reasoning:
        output += reasoning
    return Usage(
        input_tokens=total_in,
        output_tokens=output,
        cached_tokens=cached if cached and total_in and cached <= total_in else None,
        reasoning_tokens=reasoning if reasoning and output and reasoning <= output else None,
    )


def merged(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The usage of a stream from the reports in its chunks: parts beside each other, or sums that grow."""
    whole: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if isinstance(value, Mapping):
                whole[name] = merged((_inner(whole, name), cast("Mapping[str, Any]", value)))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                whole[name] = max(value, whole.get(name) or 0)
    return whole


def _inner(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        if isinstance(inner := usage.get(name), Mapping):
            return cast("Mapping[str, Any]", inner)
    return {}


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    """The first plausible count; 0 means that the provider did not say."""
    for name in names:
        value = usage.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT:
            return value
    return None
