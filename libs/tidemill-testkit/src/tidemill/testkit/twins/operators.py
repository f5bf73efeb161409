"""Twins of the operators: from all updates ever, at every time that can matter."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

from tidemill.testkit.partial_orders import Reduction
from tidemill.testkit.twins.collections import accumulated, consolidated
from tidemill.time import Antichain, Lattice

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)
W = TypeVar("W", bound=Hashable)
T = TypeVar("T", bound=Hashable)

Result = Any  # Any: what the reduction makes of values


def join_closure(lattice: Lattice[T], times: Iterable[T]) -> set[T]:
    """All joins of one or more of `times`."""
    closure: set[T] = set()
    for time in times:
        closure |= {lattice.join(time, other) for other in closure} | {time}
    return closure


def active_times(
    lattice: Lattice[T], seeds: Iterable[T], stored: Iterable[T], upper: Antichain[T]
) -> set[T]:
    """The joins of seeds and stored times beyond some seed and not beyond `upper`."""
    listed = list(seeds)
    return {
        time
        for time in join_closure(lattice, [*listed, *stored])
        if any(lattice.less_equal(seed, time) for seed in listed) and not upper.less_equal(time)
    }


def joined(
    lattice: Lattice[T],
    left: Sequence[tuple[tuple[K, V], T, int]],
    right: Sequence[tuple[tuple[K, W], T, int]],
) -> dict[tuple[tuple[K, V, W], T], int]:
    """Every pair of updates of one key, added up."""
    return consolidated(
        [
            ((k, v, w), lattice.join(t, u), n * m)
            for (k, v), t, n in left
            for (other, w), u, m in right
            if k == other
        ]
    )


def reduced(
    lattice: Lattice[T], reduction: Reduction, updates: Sequence[tuple[tuple[K, V], T, int]]
) -> list[tuple[tuple[K, Result], T, int]]:
    """The updates whose accumulation is the reduction of the accumulated input at every time."""
    produced: list[tuple[tuple[K, Result], T, int]] = []
    for key in {k for (k, _), _, _ in updates}:
        own = [(v, t, n) for (k, v), t, n in updates if k == key]
        output: list[tuple[Result, T, int]] = []
        for time in sorted(join_closure(lattice, {t for _, t, _ in own}), key=lattice.sort_key):
            group: list[tuple[Any, int]] = sorted(accumulated(lattice, own, time).items())
            wanted = [(result, time, n) for result, n in (reduction(group) if group else ())]
            so_far = accumulated(lattice, output, time)
            wanted += [(result, time, -n) for result, n in so_far.items()]
            output += [(result, t, n) for (result, t), n in consolidated(wanted).items()]
        produced += [((key, result), time, n) for result, time, n in output]
    return produced
