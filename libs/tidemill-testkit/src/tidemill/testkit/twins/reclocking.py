"""Twin of reclocking: T(t) = Σ { δS(s) : not R(t) ≤ s }, from everything ever seen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    Antichain,
    Frontier,
    Partitions,
    TimeDomain,
    frontier,
)

D = TypeVar("D", bound=Hashable)
F = TypeVar("F", bound=Hashable)

Binding = tuple[F, int, int]


def remap_at(domain: TimeDomain[F], bindings: Sequence[Binding[F]], time: int) -> Antichain[F]:
    """R(time): the elements that the bindings at times up to `time` leave."""
    present = {
        source
        for source, _, _ in bindings
        if sum(n for s, bound, n in bindings if s == source and bound <= time) > 0
    }
    return Antichain.of(domain, present)


def target_time(
    domain: TimeDomain[F], bindings: Sequence[Binding[F]], candidates: Iterable[int], time: F
) -> int | None:
    """The least candidate t with not R(t) ≤ `time`, if there is one."""
    for candidate in sorted(candidates):
        if not remap_at(domain, bindings, candidate).less_equal(time):
            return candidate
    return None


def says_at_least(held: Iterable[Partitions], wanted: Iterable[Partitions]) -> bool:
    """Whether a source that has come to `held` has passed, in each range wanted, its offset."""
    return not any(
        h.lo <= w.hi and w.lo <= h.hi and h.offset < w.offset for h in held for w in wanted
    )


def covered_at(
    bindings: Sequence[Binding[Partitions]],
    candidates: Iterable[int],
    wanted: Sequence[Partitions],
) -> int | None:
    """The least candidate t at which R(t) says at least what is wanted, if there is one."""
    for candidate in sorted(candidates):
        if says_at_least(remap_at(PARTITIONED, bindings, candidate), wanted):
            return candidate
    return None


def contents_at(
    domain: TimeDomain[F],
    bindings: Sequence[Binding[F]],
    data: Iterable[tuple[D, F, int]],
    time: int,
) -> dict[D, int]:
    """T(time), by its definition."""
    held = remap_at(domain, bindings, time)
    sums: dict[D, int] = {}
    for record, at, diff in data:
        if not held.less_equal(at):
            sums[record] = sums.get(record, 0) + diff
    return {record: n for record, n in sums.items() if n}


class ReclockTwin(Generic[D, F]):
    """Remembers all bindings and data, and after each step works everything out again."""

    def __init__(self, domain: TimeDomain[F], as_of: int) -> None:
        self._domain = domain
        self._as_of = as_of
        self._bindings: list[Binding[F]] = []
        self._upper = frontier(0)
        self._source = Antichain.minimum(domain)
        self._waiting: list[tuple[D, F, int]] = []

    def step(
        self,
        bindings: Iterable[Binding[F]],
        remap_upper: Frontier,
        data: Iterable[tuple[D, F, int]],
        source_frontier: Antichain[F],
    ) -> tuple[list[tuple[D, int, int]], Frontier]:
        """The output of this step, and the output frontier after it."""
        self._bindings += [(s, max(t, self._as_of), n) for s, t, n in bindings]
        self._upper, self._source = remap_upper, source_frontier
        self._waiting += data
        if self._upper.less_equal(self._as_of):
            return [], frontier(self._as_of)
        closed = [binding for binding in self._bindings if not self._upper.less_equal(binding[1])]
        candidates = {self._as_of} | {time for _, time, _ in closed}
        targets = [
            (update, target_time(self._domain, closed, candidates, update[1]))
            for update in self._waiting
        ]
        self._waiting = [update for update, target in targets if target is None]
        emitted = [(u[0], target, u[2]) for u, target in targets if target is not None]
        open_times = [
            time
            for time in sorted(candidates)
            if not remap_at(self._domain, closed, time).precedes(self._source)
        ]
        return emitted, frontier(open_times[0]) if open_times else self._upper


def bindings_of_history(
    history: Sequence[tuple[int, Antichain[F]]],
) -> list[Binding[F]]:
    """The bindings that make R(t) the last of `history` at or before t: all go, all come."""
    bindings: list[Binding[F]] = []
    before: Sequence[F] = ()
    for time, held in history:
        bindings += [(source, time, -1) for source in before]
        bindings += [(source, time, 1) for source in held]
        before = held.elements
    return bindings


def next_upper(time: int) -> Frontier:
    """The frontier just past `time`."""
    return frontier() if time == U64_MAX else frontier(time + 1)
