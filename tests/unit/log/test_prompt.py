"""Whatever a client sends becomes one prompt that can be stored, and its original is kept (spec LOOP-2c, design §8)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.log.prompt import is_empty, keep, parse_prompt
from salience.model.calls import SPILL_BYTES, Prompt
from salience.model.canonical import canonical_json, digest

ANY_TEXT = st.text(alphabet=st.characters(min_codepoint=0, max_codepoint=0x10FFFF))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(ANY_JSON)
def test_any_json_becomes_a_storable_prompt(raw: Any) -> None:
    kept = keep(parse_prompt(raw))
    canonical_json(kept.prompt.plain())
    assert "\0" not in kept.prompt.text
    for ref, data in kept.blobs.items():
        assert digest(data) == ref


@given(ANY_TEXT)
def test_a_string_and_an_object_mean_the_same(words: str) -> None:
    one, other = keep(parse_prompt(words)), keep(parse_prompt({"text": words, "message_id": "m"}))
    assert (one.prompt.text, one.blobs) == (other.prompt.text, other.blobs)
    assert other.prompt.message_id == "m"


@given(ANY_TEXT)
def test_mending_is_done_once(words: str) -> None:
    once = keep(parse_prompt(words))
    assert keep(once.prompt).prompt == once.prompt


def test_the_original_of_a_mended_text_is_kept() -> None:
    kept = keep(Prompt.model_construct(text="a\0b\ud800"))
    assert kept.prompt.text == "a\ufffdb\ufffd"
    assert kept.blobs[kept.prompt.original_ref or ""] == b"a\0b\xed\xa0\x80"


def test_a_surrogate_pair_is_its_character() -> None:
    assert keep(parse_prompt(json.loads('"\\ud83d\\ude00"'))).prompt.text == "😀"
    assert keep(Prompt.model_construct(text="\ud83d\ude00")).prompt.text == "😀"


@pytest.mark.parametrize(("size", "spilled"), [(SPILL_BYTES, False), (SPILL_BYTES + 1, True)])
def test_a_large_text_is_spilled_whole(size: int, spilled: bool) -> None:
    words = "é" * (size // 2) + "x" * (size % 2)
    kept = keep(parse_prompt(words))
    assert (kept.prompt.text_ref is not None) == spilled
    assert kept.prompt.size_bytes == size
    if spilled:
        assert kept.blobs[kept.prompt.text_ref or ""] == words.encode()
        assert len(kept.prompt.text.encode()) <= 1024


@pytest.mark.parametrize(("raw", "empty"), [("", True), (" \n", True), ({}, False), ({"text": ""}, True), (0, False)])
def test_empty_input(raw: Any, empty: bool) -> None:
    assert is_empty(parse_prompt(raw)) == empty
