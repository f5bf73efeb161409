"""In which order the changes of collections are taken in: by strata, or as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from heapq import heappop, heappush
from typing import Protocol

import numpy as np

from tidemill.arrangement.interval_updates import Change

NOTHING: Change = np.empty((0, 3), np.int64)


class Pending(Protocol):
    """Changes that wait to be taken in, by collection."""

    def put(self, collection: str, change: Change) -> None:
        """One more change waits."""
        ...

    def wake(self, collection: str) -> None:
        """Something waits for a collection elsewhere: take it without a change of its own."""
        ...

    def take(self) -> tuple[str, Change] | None:
        """The next one, with all that waits for its collection; None when nothing waits."""
        ...


class ByStrata:
    """Each collection once, complete, after all that it is derived from.

    Of inputs that follow each other in rank the one with the fewest rows is first. A large load
    then looks small relations up, and needs no index of its own for that.
    """

    def __init__(self, ranks: Mapping[str, int], inputs: Collection[str] = ()) -> None:
        self._places: dict[str, int] = {}
        self._waiting: dict[str, list[Change]] = {}
        self._due: list[int] = []
        """The places at which something waits, as a heap."""
        self._alike: dict[int, list[str]] = {}
        """The collections that wait at a place."""
        place, free = 0, False
        for name in sorted(ranks, key=ranks.__getitem__):
            place = place if free and name in inputs else ranks[name]
            free = name in inputs
            self._places[name] = place

    def put(self, collection: str, change: Change) -> None:
        if len(change):
            self._parts_of(collection).append(change)

    def wake(self, collection: str) -> None:
        self._parts_of(collection)

    def _parts_of(self, collection: str) -> list[Change]:
        """The parts that wait for a collection, from now on if nothing did."""
        parts = self._waiting.get(collection)
        if parts is None:
            parts = self._waiting[collection] = []
            place = self._places[collection]
            alike = self._alike.setdefault(place, [])
            if not alike:
                heappush(self._due, place)
            alike.append(collection)
        return parts

    def take(self) -> tuple[str, Change] | None:
        if not self._due:
            return None
        alike = self._alike[self._due[0]]
        first = alike[0] if len(alike) == 1 else min(alike, key=self._rows)
        alike.remove(first)
        if not alike:
            heappop(self._due)
        parts = self._waiting.pop(first)
        if not parts:
            return first, NOTHING
        return first, parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _rows(self, collection: str) -> int:
        return sum(map(len, self._waiting[collection]))


class AsTheyCome:
    """Each change at once; what was wrong is taken back by later changes of the same step.

    Those of `last` wait until nothing else does: collections that are read by what they read. A
    life that was cut before its rest has answered would be cut again, one instant later each time.
    """

    def __init__(self, last: Mapping[str, int]) -> None:
        """`last` by ranks, in which they are taken."""
        self._waiting: deque[tuple[str, Change]] = deque()
        self._ranks = last
        self._last = ByStrata(last)

    def put(self, collection: str, change: Change) -> None:
        if collection in self._ranks:
            self._last.put(collection, change)
        elif len(change):
            self._waiting.append((collection, change))

    def wake(self, collection: str) -> None:
        if collection in self._ranks:
            self._last.wake(collection)
        else:
            self._waiting.append((collection, NOTHING))

    def take(self) -> tuple[str, Change] | None:
        return self._waiting.popleft() if self._waiting else self._last.take()
