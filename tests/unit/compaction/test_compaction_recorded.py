"""Recorded runs of a coding agent fit small windows after a compaction, with what matters in sight (spec CMP-4, CMP-6)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from salience.compaction import Compaction
from salience.context import Built
from salience.context.groups import groups_of
from salience.context.tokens import tokenizer_for
from salience.model.canonical import canonical_json
from tests.unit.compaction.compacted_session import Work, shown, summary_of, told

RUNS = Path(__file__).parents[4] / "shared" / "data" / "swe-agent"
OPEN_FILE = re.compile(r"\(Open file: ([^\s)]+)")
FAILED = re.compile(r"Traceback|SyntaxError|Your proposed edit has introduced")

pytestmark = pytest.mark.skipif(
    not RUNS.is_dir(), reason=f"recorded runs are not at {RUNS}; put .traj files of SWE-agent there"
)


def rounds() -> Iterator[tuple[str, list[tuple[str, str, str, bool]]]]:
    """Each run as the user's words and its exchanges: what was said, what came back, the file written, whether it failed."""
    for path in sorted(RUNS.glob("*.traj")):
        said: str | None = None
        exchanges: list[tuple[str, str, str, bool]] = []
        action = text = ""
        for message in json.loads(path.read_text())["history"]:
            content = _text(message["content"])
            if message["role"] == "system" or message.get("is_demo"):
                continue
            if message["role"] == "assistant":
                action, text = message.get("action") or "", content
            elif said is None:
                said = content
            elif text:
                opened = OPEN_FILE.findall(content)
                wrote = opened[-1] if opened and action.startswith(("edit", "create", "insert")) else ""
                exchanges.append((text, content, wrote, bool(FAILED.search(content))))
                text = ""
        if said and exchanges:
            yield said, exchanges


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def compacted_on_the_way(window: int, reserved: int) -> tuple[Work, list[Compaction], Built]:
    """All runs three times over as one session, compacted whenever a build asks for it, as its loop does."""
    work = Work(window=window, reserved=reserved)
    most = work.inputs().config.context_config.tool_result_bytes
    made: list[Compaction] = []
    built: Built | None = None
    for said, exchanges in [*rounds()] * 3:
        work.say(said)
        for text, result, wrote, failed in exchanges:
            cut = result.encode()[:most].decode("utf-8", "ignore")
            work.call(text, [cut], failed=int(failed), wrote=[wrote] if wrote else [])
            built = work.build()
            if built.summary.decision == "threshold_exceeded":
                compaction = work.planned("proactive")
                assert isinstance(compaction, Compaction), compaction
                work.take(compaction)
                made.append(compaction)
                built = work.build()
                assert built.summary.tokens.total == compaction.checkpoint.tokens_after
            assert built.summary.fits, built.summary.problem
            paired(built)
            request = next(e for e in work.record.entries if e.message_id == work.record.current_request)
            assert told(built, request.position) == said
    assert built is not None
    return work, made, built


def summary_tokens(compaction: Compaction) -> int:
    """Tokens of what a model sees of a record."""
    return tokenizer_for("script:x").lines(compaction.text)


def paired(built: Built) -> None:
    """Every result in a bundle stands behind the response that asked for it, with all its siblings."""
    entries = [part.entry for part in built.prefix if part.entry is not None]
    for group in groups_of(entries):
        assert entries[group.first].kind in ("prompt", "response")


@pytest.mark.parametrize(("window", "reserved"), [(8_000, 1_000), (16_000, 2_000), (32_000, 4_000)])
def test_recorded_runs_fit_and_keep_what_matters(window: int, reserved: int) -> None:
    work, made, built = compacted_on_the_way(window, reserved)
    assert len(made) >= 1
    for compaction in made:
        assert compaction.checkpoint.tokens_after <= 0.8 * (window - reserved), "below the threshold again"
        assert summary_tokens(compaction) > 150, "the summary says something"
    last = made[-1]
    modified = {file.path for file in last.record.files.modified}
    upto = last.checkpoint.first_kept
    failed = {e.tool_call_id for e in work.record.entries[:upto] if e.kind == "result" and e.is_error}
    assert failed
    assert failed == {error.tool_call_id for error in last.record.errors}
    assert modified
    text, _ = summary_of(built)
    assert any(path in text for path in modified)
    assert f"Files changed ({len(modified)}):" in text
    assert "Calls that failed" in text
    # Each stands for more than one exchange: the next one does not come at the next build.
    ends = [compaction.checkpoint.first_kept for compaction in made]
    assert all(later - earlier >= 4 for earlier, later in pairwise(ends))
    assert min(shown(built)) >= min(last.checkpoint.first_kept, last.checkpoint.prompts_from)
    assert len(canonical_json(last.record.plain())) < 400_000
