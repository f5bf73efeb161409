"""Counts per time: batches of changes, and the frontier that positive counts hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from tidemill.time.antichain import Antichain
from tidemill.time.orders import TimeDomain

T = TypeVar("T")

Change = tuple[T, int]


class ChangeBatch(Generic[T]):
    """Changes of counts per time, added up: each time at most once, none with zero.

    Cost: O(1) for each change.
    """

    __slots__ = ("_sums",)

    def __init__(self, changes: Iterable[Change[T]] = ()) -> None:
        self._sums: dict[T, int] = {}
        self.extend(changes)

    def update(self, time: T, n: int) -> None:
        """Add `n` to the count of `time`."""
        total = self._sums.get(time, 0) + n
        if total:
            self._sums[time] = total
        else:
            self._sums.pop(time, None)

    def extend(self, changes: Iterable[Change[T]]) -> None:
        """Add all `changes`."""
        for time, n in changes:
            self.update(time, n)

    def drain(self) -> list[Change[T]]:
        """All changes; afterwards the batch is empty."""
        drained = list(self._sums.items())
        self._sums.clear()
        return drained

    @property
    def empty(self) -> bool:
        """Whether no time has a count other than zero."""
        return not self._sums

    def __len__(self) -> int:
        return len(self._sums)

    def __iter__(self) -> Iterator[Change[T]]:
        return iter(self._sums.items())


class MutableAntichain(Generic[T]):
    """Counts per time, and as its frontier the minimal times whose count is strictly positive.

    Counts may be negative, and the frontier may go back.

    Cost: O(width) for a change that no element of the frontier loses by; else the frontier is
    found anew among all positive counts.
    """

    __slots__ = ("_counts", "_frontier")

    def __init__(self, domain: TimeDomain[T]) -> None:
        self._counts: dict[T, int] = {}
        self._frontier: Antichain[T] = Antichain(domain)

    @property
    def frontier(self) -> Antichain[T]:
        """The minimal times with a positive count."""
        return self._frontier

    def count(self, time: T) -> int:
        """The count of `time`; zero if it was never changed."""
        return self._counts.get(time, 0)

    def less_equal(self, time: T) -> bool:
        """Whether `time` is beyond the frontier."""
        return self._frontier.less_equal(time)

    def less_than(self, time: T) -> bool:
        """Whether some element of the frontier is strictly before `time`."""
        return self._frontier.less_than(time)

    def update(self, changes: Iterable[Change[T]]) -> list[Change[T]]:
        """Apply all `changes` as one step; −1 for each element that left, +1 for each that came."""
        before = self._frontier
        batch = ChangeBatch(changes)
        for time, n in batch:
            count = self._counts.get(time, 0) + n
            if count:
                self._counts[time] = count
            else:
                del self._counts[time]
        self._frontier = self._moved(before, [time for time, _ in batch])
        return frontier_changes(before, self._frontier)

    def move(self, before: Antichain[T], after: Antichain[T]) -> bool:
        """Take one off each element of `before` and add one to each of `after`, as one step.

        Returns whether the frontier changed.
        Cost: O(width) if nothing else was counted; else that of `update`.
        """
        if self._counts == dict.fromkeys(before.elements, 1):
            changed = self._frontier != after
            self._counts = dict.fromkeys(after.elements, 1)
            self._frontier = after
            return changed
        return bool(self.update(frontier_changes(before, after)))

    def _moved(self, before: Antichain[T], touched: list[T]) -> Antichain[T]:
        """The frontier after the counts of `touched` changed."""
        held = set(before)
        if any(time in held and self.count(time) <= 0 for time in touched):
            positive = (time for time, count in self._counts.items() if count > 0)
            return Antichain.of(before.domain, positive)
        arrived = [time for time in touched if self.count(time) > 0 and time not in held]
        if all(before.less_equal(time) for time in arrived):
            return before
        return Antichain.of(before.domain, (*before, *arrived))


def frontier_changes(before: Antichain[T], after: Antichain[T]) -> list[Change[T]]:
    """−1 for each element of `before` alone, +1 for each of `after` alone."""
    left, came = set(before), set(after)
    return [(time, -1) for time in before if time not in came] + [
        (time, 1) for time in after if time not in left
    ]
