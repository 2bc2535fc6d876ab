"""A stretch is the whole list for every position it still holds, and an error for every other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.projection.stretch import Forgotten, Stretch

SMALL = st.integers(-25, 25)
WHOLE = st.lists(st.integers(0, 5), max_size=20)


def even(element: int) -> bool:
    return element % 2 == 0


def nothing(element: int) -> bool:
    del element
    return False


@given(WHOLE, st.lists(st.tuples(st.integers(-3, 25), st.integers(0, 25)), max_size=3), WHOLE)
def test_positions_and_length_stay_those_of_the_whole(
    before: list[int], cuts: list[tuple[int, int]], after: list[int]
) -> None:
    stretch = Stretch(before)
    for position, spared_from in cuts:
        stretch.forget_before(position, sparing=even, spared_from=min(position, spared_from))
    for element in after:
        stretch.append(element)
    whole = [*before, *after]
    first = max([0, *(min(position, len(before)) for position, _ in cuts)])
    spared_from = max([0, *(min(pair) for pair in cuts)])
    there = [at for at, e in enumerate(whole) if at >= first or (at >= spared_from and even(e))]
    assert (stretch.first, len(stretch)) == (first, len(whole))
    for one in (stretch, stretch.copy()):
        assert one.held == [whole[at] for at in there]
        for at in range(-len(whole), len(whole)):
            if at % len(whole) in there:
                assert one[at] == whole[at]
            else:
                with pytest.raises(Forgotten, match=f"begins at {first}"):
                    one[at]
    for start in range(spared_from, len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            found = list(stretch.between(start, stop))
            assert found == [whole[at] for at in there if start <= at < stop]
    for beyond in (len(whole), -len(whole) - 1):
        with pytest.raises(IndexError):
            stretch[beyond]


@given(WHOLE, st.integers(0, 20), SMALL, SMALL, st.sampled_from([-2, -1, 1, 2, None]))
def test_a_slice_is_the_slice_of_the_whole_or_an_error(
    whole: list[int], position: int, start: int, stop: int, step: int | None
) -> None:
    stretch = Stretch(whole)
    stretch.forget_before(position, sparing=nothing, spared_from=position)
    asked = slice(start, stop, step)
    if any(at < stretch.first for at in range(len(whole))[asked]):
        with pytest.raises(Forgotten):
            stretch[asked]
    else:
        assert stretch[asked] == whole[asked]


def test_iterating_over_forgotten_elements_is_no_short_list() -> None:
    stretch = Stretch([1, 2, 3])
    assert list(stretch) == [1, 2, 3]
    stretch.forget_before(1, sparing=nothing, spared_from=1)
    for reading in (list, lambda s: list(reversed(s)), lambda s: list(s.between(0, 3))):
        with pytest.raises(Forgotten):
            reading(stretch)
