"""Tables of records by value, one for each key: compiled parts of `counts`.

A table is a run whose rows lie where their value says, with a free row at its end at the latest.
All rows of one value are found from one place on. A run may also be a log, which is made a table
when it is looked at for the first time; see `logs`.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined
from tidemill.arrangement.loops.logs import LOGGED
from tidemill.arrangement.loops.tables import (
    LIVE,
    NARROW,
    USED,
    Records,
    Whole,
    find_or_add,
    release_room,
    release_run,
    reserve_run,
    sum_fits,
)

NARROW_ROW = np.dtype(
    [("val", np.uint64), ("time", np.uint32), ("put_in", np.int16), ("out", np.int16)]
)
"""A value, the number of a time, and the diffs of input and output."""
WIDE_ROW = np.dtype(
    [("val", np.uint64), ("time", np.uint32), ("put_in", np.int64), ("out", np.int64)], align=True
)
"""The same where diffs do not fit."""

OVERFLOW = -1
"""What a compiled loop returns in place of a count if a sum does not fit in 64 bits."""

_LEAST_ROOM = 2
EMPTY = np.uint32(2**32 - 1)
MARK = np.uint32(2**31)
BARE = np.uint32(2**31 - 1)


@inlined
def home_of(val: np.uint64, room: Whole) -> Whole:
    """Where in a table of a room the search for a value begins."""
    mixed = (val ^ (val >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(65 - room))


@compiled
def widen_table(slots: Records, slot: Whole, pool: Records, head: I64Array) -> bool:
    """Enter the rows of a slot into a table of twice the room; false if the pool has none."""
    old_room, old = slots[slot].room, slots[slot].start
    room: Whole = max(old_room + 1, _LEAST_ROOM)
    start = reserve_run(pool, head, room)
    if start < 0:
        return False
    size = 1 << (room - 1)
    for row in range(start, start + size):
        pool[row].time = EMPTY
    if old_room:
        for row in range(old, old + (size >> 1)):
            if pool[row].time != EMPTY:
                place = home_of(pool[row].val, room)
                while pool[start + place].time != EMPTY:
                    place = (place + 1) & (size - 1)
                pool[start + place] = pool[row]
        release_room(pool, head, old, old_room)
    else:
        head[LIVE] += 1
    slots[slot].start, slots[slot].room = start, room
    return True


@inlined
def roomy(slots: Records, slot: Whole) -> bool:
    """Whether one more row fits and leaves a quarter of a long table free, a row of a short one."""
    room = slots[slot].room
    return bool(room and 4 * (slots[slot].length + 1) <= 3 << (room - 1))


@compiled
def find_entry(
    slots: Records, slot: Whole, pool: Records, head: I64Array, val: np.uint64, time: Whole
) -> Whole:
    """The row for a value and time, a new one of zeros if need be; −1 if there is no room."""
    room: Whole = slots[slot].room
    if room:
        start, mask = slots[slot].start, (1 << (room - 1)) - 1
        place = home_of(val, room)
        while pool[start + place].time != EMPTY:
            row = start + place
            if pool[row].val == val and pool[row].time & BARE == time:
                return row
            place = (place + 1) & mask
    if not roomy(slots, slot):
        if not widen_table(slots, slot, pool, head):
            return -1
        room = slots[slot].room
    start, mask = slots[slot].start, (1 << (room - 1)) - 1
    place = home_of(val, room)
    while pool[start + place].time != EMPTY:
        place = (place + 1) & mask
    row = start + place
    pool[row].val, pool[row].time, pool[row].put_in, pool[row].out = val, time, 0, 0
    slots[slot].length += 1
    return row


@compiled
def add_diffs(pool: Records, row: Whole, put_in: Whole, out: Whole, head: I64Array) -> Whole:
    """Add to the diffs of a row; 0, or nothing is added and it is −1 on overflow, 1 if it is
    narrow.
    """
    old_in, old_out = np.int64(pool[row].put_in), np.int64(pool[row].out)
    if not (sum_fits(old_in, put_in) and sum_fits(old_out, out)):
        return OVERFLOW
    pool[row].put_in, pool[row].out = old_in + put_in, old_out + out
    if pool[row].put_in != old_in + put_in or pool[row].out != old_out + out:
        pool[row].put_in, pool[row].out = old_in, old_out
        head[NARROW] = 1
        return 1
    return 0


@compiled
def make_table(slots: Records, slot: Whole, pool: Records, head: I64Array) -> bool:
    """Make the log of a slot, if it is one, a table; false, and nothing changed, for want of room."""
    if slots[slot].due != LOGGED:
        return True
    old, old_room, length = slots[slot].start, slots[slot].room, slots[slot].length
    room: Whole = _LEAST_ROOM
    while 4 * (length + 1) > 3 << (room - 1):
        room += 1
    start = reserve_run(pool, head, room)
    if start < 0:
        return False
    mask = (1 << (room - 1)) - 1
    for row in range(start, start + mask + 1):
        pool[row].time = EMPTY
    kept = 0
    for row in range(old, old + length):
        place = home_of(pool[row].val, room)
        to = start + place
        while pool[to].time != EMPTY:
            if pool[to].val == pool[row].val and pool[to].time == pool[row].time:
                break
            place = (place + 1) & mask
            to = start + place
        if pool[to].time == EMPTY:
            pool[to] = pool[row]
            kept += 1
        elif add_diffs(pool, to, np.int64(pool[row].put_in), np.int64(pool[row].out), head):
            release_room(pool, head, start, room)
            return False
    release_room(pool, head, old, old_room)
    slots[slot].start, slots[slot].room, slots[slot].length = start, room, kept
    slots[slot].due = 0
    return True


@compiled
def make_tables(slots: Records, pool: Records, head: I64Array, first: Whole) -> Whole:
    """Make all logs from slot `first` on tables; where it stopped for want of room."""
    for slot in range(first, head[USED]):
        if not make_table(slots, slot, pool, head):
            return slot
    return head[USED]


@compiled
def drop_zeros(
    slots: Records, pool: Records, head: I64Array, touched: I64Array, vals: U64Array
) -> None:
    """Drop the rows of zeros of the touched records, and tables that are empty then."""
    for i in range(touched.size):
        slot, val = touched[i], vals[i]
        room = slots[slot].room
        if room == 0:
            continue
        start, mask = slots[slot].start, (1 << (room - 1)) - 1
        place = home_of(val, room)
        while pool[start + place].time != EMPTY:
            row = start + place
            if pool[row].val != val or pool[row].put_in or pool[row].out:
                place = (place + 1) & mask
                continue
            hole, probe = place, (place + 1) & mask
            while pool[start + probe].time != EMPTY:
                home = home_of(pool[start + probe].val, room)
                if ((probe - home) & mask) >= ((probe - hole) & mask):
                    pool[start + hole] = pool[start + probe]
                    hole = probe
                probe = (probe + 1) & mask
            pool[start + hole].time = EMPTY
            slots[slot].length -= 1
        if slots[slot].length == 0:
            release_run(slots, slot, pool, head)


@compiled
def copy_rows(slots: Records, pool: Records, used: Whole, keys: U64Array, rows: Records) -> Whole:
    """The key and the row of everything stored; how many rows."""
    n = 0
    for slot in range(used):
        if slots[slot].room:
            start = slots[slot].start
            for row in range(start, start + (1 << (slots[slot].room - 1))):
                if pool[row].time != EMPTY and (pool[row].put_in or pool[row].out):
                    keys[n] = slots[slot].key
                    rows[n] = pool[row]
                    n += 1
    return n


@compiled
def restore_rows(
    table: U64Array, slots: Records, pool: Records, head: I64Array, keys: U64Array,
    rows: Records, first: Whole,
) -> Whole:  # fmt: skip
    """Store rows from `first` on; where it stopped for want of room."""
    for i in range(first, keys.size):
        slot = find_or_add(table, slots, head, keys[i])
        if slot < 0:
            return i
        row = find_entry(slots, slot, pool, head, rows[i].val, rows[i].time)
        if row < 0:
            return i
        pool[row] = rows[i]
    return keys.size
