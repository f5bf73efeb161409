"""Batches of Python values, and operators on them, under any partial order of times.

They are the judges of the public cases of collections, joins and reductions, and the batches with
which these cases drive the traces of `tidemill.arrangement.trace`.
"""

from tidemill.testkit.partial_orders.interesting_times import InterestingTimes, interesting_times
from tidemill.testkit.partial_orders.join import Join
from tidemill.testkit.partial_orders.reading import read_at, updates_of
from tidemill.testkit.partial_orders.reduce import Reduce
from tidemill.testkit.partial_orders.reductions import (
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
from tidemill.testkit.partial_orders.row_batches import RowBatch, RowMerger, history_of_key
from tidemill.testkit.partial_orders.tiles import tiles

__all__ = [
    "Join",
    "Reduce",
    "Group",
    "Reduction",
    "RowBatch",
    "RowMerger",
    "history_of_key",
    "read_at",
    "updates_of",
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
