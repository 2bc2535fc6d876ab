"""A sequence keeps its positions when its beginning is forgotten: reading there is an error, never another element.

A session's transcript only grows, and what a compaction stands for is read no more. A stretch holds everything from one
position on, and before it single elements that are spared; its length and all indices stay those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Forgotten(LookupError):
    """The element was there and is no longer in memory. No IndexError: iteration would take that for the end."""


class Stretch(Sequence[T], Generic[T]):
    """Elements by absolute position.

    Args:
        held: the elements from `first` on, in order.
        first: position of the first of them.
        spared: elements before `first` by position.
        spared_from: position from which on none that is to be spared is missing; `first` by default.
    """

    __slots__ = ("_first", "_held", "_spared", "_spared_from")

    def __init__(
        self,
        held: Iterable[T] = (),
        *,
        first: int = 0,
        spared: Mapping[int, T] | None = None,
        spared_from: int | None = None,
    ) -> None:
        self._held = list(held)
        self._first = first
        self._spared = dict(sorted((spared or {}).items()))
        self._spared_from = first if spared_from is None else spared_from

    @property
    def first(self) -> int:
        """Position from which on every element is in memory; equal to the length when none is."""
        return self._first

    @property
    def spared_from(self) -> int:
        """Position from which on every spared element is in memory."""
        return min(self._spared_from, self._first)

    @property
    def held(self) -> list[T]:
        """A copy of the elements in memory, in order."""
        return [*self._spared.values(), *self._held]

    def append(self, element: T) -> None:
        """Add an element behind the last."""
        self._held.append(element)

    def copy(self) -> Stretch[T]:
        """Another stretch with the same elements in memory."""
        return Stretch(self._held, first=self._first, spared=self._spared, spared_from=self._spared_from)

    def forget_before(self, position: int, *, sparing: Callable[[T], bool], spared_from: int) -> None:
        """Drop elements from memory; length and positions stay. What is forgotten already stays forgotten.

        Args:
            position: elements before it go; beyond the end, all.
            sparing: which of them stay nevertheless.
            spared_from: where those that stay begin.
        """
        count = min(position, len(self)) - self._first
        if count > 0:
            self._spared |= {self._first + at: e for at, e in enumerate(self._held[:count]) if sparing(e)}
            del self._held[:count]
            self._first += count
        if spared_from > self._spared_from:
            self._spared_from = spared_from
            self._spared = {at: element for at, element in self._spared.items() if at >= spared_from}

    def between(self, start: int, stop: int) -> Iterator[T]:
        """The elements in memory at positions from `start` to before `stop`, in order.

        Raises:
            Forgotten: spared elements of this range are no longer in memory.
        """
        if start < min(self.spared_from, stop):
            raise self._forgotten(start)
        for at, element in self._spared.items():
            if start <= at < stop:
                yield element
        yield from self._held[max(0, start - self._first) : max(0, stop - self._first)]

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
            return [self[position] for position in range(*index.indices(length))]
        position = index + length if index < 0 else index
        if not 0 <= position < length:
            raise IndexError(f"position {index} of a sequence of {length}")
        if position >= self._first:
            return self._held[position - self._first]
        if position in self._spared:
            return self._spared[position]
        raise self._forgotten(position)

    def _forgotten(self, position: int) -> Forgotten:
        return Forgotten(f"position {position} is no longer in memory, which begins at {self._first}")
