"""Update sets over any partially ordered times: the definitions of a collection and of its reads.

Here an update is `(data, time, diff)` in plain Python, whatever the times are. With times as
one column of whole numbers and records as columns, `tidemill.arrangement.updates` does it fast.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import BeforeSince, NotYet, UsageError
from tidemill.time import Antichain, Lattice, TimeDomain, advance

D = TypeVar("D", bound=Hashable)
T = TypeVar("T", bound=Hashable)

Update = tuple[D, T, int]

_I64 = range(-(2**63), 2**63)


def consolidate_updates(updates: Iterable[Update[D, T]]) -> list[Update[D, T]]:
    """One update for each record and time with the sum of its diffs, none of diff zero.

    In the order in which each pair first comes.

    Raises: UsageError if a sum does not fit in 64 bits.
    Cost: O(n).
    """
    sums: dict[tuple[D, T], int] = {}
    for data, time, diff in updates:
        key = (data, time)
        sums[key] = sums.get(key, 0) + diff
    return [(data, time, _checked(diff)) for (data, time), diff in sums.items() if diff]


def advance_updates(
    updates: Iterable[Update[D, T]], since: Antichain[T], lattice: Lattice[T]
) -> list[Update[D, T]]:
    """The updates with each time advanced by `since`, consolidated.

    Accumulations at times beyond `since` are unchanged.

    Raises: UsageError if a sum does not fit in 64 bits.
    Cost: O(n · width of `since`).
    """
    return consolidate_updates(
        (data, advance(time, since, lattice), diff) for data, time, diff in updates
    )


def accumulate_updates(
    updates: Iterable[Update[D, T]], domain: TimeDomain[T], as_of: T
) -> dict[D, int]:
    """The multiplicity of each record at `as_of`, zeros left out.

    Raises: UsageError if a multiplicity does not fit in 64 bits.
    Cost: O(n).
    """
    sums: dict[D, int] = {}
    for data, time, diff in updates:
        if domain.less_equal(time, as_of):
            sums[data] = sums.get(data, 0) + diff
    return {data: _checked(n) for data, n in sums.items() if n}


def split_updates(
    updates: Iterable[Update[D, T]], frontier: Antichain[T]
) -> tuple[list[Update[D, T]], list[Update[D, T]]]:
    """The updates not beyond `frontier`, and those beyond it."""
    before: list[Update[D, T]] = []
    beyond: list[Update[D, T]] = []
    for update in updates:
        (beyond if frontier.less_equal(update[1]) else before).append(update)
    return before, beyond


def updates_of_versions(versions: Sequence[tuple[T, Mapping[D, int]]]) -> list[Update[D, T]]:
    """The differences of multiplicities between consecutive versions, the first against nothing.

    Versions are in ascending order of time. Accumulating the answer at the time of a version gives
    its contents.
    """
    updates: list[Update[D, T]] = []
    before: Mapping[D, int] = {}
    for time, contents in versions:
        for data in {**before, **contents}:
            diff = contents.get(data, 0) - before.get(data, 0)
            if diff:
                updates.append((data, time, diff))
        before = contents
    return updates


@dataclass(frozen=True, slots=True)
class PartialCollection(Generic[D, T]):
    """A collection known between two frontiers: exact at times beyond since and not upper."""

    domain: TimeDomain[T]
    updates: tuple[Update[D, T], ...]
    since: Antichain[T]
    upper: Antichain[T]

    def read(self, at: T) -> dict[D, int]:
        """The multiplicity of each record at `at`, exactly.

        Raises: BeforeSince if `at` is not beyond since, whatever upper is; NotYet if it is beyond
            upper.
        """
        if not self.since.less_equal(at):
            raise BeforeSince(
                f"{at} is not beyond the since {self.since}", requested=at, since=self.since
            )
        if self.upper.less_equal(at):
            raise NotYet(f"{at} is beyond the upper {self.upper}", requested=at, upper=self.upper)
        return accumulate_updates(self.updates, self.domain, at)


def _checked(diff: int) -> int:
    if diff not in _I64:
        raise UsageError(
            "the diffs of one record add up to more than 64 bits hold", reason="Overflow"
        )
    return diff
