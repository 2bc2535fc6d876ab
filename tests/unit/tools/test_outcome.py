"""An outcome is small whatever the output was, and its texts can be stored anywhere (EVT-6)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.tools.outcome import MAX_OUTCOME_BYTES, clip, settled
from activities.tools.result import Result
from salience.model.canonical import canonical_json
from salience.model.tool import FileEffect
from salience.store.blobs import FileBlobs


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "blobs")


async def test_short_text_is_its_own_evidence(blobs: FileBlobs) -> None:
    outcome = await settled("c1", "t", Result(b"hello"), blobs, max_bytes=512, duration_ms=1)
    assert outcome.full_ref is None
    assert outcome.output_ref is not None
    assert await blobs.get(outcome.output_ref) == b"hello"
    assert (outcome.preview, outcome.output_bytes, outcome.truncated) == ("hello", 5, False)


async def test_long_text_keeps_head_and_tail_and_says_what_is_missing(blobs: FileBlobs) -> None:
    whole = b"".join(b"line %d\n" % n for n in range(10_000))
    outcome = await settled("c1", "t", Result(whole, trailer="[exit code 1]\n"), blobs, max_bytes=2_000, duration_ms=1)
    assert outcome.output_ref is not None
    assert outcome.full_ref is not None
    seen = await blobs.get(outcome.output_ref)
    assert len(seen) <= 2_000
    assert seen.startswith(b"line 0\n")
    assert seen.endswith(b"line 9999\n[exit code 1]\n")
    assert f"blob:{outcome.full_ref}".encode() in seen
    assert await blobs.get(outcome.full_ref) == whole
    assert outcome.truncated
    assert len(outcome.preview.encode()) <= 200


async def test_bad_bytes_are_mended_and_kept(blobs: FileBlobs) -> None:
    bad = b"a\x00b\xff\xed\xa0\x80"
    outcome = await settled("c1", "t", Result(bad), blobs, max_bytes=512, duration_ms=1)
    assert outcome.output_ref is not None
    assert outcome.full_ref is not None
    assert "\x00" not in (await blobs.get(outcome.output_ref)).decode()
    assert await blobs.get(outcome.full_ref) == bad
    assert not outcome.truncated


@pytest.mark.parametrize(("count", "length"), [(5, 10), (40, 10), (41, 10), (40, 300), (2_000, 200)])
async def test_effects_are_inline_while_they_fit(blobs: FileBlobs, count: int, length: int) -> None:
    effects = tuple(
        FileEffect(op="created", path=f"{n:06}" + "p" * length, after_hash="f" * 64, size_bytes=1) for n in range(count)
    )
    outcome = await settled("c1", "t", Result(b"", effects=effects), blobs, max_bytes=512, duration_ms=1)
    assert len(canonical_json(outcome.plain())) <= MAX_OUTCOME_BYTES
    assert outcome.effects_count == (0 if outcome.effects else count)
    assert bool(outcome.effects) != bool(outcome.effects_ref)
    if outcome.effects_ref:
        assert await blobs.get(outcome.effects_ref) == canonical_json([effect.plain() for effect in effects])
    assert bool(outcome.effects) == (count <= 40 and length == 10)


@given(st.text(max_size=600).map(str.encode), st.integers(min_value=200, max_value=400))
def test_clip_stays_within_its_budget_and_counts_exactly(data: bytes, budget: int) -> None:
    if len(data) <= budget:
        return
    text = clip(data, budget, "f" * 64)
    head, marker, tail = text.partition("\n[… ")[0], text.partition("\n[… ")[2], text.rpartition(" …]\n")[2]
    assert len(text.encode()) <= budget
    left_out = int(marker.split()[0])
    assert len(head.encode()) + left_out + len(tail.encode()) == len(data)
