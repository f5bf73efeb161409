"""At which times the output of a reduction may change: joins of input times included."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.time import U64, Antichain, Lattice

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class InterestingTimes(Generic[T]):
    """`active`: to be evaluated now, in the total order; `pended`: beyond upper, to be kept."""

    active: tuple[T, ...]
    pended: frozenset[T]


def interesting_times(
    lattice: Lattice[T],
    new: Iterable[T],
    pending: Iterable[T],
    stored: Iterable[T],
    upper: Antichain[T],
) -> InterestingTimes[T]:
    """The times of one key at which its output may change, and those that must wait.

    Seeds are `new` and `pending` not beyond `upper`. Active are exactly the joins of seeds and
    stored times that are beyond some seed and not beyond `upper`. Pended are the joins of an
    active time with any other time that lie beyond `upper`, and the seeds beyond it. Stored times
    beyond `upper` count as partners too: a later seed cannot find them again once history is
    compacted.

    Cost: O(n log n) in a total order; else O(active · times).
    Source: the rule Reached of the reduce model.
    """
    seeds = {*new, *pending}
    waiting = {time for time in seeds if upper.less_equal(time)}
    partners = {*seeds, *stored}
    if isinstance(lattice, U64):
        return _on_a_chain(lattice, seeds - waiting, waiting, partners, upper)
    active: set[T] = seeds - waiting
    queue = list(active)
    while queue:
        reached = queue.pop()
        for partner in [*partners, *active]:
            join = lattice.join(reached, partner)
            if join in active or join in waiting:
                continue
            if upper.less_equal(join):
                waiting.add(join)
            else:
                active.add(join)
                queue.append(join)
    return InterestingTimes(tuple(sorted(active, key=lattice.sort_key)), frozenset(waiting))


def _on_a_chain(
    lattice: Lattice[T], seeds: set[T], waiting: set[T], partners: set[T], upper: Antichain[T]
) -> InterestingTimes[T]:
    """In a total order a join is one of the two times: nothing new is ever reached."""
    if not seeds:
        return InterestingTimes((), frozenset(waiting))
    least = min(seeds, key=lattice.sort_key)
    reached = {time for time in partners if lattice.less_equal(least, time)}
    beyond = {time for time in reached if upper.less_equal(time)}
    active = sorted(reached - beyond, key=lattice.sort_key)
    return InterestingTimes(tuple(active), frozenset(waiting | beyond))
