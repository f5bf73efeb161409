"""Compiled parts of every keyed history: a hash table of slots, and a pool of runs of rows.

A slot holds a key and where its run lies in the pool. A run has room for a power of two of rows;
runs that moved leave their room to later ones. A compiled loop that finds no room stops and says at
which row; `KeyedRuns.grow` makes room and the loop goes on from there.

Rows are records of 16 bytes, four in a line of the caches: times are numbers of moments, diffs are
narrow. The first diff that does not fit widens all rows of the history; loops are compiled for
either shape.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined

Whole: TypeAlias = Any  # Any: whole numbers of Python and of NumPy are one type to compiled loops
Records: TypeAlias = Any  # Any: an array of records; numpy has no type for their fields

SLOT = np.dtype(
    [
        ("key", np.uint64),
        ("due", np.uint64),
        ("start", np.int64),
        ("length", np.int32),
        ("room", np.int32),
    ]
)
"""A key, and its run: where it starts, its rows, and its room: 0 without a run, else one more than
the binary logarithm of the rows it has room for. `due` is 0, or one more than the time for which
the slot was listed last.
"""
RUN_ROW = np.dtype([("val", np.uint64), ("time", np.uint32), ("diff", np.int32)])
"""A value, the number of a time and a diff."""
WIDE_RUN_ROW = np.dtype([("val", np.uint64), ("time", np.uint32), ("diff", np.int64)], align=True)
"""The same where diffs do not fit."""
VISITING = np.uint64(2**64 - 1)
"""A `due` that no time has."""

USED, TOP, LISTED, LIVE, REMOVED, LATER, NARROW, FREE = range(8)
"""Places in the head: slots used, rows of the pool used, rows a loop has listed, slots with a run,
removals since the last sweep, rows that a loop has listed for later, whether a loop stopped at a
diff that does not fit, and from FREE on the first free run of each room.
"""
HEAD_WORDS = FREE + 48

MANY = 256
"""From so many rows on room for all is made before the first is written."""
BLOCK = 256
"""So many keys are looked up before the first of them is added: then waits for memory overlap."""

_SMALL = 24
_MANY_SLOTS = 2**12
_MANY_ROWS = 2**18
"""Tables of fewer slots, and pools of fewer rows, grow fourfold, greater ones twofold."""
LEAST_ROOM = 3
"""The room of a run with few rows: four of them, a line of the caches if rows are narrow."""
_LINE = 64
"""Bytes in a line of the caches."""


@inlined
def hash_words(key: np.uint64, sub: np.uint64) -> np.uint64:
    """A well mixed word of two words."""
    h = key * np.uint64(0x9E3779B97F4A7C15) + sub
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> np.uint64(32))


@inlined
def find(table: U64Array, slots: Records, key: np.uint64) -> Whole:
    """The slot of a key, or −1 less the place in the table where it belongs."""
    h = hash_words(key, np.uint64(0))
    tag = h >> np.uint64(32)
    mask = np.uint64(table.size - 1)
    place = h & mask
    while True:
        word = table[place]
        if word == 0:
            return -1 - np.int64(place)
        if word >> np.uint64(32) == tag:
            slot = np.int64(word & np.uint64(0xFFFFFFFF)) - 1
            if slots[slot].key == key:
                return slot
        place = (place + np.uint64(1)) & mask


@inlined
def find_or_add(table: U64Array, slots: Records, head: I64Array, key: np.uint64) -> Whole:
    """The slot of a key, a new one if need be; −1 if there is no room for a new one."""
    slot = find(table, slots, key)
    if slot >= 0:
        return slot
    place = -1 - slot
    slot = head[USED]
    if slot == slots.size:
        return -1
    head[USED] = slot + 1
    slots[slot].key, slots[slot].due, slots[slot].start = key, 0, 0
    slots[slot].length, slots[slot].room = 0, 0
    h = hash_words(key, np.uint64(0))
    table[place] = (h >> np.uint64(32)) << np.uint64(32) | np.uint64(slot + 1)
    return slot


@compiled
def rehash(table: U64Array, slots: Records, used: Whole) -> None:
    """Enter the first `used` slots into an empty table. Cost: O(used)."""
    mask = np.uint64(table.size - 1)
    for slot in range(used):
        h = hash_words(slots[slot].key, np.uint64(0))
        place = h & mask
        while table[place] != 0:
            place = (place + np.uint64(1)) & mask
        table[place] = (h >> np.uint64(32)) << np.uint64(32) | np.uint64(slot + 1)


@compiled
def release_room(pool: Records, head: I64Array, start: Whole, room: Whole) -> None:
    """Leave a room to later runs."""
    pool[start].val = np.uint64(head[FREE + room])
    head[FREE + room] = start + 1


@compiled
def release_run(slots: Records, slot: Whole, pool: Records, head: I64Array) -> None:
    """Leave the room of a slot's run to later runs."""
    release_room(pool, head, slots[slot].start, slots[slot].room)
    slots[slot].room, slots[slot].length = 0, 0
    head[LIVE] -= 1


