"""In which order the changes of collections are taken in: by strata, or as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
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
    """Each collection once, complete, after all that it is derived from."""

    def __init__(self, ranks: Mapping[str, int]) -> None:
        self._ranks = ranks
        self._waiting: dict[str, list[Change]] = {}

    def put(self, collection: str, change: Change) -> None:
        if len(change):
            self._waiting.setdefault(collection, []).append(change)

    def wake(self, collection: str) -> None:
        self._waiting.setdefault(collection, [])

    def take(self) -> tuple[str, Change] | None:
        if not self._waiting:
            return None
        first = min(self._waiting, key=self._ranks.__getitem__)
        parts = self._waiting.pop(first)
        if not parts:
            return first, NOTHING
        return first, parts[0] if len(parts) == 1 else np.concatenate(parts)


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
