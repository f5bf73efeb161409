"""The history of a collection by key, for joins inside loops."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.consolidating import overflow
from tidemill.arrangement.kernels.products import product_fits
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.tables import (
    NARROW,
    REMOVED,
    RUN_ROW,
    TOP,
    USED,
    WIDE_RUN_ROW,
    KeyedRuns,
    Records,
    Whole,
    append_row,
    find,
    find_or_add,
    sweep_runs,
    write_row,
)
from tidemill.arrangement.loops.times import Rounds, U32Array, join_times
from tidemill.errors import Exhausted

_MATCH_BYTES = 80
"""A match, and what is made of it."""


@compiled
def _insert(
    table: U64Array, slots: Records, pool: Records, head: I64Array,
    keys: U64Array, vals: U64Array, times: U32Array, diffs: I64Array, first: Whole,
) -> Whole:  # fmt: skip
    """Append rows from `first` on to the runs of their keys; where it stopped for want of room."""
    for i in range(first, diffs.size):
        slot = find_or_add(table, slots, head, keys[i])
        if slot < 0 or not append_row(slots, slot, pool, head, vals[i], times[i], diffs[i], False):
            return i
        head[REMOVED] += diffs[i] < 0
    return diffs.size


@compiled
def _insert_many(
    slots: Records, pool: Records, head: I64Array, found: I64Array, vals: U64Array, times: U32Array,
    diffs: I64Array, first: Whole,
) -> Whole:  # fmt: skip
    """Append rows from `first` on where there is room; where it stopped at a diff that does not
    fit.
    """
    for i in range(first, diffs.size):
        if not write_row(slots, found[i], pool, vals[i], times[i], diffs[i]):
            head[NARROW] = 1
            return i
        head[REMOVED] += diffs[i] < 0
    return diffs.size


@compiled
def _match(
    table: U64Array, slots: Records, pool: Records, words: U64Array,
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array, bits: Whole, most: Whole,
) -> tuple[U64Array, U64Array, U64Array, U64Array, I64Array, bool, Whole]:  # fmt: skip
    """Every given row with every stored row of its key: key, given val, stored val, time, diff.

    The last are whether all products of diffs fit, and how many matches there are: none are made of
    more than `most`.
    """
    n = diffs.size
    found = np.empty(n, np.int64)
    total: Whole = 0
    for i in range(n):
        found[i] = find(table, slots, keys[i])
        if found[i] >= 0:
            total += slots[found[i]].length
    wanted = total
    if wanted > most:
        n = total = 0
    out_keys, given, stored = (
        np.empty(total, np.uint64), np.empty(total, np.uint64), np.empty(total, np.uint64)
    )  # fmt: skip
    out_times, out_diffs = np.empty(total, np.uint64), np.empty(total, np.int64)
    k = 0
    fits = True
    for i in range(n):
        if found[i] < 0:
            continue
        start = slots[found[i]].start
        for row in range(start, start + slots[found[i]].length):
            diff = np.int64(pool[row].diff)
            fits = fits and product_fits(diff, diffs[i])
            out_keys[k], given[k], stored[k] = keys[i], vals[i], pool[row].val
            out_times[k] = join_times(times[i], words[pool[row].time], bits)
            out_diffs[k] = diff * diffs[i]
            k += 1
    return out_keys, given, stored, out_times, out_diffs, fits, wanted


class Index:
    """All rows of a collection so far by key, as accumulated over all epochs so far.

    Rows of one record and time may be stored apart until they are swept, and where their sum does
    not fit in 64 bits.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.runs = KeyedRuns(RUN_ROW, WIDE_RUN_ROW)
        self._rounds = rounds
        self._sweep_at = 0

    def insert(self, rows: Rows) -> None:
        """Add rows to the history. Cost: amortised O(log) for each row."""
        runs, at, times = self.runs, 0, self._rounds.moments.number(rows.times)
        if runs.serves_many(len(rows)):
            found = runs.locate(rows.keys)
            runs.make_room(found, bool(rows.diffs.min() < 0), keep_zeros=False)
            while at < len(rows):
                columns = rows.vals, times, rows.diffs
                at = _insert_many(runs.slots, runs.pool, runs.head, found, *columns, at)
                if at < len(rows):
                    runs.grow()
            return
        while True:
            at = _insert(
                runs.table, runs.slots, runs.pool, runs.head,
                rows.keys, rows.vals, times, rows.diffs, at,
            )  # fmt: skip
            if at == len(rows):
                return
            runs.grow()

    def match(self, rows: Rows) -> tuple[U64Array, U64Array, U64Array, U64Array, I64Array]:
        """Each given row with each stored row of its key: key, given val, stored val, time, diff.

        Times are joined, diffs multiplied. Cost: O(rows + matches). Raises: UsageError if a product
        of diffs does not fit in 64 bits; Exhausted, with the bytes `wanted`, where there is no room
        for the matches.
        """
        runs = self.runs
        most = self._rounds.room(_MATCH_BYTES)
        keys, given, stored, times, diffs, fits, wanted = _match(
            runs.table, runs.slots, runs.pool, self._rounds.moments.words,
            rows.keys, rows.vals, rows.times, rows.diffs, self._rounds.bits, most,
        )  # fmt: skip
        if wanted > most:
            raise Exhausted(
                f"a join was given up: it has {wanted:,} matches, there is room for {most:,}",
                wanted=wanted * _MATCH_BYTES,
            )
        if not fits:
            raise overflow()
        return keys, given, stored, times, diffs

    def sweep(self, fuel: int | None = None) -> None:
        """Net runs until `fuel` rows are read, going on where the last sweep ended; all if no fuel."""
        runs = self.runs
        everything = 1 << 62
        if fuel is None:
            self._sweep_at, fuel = 0, everything
        runs.head[REMOVED] = 0
        self._sweep_at = sweep_runs(runs.slots, runs.pool, runs.head, self._sweep_at, fuel)
        if self._sweep_at >= int(runs.head[USED]):
            self._sweep_at = 0
            runs.forget_dead_keys()

    def settle(self) -> None:
        """The maintenance owed for the removals since the last time: only they leave rows behind."""
        removed = int(self.runs.head[REMOVED])
        if removed:
            self.sweep(4 * removed)
        self.runs.settle()

    @property
    def rows(self) -> int:
        """Rows that the pool has room for so far."""
        return int(self.runs.head[TOP])
