"""The first load of a record's multiplicities: rows are logged, a set of bits says what is there.

While only positive diffs come, at times that never go back, whether a record is new is one bit. Its
rows are appended to its key as they come. The first look at a key that needs more than that makes
its log a table; see `counts`.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.tables import (
    LEAST_ROOM,
    LISTED,
    Records,
    Whole,
    find_or_add,
    widen_run,
)

LOGGED = np.uint64(1)
"""The `due` of a slot whose run is a log: rows in the order in which they came, perhaps several of
one record and time."""
WORDS_MAX = 2**21
"""Bits for this many words at most: 16 MiB."""
DIFF_MAX = 2**15 - 1
"""Greater diffs do not fit in the narrow rows of a log."""


@compiled
def log_rows(
    table: U64Array, slots: Records, pool: Records, head: I64Array, there: U64Array,
    keys: U64Array, vals: U64Array, diffs: I64Array, number: Whole, first: Whole, fresh: I64Array,
) -> Whole:  # fmt: skip
    """Append rows of one time from `first` on and list those new; where it stopped for want of
    room.
    """
    slot, row, end, listed = -1, 0, 0, head[LISTED]
    stopped = diffs.size
    for i in range(first, diffs.size):
        key, val = keys[i], vals[i]
        if slot < 0 or slots[slot].key != key or row == end:
            if slot >= 0:
                slots[slot].length = row - slots[slot].start
            slot = find_or_add(table, slots, head, key)
            if slot < 0:
                stopped = i
                break
            room = slots[slot].room
            if (room == 0 or slots[slot].length == 1 << (room - 1)) and not widen_run(
                slots, slot, pool, head, LEAST_ROOM
            ):
                slot, stopped = -1, i
                break
            slots[slot].due = LOGGED
            row = slots[slot].start + slots[slot].length
            end = slots[slot].start + (1 << (slots[slot].room - 1))
        word, bit = val >> np.uint64(6), np.uint64(1) << (val & np.uint64(63))
        known = there[key, word] & bit
        there[key, word] |= bit
        pool[row].val, pool[row].time, pool[row].put_in = val, number, diffs[i]
        pool[row].out = 0
        if not known:
            pool[row].out = 1
            fresh[listed] = i
            listed += 1
        row += 1
    if slot >= 0:
        slots[slot].length = row - slots[slot].start
    head[LISTED] = listed
    return stopped


class Presence:
    """Which records are there, a bit for each, where keys and values are small numbers.

    Good for rows of positive diffs at times that never go back.
    """

    def __init__(self) -> None:
        self.there: U64Array = np.zeros((1, 1), np.uint64)
        self._time = 0

    def takes(self, time: int, rows: Rows) -> bool:
        """Whether these rows, at least one and all at `time`, can be added; if so, with bits for
        them.

        Cost: O(n), and amortised O(1) for each word of bits.
        """
        if time < self._time or int(rows.diffs.min()) <= 0 or int(rows.diffs.max()) > DIFF_MAX:
            return False
        key, word = int(rows.keys.max()), int(rows.vals.max()) >> 6
        height, width = self.there.shape
        if key >= height or word >= width:
            height = max(height, 1 << key.bit_length())
            width = max(width, 1 << word.bit_length())
            if height * width > WORDS_MAX:
                return False
            there = np.zeros((height, width), np.uint64)
            there[: self.there.shape[0], : self.there.shape[1]] = self.there
            self.there = there
        self._time = time
        return True