@inlined
def reserve_run(pool: Records, head: I64Array, room: Whole) -> Whole:
    """Where a run of a room may lie; −1 if the pool has no place for it."""
    free = head[FREE + room]
    if free:
        head[FREE + room] = np.int64(pool[free - 1].val)
        return free - 1
    start = head[TOP]
    end = start + (1 << (room - 1))
    if end > pool.size:
        return -1
    head[TOP] = end
    return start


@compiled
def widen_run(slots: Records, slot: Whole, pool: Records, head: I64Array, least: Whole) -> bool:
    """Move a slot's run to twice the room, at least to `least`; false if there is none."""
    old, old_room, length = slots[slot].start, slots[slot].room, slots[slot].length
    room: Whole = max(old_room + 1, least)
    start = reserve_run(pool, head, room)
    if start < 0:
        return False
    for row in range(length):
        pool[start + row] = pool[old + row]
    if old_room:
        release_room(pool, head, old, old_room)
    else:
        head[LIVE] += 1
    slots[slot].start, slots[slot].room = start, room
    return True


@inlined
def precedes(rows: Records, a: Whole, b: Whole) -> bool:
    """Whether row `a` is before row `b` in the order of value and time."""
    if rows[a].val != rows[b].val:
        return bool(rows[a].val < rows[b].val)
    return bool(rows[a].time < rows[b].time)


@compiled
def sort_rows(rows: Records) -> None:
    """Sort rows by value and time, by merging. Cost: O(n log n) time, O(n) memory."""
    n = rows.size
    source, target = np.arange(n), np.empty(n, np.int64)
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle, high = min(low + width, n), min(low + 2 * width, n)
            i, j = low, middle
            for k in range(low, high):
                if j == high or (i < middle and not precedes(rows, source[j], source[i])):
                    target[k] = source[i]
                    i += 1
                else:
                    target[k] = source[j]
                    j += 1
        source, target = target, source
        width *= 2
    copy = rows.copy()
    for k in range(n):
        rows[k] = copy[source[k]]


@compiled
def order_run(rows: Records, ordered: Whole) -> None:
    """Sort rows of which the first `ordered` are sorted.

    Cost: O(n), and that of sorting the rest.
    """
    n = rows.size
    if n <= _SMALL or n - ordered <= 2:
        for i in range(ordered, n):
            val, time, diff = rows[i].val, rows[i].time, rows[i].diff
            j = i
            while j and (
                val < rows[j - 1].val or (val == rows[j - 1].val and time < rows[j - 1].time)
            ):
                rows[j] = rows[j - 1]
                j -= 1
            rows[j].val, rows[j].time, rows[j].diff = val, time, diff
        return
    rest = rows[ordered:].copy()
    sort_rows(rest)
    i, j = ordered - 1, n - ordered - 1
    for k in range(n - 1, -1, -1):
        if j < 0:
            break
        if i >= 0 and (
            rest[j].val < rows[i].val
            or (rest[j].val == rows[i].val and rest[j].time < rows[i].time)
        ):
            rows[k] = rows[i]
            i -= 1
        else:
            rows[k] = rest[j]
            j -= 1


