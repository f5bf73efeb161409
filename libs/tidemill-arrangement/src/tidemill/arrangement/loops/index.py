"""The history of a collection by key, for joins inside loops."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.consolidating import overflow
from tidemill.arrangement.kernels.products import product_fits
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.tables import (
    LENGTH,
    OVERFLOW,
    REMOVED,
    ROOM,
    START,
    TOP,
    USED,
    KeyedRuns,
    Whole,
    find,
    find_or_add,
    net_run,
    sweep_runs,
    widen_run,
)
from tidemill.arrangement.loops.times import join_times

_LEAST_ROOM = 3


@compiled
def _insert(
    table: U64Array, slots: U64Array, pool: U64Array, head: I64Array,
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array, first: Whole,
) -> Whole:  # fmt: skip
    """Append rows from `first` on to the runs of their keys; where it stopped for want of room.

    A full run is netted before it is widened if a removal comes, and at every fourth widening.
    """
    for i in range(first, diffs.size):
        slot = find_or_add(table, slots, head, keys[i], np.uint64(0))
        if slot < 0:
            return i
        length, room = np.int64(slots[slot, LENGTH]), np.int64(slots[slot, ROOM])
        if room == 0 or length == 1 << (room - 1):
            if room and (diffs[i] < 0 or room & 3 == 3):
                start = np.int64(slots[slot, START])
                length = net_run(pool[start : start + length], False)
                if length < 0:
                    return OVERFLOW
                slots[slot, LENGTH] = length
            if (room == 0 or 4 * length > 3 << (room - 1)) and not widen_run(
                slots, slot, pool, head, _LEAST_ROOM
            ):
                return i
        row = np.int64(slots[slot, START]) + length
        pool[row, 0], pool[row, 1], pool[row, 2] = vals[i], times[i], np.uint64(diffs[i])
        slots[slot, LENGTH] = length + 1
        head[REMOVED] += diffs[i] < 0
    return diffs.size


@compiled
def _match(
    table: U64Array, slots: U64Array, pool: U64Array,
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array, bits: Whole,
) -> tuple[U64Array, U64Array, U64Array, U64Array, I64Array, bool]:  # fmt: skip
    """Every given row with every stored row of its key: key, given val, stored val, time, diff.

    The last is whether all products of diffs fit.
    """
    n = diffs.size
    found = np.empty(n, np.int64)
    total: Whole = 0
    for i in range(n):
        found[i] = find(table, slots, keys[i], np.uint64(0))
        if found[i] >= 0:
            total += np.int64(slots[found[i], LENGTH])
    out_keys, given, stored = (
        np.empty(total, np.uint64), np.empty(total, np.uint64), np.empty(total, np.uint64)
    )  # fmt: skip
    out_times, out_diffs = np.empty(total, np.uint64), np.empty(total, np.int64)
    k = 0
    fits = True
    for i in range(n):
        if found[i] < 0:
            continue
        start = np.int64(slots[found[i], START])
        for row in range(start, start + np.int64(slots[found[i], LENGTH])):
            diff = np.int64(pool[row, 2])
            fits = fits and product_fits(diff, diffs[i])
            out_keys[k], given[k], stored[k] = keys[i], vals[i], pool[row, 0]
            out_times[k] = join_times(times[i], pool[row, 1], bits)
            out_diffs[k] = diff * diffs[i]
            k += 1
    return out_keys, given, stored, out_times, out_diffs, fits


class Index:
    """All rows of a collection so far by key, as accumulated over all epochs so far.

    Rows of one record and time may be stored apart until they are swept.
    """

    def __init__(self, bits: int) -> None:
        self.runs = KeyedRuns(3)
        self._bits = bits
        self._sweep_at = 0

    def insert(self, rows: Rows) -> None:
        """Add rows to the history. Cost: amortised O(log) for each row.

        Raises: UsageError if stored diffs of one record and time overflow.
        """
        runs, at = self.runs, 0
        while True:
            at = _insert(
                runs.table, runs.slots, runs.pool, runs.head,
                rows.keys, rows.vals, rows.times, rows.diffs, at,
            )  # fmt: skip
            if at == OVERFLOW:
                raise overflow()
            if at == len(rows):
                return
            runs.grow()

    def match(self, rows: Rows) -> tuple[U64Array, U64Array, U64Array, U64Array, I64Array]:
        """Each given row with each stored row of its key: key, given val, stored val, time, diff.

        Times are joined, diffs multiplied. Cost: O(rows + matches).
        Raises: UsageError if a product of diffs does not fit in 64 bits.
        """
        runs = self.runs
        keys, given, stored, times, diffs, fits = _match(
            runs.table, runs.slots, runs.pool,
            rows.keys, rows.vals, rows.times, rows.diffs, self._bits,
        )  # fmt: skip
        if not fits:
            raise overflow()
        return keys, given, stored, times, diffs

    def sweep(self, fuel: int | None = None) -> None:
        """Net runs until `fuel` rows are read, going on where the last sweep ended; all if no fuel.

        Raises: UsageError if stored diffs of one record and time overflow.
        """
        runs = self.runs
        everything = 1 << 62
        if fuel is None:
            self._sweep_at, fuel = 0, everything
        runs.head[REMOVED] = 0
        self._sweep_at = sweep_runs(runs.slots, runs.pool, runs.head, self._sweep_at, fuel)
        if self._sweep_at == OVERFLOW:
            raise overflow()
        if self._sweep_at >= int(runs.head[USED]):
            self._sweep_at = 0
            runs.forget_dead_keys()

    def settle(self) -> None:
        """The maintenance owed for the removals since the last time: only they leave rows behind."""
        removed = int(self.runs.head[REMOVED])
        if removed:
            self.sweep(4 * removed)

    @property
    def rows(self) -> int:
        """Rows that the pool has room for so far."""
        return int(self.runs.head[TOP])
