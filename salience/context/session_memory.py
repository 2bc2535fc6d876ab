"""Session memory is bounded: however often a session ended and went on, its digest of earlier runs keeps one size."""

from __future__ import annotations

from collections.abc import Sequence

from salience.model.environment import EarlierRun
from salience.model.text import preview

MEMORY_LABEL = "session memory: digest of earlier runs, made by the runtime, not the user's words"
KEPT_RUNS = 10
WORDS_BYTES = 300
"""Bytes kept of the first prompt and of the last words of a run."""


def kept_runs(runs: Sequence[EarlierRun]) -> tuple[EarlierRun, ...]:
    """The runs the digest tells of: the latest, oldest first."""
    return tuple(runs[-KEPT_RUNS:])


def session_memory(runs: Sequence[EarlierRun]) -> str:
    """The digest of earlier runs, at most about 8 KiB, or nothing when there is none."""
    if not runs:
        return ""
    kept = kept_runs(runs)
    lines = [f"This session had {len(runs)} earlier run{'s' if len(runs) > 1 else ''}; the latest {len(kept)}:"]
    for run in kept:
        lines.append(f"- {run.ended_at}: ended as {run.reason} after {run.turns} turns")
        if run.first_prompt:
            lines.append(f"  first asked: {_one_line(run.first_prompt)}")
        if run.last_words:
            lines.append(f"  last said: {_one_line(run.last_words)}")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return preview(" ".join(text.split()), WORDS_BYTES)
