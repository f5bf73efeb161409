"""Twin of a trace: all updates that were ever inserted, never compacted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from tidemill.testkit.twins.collections import accumulated
from tidemill.time import Antichain, TimeDomain

D = TypeVar("D", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class TraceTwin(Generic[D, T]):
    """Everything that was inserted, cut by comparing each time with a frontier."""

    def __init__(self, domain: TimeDomain[T]) -> None:
        self._domain = domain
        self._updates: list[tuple[D, T, int]] = []

    def insert(self, updates: Iterable[tuple[D, T, int]]) -> None:
        """Keep `updates` as they are."""
        self._updates.extend(updates)

    def read(self, at: T) -> dict[D, int]:
        """The multiplicity of each record at `at`, zeros left out."""
        return accumulated(self._domain, self._updates, at)

    def through(self, upper: Antichain[T]) -> list[tuple[D, T, int]]:
        """The updates not beyond `upper`."""
        return [update for update in self._updates if not upper.less_equal(update[1])]
