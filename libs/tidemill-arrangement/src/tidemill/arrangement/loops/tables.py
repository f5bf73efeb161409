"""Compiled parts of every keyed history: a hash table of slots, and a pool of runs of rows.

A slot holds a key of two words and where its run lies in the pool. A run has room for a power of two
of rows; runs that moved leave their room to later ones. A compiled loop that finds no room stops and
says at which row; `KeyedRuns.grow` makes room and the loop goes on from there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined

Whole: TypeAlias = Any  # Any: whole numbers of Python and of NumPy are one type to compiled loops

KEY, SUB, START, LENGTH, ROOM, DUE = range(6)
"""Columns of a slot. ROOM is 0 without a run, else one more than the binary logarithm of its rows;
DUE is 0, or one more than the time for which the slot was listed last."""
VISITING = np.uint64(2**64 - 1)
"""A DUE that no time has."""

USED, TOP, LISTED, LIVE, REMOVED, LATER, FREE = range(7)
"""Places in the head: slots used, rows of the pool used, rows a loop has listed, slots with a run,
removals since the last sweep, rows that a
loop has listed for later, and from FREE on the first free run of each ROOM."""
HEAD_WORDS = FREE + 48

OVERFLOW = -1
"""What a compiled loop returns in place of a count if a sum does not fit in 64 bits."""

_SMALL = 24
_LARGE = 2**18
"""Tables of fewer slots grow fourfold."""
_LEAST_WIDENING = 3
"""The least ROOM that a first row needs is not more."""


@inlined
def hash_words(key: np.uint64, sub: np.uint64) -> np.uint64:
    """A well mixed word of two words."""
    h = key * np.uint64(0x9E3779B97F4A7C15) + sub
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> np.uint64(32))


@compiled
def find(table: U64Array, slots: U64Array, key: np.uint64, sub: np.uint64) -> Whole:
    """The slot of a key, or −1 less the place in the table where it belongs."""
    h = hash_words(key, sub)
    tag = h >> np.uint64(32)
    mask = np.uint64(table.size - 1)
    place = h & mask
    while True:
        word = table[place]
        if word == 0:
            return -1 - np.int64(place)
        if word >> np.uint64(32) == tag:
            slot = np.int64(word & np.uint64(0xFFFFFFFF)) - 1
            if slots[slot, KEY] == key and slots[slot, SUB] == sub:
                return slot
        place = (place + np.uint64(1)) & mask


@compiled
def find_or_add(
    table: U64Array, slots: U64Array, head: I64Array, key: np.uint64, sub: np.uint64
) -> Whole:
    """The slot of a key, a new one if need be; −1 if there is no room for a new one."""
    slot = find(table, slots, key, sub)
    if slot >= 0:
        return slot
    place = -1 - slot
    slot = head[USED]
    if slot == slots.shape[0]:
        return -1
    head[USED] = slot + 1
    for column in range(slots.shape[1]):
        slots[slot, column] = 0
    slots[slot, KEY] = key
    slots[slot, SUB] = sub
    table[place] = (hash_words(key, sub) >> np.uint64(32)) << np.uint64(32) | np.uint64(slot + 1)
    return slot


@compiled
def rehash(table: U64Array, slots: U64Array, used: Whole) -> None:
    """Enter the first `used` slots into an empty table. Cost: O(used)."""
    mask = np.uint64(table.size - 1)
    for slot in range(used):
        h = hash_words(slots[slot, KEY], slots[slot, SUB])
        place = h & mask
        while table[place] != 0:
            place = (place + np.uint64(1)) & mask
        table[place] = (h >> np.uint64(32)) << np.uint64(32) | np.uint64(slot + 1)


@compiled
def release_run(slots: U64Array, slot: Whole, pool: U64Array, head: I64Array) -> None:
    """Leave the room of a slot's run to later runs."""
    room = np.int64(slots[slot, ROOM])
    start = np.int64(slots[slot, START])
    pool[start, 0] = np.uint64(head[FREE + room])
    head[FREE + room] = start + 1
    slots[slot, ROOM] = 0
    slots[slot, LENGTH] = 0
    head[LIVE] -= 1


@compiled
def reserve_run(pool: U64Array, head: I64Array, room: Whole) -> Whole:
    """Where a run of a ROOM may lie; −1 if the pool has no place for it."""
    free = head[FREE + room]
    if free:
        head[FREE + room] = np.int64(pool[free - 1, 0])
        return free - 1
    start = head[TOP]
    end = start + (1 << (room - 1))
    if end > pool.shape[0]:
        return -1
    head[TOP] = end
    return start


