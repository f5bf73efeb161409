"""The values of each key over rounds, and what a reduction makes of them."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.columns.reductions import GroupReduction, GroupRows
from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.consolidating import consolidate_columns, overflow
from tidemill.arrangement.loops.agenda import list_later
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.tables import (
    DUE,
    KEY,
    LENGTH,
    LISTED,
    OVERFLOW,
    ROOM,
    START,
    VISITING,
    KeyedRuns,
    Whole,
    find_or_add,
    net_run,
    release_run,
    widen_run,
)
from tidemill.arrangement.loops.times import precedes_time

_LEAST_ROOM = 3
_VAL, _TIME, _IN, _OUT = range(4)


@compiled
def _append(
    slots: U64Array, slot: Whole, pool: U64Array, head: I64Array, val: np.uint64, time: np.uint64,
    column: Whole, diff: Whole,
) -> Whole:  # fmt: skip
    """Append an input or output diff to a slot's run; 0, −1 on overflow, 1 if there is no room.

    A full run is netted before it is widened if a removal comes, and at every fourth widening.
    """
    length, room = np.int64(slots[slot, LENGTH]), np.int64(slots[slot, ROOM])
    if room == 0 or length == 1 << (room - 1):
        if room and (diff < 0 or room & 3 == 3):
            start = np.int64(slots[slot, START])
            length = net_run(pool[start : start + length], True)
            if length < 0:
                return OVERFLOW
            slots[slot, LENGTH] = length
        if (room == 0 or 4 * length > 3 << (room - 1)) and not widen_run(
            slots, slot, pool, head, _LEAST_ROOM
        ):
            return 1
    row = np.int64(slots[slot, START]) + length
    pool[row, _VAL], pool[row, _TIME], pool[row, _IN], pool[row, _OUT] = val, time, 0, 0
    pool[row, column] = np.uint64(diff)
    slots[slot, LENGTH] = length + 1
    return 0


@compiled
def _take_in(
    table: U64Array, slots: U64Array, pool: U64Array, head: I64Array,
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array, first: Whole,
    due_times: U64Array, due_slots: I64Array,
) -> Whole:  # fmt: skip
    """Add rows from `first` on to the input and list what is due; where it stopped for want of room."""
    for i in range(first, diffs.size):
        slot = find_or_add(table, slots, head, keys[i], np.uint64(0))
        if slot < 0:
            return i
        outcome = _append(slots, slot, pool, head, vals[i], times[i], _IN, diffs[i])
        if outcome:
            return OVERFLOW if outcome < 0 else i
        if slots[slot, DUE] != times[i] + np.uint64(1):
            slots[slot, DUE] = times[i] + np.uint64(1)
            due_times[head[LISTED]], due_slots[head[LISTED]] = times[i], slot
            head[LISTED] += 1
    return diffs.size


@compiled
def _accumulate(
    slots: U64Array, pool: U64Array, due: I64Array, time: np.uint64, bits: Whole,
    in_groups: U64Array, ins: U64Array, in_counts: I64Array,
    out_groups: U64Array, outs: U64Array, out_counts: I64Array,
) -> tuple[Whole, Whole]:  # fmt: skip
    """The values of input and output of each due slot up to `time`; how many of either."""
    n_in, n_out = 0, 0
    for i in range(due.size):
        row = np.int64(slots[due[i], START])
        end = row + np.int64(slots[due[i], LENGTH])
        while row < end:
            val = pool[row, _VAL]
            put_in, put_out = np.int64(0), np.int64(0)
            while row < end and pool[row, _VAL] == val:
                if precedes_time(pool[row, _TIME], time, bits):
                    diff = np.int64(pool[row, _IN])
                    summed = put_in + diff
                    if ((put_in ^ summed) & (diff ^ summed)) < 0:
                        return OVERFLOW, 0
                    put_in = summed
                    put_out += np.int64(pool[row, _OUT])
                row += 1
            if put_in:
                in_groups[n_in], ins[n_in], in_counts[n_in] = i, val, put_in
                n_in += 1
            if put_out:
                out_groups[n_out], outs[n_out], out_counts[n_out] = i, val, put_out
                n_out += 1
    return n_in, n_out


@compiled
def _visit(slots: U64Array, pool: U64Array, due: I64Array, places: I64Array) -> Whole:
    """Net the runs of the due slots, each once; how many, and in `places` the sum of their lengths."""
    n = 0
    places[0] = 0
    for i in range(due.size):
        slot = due[i]
        if slots[slot, DUE] == VISITING:
            continue
        slots[slot, DUE] = VISITING
        start, length = np.int64(slots[slot, START]), np.int64(slots[slot, LENGTH])
        length = net_run(pool[start : start + length], True)
        if length < 0:
            return OVERFLOW
        slots[slot, LENGTH] = length
        places[0] += length
        due[n] = slot
        n += 1
    return n


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
    slots: U64Array, pool: U64Array, head: I64Array, due: I64Array, time: Whole,
    owners: U64Array, vals: U64Array, diffs: I64Array, keys: U64Array, first: Whole,
) -> Whole:  # fmt: skip
    """Add differences from `first` on to the output at `time`; where it stopped for want of room."""
    for i in range(first, diffs.size):
        slot = due[owners[i]]
        outcome = _append(slots, slot, pool, head, vals[i], time, _OUT, diffs[i])
        if outcome:
            return OVERFLOW if outcome < 0 else i
        keys[i] = slots[slot, KEY]
    return diffs.size


@compiled
def _tidy(slots: U64Array, pool: U64Array, head: I64Array, touched: I64Array) -> Whole:
    """Net the runs of the touched slots for good, each once; runs that are empty then go."""
    for i in range(touched.size):
        slot = touched[i]
        if slots[slot, ROOM] == 0 or slots[slot, DUE] == VISITING:
            continue
        slots[slot, DUE] = VISITING
        start, length = np.int64(slots[slot, START]), np.int64(slots[slot, LENGTH])
        kept = net_run(pool[start : start + length], False)
        if kept < 0:
            return OVERFLOW
        slots[slot, LENGTH] = kept
        if kept == 0:
            release_run(slots, slot, pool, head)
    for i in range(touched.size):
        slots[touched[i], DUE] = 0
    return 0


class Groups:
    """The input and output diffs of each key, value and round, accumulated over all epochs so far.

    Within an epoch times whose diffs cancel are kept: they are partners of later joins.
    """

    def __init__(self, bits: int) -> None:
        self.runs = KeyedRuns(4)
        self._bits = bits
        self._touched: list[I64Array] = []

    def take_in(self, rows: Rows) -> tuple[U64Array, I64Array]:
        """Add to the input; the times at which slots are due now, and those slots, perhaps twice.

        Raises: UsageError if the diffs of one record and time overflow.
        Cost: amortised O(log) for each row.
        """
        runs, at = self.runs, 0
        due_times, due_slots = np.empty(len(rows), np.uint64), np.empty(len(rows), np.int64)
        runs.head[LISTED] = 0
        while True:
            at = _take_in(
                runs.table, runs.slots, runs.pool, runs.head,
                rows.keys, rows.vals, rows.times, rows.diffs, at, due_times, due_slots,
            )  # fmt: skip
            if at == OVERFLOW:
                raise overflow()
            if at == len(rows):
                listed = int(runs.head[LISTED])
                return due_times[:listed], due_slots[:listed]
            runs.grow()

    def evaluate(
        self, time: int, slots: I64Array, reduction: GroupReduction
    ) -> tuple[Rows, tuple[U64Array, I64Array]]:
        """The changes of the output of `slots` at `time`, and what is due later on their account.

        The accumulated output at `time` is then the reduction of the accumulated input.
        Raises: UsageError if a diff does not fit in 64 bits.
        Cost: O(rows of the key) for each slot.
        """
        runs, now, places = self.runs, np.uint64(time), np.empty(1, np.int64)
        n = _visit(runs.slots, runs.pool, slots, places)
        if n == OVERFLOW:
            raise overflow()
        slots, bound = slots[:n], int(places[0])
        given, output = _group_rows(bound), _group_rows(bound)
        read, put_out = _accumulate(runs.slots, runs.pool, slots, now, self._bits, *given, *output)
        if read == OVERFLOW:
            raise overflow()
        wanted = reduction(given[0][:read], given[1][:read], given[2][:read])
        out = output[0][:put_out], output[1][:put_out], output[2][:put_out]
        changes = self._correct(slots, now, wanted, out)
        later = list_later(runs.slots, runs.pool, _TIME, slots, now, self._bits)
        self._touched.append(slots)
        return changes, later

    def _correct(self, slots: I64Array, now: np.uint64, wanted: GroupRows, out: GroupRows) -> Rows:
        """Record what takes the output to what is wanted, and give it."""
        runs = self.runs
        if not _ascending(wanted[0], wanted[1]):
            (groups, vals), counts = consolidate_columns(wanted[:2], wanted[2])
            wanted = groups, vals, counts
        owners, changed, diffs = _group_rows(len(wanted[0]) + len(out[0]))
        n = _differences(*wanted, *out, owners, changed, diffs)
        keys, at = np.empty(n, np.uint64), 0
        owners, changed, diffs = owners[:n], changed[:n], diffs[:n]
        while True:
            at = _put_out(
                runs.slots, runs.pool, runs.head, slots, now, owners, changed, diffs, keys, at
            )
            if at == OVERFLOW:
                raise overflow()
            if at == n:
                return Rows(keys, changed, np.full(n, now, np.uint64), diffs)
            runs.grow()

    def settle(self) -> None:
        """The maintenance at the end of an epoch: only then no time waits for its partners.

        Raises: UsageError if stored diffs of one record and time overflow.
        """
        runs = self.runs
        if self._touched:
            touched = np.concatenate(self._touched)
            if _tidy(runs.slots, runs.pool, runs.head, touched) == OVERFLOW:
                raise overflow()
            self._touched.clear()
            runs.forget_dead_keys()

    def sweep(self) -> None:
        """Rebuild in the least memory; only between epochs."""
        self.runs.rebuild()


def _group_rows(rows: int) -> GroupRows:
    """Room for groups by their place, values and multiplicities."""
    return np.empty(rows, np.uint64), np.empty(rows, np.uint64), np.empty(rows, np.int64)
