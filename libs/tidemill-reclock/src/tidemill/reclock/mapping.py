"""Translate between source times and our times, both ways, through a remap collection."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from tidemill.reclock.remap import RemapTrace
from tidemill.time import Antichain, Frontier, sole_time

D = TypeVar("D", bound=Hashable)
F = TypeVar("F", bound=Hashable)

Update = tuple[D, F, int]


def target_times(remap: RemapTrace[F], times: Sequence[F]) -> list[int | None]:
    """For each source time s the least t with not R(t) ≤ s; None if no closed binding gives one.

    Each source time has at most one target, now and after any further binding. Bindings that since
    has passed answer with since.

    Cost: O(bindings · width · times).
    """
    targets: list[int | None] = [None] * len(times)
    waiting = list(range(len(times)))
    for target, held in remap.steps():
        for index in waiting:
            if not held.less_equal(times[index]):
                targets[index] = target
        waiting = [index for index in waiting if targets[index] is None]
    return targets


def target_frontier(remap: RemapTrace[F], source: Antichain[F]) -> Frontier:
    """The frontier of our times at which a source that has reached `source` can still have updates.

    It is the least t at which some element of `source` is not beyond R(t), else the upper of the
    remap collection. While upper has not passed since, it is since.

    Cost: O(bindings · width of R · width of `source`).
    """
    if not remap.readable:
        return remap.since
    for time, held in remap.steps():
        if not held.precedes(source):
            return Antichain(remap.since.domain, (time,))
    return remap.upper


def source_upper(remap: RemapTrace[F], upper: int) -> Antichain[F]:
    """The source frontier up to which everything is at our times before `upper`: R(upper − 1).

    The minimum if `upper` is not past since.

    Raises: NotYet if the bindings before `upper` are not all known.
    """
    if remap.since.empty or upper <= sole_time(remap.since):
        return Antichain.minimum(remap.domain)
    return remap.at(upper - 1)


def contents_at(remap: RemapTrace[F], updates: Iterable[Update[D, F]], at: int) -> dict[D, int]:
    """T(at): for each record the sum of the diffs of source updates with not R(at) ≤ s.

    Raises: BeforeSince or NotYet if R is not known at `at`.
    """
    held = remap.at(at)
    sums: dict[D, int] = {}
    for data, time, diff in updates:
        if not held.less_equal(time):
            sums[data] = sums.get(data, 0) + diff
    return {data: n for data, n in sums.items() if n}