@compiled
def widen_run(slots: U64Array, slot: Whole, pool: U64Array, head: I64Array, least: Whole) -> bool:
    """Move a slot's run to twice the room, at least the ROOM `least`; false if there is none."""
    room = max(np.int64(slots[slot, ROOM]) + 1, least)
    start = reserve_run(pool, head, room)
    if start < 0:
        return False
    old, length = np.int64(slots[slot, START]), np.int64(slots[slot, LENGTH])
    for row in range(length):
        for column in range(pool.shape[1]):
            pool[start + row, column] = pool[old + row, column]
    if slots[slot, ROOM]:
        release_run(slots, slot, pool, head)
    slots[slot, START] = start
    slots[slot, LENGTH] = length
    slots[slot, ROOM] = room
    head[LIVE] += 1
    return True


@inlined
def precedes(rows: U64Array, a: Whole, b: Whole) -> bool:
    """Whether row `a` is before row `b` in the order of their first two columns."""
    if rows[a, 0] != rows[b, 0]:
        return bool(rows[a, 0] < rows[b, 0])
    return bool(rows[a, 1] < rows[b, 1])


@compiled
def sort_rows(rows: U64Array) -> None:
    """Sort rows by their first two columns, by merging. Cost: O(n log n) time, O(n) memory."""
    n = rows.shape[0]
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
        for column in range(rows.shape[1]):
            rows[k, column] = copy[source[k], column]


@compiled
def order_run(rows: U64Array) -> None:
    """Sort rows of which a prefix is sorted. Cost: O(n), and that of sorting the rest."""
    n, width = rows.shape
    ordered = 1
    while ordered < n and not precedes(rows, ordered, ordered - 1):
        ordered += 1
    if ordered >= n:
        return
    if n <= _SMALL or n - ordered <= 2:
        held = np.empty(width, np.uint64)
        for i in range(ordered, n):
            for column in range(width):
                held[column] = rows[i, column]
            j = i
            while j and (
                held[0] < rows[j - 1, 0] or (held[0] == rows[j - 1, 0] and held[1] < rows[j - 1, 1])
            ):
                for column in range(width):
                    rows[j, column] = rows[j - 1, column]
                j -= 1
            for column in range(width):
                rows[j, column] = held[column]
        return
    rest = rows[ordered:].copy()
    sort_rows(rest)
    i, j = ordered - 1, n - ordered - 1
    for k in range(n - 1, -1, -1):
        if j < 0:
            break
        if i >= 0 and (
            rest[j, 0] < rows[i, 0] or (rest[j, 0] == rows[i, 0] and rest[j, 1] < rows[i, 1])
        ):
            for column in range(width):
                rows[k, column] = rows[i, column]
            i -= 1
        else:
            for column in range(width):
                rows[k, column] = rest[j, column]
            j -= 1


@inlined
def add_checked(rows: U64Array, row: Whole, column: Whole, diff: Whole) -> bool:
    """Add to a signed word of a row; false, and nothing added, if the sum does not fit."""
    before = np.int64(rows[row, column])
    after = before + diff
    if ((before ^ after) & (diff ^ after)) < 0:
        return False
    rows[row, column] = np.uint64(after)
    return True


@compiled
def net_run(rows: U64Array, keep_zeros: bool) -> Whole:
    """Sort rows and sum those with equal first two columns; how many stay, at the front.

    Rows whose sums are all zero go, unless they are to be kept. Cost: that of `order_run`.
    """
    n, width = rows.shape
    ordered = min(1, n)
    while ordered < n and precedes(rows, ordered - 1, ordered):
        ordered += 1
    if ordered < n:
        order_run(rows)
    elif keep_zeros:
        return n
    kept = 0
    i = 0
    while i < n:
        if kept < i:
            for column in range(width):
                rows[kept, column] = rows[i, column]
        i += 1
        while i < n and rows[i, 0] == rows[kept, 0] and rows[i, 1] == rows[kept, 1]:
            for column in range(2, width):
                if not add_checked(rows, kept, column, np.int64(rows[i, column])):
                    return OVERFLOW
            i += 1
        zero = not keep_zeros
        for column in range(2, width):
            zero = zero and rows[kept, column] == 0
        if not zero:
            kept += 1
    return kept


