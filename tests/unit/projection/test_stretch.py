"""A stretch is the whole list for every position it still holds, and an error for every other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.projection.stretch import Forgotten, Stretch

SMALL = st.integers(-25, 25)


@given(st.lists(st.integers(), max_size=20), st.integers(-3, 25), st.lists(st.integers(), max_size=5))
def test_positions_and_length_stay_those_of_the_whole(before: list[int], position: int, after: list[int]) -> None:
    stretch = Stretch(before)
    stretch.forget_before(position)
    for element in after:
        stretch.append(element)
    whole = [*before, *after]
    first = max(0, min(position, len(before)))
    assert (stretch.first, len(stretch), stretch.held) == (first, len(whole), whole[first:])
    for at in range(-len(whole), len(whole)):
        if at % len(whole) < first:
            with pytest.raises(Forgotten, match=f"begins at {first}"):
                stretch[at]
        else:
            assert stretch[at] == whole[at]
    for beyond in (len(whole), -len(whole) - 1):
        with pytest.raises(IndexError):
            stretch[beyond]


@given(st.lists(st.integers(), max_size=20), st.integers(0, 20), SMALL, SMALL, st.sampled_from([-2, -1, 1, 2, None]))
def test_a_slice_is_the_slice_of_the_whole_or_an_error(
    whole: list[int], position: int, start: int, stop: int, step: int | None
) -> None:
    stretch = Stretch(whole)
    stretch.forget_before(position)
    asked = slice(start, stop, step)
    if any(at < stretch.first for at in range(len(whole))[asked]):
        with pytest.raises(Forgotten):
            stretch[asked]
    else:
        assert stretch[asked] == whole[asked]


def test_iterating_over_forgotten_elements_is_no_short_list() -> None:
    stretch = Stretch([1, 2, 3])
    assert list(stretch) == [1, 2, 3]
    stretch.forget_before(1)
    with pytest.raises(Forgotten):
        list(stretch)
    with pytest.raises(Forgotten):
        list(reversed(stretch))
