"""Twins of the kernels on updates: sums over lists."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from tidemill.time import TimeDomain

D = TypeVar("D", bound=Hashable)
T = TypeVar("T", bound=Hashable)


def consolidated(updates: Sequence[tuple[D, T, int]]) -> dict[tuple[D, T], int]:
    """The sum of the diffs of each record and time, zeros left out."""
    sums = {
        (data, time): sum(n for d, t, n in updates if (d, t) == (data, time))
        for data, time, _ in updates
    }
    return {key: diff for key, diff in sums.items() if diff}


def accumulated(domain: TimeDomain[T], updates: Iterable[tuple[D, T, int]], at: T) -> dict[D, int]:
    """The multiplicity of each record over the updates at times up to `at`, zeros left out."""
    listed = [(data, diff) for data, time, diff in updates if domain.less_equal(time, at)]
    sums = {data: sum(n for d, n in listed if d == data) for data, _ in listed}
    return {data: n for data, n in sums.items() if n}