@inlined
def sum_fits(a: Whole, b: Whole) -> bool:
    """Whether the sum of two whole numbers fits in 64 bits."""
    summed = a + b
    return bool(((a ^ summed) & (b ^ summed)) >= 0)


@compiled
def net_run(rows: Records, keep_zeros: bool) -> Whole:
    """Sort rows and sum those of equal value and time; how many stay, at the front.

    Sums of zero go, unless they are to be kept; rows whose sum does not fit in a row stay apart.
    Cost: that of `order_run`.
    """
    n = rows.size
    ordered = min(1, n)
    while ordered < n and precedes(rows, ordered - 1, ordered):
        ordered += 1
    if ordered < n:
        order_run(rows, ordered)
    elif keep_zeros:
        return n
    kept = 0
    i = 0
    while i < n:
        val, time, total = rows[i].val, rows[i].time, np.int64(rows[i].diff)
        fits = True
        j = i + 1
        while j < n and rows[j].val == val and rows[j].time == time:
            fits = fits and sum_fits(total, np.int64(rows[j].diff))
            total += np.int64(rows[j].diff)
            j += 1
        if fits:
            before = rows[i].diff
            rows[i].diff = total
            fits = rows[i].diff == total
            if not fits:
                rows[i].diff = before
        if not fits:
            for row in range(i, j):
                rows[kept] = rows[row]
                kept += 1
        elif total or keep_zeros:
            rows[kept] = rows[i]
            kept += 1
        i = j
    return kept


@compiled
def widen_for(
    slots: Records, slot: Whole, pool: Records, head: I64Array, more: Whole, removed: bool,
    keep_zeros: bool,
) -> bool:  # fmt: skip
    """Make room for so many more rows in a full run; false if there is none.

    It is netted before it is widened if a removal comes, and at every fourth widening.
    """
    length, room = slots[slot].length, slots[slot].room
    if room and (removed or room & 3 == 3):
        start = slots[slot].start
        length = net_run(pool[start : start + length], keep_zeros)
        slots[slot].length = length
        if 4 * (length + more) <= 3 << (room - 1):
            return True
    least: Whole = LEAST_ROOM
    while 1 << (least - 1) < length + more:
        least += 1
    return widen_run(slots, slot, pool, head, least)


@compiled
def _find_or_add_all(
    table: U64Array, slots: Records, head: I64Array, keys: U64Array, first: Whole, found: I64Array
) -> Whole:
    """The slot of each key from `first` on, new ones if need be; where it stopped for want of room."""
    n = keys.size
    for low in range(first, n, BLOCK):
        high = min(low + BLOCK, n)
        for i in range(low, high):
            if i > low and keys[i] == keys[i - 1]:
                found[i] = found[i - 1]
            else:
                found[i] = find(table, slots, keys[i])
        for i in range(low, high):
            if found[i] < 0:
                found[i] = find_or_add(table, slots, head, keys[i])
                if found[i] < 0:
                    return i
    return n


@compiled
def _make_room(
    slots: Records, pool: Records, head: I64Array, found: I64Array, more: I64Array, removed: bool,
    keep_zeros: bool, first: Whole,
) -> Whole:  # fmt: skip
    """Room for `more` rows in the runs of the slots from `first` on; where it stopped for want of
    it.
    """
    for i in range(first, found.size):
        slot = found[i]
        wanted = more[slot]
        if not wanted:
            continue
        room = slots[slot].room
        if room:
            full = slots[slot].length + wanted > 1 << (room - 1)
            if full and not widen_for(slots, slot, pool, head, wanted, removed, keep_zeros):
                return i
        else:
            fresh: Whole = LEAST_ROOM
            while 1 << (fresh - 1) < wanted:
                fresh += 1
            start = reserve_run(pool, head, fresh)
            if start < 0:
                return i
            slots[slot].start, slots[slot].room = start, fresh
            head[LIVE] += 1
        more[slot] = 0
    return found.size


