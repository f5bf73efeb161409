"""The multiplicity of each record over rounds, and what a rule of it makes of the record.

The rows of a key are a hash table of their own, by value: the rows of one pass come mostly key by
key, so that what they look up lies close together. A row belongs to one record and time; its mark
says that the record is due at that time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.consolidating import overflow
from tidemill.arrangement.loops.agenda import add_minimal
from tidemill.arrangement.loops.logs import Presence, log_rows
from tidemill.arrangement.loops.record_tables import (
    BARE,
    EMPTY,
    MARK,
    NARROW_ROW,
    OVERFLOW,
    WIDE_ROW,
    add_diffs,
    copy_rows,
    drop_zeros,
    find_entry,
    home_of,
    make_table,
    make_tables,
    restore_rows,
    roomy,
    widen_table,
)
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.tables import (
    LATER,
    LISTED,
    REMOVED,
    TOP,
    USED,
    KeyedRuns,
    Records,
    Whole,
    find_or_add,
    sum_fits,
)
from tidemill.arrangement.loops.times import Rounds, U32Array, join_times, precedes_time

Rule = Callable[[U64Array, U64Array, I64Array], I64Array]
"""Multiplicities for `(keys, vals, multiplicities)`; depends on nothing else, and zero gives zero."""

Listed = tuple[I64Array, U64Array]
"""Slots and values: records of which something is due."""

_NEVER = np.uint64(2**63)
"""After all times."""
BULK = 256
"""From so many rows on it pays to see whether records can be evaluated as they come."""
_NOTHING: I64Array = np.empty(0, np.int64)
_NONE_LATER: tuple[U64Array, Listed] = (
    np.empty(0, np.uint64),
    (np.empty(0, np.int64), np.empty(0, np.uint64)),
)


@compiled
def _take_in(
    table: U64Array, slots: Records, pool: Records, head: I64Array,
    keys: U64Array, vals: U64Array, times: U64Array, numbers: U32Array, diffs: I64Array,
    first: Whole, due_times: U64Array, due_slots: I64Array, due_vals: U64Array,
) -> Whole:  # fmt: skip
    """Add rows from `first` on to the input and list what is due; where it stopped for want of
    room.
    """
    slot = -1
    for i in range(first, diffs.size):
        if slot < 0 or slots[slot].key != keys[i]:
            slot = find_or_add(table, slots, head, keys[i])
            if slot < 0 or not make_table(slots, slot, pool, head):
                return i
        row = find_entry(slots, slot, pool, head, vals[i], numbers[i])
        if row < 0:
            return i
        outcome = add_diffs(pool, row, diffs[i], 0, head)
        if outcome:
            return OVERFLOW if outcome < 0 else i
        head[REMOVED] += diffs[i] < 0
        if pool[row].time == numbers[i]:
            pool[row].time |= MARK
            n = head[LISTED]
            due_times[n], due_slots[n], due_vals[n] = times[i], slot, vals[i]
            head[LISTED] = n + 1
    return diffs.size


@compiled
def _accumulate(
    slots: Records, pool: Records, words: U64Array, due_slots: I64Array, due_vals: U64Array,
    time: np.uint64, bits: Whole, keys: U64Array, ins: I64Array,
) -> bool:  # fmt: skip
    """The sums of the input of the due records up to `time`; whether they fit."""
    for i in range(due_slots.size):
        slot, val = due_slots[i], due_vals[i]
        put_in = np.int64(0)
        start, mask = slots[slot].start, (1 << (slots[slot].room - 1)) - 1
        place = home_of(val, slots[slot].room)
        while pool[start + place].time != EMPTY:
            row = start + place
            if pool[row].val == val and precedes_time(words[pool[row].time & BARE], time, bits):
                diff = np.int64(pool[row].put_in)
                if not sum_fits(put_in, diff):
                    return False
                put_in += diff
            place = (place + 1) & mask
        keys[i], ins[i] = slots[slot].key, put_in
    return True


@compiled
def _correct(
    slots: Records, pool: Records, head: I64Array, words: U64Array,
    due_slots: I64Array, due_vals: U64Array,
    time: np.uint64, bits: Whole, wanted: I64Array, first: Whole,
    changed: I64Array, changes: I64Array, later_times: U64Array, later: I64Array,
) -> Whole:  # fmt: skip
    """Bring the output of the due records from `first` on at `time` to what is wanted.

    Lists the changes; where it stopped for want of room. If nothing is said to be wanted, each
    record is wanted once where its sum is positive. Where times are a chain, the next stored time
    of each record and its place are listed as later.
    """
    for i in range(first, due_slots.size):
        slot, val = due_slots[i], due_vals[i]
        start, mask = slots[slot].start, (1 << (slots[slot].room - 1)) - 1
        put_in, put_out = np.int64(0), np.int64(0)
        place = home_of(val, slots[slot].room)
        next_time, next_row, now_row = _NEVER, start, start
        while pool[start + place].time != EMPTY:
            row = start + place
            if pool[row].val == val:
                stored = words[pool[row].time & BARE]
                if stored == time:
                    now_row = row
                if precedes_time(stored, time, bits):
                    diff = np.int64(pool[row].put_in)
                    if not sum_fits(put_in, diff):
                        return OVERFLOW
                    put_in += diff
                    put_out += np.int64(pool[row].out)
                elif stored < next_time:
                    next_time, next_row = stored, row
            place = (place + 1) & mask
        diff = (wanted[i] if wanted.size else np.int64(put_in > 0)) - put_out
        if diff:
            outcome = add_diffs(pool, now_row, 0, diff, head)
            if outcome:
                return OVERFLOW if outcome < 0 else i
            head[REMOVED] += diff < 0
            n = head[LISTED]
            changed[n], changes[n] = i, diff
            head[LISTED] = n + 1
        pool[now_row].time &= BARE
        if bits == 63 and next_time != _NEVER and pool[next_row].time < MARK:
            pool[next_row].time |= MARK
            n = head[LATER]
            later_times[n], later[n] = next_time, i
            head[LATER] = n + 1
    return due_slots.size


@compiled
def _add_and_correct(
    table: U64Array, slots: Records, pool: Records, head: I64Array, words: U64Array,
    keys: U64Array, vals: U64Array, diffs: I64Array, number: Whole, first: Whole,
    changed: I64Array, later_times: U64Array, later_slots: I64Array, later_vals: U64Array,
) -> Whole:  # fmt: skip
    """Add rows of positive diffs at one time from `first` on, each record at once evaluated.

    Multiplicities only rise, so a record comes to be there at most once. Where it stopped for want
    of room; changes and what is later are listed as by `_correct`.
    """
    slot, time = -1, words[number]
    for i in range(first, diffs.size):
        if slot < 0 or slots[slot].key != keys[i]:
            slot = find_or_add(table, slots, head, keys[i])
            if slot < 0 or not make_table(slots, slot, pool, head):
                return i
        if not roomy(slots, slot) and not widen_table(slots, slot, pool, head):
            return i
        val, put_in, put_out = vals[i], diffs[i], np.int64(0)
        start, mask = slots[slot].start, (1 << (slots[slot].room - 1)) - 1
        place = home_of(val, slots[slot].room)
        next_time, next_row, now_row = _NEVER, start, -1
        while pool[start + place].time != EMPTY:
            row = start + place
            if pool[row].val == val:
                stored = words[pool[row].time & BARE]
                if stored <= time:
                    if stored == time:
                        now_row = row
                    diff = np.int64(pool[row].put_in)
                    if not sum_fits(put_in, diff):
                        return OVERFLOW
                    put_in += diff
                    put_out += np.int64(pool[row].out)
                elif stored < next_time:
                    next_time, next_row = stored, row
            place = (place + 1) & mask
        if now_row < 0:
            now_row = start + place
            pool[now_row].val, pool[now_row].time = val, number
            pool[now_row].put_in, pool[now_row].out = 0, 0
            slots[slot].length += 1
        diff = np.int64(put_in > 0) - put_out
        outcome = add_diffs(pool, now_row, diffs[i], diff, head)
        if outcome:
            return OVERFLOW if outcome < 0 else i
        if diff:
            changed[head[LISTED]] = i
            head[LISTED] += 1
        if next_time != _NEVER and pool[next_row].time < MARK:
            pool[next_row].time |= MARK
            n = head[LATER]
            later_times[n], later_slots[n], later_vals[n] = next_time, slot, val
            head[LATER] = n + 1
    return diffs.size


@compiled
def _list_joins(
    slots: Records, pool: Records, words: U64Array, due_slots: I64Array, due_vals: U64Array,
    time: np.uint64, bits: Whole,
) -> tuple[U64Array, I64Array]:  # fmt: skip
    """The least joins of `time` with stored times of the due records after it, and their places.

    Each of the other joins is a join of one of these with a stored time, and is listed from there.
    """
    room: Whole = due_slots.size
    times, later = np.empty(room, np.uint64), np.empty(room, np.int64)
    n = 0
    for i in range(due_slots.size):
        slot, val = due_slots[i], due_vals[i]
        start, mask = slots[slot].start, (1 << (slots[slot].room - 1)) - 1
        place = home_of(val, slots[slot].room)
        first = n
        while pool[start + place].time != EMPTY:
            row = start + place
            if pool[row].val == val:
                join = join_times(words[pool[row].time & BARE], time, bits)
                if join != time:
                    if n == room:
                        room *= 2
                        more_times, more_later = np.empty(room, np.uint64), np.empty(room, np.int64)
                        for at in range(n):
                            more_times[at], more_later[at] = times[at], later[at]
                        times, later = more_times, more_later
                    n = add_minimal(times, first, n, join, bits)
            place = (place + 1) & mask
        later[first:n] = i
    return times[:n], later[:n]


@compiled
def _mark(
    slots: Records, pool: Records, head: I64Array, due_slots: I64Array, due_vals: U64Array,
    later_times: U64Array, numbers: U32Array, later: I64Array, first: Whole,
) -> Whole:  # fmt: skip
    """Keep of the joins from `first` on those not listed yet, at the front; where it stopped."""
    for i in range(first, later.size):
        slot, val = due_slots[later[i]], due_vals[later[i]]
        row = find_entry(slots, slot, pool, head, val, numbers[i])
        if row < 0:
            return i
        if pool[row].time == numbers[i]:
            pool[row].time |= MARK
            later_times[head[LISTED]], later[head[LISTED]] = later_times[i], later[i]
            head[LISTED] += 1
    return later.size


def distinct(_keys: U64Array, _vals: U64Array, counts: I64Array) -> I64Array:
    """Each record with positive multiplicity, once."""
    return (counts > 0).astype(np.int64)


class Counts:
    """The input and output diffs of each record at each round, as accumulated over all epochs so
    far.

    Within an epoch times whose diffs cancel are kept: they are partners of later joins.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.runs = KeyedRuns(NARROW_ROW, WIDE_ROW)
        self._rounds = rounds
        self._moments = rounds.moments
        self._touched: list[Listed] = []
        self._presence = Presence() if rounds.bits == 63 else None

    def take_in(self, rows: Rows) -> tuple[U64Array, Listed]:
        """Add to the input; times, and the records that are due then, each once.

        Raises: UsageError if the diffs of one record and time overflow.
        Cost: amortised O(times of the record) for each row.
        """
        self._presence = None
        runs, n, at = self.runs, len(rows), 0
        due_times, due_vals = np.empty(n, np.uint64), np.empty(n, np.uint64)
        due_slots, numbers = np.empty(n, np.int64), self._moments.number(rows.times)
        runs.head[LISTED] = 0
        while True:
            at = _take_in(
                runs.table, runs.slots, runs.pool, runs.head,
                rows.keys, rows.vals, rows.times, numbers, rows.diffs, at,
                due_times, due_slots, due_vals,
            )  # fmt: skip
            if at == OVERFLOW:
                raise overflow()
            if at == n:
                listed = int(runs.head[LISTED])
                return due_times[:listed], (due_slots[:listed], due_vals[:listed])
            runs.grow()

    def add_and_evaluate(self, time: int, rows: Rows) -> tuple[Rows, U64Array, Listed] | None:
        """As `take_in` and `evaluate` for distinct, in one pass; none if that cannot be done.

        It can if there are many rows, or this is the first load, all rows are of positive diff and
        at `time`, and times are a chain.
        Raises: UsageError if a multiplicity does not fit in 64 bits.
        """
        runs, n, now, at = self.runs, len(rows), np.uint64(time), 0
        if self._rounds.bits < 63 or (n < BULK and self._presence is None):
            return None
        if bool((rows.times != now).any()) or rows.diffs.min() <= 0:
            return None
        if self._presence is not None:
            if self._presence.takes(time, rows):
                return self._load(self._presence, now, rows), *_NONE_LATER
            self._presence = None
            if n < BULK:
                return None
        changed, times = np.empty(n, np.int64), np.empty(n, np.uint64)
        slots, vals = np.empty(n, np.int64), np.empty(n, np.uint64)
        number = self._moments.number_of(now)
        runs.head[LISTED] = runs.head[LATER] = 0
        while True:
            at = _add_and_correct(
                runs.table, runs.slots, runs.pool, runs.head, self._moments.words,
                rows.keys, rows.vals, rows.diffs, number, at, changed, times, slots, vals,
            )  # fmt: skip
            if at == OVERFLOW:
                raise overflow()
            if at == n:
                break
            runs.grow()
        found, later = int(runs.head[LISTED]), int(runs.head[LATER])
        taken = rows.take(changed[:found])
        changes = Rows(taken.keys, taken.vals, taken.times, np.ones(found, np.int64))
        return changes, times[:later], (slots[:later], vals[:later])

    def _load(self, presence: Presence, now: np.uint64, rows: Rows) -> Rows:
        """Log the rows; those of them that are there for the first time, once."""
        runs, n, at = self.runs, len(rows), 0
        fresh, number = np.empty(n, np.int64), self._rounds.moments.number_of(now)
        runs.head[LISTED] = 0
        while at < n:
            at = log_rows(
                runs.table, runs.slots, runs.pool, runs.head, presence.there,
                rows.keys, rows.vals, rows.diffs, number, at, fresh,
            )  # fmt: skip
            if at < n:
                runs.grow()
        taken = rows.take(fresh[: int(runs.head[LISTED])])
        return Rows(taken.keys, taken.vals, taken.times, np.ones(len(taken), np.int64))

    def evaluate(self, time: int, due: Listed, rule: Rule) -> tuple[Rows, U64Array, Listed]:
        """The changes of the output of the due records at `time`; times, and records due then.

        The accumulated output at `time` is then the rule of the accumulated input.
        Raises: UsageError if a multiplicity does not fit in 64 bits.
        Cost: O(times) for each record.
        """
        runs, bits, now, n = self.runs, self._rounds.bits, np.uint64(time), len(due[0])
        wanted = _NOTHING if rule is distinct else self._wanted(due, now, rule)
        changed, changes = np.empty(n, np.int64), np.empty(n, np.int64)
        later_times, later, at = np.empty(n, np.uint64), np.empty(n, np.int64), 0
        runs.head[LISTED] = runs.head[LATER] = 0
        while at < n:
            at = _correct(
                runs.slots, runs.pool, runs.head, self._moments.words, *due, now, bits, wanted, at,
                changed, changes, later_times, later,
            )  # fmt: skip
            if at == OVERFLOW:
                raise overflow()
            if at < n:
                runs.grow()
        self._touched.append(due)
        found, listed = int(runs.head[LISTED]), int(runs.head[LATER])
        if bits < 63:
            later_times, later = self._joins(due, now)
        else:
            later_times, later = later_times[:listed], later[:listed]
        slots, vals = due[0][changed[:found]], due[1][changed[:found]]
        keys = np.ascontiguousarray(runs.slots["key"][slots])
        rows = Rows(keys, vals, np.full(found, now, np.uint64), changes[:found])
        return rows, later_times, (due[0][later], due[1][later])

    def _wanted(self, due: Listed, now: np.uint64, rule: Rule) -> I64Array:
        """What the rule makes of the due records at `now`."""
        runs, n, bits = self.runs, len(due[0]), self._rounds.bits
        keys, ins = np.empty(n, np.uint64), np.empty(n, np.int64)
        if not _accumulate(runs.slots, runs.pool, self._moments.words, *due, now, bits, keys, ins):
            raise overflow()
        return np.ascontiguousarray(rule(keys, due[1], ins), np.int64)

    def _joins(self, due: Listed, now: np.uint64) -> tuple[U64Array, I64Array]:
        """Every least join of `now` with a stored time that is not listed yet, and its place."""
        runs, words = self.runs, self._moments.words
        times, later = _list_joins(runs.slots, runs.pool, words, *due, now, self._rounds.bits)
        numbers = self._moments.number(times)
        runs.head[LISTED], at = 0, 0
        while True:
            at = _mark(runs.slots, runs.pool, runs.head, *due, times, numbers, later, at)
            if at == len(later):
                listed = int(runs.head[LISTED])
                return times[:listed], later[:listed]
            runs.grow()

    def settle(self) -> None:
        """The maintenance at the end of an epoch: only then no time waits for its partners."""
        runs = self.runs
        if runs.head[USED]:  # Rounds begin anew; an epoch without records was no load.
            self._presence = None
        if runs.head[REMOVED] or self._rounds.bits < 63:  # Else no row is zero.
            for touched in self._touched:
                drop_zeros(runs.slots, runs.pool, runs.head, *touched)
            runs.head[REMOVED] = 0
            runs.forget_dead_keys()
        self._touched.clear()

    def sweep(self) -> None:
        """Rebuild in the least memory; only between epochs."""
        old, at = self.runs, 0
        while (at := make_tables(old.slots, old.pool, old.head, at)) < int(old.head[USED]):
            old.grow()
        at = 0
        keys = np.empty(int(old.head[TOP]), np.uint64)
        rows = np.empty(len(keys), old.pool.dtype)
        n = copy_rows(old.slots, old.pool, int(old.head[USED]), keys, rows)
        self.runs = runs = KeyedRuns(old.pool.dtype, WIDE_ROW)
        while True:
            at = restore_rows(runs.table, runs.slots, runs.pool, runs.head, keys[:n], rows[:n], at)
            if at == n:
                return
            runs.grow()
