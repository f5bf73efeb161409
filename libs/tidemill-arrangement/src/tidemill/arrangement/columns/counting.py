"""The number of records of each key, kept up to date along one chain of times."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.columns.arranging import ColumnArrangement
from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, Times
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.kernels import Columns, I64Array, Layout, U64Array, consolidate
from tidemill.arrangement.kernels.changing import (
    distinct_of,
    pack_replaced_sums,
    replace_sums,
    span_of_sums,
)
from tidemill.arrangement.kernels.consolidating import FEW, overflow
from tidemill.arrangement.kernels.packing import constant, span_of
from tidemill.arrangement.kernels.probing import add_small_sums, add_sums
from tidemill.arrangement.trace import Description
from tidemill.time import U64_TIME, Antichain

_READ_BELOW = 16
"""Up to so many rows for each key all of them are read."""


class ColumnCount:
    """At every finalised time one row (key, n) for each key whose diffs add up to n, not zero.

    Vals of the input do not matter. The output itself says what a key counted before, so it is all
    that is kept: in it, the sum of val times diff of a key is its count.
    """

    def __init__(self, storage: Storage = MEMORY, effort: int = 1) -> None:
        self.output = ColumnArrangement(U64_TIME, "count", storage, effort)
        self._storage = storage

    @property
    def upper(self) -> Times:
        """Up to where the output is final."""
        return self.output.upper

    def step(self, updates: Columns, upper: Times) -> ColumnBatch:
        """The changes of counts at times beyond the last upper and not beyond `upper`.

        Raises: UsageError if `upper` is not beyond the last one, an update is not beyond the last
            one or is beyond this one, or a count does not fit in 64 bits; nothing changes then.
        Cost: a sort of the updates, and a search for each distinct key in each of O(log n) batches.
        """
        description = Description(self.upper, upper, Antichain.minimum(U64_TIME))
        nothing = constant(0, len(updates))
        by_key = consolidate(
            Columns(updates.keys, nothing, updates.times, updates.diffs)
        ).contiguous()  # fmt: skip
        keys = np.empty_like(by_key.keys)
        keys = keys[: distinct_of(by_key.keys, keys)]
        counts = self._counts(keys)
        if FEW < len(keys) == len(by_key) and _inside(by_key.times, description):
            batch = self._replaced(by_key, counts, description)
        else:
            batch = self.output.batch_of(_changes(by_key, counts), upper)
        self.output.insert(batch)
        return batch

    def compact(self, to: Times) -> None:
        """Let the output forget differences between times that no time beyond `to` can tell."""
        self.output.compact(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance; whether there was anything to do."""
        return self.output.exert(effort)

    def _replaced(
        self, by_key: Columns, counts: I64Array, description: Description[int]
    ) -> ColumnBatch:
        """The changes of keys with one update each, written as packed rows at once."""
        keys, times = by_key.keys, by_key.times
        rows, low, high = span_of_sums(by_key.diffs, counts)
        if rows < 0:
            raise overflow()
        first, last = span_of(times[0])
        lows, highs = (keys[0], low, first), (keys[-1], high, last)
        layout = Layout.spanning([int(value) for value in lows], [int(value) for value in highs])
        packed, diffs = np.zeros((rows, layout.words), np.uint64), np.empty(rows, np.int8)
        pack_replaced_sums(keys, times, by_key.diffs, counts, layout.table, packed, diffs)
        return ColumnBatch.packed(U64_TIME, description, layout, packed, diffs, self._storage)

    def _counts(self, keys: U64Array) -> I64Array:
        counts = np.zeros(len(keys), np.int64)
        for batch in self.output.batches():
            rows, table, diffs = batch.rows, batch.layout.table, batch.diffs
            if _all_read(len(keys), batch):
                fits = add_small_sums(keys, rows, table, diffs, counts)
            else:
                fits = add_sums(keys, rows, table, diffs, True, counts)
            if not fits:
                raise overflow()
        return counts


def _all_read(keys: int, batch: ColumnBatch) -> bool:
    """Whether reading all rows beats looking for the keys, and no sum of products can wrap."""
    small = batch.diffs.dtype == np.int8 and batch.layout.highs[1] < 2**31 and len(batch) < 2**24
    return bool(small and 0 < len(batch) < _READ_BELOW * keys)


def _changes(by_key: Columns, counts: I64Array) -> Columns:
    rows = 2 * len(by_key)
    keys, vals = np.empty(rows, np.uint64), np.empty(rows, np.uint64)
    times, diffs = np.empty((1, rows), np.uint64), np.empty(rows, np.int64)
    written = replace_sums(
        by_key.keys, by_key.times, by_key.diffs, counts, keys, vals, times, diffs
    )
    if written < 0:
        raise overflow()
    return Columns(keys, vals, times, diffs).slice(0, written).contiguous()


def _inside(times: U64Array, description: Description[int]) -> bool:
    if not times.size:
        return True
    low, high = int(times.min()), int(times.max())
    return description.lower.less_equal(low) and not description.upper.less_equal(high)
