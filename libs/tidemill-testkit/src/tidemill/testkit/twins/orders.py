"""Twins of antichains and of counts per time: look at everything, every time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from tidemill.time import TimeDomain

T = TypeVar("T", bound=Hashable)


def minimal_times(domain: TimeDomain[T], times: Iterable[T]) -> set[T]:
    """The times that no other is before."""
    listed = set(times)
    return {
        time
        for time in listed
        if not any(other != time and domain.less_equal(other, time) for other in listed)
    }


def counted_frontier(domain: TimeDomain[T], changes: Sequence[tuple[T, int]]) -> set[T]:
    """The minimal times among those whose changes add up to more than zero."""
    positive = {
        time for time, _ in changes if sum(n for changed, n in changes if changed == time) > 0
    }
    return minimal_times(domain, positive)