@compiled
def append_row(
    slots: Records, slot: Whole, pool: Records, head: I64Array, val: np.uint64, time: Whole,
    diff: Whole, keep_zeros: bool,
) -> bool:  # fmt: skip
    """Append a row to a slot's run; false, and nothing appended, if there is no room for it."""
    room = slots[slot].room
    if (room == 0 or slots[slot].length == 1 << (room - 1)) and not widen_for(
        slots, slot, pool, head, 1, diff < 0, keep_zeros
    ):
        return False
    if not write_row(slots, slot, pool, val, time, diff):
        head[NARROW] = 1
        return False
    return True


@inlined
def write_row(
    slots: Records, slot: Whole, pool: Records, val: np.uint64, time: Whole, diff: Whole
) -> bool:
    """Append a row for which there is room; false, and nothing appended, if its diff does not fit."""
    row = slots[slot].start + slots[slot].length
    pool[row].val, pool[row].time, pool[row].diff = val, time, diff
    fits = bool(pool[row].diff == diff)
    if fits:
        slots[slot].length += 1
    return fits


@compiled
def sweep_runs(slots: Records, pool: Records, head: I64Array, first: Whole, fuel: Whole) -> Whole:
    """Net runs from slot `first` on until `fuel` rows are read; where to go on. Empty runs go.

    Cost: O(fuel), and one run.
    """
    slot = first
    while slot < head[USED] and fuel > 0:
        length = slots[slot].length
        fuel -= 1 + length
        if slots[slot].room:
            start = slots[slot].start
            kept = net_run(pool[start : start + length], False)
            slots[slot].length = kept
            if kept == 0:
                release_run(slots, slot, pool, head)
        slot += 1
    return slot


@compiled
def move_runs(slots: Records, used: Whole, pool: Records, new_pool: Records) -> Whole:
    """Lay the runs of all slots side by side in another pool; how many rows that takes."""
    top: Whole = 0
    for slot in range(used):
        if slots[slot].room == 0:
            continue
        start, size = slots[slot].start, 1 << (slots[slot].room - 1)
        for row in range(size):
            new_pool[top + row] = pool[start + row]
        slots[slot].start = top
        top += size
    return top


@compiled
def move_live(slots: Records, used: Whole, new_slots: Records) -> Whole:
    """Write the slots that have runs side by side into another array; how many there are."""
    kept = 0
    for slot in range(used):
        if slots[slot].room:
            new_slots[kept] = slots[slot]
            kept += 1
    return kept


