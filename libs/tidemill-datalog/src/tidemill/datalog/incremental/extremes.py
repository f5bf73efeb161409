"""The least or greatest of values that come and go."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import Any


class _Ranked:
    """A value in a heap, by its order or against it."""

    __slots__ = ("descending", "value")

    def __init__(self, value: Any, descending: bool) -> None:
        self.value = value
        self.descending = descending

    def __lt__(self, other: _Ranked) -> bool:
        if self.descending:
            return bool(self.value > other.value)
        return bool(self.value < other.value)


class Extreme:
    """The least (or greatest) of the values that are there, nulls skipped, None for none.

    Cost: O(log n) per change, spread over the changes.
    """

    __slots__ = ("_copies", "_descending", "_heap")

    def __init__(self, descending: bool) -> None:
        self._descending = descending
        self._copies: Counter[Any] = Counter()
        self._heap: list[_Ranked] = []

    def enter(self, value: Any) -> None:
        """Add one copy of a value."""
        if value is None:
            return
        self._copies[value] += 1
        if self._copies[value] == 1:
            heappush(self._heap, _Ranked(value, self._descending))

    def leave(self, value: Any) -> None:
        """Take one copy of a value away."""
        if value is None:
            return
        self._copies[value] -= 1
        if not self._copies[value]:
            del self._copies[value]

    def inner(self) -> Any:
        """The extreme of what is there."""
        while self._heap and self._heap[0].value not in self._copies:
            heappop(self._heap)
        if len(self._heap) > 2 * len(self._copies) + 16:
            self._heap = [_Ranked(value, self._descending) for value in self._copies]
            self._heap.sort()
        return self._heap[0].value if self._heap else None
