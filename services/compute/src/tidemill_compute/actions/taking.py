"""Changes of what an action watches, cut into pieces that are taken one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, between
from tidemill.catalog.record_rows import PredicateShape, record_of
from tidemill_compute.actions.firings import Firings, RecordChange
from tidemill_compute.actions.key_counts import Words, words_of


@dataclass(frozen=True, slots=True)
class Read:
    """Changes in [lower, upper) that were read together, for several steps."""

    lower: int
    upper: int
    rows: pa.Table

    def covers(self, at: int) -> bool:
        """Whether a step may begin at an instant."""
        return self.lower <= at < self.upper

    def between(self, lower: int, upper: int) -> pa.Table:
        """The changes of one step."""
        return between(self.rows, lower, upper)

    def step_end(self, lower: int, rows_max: int) -> int:
        """The end of a step from `lower` on with at most so many changes, unless one instant has
        more. Cost: O(n log n) for n changes that were read.
        """
        times = np.sort(self.between(lower, self.upper)[TIME].to_numpy())
        if len(times) <= rows_max:
            return self.upper
        return int(max(times[rows_max], times[0] + np.uint64(1)))


NOTHING_READ = Read(0, 0, pa.Table.from_batches([], pa.schema([(TIME, pa.uint64())])))


class Taking:
    """Reads rows of one shape as changes of records, for one memory of firings."""

    def __init__(self, shape: PredicateShape, firings: Firings) -> None:
        self._names = shape.schema.names
        self._record_of = record_of(shape)
        self._firings = firings

    def changes(self, rows: pa.Table) -> list[RecordChange]:
        """The changes that updates are."""
        values = list(zip(*(rows[name].to_pylist() for name in self._names), strict=True))
        times, diffs = rows[TIME].to_pylist(), rows[DIFF].to_pylist()
        return [
            (self._record_of(row), int(time), diff)
            for row, time, diff in zip(values or [()] * len(times), times, diffs, strict=True)
        ]

    def pieces(self, rows: pa.Table, rows_max: int) -> Iterator[pa.Table]:
        """The rows in pieces of about `rows_max`, by instants, then keys; no event is cut.

        Rows that the goal does not ask for may be left out. Memory: 40 bytes a row beside them.
        """
        if rows.num_rows <= 2 * rows_max:
            yield rows
            return
        places, words = [], []
        for start in range(0, rows.num_rows, rows_max):
            asked, keys = self._keys(rows.slice(start, rows_max))
            places.append(np.array(asked, np.int64) + start)
            words.append(keys)
        at, keys = np.concatenate(places), np.concatenate(words)
        times = rows[TIME].to_numpy()[at]
        order = np.lexsort((*keys.T[::-1], times))
        at, keys, times = at[order], keys[order], times[order]
        begins = np.flatnonzero(
            np.concatenate(
                [[True], (keys[1:] != keys[:-1]).any(axis=1) | (times[1:] != times[:-1])]
            )
        )
        start = 0
        while start < len(at):
            after = np.searchsorted(begins, start + rows_max)
            stop = int(begins[after]) if after < len(begins) else len(at)
            yield rows.take(at[start:stop])
            start = stop

    def _keys(self, rows: pa.Table) -> tuple[Sequence[int], Words]:
        """The places of rows that the goal asks for, and the keys of their events."""
        asked, keys = [], []
        for at, (record, _, _) in enumerate(self.changes(rows)):
            if self._firings.asks(record):
                asked.append(at)
                keys.append(self._firings.key_of(record))
        return asked, words_of(keys)
