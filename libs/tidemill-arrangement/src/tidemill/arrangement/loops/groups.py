"""The values of each key over rounds, and what a reduction makes of them."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.consolidating import consolidate_columns, overflow
from tidemill.arrangement.loops.agenda import add_minimal
from tidemill.arrangement.loops.reductions import GroupReduction, GroupRows
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.tables import (
    LISTED,
    NARROW,
    RUN_ROW,
    VISITING,
    WIDE_RUN_ROW,
    KeyedRuns,
    Records,
    Whole,
    append_row,
    find_or_add,
    net_run,
    release_run,
    sum_fits,
    write_row,
)
from tidemill.arrangement.loops.times import Rounds, U32Array, join_times, precedes_time

_OUT = np.uint32(2**31)
"""Marks the number of a time in rows of output."""
_BARE = np.uint32(2**31 - 1)


@compiled
def _take_in(
    table: U64Array, slots: Records, pool: Records, head: I64Array,
    keys: U64Array, vals: U64Array, times: U64Array, numbers: U32Array, diffs: I64Array,
    first: Whole, due_times: U64Array, due_slots: I64Array,
) -> Whole:  # fmt: skip
    """Add rows from `first` on to the input and list what is due; where it stopped for want of
    room.
    """
    for i in range(first, diffs.size):
        slot = find_or_add(table, slots, head, keys[i])
        if slot < 0 or not append_row(slots, slot, pool, head, vals[i], numbers[i], diffs[i], True):
            return i
        if slots[slot].due != times[i] + np.uint64(1):
            slots[slot].due = times[i] + np.uint64(1)
            due_times[head[LISTED]], due_slots[head[LISTED]] = times[i], slot
            head[LISTED] += 1
    return diffs.size


@compiled
def _take_in_many(
    slots: Records, pool: Records, head: I64Array, found: I64Array,
    vals: U64Array, times: U64Array, numbers: U32Array, diffs: I64Array,
    first: Whole, due_times: U64Array, due_slots: I64Array,
) -> Whole:  # fmt: skip
    """As `_take_in` where there is room; where it stopped at a diff that does not fit."""
    for i in range(first, diffs.size):
        slot = found[i]
        if not write_row(slots, slot, pool, vals[i], numbers[i], diffs[i]):
            head[NARROW] = 1
            return i
        if slots[slot].due != times[i] + np.uint64(1):
            slots[slot].due = times[i] + np.uint64(1)
            due_times[head[LISTED]], due_slots[head[LISTED]] = times[i], slot
            head[LISTED] += 1
    return diffs.size


@compiled
def _visit(slots: Records, due: I64Array) -> tuple[Whole, Whole]:
    """Each of the due slots once, at the front; how many, and the rows of all."""
    n: Whole = 0
    rows: Whole = 0
    for i in range(due.size):
        slot = due[i]
        if slots[slot].due != VISITING:
            slots[slot].due = VISITING
            rows += slots[slot].length
            due[n] = slot
            n += 1
    return n, rows


@compiled
def _survey(
    slots: Records, pool: Records, words: U64Array, due: I64Array, time: np.uint64, bits: Whole,
    in_groups: U64Array, ins: U64Array, in_counts: I64Array,
    out_groups: U64Array, outs: U64Array, out_counts: I64Array,
    later_times: U64Array, later_slots: I64Array,
) -> tuple[Whole, Whole, Whole, bool]:  # fmt: skip
    """The values of input and output of each due slot up to `time`, in order, and what is due
    later.

    Later are the least joins of `time` with stored times after it. Each of the other joins is a
    join of one of these with a stored time, and is listed from there. How many of each, and whether
    all sums fit.

    Source: the rule Reached of the reduce model.
    """
    n_in, n_out, n_later = 0, 0, 0
    fits = True
    for i in range(due.size):
        slot, later = due[i], n_later
        row = slots[slot].start
        end = row + net_run(pool[row : row + slots[slot].length], True)
        slots[slot].length = end - row
        while row < end:
            val = pool[row].val
            put_in, put_out = np.int64(0), np.int64(0)
            while row < end and pool[row].val == val:
                stored = words[pool[row].time & _BARE]
                if precedes_time(stored, time, bits):
                    diff = np.int64(pool[row].diff)
                    if pool[row].time < _OUT:
                        fits = fits and sum_fits(put_in, diff)
                        put_in += diff
                    else:
                        fits = fits and sum_fits(put_out, diff)
                        put_out += diff
                else:
                    join = join_times(time, stored, bits)
                    n_later = add_minimal(later_times, later, n_later, join, bits)
                row += 1
            if put_in:
                in_groups[n_in], ins[n_in], in_counts[n_in] = i, val, put_in
                n_in += 1
            if put_out:
                out_groups[n_out], outs[n_out], out_counts[n_out] = i, val, put_out
                n_out += 1
        slots[slot].due = 0
        for at in range(later, n_later):
            later_slots[at] = slot
            slots[slot].due = later_times[at] + np.uint64(1)
    return n_in, n_out, n_later, fits


@compiled
def _ascending(groups: U64Array, vals: U64Array) -> bool:
    """Whether rows are sorted by group and value, no two equal."""
    for i in range(1, vals.size):
        if groups[i] < groups[i - 1] or (groups[i] == groups[i - 1] and vals[i] <= vals[i - 1]):
            return False
    return True


@compiled
def _differences(
    groups: U64Array, vals: U64Array, counts: I64Array,
    out_groups: U64Array, outs: U64Array, out_counts: I64Array,
    owners: U64Array, changed: U64Array, diffs: I64Array,
) -> Whole:  # fmt: skip
    """What takes the output of each group to what is wanted of it; how many differences."""
    n, i, j = 0, 0, 0
    while i < vals.size or j < outs.size:
        order = 0
        if i == vals.size or j == outs.size:
            order = -1 if j == outs.size else 1
        elif groups[i] != out_groups[j]:
            order = -1 if groups[i] < out_groups[j] else 1
        elif vals[i] != outs[j]:
            order = -1 if vals[i] < outs[j] else 1
        diff = np.int64(0)
        if order <= 0:
            owners[n], changed[n] = groups[i], vals[i]
            diff = counts[i]
            i += 1
        if order >= 0:
            owners[n], changed[n] = out_groups[j], outs[j]
            diff -= out_counts[j]
            j += 1
        if diff:
            diffs[n] = diff
            n += 1
    return n


@compiled
def _put_out(
    slots: Records, pool: Records, head: I64Array, due: I64Array, number: Whole,
    owners: U64Array, vals: U64Array, diffs: I64Array, keys: U64Array, many: bool, first: Whole,
) -> Whole:  # fmt: skip
    """Add differences from `first` on to the output at a time; where it stopped for want of room.

    If they are many, there is room.
    """
    time = np.uint32(number) | _OUT
    for i in range(first, diffs.size):
        slot = due[owners[i]]
        if many:
            if not write_row(slots, slot, pool, vals[i], time, diffs[i]):
                head[NARROW] = 1
                return i
        elif not append_row(slots, slot, pool, head, vals[i], time, diffs[i], True):
            return i
        keys[i] = slots[slot].key
    return diffs.size


@compiled
def _tidy(slots: Records, pool: Records, head: I64Array, touched: I64Array) -> None:
    """Net the runs of the touched slots for good, each once; runs that are empty then go."""
    for i in range(touched.size):
        slot = touched[i]
        if slots[slot].room == 0 or slots[slot].due == VISITING:
            continue
        slots[slot].due = VISITING
        start, length = slots[slot].start, slots[slot].length
        kept = net_run(pool[start : start + length], False)
        slots[slot].length = kept
        if kept == 0:
            release_run(slots, slot, pool, head)
    for i in range(touched.size):
        slots[touched[i]].due = 0


class Groups:
    """The input and output diffs of each key, value and round, accumulated over all epochs so far.

    Within an epoch times whose diffs cancel are kept: they are partners of later joins.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.runs = KeyedRuns(RUN_ROW, WIDE_RUN_ROW)
        self._rounds = rounds
        self._touched: list[I64Array] = []

    def take_in(self, rows: Rows) -> tuple[U64Array, I64Array]:
        """Add to the input; the times at which slots are due now, and those slots, perhaps twice.

        Cost: amortised O(log) for each row.
        """
        runs, at, numbers = self.runs, 0, self._rounds.moments.number(rows.times)
        due_times, due_slots = np.empty(len(rows), np.uint64), np.empty(len(rows), np.int64)
        runs.head[LISTED] = 0
        columns = rows.vals, rows.times, numbers, rows.diffs
        many = runs.serves_many(len(rows))
        if many:
            found = runs.locate(rows.keys)
            runs.make_room(found, bool(rows.diffs.min() < 0), keep_zeros=True)
        while True:
            if many:
                at = _take_in_many(
                    runs.slots, runs.pool, runs.head, found, *columns, at, due_times, due_slots
                )
            else:
                at = _take_in(
                    runs.table, runs.slots, runs.pool, runs.head, rows.keys, *columns, at,
                    due_times, due_slots,
                )  # fmt: skip
            if at == len(rows):
                listed = int(runs.head[LISTED])
                return due_times[:listed], due_slots[:listed]
            runs.grow()

    def evaluate(
        self, time: int, slots: I64Array, reduction: GroupReduction
    ) -> tuple[Rows, tuple[U64Array, I64Array]]:
        """The changes of the output of `slots` at `time`, and what is due later on their account.

        The accumulated output at `time` is then the reduction of the accumulated input.
        Raises: UsageError if a sum of diffs does not fit in 64 bits.
        Cost: O(rows of the key) for each slot.
        """
        runs, rounds, now = self.runs, self._rounds, np.uint64(time)
        n, bound = _visit(runs.slots, slots)
        slots = slots[:n]
        given, output = _group_rows(bound), _group_rows(bound)
        later_times, later = np.empty(bound, np.uint64), np.empty(bound, np.int64)
        read, put_out, listed, fits = _survey(
            runs.slots, runs.pool, rounds.moments.words, slots, now, rounds.bits,
            *given, *output, later_times, later,
        )  # fmt: skip
        if not fits:
            raise overflow()
        wanted = reduction(given[0][:read], given[1][:read], given[2][:read])
        out = output[0][:put_out], output[1][:put_out], output[2][:put_out]
        changes = self._correct(slots, now, wanted, out)
        self._touched.append(slots)
        return changes, (later_times[:listed].copy(), later[:listed].copy())

    def _correct(self, slots: I64Array, now: np.uint64, wanted: GroupRows, out: GroupRows) -> Rows:
        """Record what takes the output to what is wanted, and give it."""
        runs, number = self.runs, self._rounds.moments.number_of(now)
        if not _ascending(wanted[0], wanted[1]):
            (groups, vals), counts = consolidate_columns(wanted[:2], wanted[2])
            wanted = groups, vals, counts
        owners, changed, diffs = _group_rows(len(wanted[0]) + len(out[0]))
        n = _differences(*wanted, *out, owners, changed, diffs)
        keys, at = np.empty(n, np.uint64), 0
        owners, changed, diffs = owners[:n], changed[:n], diffs[:n]
        many = runs.serves_many(n)
        if many:
            runs.make_room(slots[owners], bool(diffs.min() < 0), keep_zeros=True)
        while True:
            at = _put_out(
                runs.slots, runs.pool, runs.head, slots, number, owners, changed, diffs, keys,
                many, at,
            )  # fmt: skip
            if at == n:
                return Rows(keys, changed, np.full(n, now, np.uint64), diffs)
            runs.grow()

    def settle(self) -> None:
        """The maintenance at the end of an epoch: only then no time waits for its partners."""
        runs = self.runs
        if self._touched:
            _tidy(runs.slots, runs.pool, runs.head, np.concatenate(self._touched))
            self._touched.clear()
            runs.forget_dead_keys()
            runs.settle()

    def sweep(self) -> None:
        """Rebuild in the least memory; only between epochs."""
        self.runs.rebuild()


def _group_rows(rows: int) -> GroupRows:
    """Room for groups by their place, values and multiplicities."""
    return np.empty(rows, np.uint64), np.empty(rows, np.uint64), np.empty(rows, np.int64)
