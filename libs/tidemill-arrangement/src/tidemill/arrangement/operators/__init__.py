"""Operators on arranged collections whose times are partially ordered."""

from tidemill.arrangement.operators.interesting_times import InterestingTimes, interesting_times
from tidemill.arrangement.operators.join import Join
from tidemill.arrangement.operators.reduce import Reduce
from tidemill.arrangement.operators.reductions import (
    Group,
    Reduction,
    count,
    distinct,
    first_count,
    greatest,
    least,
    threshold,
    top,
    total,
)
from tidemill.arrangement.operators.tiles import tiles

__all__ = [
    "Join",
    "Reduce",
    "Group",
    "Reduction",
    "count",
    "distinct",
    "first_count",
    "greatest",
    "least",
    "threshold",
    "top",
    "total",
    "InterestingTimes",
    "interesting_times",
    "tiles",
]
