"""A sequence keeps its positions when its beginning is forgotten: reading there is an error, never another element.

A session's transcript only grows, and what a compaction covers is read no more. A stretch holds the part from some
position on; its length and all indices stay those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Forgotten(LookupError):
    """The element was there and is no longer in memory. No IndexError: iteration would take that for the end."""


class Stretch(Sequence[T], Generic[T]):
    """Elements by absolute position, held from `first` on.

    Args:
        held: the elements from `first` on, in order.
        first: position of the first element held.
    """

    __slots__ = ("_first", "_held")

    def __init__(self, held: Iterable[T] = (), *, first: int = 0) -> None:
        self._held = list(held)
        self._first = first

    @property
    def first(self) -> int:
        """Position of the first element held; equal to the length when none is."""
        return self._first

    @property
    def held(self) -> list[T]:
        """A copy of the elements in memory, the one at `first` foremost."""
        return list(self._held)

    def append(self, element: T) -> None:
        """Add an element behind the last."""
        self._held.append(element)

    def forget_before(self, position: int) -> None:
        """Drop the elements before a position from memory; length and positions stay.

        Args:
            position: absolute; one that was forgotten already changes nothing, one beyond the end forgets all.
        """
        gone = min(position, len(self)) - self._first
        if gone > 0:
            del self._held[:gone]
            self._first += gone

    def __len__(self) -> int:
        return self._first + len(self._held)

    def __iter__(self) -> Iterator[T]:
        if self._first:
            raise self._forgotten(0)
        return iter(self._held)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        """The element at a position, or the list of those in a slice; negative positions count from the end.

        Raises:
            IndexError: there is no such position.
            Forgotten: it is no longer in memory.
        """
        length = len(self)
        if isinstance(index, slice):
            at = range(*index.indices(length))
            if at and min(at[0], at[-1]) < self._first:
                raise self._forgotten(min(at[0], at[-1]))
            return [self._held[position - self._first] for position in at]
        position = index + length if index < 0 else index
        if not 0 <= position < length:
            raise IndexError(f"position {index} of a sequence of {length}")
        if position < self._first:
            raise self._forgotten(position)
        return self._held[position - self._first]

    def _forgotten(self, position: int) -> Forgotten:
        return Forgotten(f"position {position} is no longer in memory, which begins at {self._first}")
