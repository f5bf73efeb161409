"""The least or greatest of values that come and go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from sortedcontainers import SortedList

_LONG = 2_048
"""More values than this are not moved for one that comes: they are kept in pieces."""


class Extreme:
    """The least (or greatest) of the values that are there, nulls skipped, None for none.

    The values are kept in order and are nobody's copies: a place in a list is all that each takes,
    where it is the value of a row as well. Cost: O(log n) comparisons per change, and moving some
    kilobytes at most.
    """

    __slots__ = ("_at", "_values")

    def __init__(self, descending: bool) -> None:
        self._at = -1 if descending else 0
        self._values: Any = []
        """A list while they are few, then a SortedList; both ascend."""

    def enter(self, value: Any) -> None:
        """Add one copy of a value."""
        if value is None:
            return
        values = self._values
        if type(values) is not list:
            values.add(value)
            return
        insort(values, value)
        if len(values) > _LONG:
            self._values = SortedList(values)

    def enter_all(self, values: Iterable[Any]) -> None:
        """Add one copy of each of many values. Cost: O(n log n) for all that are there then."""
        mine = self._values
        if type(mine) is not list:
            mine.update(value for value in values if value is not None)
            return
        mine.extend([value for value in values if value is not None])
        mine.sort()
        if len(mine) > _LONG:
            self._values = SortedList(mine)

    def leave(self, value: Any) -> None:
        """Take one copy of a value away."""
        if value is None:
            return
        values = self._values
        if type(values) is list:
            del values[bisect_left(values, value)]
            return
        values.remove(value)
        if len(values) < _LONG // 2:
            self._values = list(values)

    def inner(self) -> Any:
        """The extreme of what is there."""
        return self._values[self._at] if self._values else None
