"""The multiplicity of each record over rounds, and what a rule of it makes of the record.

The rows of a key are a hash table of their own, by value: the rows of one pass come mostly key by
key, so that what they look up lies close together. A row belongs to one record and time; its mark
says that the record is due at that time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined
from tidemill.arrangement.kernels.consolidating import overflow
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.tables import (
    FREE,
    KEY,
    LATER,
    LENGTH,
    LISTED,
    LIVE,
    OVERFLOW,
    REMOVED,
    ROOM,
    START,
    TOP,
    USED,
    KeyedRuns,
    Whole,
    add_checked,
    find_or_add,
    hash_words,
    release_run,
    reserve_run,
)
from tidemill.arrangement.loops.times import join_times, precedes_time

Rule = Callable[[U64Array, U64Array, I64Array], I64Array]
"""Multiplicities for `(keys, vals, multiplicities)`; depends on nothing else, and zero gives zero."""

Listed = tuple[I64Array, U64Array]
"""Slots and values: records of which something is due."""

_LEAST_ROOM = 2
_VAL, _TIME, _IN, _OUT = range(4)
_EMPTY = np.uint64(2**64 - 1)
_MARK = np.uint64(2**63)
_BARE = np.uint64(2**63 - 1)
_BULK = 256
"""From so many rows on it pays to see whether records can be evaluated as they come."""
_NOTHING: I64Array = np.empty(0, np.int64)


@inlined
def _home(val: np.uint64, mask: Whole) -> Whole:
    """Where in a table the search for a value begins."""
    return np.int64(hash_words(val, np.uint64(0)) & np.uint64(mask))


@inlined
def _roomy(slots: U64Array, slot: Whole) -> bool:
    """Whether one more row fits and leaves a row free, and an eighth in long tables."""
    room = np.int64(slots[slot, ROOM])
    spare = 1 + ((1 << room) >> 3)
    return bool(room and np.int64(slots[slot, LENGTH]) + spare < 1 << (room - 1))


@compiled
def _widen(slots: U64Array, slot: Whole, pool: U64Array, head: I64Array) -> bool:
    """Enter the rows of a slot into a table of twice the room; false if the pool has none."""
    old_room, old = np.int64(slots[slot, ROOM]), np.int64(slots[slot, START])
    room: Whole = max(old_room + 1, _LEAST_ROOM)
    start = reserve_run(pool, head, room)
    if start < 0:
        return False
    size = 1 << (room - 1)
    for row in range(start, start + size):
        pool[row, _TIME] = _EMPTY
    if old_room:
        for row in range(old, old + (size >> 1)):
            if pool[row, _TIME] != _EMPTY:
                place = _home(pool[row, _VAL], size - 1)
                while pool[start + place, _TIME] != _EMPTY:
                    place = (place + 1) & (size - 1)
                for column in range(4):
                    pool[start + place, column] = pool[row, column]
        pool[old, 0] = np.uint64(head[FREE + old_room])
        head[FREE + old_room] = old + 1
    else:
        head[LIVE] += 1
    slots[slot, START], slots[slot, ROOM] = start, room
    return True


@compiled
def _entry(
    slots: U64Array, slot: Whole, pool: U64Array, head: I64Array, val: np.uint64, time: np.uint64
) -> Whole:
    """The row for a value and time, a new one of zeros if need be; −1 if there is no room."""
    room = np.int64(slots[slot, ROOM])
    if room:
        start, mask = np.int64(slots[slot, START]), (1 << (room - 1)) - 1
        place = _home(val, mask)
        while pool[start + place, _TIME] != _EMPTY:
            row = start + place
            if pool[row, _VAL] == val and pool[row, _TIME] & _BARE == time:
                return row
            place = (place + 1) & mask
    if not _roomy(slots, slot):
        if not _widen(slots, slot, pool, head):
            return -1
        start, mask = np.int64(slots[slot, START]), (1 << (np.int64(slots[slot, ROOM]) - 1)) - 1
        place = _home(val, mask)
        while pool[start + place, _TIME] != _EMPTY:
            place = (place + 1) & mask
    row = start + place
    pool[row, _VAL], pool[row, _TIME], pool[row, _IN], pool[row, _OUT] = val, time, 0, 0
    slots[slot, LENGTH] += 1
    return row


@compiled
def _take_in(
    table: U64Array, slots: U64Array, pool: U64Array, head: I64Array,
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array, first: Whole,
    due_times: U64Array, due_slots: I64Array, due_vals: U64Array,
) -> Whole:  # fmt: skip
    """Add rows from `first` on to the input and list what is due; where it stopped for want of room."""
    slot = -1
    for i in range(first, diffs.size):
        if slot < 0 or slots[slot, KEY] != keys[i]:
            slot = find_or_add(table, slots, head, keys[i], np.uint64(0))
        if slot < 0:
            return i
        row = _entry(slots, slot, pool, head, vals[i], times[i])
        if row < 0:
            return i
        if not add_checked(pool, row, _IN, diffs[i]):
            return OVERFLOW
        head[REMOVED] += diffs[i] < 0
        if pool[row, _TIME] == times[i]:
            pool[row, _TIME] |= _MARK
            n = head[LISTED]
            due_times[n], due_slots[n], due_vals[n] = times[i], slot, vals[i]
            head[LISTED] = n + 1
    return diffs.size


@compiled
def _accumulate(
    slots: U64Array, pool: U64Array, due_slots: I64Array, due_vals: U64Array, time: np.uint64, bits: Whole,
    keys: U64Array, ins: I64Array,
) -> bool:  # fmt: skip
    """The sums of the input of the due records up to `time`; whether they fit."""
    for i in range(due_slots.size):
        slot, val = due_slots[i], due_vals[i]
        put_in = np.int64(0)
        start, mask = np.int64(slots[slot, START]), (1 << (np.int64(slots[slot, ROOM]) - 1)) - 1
        place = _home(val, mask)
        while pool[start + place, _TIME] != _EMPTY:
            row = start + place
            if pool[row, _VAL] == val and precedes_time(pool[row, _TIME] & _BARE, time, bits):
                diff = np.int64(pool[row, _IN])
                summed = put_in + diff
                if ((put_in ^ summed) & (diff ^ summed)) < 0:
                    return False
                put_in = summed
            place = (place + 1) & mask
        keys[i], ins[i] = slots[slot, KEY], put_in
    return True


@compiled
def _correct(
    slots: U64Array, pool: U64Array, head: I64Array, due_slots: I64Array, due_vals: U64Array,
    time: np.uint64, bits: Whole, wanted: I64Array,
    changed: I64Array, changes: I64Array, later_times: U64Array, later: I64Array,
) -> Whole:  # fmt: skip
    """Bring the output of the due records at `time` to what is wanted; how many changes there are.

    If nothing is said to be wanted, each record is wanted once where its sum is positive. Where
    times are a chain, the next stored time of each record and its place are listed as later.
    """
    n, listed = 0, 0
    for i in range(due_slots.size):
        slot, val = due_slots[i], due_vals[i]
        start, mask = slots[slot, START], np.int64(1 << (np.int64(slots[slot, ROOM]) - 1)) - 1
        put_in, put_out = np.int64(0), np.int64(0)
        place = _home(val, mask)
        next_time, next_row, now_row = _MARK, np.uint64(0), np.uint64(0)
        while True:
            row = start + np.uint64(place)
            mark_and_time = pool[row, _TIME]
            if mark_and_time == _EMPTY:
                break
            if pool[row, _VAL] == val:
                stored = mark_and_time & _BARE
                if stored == time:
                    now_row = row
                if precedes_time(stored, time, bits):
                    diff = np.int64(pool[row, _IN])
                    summed = put_in + diff
                    if ((put_in ^ summed) & (diff ^ summed)) < 0:
                        return OVERFLOW
                    put_in = summed
                    put_out += np.int64(pool[row, _OUT])
                elif stored < next_time:
                    next_time, next_row = stored, row
            place = (place + 1) & mask
        pool[now_row, _TIME] = time
        diff = (wanted[i] if wanted.size else np.int64(put_in > 0)) - put_out
        if diff:
            if not add_checked(pool, now_row, _OUT, diff):
                return OVERFLOW
            head[REMOVED] += diff < 0
            changed[n], changes[n] = i, diff
            n += 1
        if bits == 63 and next_time != _MARK and pool[next_row, _TIME] == next_time:
            pool[next_row, _TIME] |= _MARK
            later_times[listed], later[listed] = next_time, i
            listed += 1
    head[LISTED] = listed
    return n


@compiled
def _add_and_correct(
    table: U64Array, slots: U64Array, pool: U64Array, head: I64Array,
    keys: U64Array, vals: U64Array, diffs: I64Array, time: np.uint64, first: Whole,
    changed: I64Array, later_times: U64Array, later_slots: I64Array, later_vals: U64Array,
) -> Whole:  # fmt: skip
    """Add rows of positive diffs at `time` from `first` on, each record at once evaluated.

    Multiplicities only rise, so a record comes to be there at most once. Where it stopped for want
    of room; changes and what is later are listed as by `_correct`.
    """
    slot = -1
    for i in range(first, diffs.size):
        if slot < 0 or slots[slot, KEY] != keys[i]:
            slot = find_or_add(table, slots, head, keys[i], np.uint64(0))
            if slot < 0:
                return i
        if not _roomy(slots, slot) and not _widen(slots, slot, pool, head):
            return i
        val, put_in, put_out = vals[i], diffs[i], np.int64(0)
        start, mask = slots[slot, START], np.int64(1 << (np.int64(slots[slot, ROOM]) - 1)) - 1
        place = _home(val, mask)
        next_time, next_row, now_row = _MARK, np.uint64(0), _EMPTY
        while True:
            row = start + np.uint64(place)
            stored = pool[row, _TIME]
            if stored == _EMPTY:
                break
            if pool[row, _VAL] == val:
                stored &= _BARE
                if stored <= time:
                    if stored == time:
                        now_row = row
                    diff = np.int64(pool[row, _IN])
                    summed = put_in + diff
                    if ((put_in ^ summed) & (diff ^ summed)) < 0:
                        return OVERFLOW
                    put_in = summed
                    put_out += np.int64(pool[row, _OUT])
                elif stored < next_time:
                    next_time, next_row = stored, row
            place = (place + 1) & mask
        if now_row == _EMPTY:
            now_row = row
            pool[row, _VAL], pool[row, _TIME], pool[row, _IN], pool[row, _OUT] = val, time, 0, 0
            slots[slot, LENGTH] += np.uint64(1)
        diff = np.int64(put_in > 0) - put_out
        if not (
            add_checked(pool, now_row, _IN, diffs[i]) and add_checked(pool, now_row, _OUT, diff)
        ):
            return OVERFLOW
        if diff:
            changed[head[LISTED]] = i
            head[LISTED] += 1
        if next_time != _MARK and pool[next_row, _TIME] == next_time:
            pool[next_row, _TIME] |= _MARK
            n = head[LATER]
            later_times[n], later_slots[n], later_vals[n] = next_time, slot, val
            head[LATER] = n + 1
    return diffs.size


@compiled
def _list_joins(
    slots: U64Array,
    pool: U64Array,
    due_slots: I64Array,
    due_vals: U64Array,
    time: np.uint64,
    bits: Whole,
) -> tuple[U64Array, I64Array]:
    """The joins of `time` with each stored time of the due records, and their places."""
    room = due_slots.size
    times, later = np.empty(room, np.uint64), np.empty(room, np.int64)
    n = 0
    for i in range(due_slots.size):
        slot, val = due_slots[i], due_vals[i]
        start, mask = np.int64(slots[slot, START]), (1 << (np.int64(slots[slot, ROOM]) - 1)) - 1
        place = _home(val, mask)
        while pool[start + place, _TIME] != _EMPTY:
            row = start + place
            if pool[row, _VAL] == val:
                join = join_times(pool[row, _TIME] & _BARE, time, bits)
                if join != time:
                    if n == room:
                        room *= 2
                        more_times, more_later = np.empty(room, np.uint64), np.empty(room, np.int64)
                        more_times[:n], more_later[:n] = times, later
                        times, later = more_times, more_later
                    times[n], later[n] = join, i
                    n += 1
            place = (place + 1) & mask
    return times[:n], later[:n]


@compiled
def _mark(
    slots: U64Array, pool: U64Array, head: I64Array, due_slots: I64Array, due_vals: U64Array,
    later_times: U64Array, later: I64Array, first: Whole,
) -> Whole:  # fmt: skip
    """Keep of the joins from `first` on those not listed yet, at the front; where it stopped."""
    for i in range(first, later.size):
        slot, val = due_slots[later[i]], due_vals[later[i]]
        row = _entry(slots, slot, pool, head, val, later_times[i])
        if row < 0:
            return i
        if pool[row, _TIME] == later_times[i]:
            pool[row, _TIME] |= _MARK
            later_times[head[LISTED]], later[head[LISTED]] = later_times[i], later[i]
            head[LISTED] += 1
    return later.size


@compiled
def _tidy(
    slots: U64Array, pool: U64Array, head: I64Array, touched: I64Array, vals: U64Array
) -> None:
    """Drop the rows of zeros of the touched records, and tables that are empty then."""
    for i in range(touched.size):
        slot, val = touched[i], vals[i]
        if slots[slot, ROOM] == 0:
            continue
        start, mask = np.int64(slots[slot, START]), (1 << (np.int64(slots[slot, ROOM]) - 1)) - 1
        place = _home(val, mask)
        while pool[start + place, _TIME] != _EMPTY:
            row = start + place
            if pool[row, _VAL] != val or pool[row, _IN] or pool[row, _OUT]:
                place = (place + 1) & mask
                continue
            hole, probe = place, (place + 1) & mask
            while pool[start + probe, _TIME] != _EMPTY:
                home = _home(pool[start + probe, _VAL], mask)
                if ((probe - home) & mask) >= ((probe - hole) & mask):
                    for column in range(4):
                        pool[start + hole, column] = pool[start + probe, column]
                    hole = probe
                probe = (probe + 1) & mask
            pool[start + hole, _TIME] = _EMPTY
            slots[slot, LENGTH] -= 1
        if slots[slot, LENGTH] == 0:
            release_run(slots, slot, pool, head)


@compiled
def _copy(
    slots: U64Array, pool: U64Array, used: Whole, keys: U64Array, rows: U64Array
) -> Whole:  # fmt: skip
    """The key and the row of everything stored; how many rows."""
    n = 0
    for slot in range(used):
        if slots[slot, ROOM]:
            start = np.int64(slots[slot, START])
            for row in range(start, start + (1 << (np.int64(slots[slot, ROOM]) - 1))):
                if pool[row, _TIME] != _EMPTY and (pool[row, _IN] or pool[row, _OUT]):
                    keys[n] = slots[slot, KEY]
                    for column in range(4):
                        rows[n, column] = pool[row, column]
                    n += 1
    return n


@compiled
def _restore(
    table: U64Array, slots: U64Array, pool: U64Array, head: I64Array, keys: U64Array,
    rows: U64Array, first: Whole,
) -> Whole:  # fmt: skip
    """Store rows from `first` on; where it stopped for want of room."""
    for i in range(first, keys.size):
        slot = find_or_add(table, slots, head, keys[i], np.uint64(0))
        if slot < 0:
            return i
        row = _entry(slots, slot, pool, head, rows[i, _VAL], rows[i, _TIME])
        if row < 0:
            return i
        pool[row, _IN], pool[row, _OUT] = rows[i, _IN], rows[i, _OUT]
    return keys.size


def distinct(_keys: U64Array, _vals: U64Array, counts: I64Array) -> I64Array:
    """Each record with positive multiplicity, once."""
    return (counts > 0).astype(np.int64)


class Counts:
    """The input and output diffs of each record at each round, as accumulated over all epochs so far.

    Within an epoch times whose diffs cancel are kept: they are partners of later joins.
    """

    def __init__(self, bits: int) -> None:
        self.runs = KeyedRuns(4)
        self._bits = bits
        self._touched: list[Listed] = []

    def take_in(self, rows: Rows) -> tuple[U64Array, Listed]:
        """Add to the input; times, and the records that are due then, each once.

        Raises: UsageError if the diffs of one record and time overflow.
        Cost: amortised O(times of the record) for each row.
        """
        runs, n, at = self.runs, len(rows), 0
        due_times, due_vals = np.empty(n, np.uint64), np.empty(n, np.uint64)
        due_slots = np.empty(n, np.int64)
        runs.head[LISTED] = 0
        while True:
            at = _take_in(
                runs.table, runs.slots, runs.pool, runs.head,
                rows.keys, rows.vals, rows.times, rows.diffs, at, due_times, due_slots, due_vals,
            )  # fmt: skip
            if at == OVERFLOW:
                raise overflow()
            if at == n:
                listed = int(runs.head[LISTED])
                return due_times[:listed], (due_slots[:listed], due_vals[:listed])
            runs.grow()

    def add_and_evaluate(self, time: int, rows: Rows) -> tuple[Rows, U64Array, Listed] | None:
        """As `take_in` and `evaluate` for distinct, in one pass; none if that cannot be done.

        It can if there are many rows, all of positive diff and at `time`, and times are a chain.
        Raises: UsageError if a multiplicity does not fit in 64 bits.
        """
        runs, n, now, at = self.runs, len(rows), np.uint64(time), 0
        if n < _BULK or self._bits < 63 or rows.diffs.min() <= 0 or bool((rows.times != now).any()):
            return None
        changed, times = np.empty(n, np.int64), np.empty(n, np.uint64)
        slots, vals = np.empty(n, np.int64), np.empty(n, np.uint64)
        runs.head[LISTED] = runs.head[LATER] = 0
        while True:
            at = _add_and_correct(
                runs.table, runs.slots, runs.pool, runs.head, rows.keys, rows.vals, rows.diffs,
                now, at, changed, times, slots, vals,
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

    def evaluate(self, time: int, due: Listed, rule: Rule) -> tuple[Rows, U64Array, Listed]:
        """The changes of the output of the due records at `time`; times, and records due then.

        The accumulated output at `time` is then the rule of the accumulated input.
        Raises: UsageError if a multiplicity does not fit in 64 bits.
        Cost: O(times) for each record.
        """
        runs, bits, now, n = self.runs, self._bits, np.uint64(time), len(due[0])
        wanted = _NOTHING if rule is distinct else self._wanted(due, now, rule)
        changed, changes = np.empty(n, np.int64), np.empty(n, np.int64)
        later_times, later = np.empty(n, np.uint64), np.empty(n, np.int64)
        found = _correct(
            runs.slots, runs.pool, runs.head, *due, now, bits, wanted,
            changed, changes, later_times, later,
        )  # fmt: skip
        if found == OVERFLOW:
            raise overflow()
        self._touched.append(due)
        listed, changed = int(runs.head[LISTED]), changed[:found]
        if bits < 63:
            later_times, later = self._joins(due, now)
        else:
            later_times, later = later_times[:listed], later[:listed]
        slots, vals = due[0][changed], due[1][changed]
        rows = Rows(runs.slots[slots, KEY], vals, np.full(found, now, np.uint64), changes[:found])
        return rows, later_times, (due[0][later], due[1][later])

    def _wanted(self, due: Listed, now: np.uint64, rule: Rule) -> I64Array:
        """What the rule makes of the due records at `now`."""
        runs, n = self.runs, len(due[0])
        keys, ins = np.empty(n, np.uint64), np.empty(n, np.int64)
        if not _accumulate(runs.slots, runs.pool, *due, now, self._bits, keys, ins):
            raise overflow()
        return np.ascontiguousarray(rule(keys, due[1], ins), np.int64)

    def _joins(self, due: Listed, now: np.uint64) -> tuple[U64Array, I64Array]:
        """Every join of `now` with a stored time that is not listed yet, and its place."""
        runs = self.runs
        times, later = _list_joins(runs.slots, runs.pool, *due, now, self._bits)
        runs.head[LISTED], at = 0, 0
        while True:
            at = _mark(runs.slots, runs.pool, runs.head, *due, times, later, at)
            if at == len(later):
                listed = int(runs.head[LISTED])
                return times[:listed], later[:listed]
            runs.grow()

    def settle(self) -> None:
        """The maintenance at the end of an epoch: only then no time waits for its partners."""
        runs = self.runs
        if runs.head[REMOVED] or self._bits < 63:  # Else no row is zero.
            for touched in self._touched:
                _tidy(runs.slots, runs.pool, runs.head, *touched)
            runs.head[REMOVED] = 0
            runs.forget_dead_keys()
        self._touched.clear()

    def sweep(self) -> None:
        """Rebuild in the least memory; only between epochs."""
        old, at = self.runs, 0
        keys = np.empty(int(old.head[TOP]), np.uint64)
        rows = np.empty((len(keys), 4), np.uint64)
        n = _copy(old.slots, old.pool, int(old.head[USED]), keys, rows)
        self.runs = runs = KeyedRuns(4)
        while True:
            at = _restore(runs.table, runs.slots, runs.pool, runs.head, keys[:n], rows[:n], at)
            if at == n:
                return
            runs.grow()
