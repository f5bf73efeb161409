"""Tables of slots: rows by a hash of some of their columns.

A slot is -1 if it is free, else the number of a row. In the bits above it stands a *mark* out of
the row's hash. A row is read only where the mark is the one looked for. Loops read the slots and
rows of the next few dozen rows ahead. One wait for memory then is a wait for all of them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.interval_updates.rows import Word, hash_of, same_columns
from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined

I32Array: TypeAlias = npt.NDArray[np.int32]

TAKEN, BITS, ROW_BITS = 0, 1, 2
"""Places in `used`: slots that are taken, their number, and that of rows, as powers of two."""
BLOCK = 64
"""So many rows are looked at ahead."""
_MARK = 0x7FFF_FFFF


@inlined
def crowded(slots: I32Array, used: I64Array) -> bool:
    """Whether a table has to grow before one more key."""
    return bool(8 * used[TAKEN] + 8 > 5 * slots.size)


def is_crowded(taken: int, size: int) -> bool:
    """See `crowded`."""
    return 8 * taken + 8 > 5 * size


@inlined
def row_in(slots: I32Array, at: Word, used: I64Array) -> np.int64:
    """The row in a slot, -1 for none."""
    word = np.int64(slots[at])
    return np.int64(word & ((1 << used[ROW_BITS]) - 1)) if word >= 0 else np.int64(-1)


@inlined
def put_row(slots: I32Array, at: Word, used: I64Array, row: Word, mine: np.uint64) -> None:
    """Put a row of some hash into a slot, in the place of an older row of its key."""
    low = (np.int64(1) << used[ROW_BITS]) - 1
    slots[at] = (np.int64(mine >> np.uint64(2)) & _MARK & ~low) | row


@inlined
def find_slot(
    left: I64Array, i: Word, left_columns: I64Array, left_nulls: Word, mine: np.uint64,
    right: I64Array, columns: I64Array, nulls: Word, slots: I32Array, used: I64Array,
) -> np.int64:  # fmt: skip
    """The slot of the rows on the right that agree with a row of the left, whose hash is `mine`.

    A free one where there are none.
    """
    bits = used[ROW_BITS]
    low = (np.int64(1) << bits) - 1
    mark = (np.int64(mine >> np.uint64(2)) & _MARK) >> bits
    at = np.int64(mine >> np.uint64(64 - used[BITS]))
    word = np.int64(slots[at])
    while word >= 0 and not (
        word >> bits == mark
        and same_columns(left, i, left_columns, left_nulls, right, word & low, columns, nulls)
    ):
        at = (at + 1) & (slots.size - 1)
        word = np.int64(slots[at])
    return at


@inlined
def living_row(rows: I64Array, nexts: I32Array, head: Word) -> np.int64:
    """The first row of a chain that is not dead, -1 for none; dead rows stay dead."""
    width, row = rows.shape[1] - 2, np.int64(head)
    while row >= 0 and rows[row, width] >= rows[row, width + 1]:
        row = np.int64(nexts[row])
    return row


@compiled
def look_ahead(
    left: I64Array, first: int, last: int, left_columns: I64Array, right: I64Array,
    slots: I32Array, used: I64Array, hashes: U64Array,
) -> int:  # fmt: skip
    """Hashes of the next rows of the left, at most `BLOCK`; the row that comes after these.

    Shapes: `hashes` (BLOCK + 1,), of which the last one is of no use.
    """
    last = min(last, first + BLOCK)
    bits, down = used[ROW_BITS], np.uint64(64 - used[BITS])
    low, read = (np.int64(1) << bits) - 1, np.int64(0)
    for i in range(first, last):
        mine = hash_of(left, i, left_columns)
        hashes[i - first] = mine
        read ^= np.int64(slots[np.int64(mine >> down)])
    for i in range(last - first):
        word = np.int64(slots[np.int64(hashes[i] >> down)])
        if word >= 0 and word >> bits == (np.int64(hashes[i] >> np.uint64(2)) & _MARK) >> bits:
            read ^= right[word & low, 0] ^ right[word & low, right.shape[1] - 1]
    hashes[BLOCK] = np.uint64(read)
    return last


@compiled
def link(
    rows: I64Array, columns: I64Array, slots: I32Array, nexts: I32Array, used: I64Array,
    first: int, last: int,
) -> int:  # fmt: skip
    """Put rows[first:last] into a table, each before older rows of its key that are not dead.

    Returns the first row that is not in, `last` unless the table has to grow.
    """
    nulls, hashes = rows.shape[1] - 3, np.empty(BLOCK + 1, np.uint64)
    base, ready = first, first
    for row in range(first, last):
        if crowded(slots, used):
            return row
        if row >= ready:
            base, ready = row, look_ahead(rows, row, last, columns, rows, slots, used, hashes)
        mine = hashes[row - base]
        at = find_slot(
            rows, row, columns, nulls, mine, rows, columns, nulls, slots, used
        )  # fmt: skip
        used[TAKEN] += np.int64(slots[at] < 0)
        nexts[row] = living_row(rows, nexts, row_in(slots, at, used))
        put_row(slots, at, used, row, mine)
    return last


@compiled
def spread(
    rows: I64Array, columns: I64Array, old: I32Array, slots: I32Array, used: I64Array
) -> None:
    """The keys of one table in another, larger one, which `used` is about."""
    low, down = (np.int64(1) << used[ROW_BITS]) - 1, np.uint64(64 - used[BITS])
    found, hashes, slot = np.empty(BLOCK, np.int64), np.empty(BLOCK + 1, np.uint64), 0
    while slot < old.size:
        many, read = 0, np.int64(0)
        while slot < old.size and many < BLOCK:
            if old[slot] >= 0:
                found[many] = np.int64(old[slot]) & low
                read ^= rows[found[many], 0]
                many += 1
            slot += 1
        hashes[BLOCK] = np.uint64(read)
        for each in range(many):
            mine = hash_of(rows, found[each], columns)
            at = np.int64(mine >> down)
            while slots[at] >= 0:
                at = (at + 1) & (slots.size - 1)
            put_row(slots, at, used, found[each], mine)


@compiled
def renumber(slots: I32Array, used: I64Array, bits: int) -> None:
    """Make room for numbers of rows of more bits; marks lose as many."""
    low, high = (np.int64(1) << used[ROW_BITS]) - 1, ~((np.int64(1) << bits) - 1)
    for at in range(slots.size):
        word = np.int64(slots[at])
        if word >= 0:
            slots[at] = (word & high) | (word & low)
    used[ROW_BITS] = bits