def aligned(rows: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Room for records, the first at the start of a line of the caches."""
    room = np.empty(rows * dtype.itemsize + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE
    return room[first : first + rows * dtype.itemsize].view(dtype)


def _copy_records(records: Records, to: Records) -> None:
    """Copy whole words: numpy would copy field by field."""
    to[: len(records)].view(np.uint64)[:] = records.view(np.uint64)


class KeyedRuns:
    """Runs of rows by key, in memory that a compiled loop can work on.

    `narrow` and `wide` are the shapes of a row: val, time, and one or more diffs.
    """

    def __init__(self, narrow: np.dtype[np.void], wide: np.dtype[np.void]) -> None:
        self.table: U64Array = np.zeros(32, np.uint64)
        self.slots: Records = aligned(16, SLOT)
        self.pool: Records = aligned(32, narrow)
        self.head: I64Array = np.zeros(HEAD_WORDS, np.int64)
        self._wide = wide

    @property
    def keys(self) -> int:
        """The number of keys with a run."""
        return int(self.head[LIVE])

    @property
    def bytes_held(self) -> int:
        """Bytes of the parts of the arrays that are in use."""
        used, top = int(self.head[USED]), int(self.head[TOP])
        return int(self.table.nbytes + used * self.slots.itemsize + top * self.pool.itemsize)

    def grow(self, rows: int = 0) -> None:
        """Make room, perhaps for so many rows, after a loop has stopped for want of it.

        Cost: amortised O(1) for each row.
        """
        used, top = int(self.head[USED]), int(self.head[TOP])
        if self.head[NARROW]:
            self.head[NARROW] = 0
            self._copy_pool(len(self.pool), self._wide)
        elif used == len(self.slots):
            slots = aligned((4 if used < _MANY_SLOTS else 2) * used, SLOT)
            _copy_records(self.slots, slots)
            self.slots = slots
            self.table = np.zeros(2 * len(slots), np.uint64)
            rehash(self.table, slots, used)
        elif 2 * top > 3 * self._room():
            self._move(4, rows)
        else:
            more = (4 if top < _MANY_ROWS else 2) * len(self.pool)
            self._copy_pool(max(more, top + rows) + self._widest(), self.pool.dtype)

    def locate(self, keys: U64Array) -> I64Array:
        """The slot of each of many keys, new ones if need be. Cost: O(n), but waits overlap."""
        found, at = np.empty(len(keys), np.int64), 0
        while True:
            at = _find_or_add_all(self.table, self.slots, self.head, keys, at, found)
            if at == len(keys):
                return found
            self.grow()

    def make_room(self, found: I64Array, removed: bool, keep_zeros: bool) -> None:
        """Room for one more row in the run of each slot of `found`, slots perhaps several times.

        Cost: O(n + slots); each run is widened at most once.
        """
        more, at = np.bincount(found, minlength=int(self.head[USED])), 0
        while True:
            at = _make_room(self.slots, self.pool, self.head, found, more, removed, keep_zeros, at)
            if at == len(found):
                return
            self.grow(4 * (len(found) - at))

    def serves_many(self, rows: int) -> bool:
        """Whether so many rows are worth a look at all slots."""
        return rows >= MANY and 16 * rows > int(self.head[USED])

    def forget_dead_keys(self) -> None:
        """Rebuild without the keys that have no run, if those are most. Only between epochs."""
        used, live = int(self.head[USED]), int(self.head[LIVE])
        if used > 2 * live + 64:
            self.rebuild()

    def settle(self) -> None:
        """Give back what runs left behind, if that is much. Only between epochs.

        Cost: O(rows), but not again before as much was written anew.
        """
        if int(self.head[TOP]) > self._room() * 5 // 4 + _MANY_ROWS:
            self._move(2)

    def rebuild(self) -> None:
        """Lay all runs side by side in fresh arrays, without dead keys. Cost: O(rows)."""
        size = 1 << max(int(self.head[LIVE]), 8).bit_length()
        slots = aligned(size, SLOT)
        self.head[USED] = move_live(self.slots, int(self.head[USED]), slots)
        self.slots = slots
        self.table = np.zeros(2 * size, np.uint64)
        rehash(self.table, slots, int(self.head[USED]))
        self._move(1)

    def _room(self) -> int:
        """Rows that all runs together have room for."""
        rooms = self.slots["room"][: int(self.head[USED])]
        return int((np.int64(1) << rooms.astype(np.int64) >> np.int64(1)).sum())

    def _widest(self) -> int:
        """Rows of a run twice as wide as the widest."""
        rooms = self.slots["room"][: int(self.head[USED])]
        return 2 << int(rooms.max(initial=LEAST_ROOM))

    def _copy_pool(self, rows: int, dtype: np.dtype[np.void]) -> None:
        """Give the pool room for so many rows of a shape; every row keeps its place."""
        top = int(self.head[TOP])
        pool = aligned(rows, dtype)
        if dtype == self.pool.dtype:
            _copy_records(self.pool[:top], pool)
        else:
            for name in dtype.names or ():
                pool[name][:top] = self.pool[name][:top]
        self.pool = pool

    def _move(self, times: int, more: int = 0) -> None:
        """Move all runs to a pool `times` as large as they are, or with `more`, and one widening.

        Room that was left behind goes. Memory that is not written to is not taken.
        """
        rows = self._room()
        pool = aligned(max(times * rows, rows + more) + self._widest(), self.pool.dtype)
        self.head[FREE:] = 0
        self.head[TOP] = move_runs(self.slots, int(self.head[USED]), self.pool, pool)
        self.pool = pool
