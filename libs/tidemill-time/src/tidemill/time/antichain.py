"""Antichains and frontiers: sets of pairwise incomparable times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import UsageError
from tidemill.time.orders import U64_TIME, Covers, Lattice, TimeDomain

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Antichain(Generic[T]):
    """An immutable set of pairwise incomparable times, in the total order of its domain.

    Read as a frontier it stands for all times beyond one of its elements. The empty antichain
    stands for no time at all: it is the greatest frontier, and never the same as an absent one.
    """

    domain: TimeDomain[T]
    elements: tuple[T, ...] = ()

    @classmethod
    def of(cls, domain: TimeDomain[T], times: Iterable[T]) -> Antichain[T]:
        """The minimal elements of `times`.

        Cost: O(n log n), and of each time whether an earlier one covers it.
        """
        distinct = set(times)
        if len(distinct) < 2:
            return cls(domain, tuple(distinct))
        kept: list[T] = []
        earlier = domain.covers()
        for time in sorted(distinct, key=domain.sort_key):
            # The sort extends the partial order, so nothing later removes what was kept.
            if not earlier.covers(time):
                earlier.add(time)
                kept.append(time)
        return cls(domain, tuple(kept))

    @classmethod
    def minimum(cls, domain: TimeDomain[T]) -> Antichain[T]:
        """The frontier that every time is beyond."""
        return cls(domain, (domain.minimum(),))

    def __iter__(self) -> Iterator[T]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Antichain) and self.elements == other.elements

    def __hash__(self) -> int:
        return hash(self.elements)

    def __repr__(self) -> str:
        return "[" + ", ".join(str(time) for time in self.elements) + "]"

    @property
    def empty(self) -> bool:
        """Whether no time is beyond it: no more times come."""
        return not self.elements

    def less_equal(self, time: T) -> bool:
        """Whether `time` is beyond this frontier, equality included."""
        if len(self.elements) == 1:
            return self.domain.less_equal(self.elements[0], time)
        return any(self.domain.less_equal(element, time) for element in self.elements)

    def less_than(self, time: T) -> bool:
        """Whether some element is strictly before `time`."""
        return any(
            element != time and self.domain.less_equal(element, time) for element in self.elements
        )

    def precedes(self, other: Antichain[T]) -> bool:
        """Whether self ≤ other: every element of `other` is beyond self."""
        if len(other.elements) == 1:
            return self.less_equal(other.elements[0])
        beyond = self.beyond()
        return all(beyond.covers(time) for time in other.elements)

    def beyond(self) -> Covers[T]:
        """Its times as `Covers`: of many times, it tells which are beyond this frontier."""
        found = self.domain.covers()
        for element in self.elements:
            found.add(element)
        return found

    def insert(self, time: T) -> Antichain[T]:
        """This antichain with `time`; itself if `time` was already beyond it."""
        if self.less_equal(time):
            return self
        return Antichain.of(self.domain, (*self.elements, time))

    def meet(self, other: Antichain[T]) -> Antichain[T]:
        """The greatest frontier that both are beyond."""
        return Antichain.of(self.domain, (*self.elements, *other.elements))

    def join(self, other: Antichain[T], lattice: Lattice[T]) -> Antichain[T]:
        """The least frontier that is beyond both."""
        if len(self.elements) == len(other.elements) == 1:
            time = lattice.join(self.elements[0], other.elements[0])
            return other if time == other.elements[0] else Antichain(self.domain, (time,))
        return Antichain.of(
            self.domain, (lattice.join(a, b) for a in self.elements for b in other.elements)
        )


Frontier = Antichain[int]
"""A frontier of the timeline: at most one element, and still an antichain."""


def frontier(*times: int) -> Frontier:
    """The frontier of the given u64 times; `frontier()` is the empty one: no more times."""
    return Antichain.of(U64_TIME, times)


def sole_time(held: Frontier) -> int:
    """The one element of a totally ordered frontier. Raises UsageError if it is empty."""
    if held.empty:
        raise UsageError("the frontier is empty: there are no more times")
    return held.elements[0]