@compiled
def sweep_runs(slots: U64Array, pool: U64Array, head: I64Array, first: Whole, fuel: Whole) -> Whole:
    """Net runs from slot `first` on until `fuel` rows are read; where to go on. Empty runs go.

    Cost: O(fuel), and one run.
    """
    slot = first
    while slot < head[USED] and fuel > 0:
        length = np.int64(slots[slot, LENGTH])
        fuel -= 1 + length
        if slots[slot, ROOM]:
            start = np.int64(slots[slot, START])
            kept = net_run(pool[start : start + length], False)
            if kept < 0:
                return OVERFLOW
            slots[slot, LENGTH] = kept
            if kept == 0:
                release_run(slots, slot, pool, head)
        slot += 1
    return slot


@compiled
def move_runs(slots: U64Array, used: Whole, pool: U64Array, new_pool: U64Array) -> Whole:
    """Lay the runs of all slots side by side in another pool; how many rows that takes."""
    top: Whole = 0
    for slot in range(used):
        if slots[slot, ROOM] == 0:
            continue
        start, size = np.int64(slots[slot, START]), 1 << (np.int64(slots[slot, ROOM]) - 1)
        for row in range(size):
            for column in range(pool.shape[1]):
                new_pool[top + row, column] = pool[start + row, column]
        slots[slot, START] = top
        top += size
    return top


@compiled
def move_live(slots: U64Array, used: Whole, new_slots: U64Array) -> Whole:
    """Write the slots that have runs side by side into another array; how many there are."""
    kept = 0
    for slot in range(used):
        if slots[slot, ROOM]:
            for column in range(slots.shape[1]):
                new_slots[kept, column] = slots[slot, column]
            kept += 1
    return kept


class KeyedRuns:
    """Runs of rows by key, in memory that a compiled loop can work on.

    Shapes: `slots` used × 6, `pool` rows × width; all unsigned words, diffs as their bits.
    """

    def __init__(self, width: int) -> None:
        self.table: U64Array = np.zeros(32, np.uint64)
        self.slots: U64Array = np.empty((16, 6), np.uint64)
        self.pool: U64Array = np.empty((32, width), np.uint64)
        self.head: I64Array = np.zeros(HEAD_WORDS, np.int64)

    @property
    def keys(self) -> int:
        """The number of keys with a run."""
        return int(self.head[LIVE])

    @property
    def bytes_held(self) -> int:
        """Bytes of the parts of the arrays that are in use."""
        used, top = int(self.head[USED]), int(self.head[TOP])
        return self.table.nbytes + used * self.slots.strides[0] + top * self.pool.strides[0]

    def grow(self) -> None:
        """Make room after a loop has stopped for want of it. Cost: amortised O(1) for each row."""
        used = int(self.head[USED])
        if used == len(self.slots):
            size = (4 if used < _LARGE else 2) * used
            slots = np.empty((size, self.slots.shape[1]), np.uint64)
            slots[:used] = self.slots
            self.slots = slots
            self.table = np.zeros(2 * size, np.uint64)
            rehash(self.table, slots, used)
        else:
            self._move(4)

    def forget_dead_keys(self) -> None:
        """Rebuild without the keys that have no run, if those are most. Only between epochs."""
        used, live = int(self.head[USED]), int(self.head[LIVE])
        if used > 2 * live + 64:
            self.rebuild()

    def rebuild(self) -> None:
        """Lay all runs side by side in fresh arrays, without dead keys. Cost: O(rows)."""
        size = 1 << max(int(self.head[LIVE]), 8).bit_length()
        slots = np.empty((size, self.slots.shape[1]), np.uint64)
        self.head[USED] = move_live(self.slots, int(self.head[USED]), slots)
        self.slots = slots
        self.table = np.zeros(2 * size, np.uint64)
        rehash(self.table, slots, int(self.head[USED]))
        self._move(1)

    def _move(self, times: int) -> None:
        """Move all runs to a pool `times` as large as they are, and one widening more.

        Room that was left behind goes. Memory that is not written to is not taken.
        """
        used = int(self.head[USED])
        rooms = self.slots[:used, ROOM]
        rows = int((np.uint64(1) << rooms >> np.uint64(1)).sum())
        widest = 2 << int(rooms.max(initial=_LEAST_WIDENING))
        pool = np.empty((times * rows + widest, self.pool.shape[1]), np.uint64)
        self.head[FREE:] = 0
        self.head[TOP] = move_runs(self.slots, used, self.pool, pool)
        self.pool = pool
