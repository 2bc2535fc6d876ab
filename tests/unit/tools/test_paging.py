"""Parts of a text are bounded, join, and lose nothing but what they say they leave out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.tools.paging import MAX_LINE_BYTES, head, is_text, lines_in, offset_of, page, tail
from activities.tools.result import Refused
from salience.model.text import decode

some_bytes = st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "ignore")))


@given(some_bytes)
def test_lines_are_counted_as_an_editor_counts_them(data: bytes) -> None:
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    assert lines_in(data) == len(lines)
    for number in range(1, len(lines) + 1):
        assert data[offset_of(data, number) :].split(b"\n")[0] == lines[number - 1]
    assert offset_of(data, len(lines) + 2) == len(data)


@given(some_bytes, st.integers(min_value=1, max_value=200))
def test_pages_join_to_the_whole(data: bytes, space: int) -> None:
    shown: list[str] = []
    start = 1
    while True:
        part = page("x", data, start, None, space)
        lines = part.text.split("\n")[:-1]
        assert len(part.text.encode()) <= space or len(lines) == 1
        shown += [line.split("\t", 1)[1] for line in lines]
        if not part.more:
            break
        start = part.last + 1
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    assert shown == [decode(line) for line in expected][: lines_in(data)]


@pytest.mark.parametrize("line", [b"x" * 5_000, "ä".encode() * 3_000, b"\xff" * 1_500, b"\xff" * 9_000])
def test_a_long_line_is_cut_and_says_so(line: bytes) -> None:
    part = page("x", b"a\n" + line + b"\nb\n", 2, 2, 100_000)
    assert len(part.text.encode()) < MAX_LINE_BYTES + 100
    assert "more bytes in this line]" in part.text
    assert part.span == "lines 2-2 of 3"


@pytest.mark.parametrize(("start", "end"), [(4, None), (3, 2), (9, 9)])
def test_lines_that_are_not_there_are_refused(start: int, end: int | None) -> None:
    with pytest.raises(Refused, match="x has 3 lines"):
        page("x", b"a\nb\nc", start, end, 100)


@given(some_bytes, st.integers(min_value=0, max_value=400))
def test_head_and_tail_are_within_their_limit_and_cut_at_characters(data: bytes, limit: int) -> None:
    begin, end = head(data, limit), tail(data, limit)
    assert len(begin.encode()) <= limit
    assert len(end.encode()) <= limit
    if is_text(data):
        assert decode(data).startswith(begin)
        assert decode(data).endswith(end)
        assert len(begin.encode()) > min(limit, len(data)) - 4


@given(some_bytes)
def test_text_is_what_is_shown_as_it_is(data: bytes) -> None:
    assert is_text(data) == (decode(data).encode() == data)


def test_text_is_told_across_the_border_of_what_is_checked_at_once() -> None:
    data = b"x" * (1024 * 1024 - 1) + "ä".encode()
    assert is_text(data)
    assert not is_text(data[:-1])
