"""Changes of a window: facts that begin and end in it, for rows on columns."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.relational import turns
from tidemill.datalog.columnar.columns import Columns


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Facts of one predicate that begin (diff 1) or end (-1) at instants; of `facts` start and stop
    mean nothing.
    """

    facts: Columns
    times: I64Array
    diffs: I64Array

    def __len__(self) -> int:
        return len(self.times)


def column_changes(columns: Columns, seen: int, lower: int, upper: int) -> ColumnChanges:
    """What begins or ends at instants in [lower, upper), for rows of a window from `seen` on.

    What is present at an instant before `lower` that was seen does not begin again.
    """
    rows, times, diffs = turns(columns.start, columns.stop, seen, lower, upper)
    return ColumnChanges(columns.take(rows), times, diffs)
