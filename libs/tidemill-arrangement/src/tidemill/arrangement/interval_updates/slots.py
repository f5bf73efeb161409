"""Tables of slots: rows by a hash of some of their columns.

A slot is -1 if it is free, else the number of a row. In the bits above it stands a *mark* out of
the row's hash. A row is read only where the mark is the one looked for. Loops read the slots and
rows of the next few dozen rows ahead. One wait for memory then is a wait for all of them.

A small table is one page, and doubles. A larger one has many pages, and grows by one at a time.
Some bits of a hash say the page of a key, others where to look first within it. The keys of one
page are divided between it and the new one. Keys whose hashes are alike on purpose fill a page.
Then the table is one great page.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tidemill.arrangement.interval_updates.rows import Word, hash_of, same_columns
from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined

I32Array: TypeAlias = npt.NDArray[np.int32]

TAKEN, BITS, ROW_BITS, PAGES, MASK, FULL, COUNTS = 0, 1, 2, 3, 4, 5, 6
"""Places in `used`. Slots that are taken, and slots of a page and numbers of rows as powers of two.
Pages, bits of a hash that say the page, and whether one is too full. Then the keys of each.
"""
PAGE_BITS = 12
"""Slots of each of many pages, as a power of two."""
_PAGE_AT = 33
"""The bits of a hash from here on say the page; the upper ones say where in it."""
BLOCK = 64
"""So many rows are looked at ahead."""
_AHEAD = 1 << 10
"""So many keys are read ahead that move to other slots."""
_MARK = 0x7FFF_FFFF


def is_crowded(used: I64Array) -> bool:
    """Whether a table has to grow before one more key."""
    share = 3 if used[BITS] == PAGE_BITS else 5  # a page that is not divided yet has twice as many
    return bool(used[FULL] != 0 or 8 * used[TAKEN] + 8 > share * (used[PAGES] << used[BITS]))


crowded = inlined(is_crowded)


@inlined
def home(mine: np.uint64, used: I64Array) -> np.int64:
    """The slot at which to look first for a key of a hash."""
    at, pages = np.int64(mine >> np.uint64(64 - used[BITS])), used[PAGES]
    if pages > 1:
        page = np.int64(mine >> np.uint64(_PAGE_AT)) & used[MASK]
        if page >= pages:
            page &= used[MASK] >> 1
        at |= page << used[BITS]
    return at


@inlined
def following(at: Word, used: I64Array) -> np.int64:
    """The slot at which to look next, in the same page."""
    low = (np.int64(1) << used[BITS]) - 1
    return np.int64((at & ~low) | ((at + 1) & low))


@inlined
def count_key(at: Word, used: I64Array) -> None:
    """One more key is in the page of a slot. One slot of each page stays free."""
    page = COUNTS + (at >> used[BITS])
    used[page] += 1
    if 8 * used[page] > 7 << used[BITS]:
        used[FULL] = 1


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
    at = home(mine, used)
    word = np.int64(slots[at])
    while word >= 0 and not (
        word >> bits == mark
        and same_columns(left, i, left_columns, left_nulls, right, word & low, columns, nulls)
    ):
        at = following(at, used)
        word = np.int64(slots[at])
    return at


@inlined
def living_row(rows: I64Array, nexts: I32Array, head: Word) -> np.int64:
    """The first row of a chain that is not dead, -1 for none; dead rows stay dead."""
    width, row = rows.shape[1] - 2, np.int64(head)
    while row >= 0 and rows[row, width] >= rows[row, width + 1]:
        row = np.int64(nexts[row])
    return row


@inlined
def chained(
    rows: I64Array, nexts: I32Array, head: Word, row: Word, ordered: bool
) -> np.int64:  # fmt: skip
    """Put a row into the chain of its key; the row that is the first of it then.

    The row stands before all others, in an ordered chain before living ones that begin no later.
    Dead ones may stand anywhere: what was cut behind one may begin later than it did.
    """
    start, first, before = rows.shape[1] - 2, living_row(rows, nexts, head), np.int64(-1)
    at = first
    while (
        ordered
        and at >= 0
        and (rows[at, start] > rows[row, start] or rows[at, start] >= rows[at, start + 1])
    ):
        before, at = at, np.int64(nexts[at])
    nexts[row] = at
    if before < 0:
        return np.int64(row)
    nexts[before] = row
    return first


@inlined
def append_row(
    source: I64Array, i: Word, start: Word, end: Word, rows: I64Array, counts: I64Array,
    slots: I32Array, nexts: I32Array, used: I64Array, slot: Word, mine: np.uint64, ordered: bool,
) -> None:  # fmt: skip
    """One more row, linked into the index by its key, whose hash is `mine`."""
    row = counts[0]
    width = rows.shape[1] - 2
    for at in range(width):
        rows[row, at] = source[i, at]
    rows[row, width], rows[row, width + 1] = start, end
    if slots[slot] < 0:
        used[TAKEN] += 1
        count_key(slot, used)
    head = chained(rows, nexts, row_in(slots, slot, used), row, ordered)
    put_row(slots, slot, used, head, mine)
    counts[0] = row + 1
    counts[1] = row + 1


@inlined
def cut_row(
    rows: I64Array, row: Word, start: Word, end: Word, counts: I64Array, slots: I32Array,
    nexts: I32Array, used: I64Array, slot: Word, mine: np.uint64, ordered: bool,
) -> None:  # fmt: skip
    """Take [start, end), which lies within it, from the interval of a row."""
    width = rows.shape[1] - 2
    last = rows[row, width + 1]
    if rows[row, width] == start:
        rows[row, width] = end
    else:
        rows[row, width + 1] = start
        if end < last:
            append_row(rows, row, end, last, rows, counts, slots, nexts, used, slot, mine, ordered)


@inlined
def is_past(rows: I64Array, row: Word, start: Word, place: Word) -> bool:
    """Whether a row of an ordered chain and all behind it ended by `start`, for a reader at a
    place.

    Rows of one fact do not overlap. Those behind a living one end before it begins.
    """
    width = rows.shape[1] - 2
    end = rows[row, width + 1]
    return bool(rows[row, width] < end and end <= start and end < place)


@compiled
def look_ahead(
    left: I64Array, first: int, last: int, left_columns: I64Array, right: I64Array,
    slots: I32Array, used: I64Array, hashes: U64Array,
) -> int:  # fmt: skip
    """Hashes of the next rows of the left, at most `BLOCK`; the row that comes after these.

    Shapes: `hashes` (BLOCK + 1,), of which the last one is of no use.
    """
    last = min(last, first + BLOCK)
    for i in range(first, last):
        hashes[i - first] = hash_of(left, i, left_columns)
    rows_ahead(last - first, right, slots, used, hashes)
    return last


@compiled
def rows_ahead(
    many: int, right: I64Array, slots: I32Array, used: I64Array, hashes: U64Array
) -> None:
    """Read the slots and rows of the first `many` hashes, so that the processor has them."""
    bits = used[ROW_BITS]
    low, read = (np.int64(1) << bits) - 1, np.int64(0)
    for at in range(many):
        read ^= np.int64(slots[home(hashes[at], used)])
    for at in range(many):
        word = np.int64(slots[home(hashes[at], used)])
        if word >= 0 and word >> bits == (np.int64(hashes[at] >> np.uint64(2)) & _MARK) >> bits:
            read ^= right[word & low, 0] ^ right[word & low, right.shape[1] - 1]
    hashes[BLOCK] = np.uint64(read)


@compiled
def chains_ahead(
    many: int, nexts: I32Array, slots: I32Array, used: I64Array, hashes: U64Array
) -> None:
    """Read what follows the rows of the first `many` hashes in their chains, after `look_ahead`."""
    bits = used[ROW_BITS]
    low, read = (np.int64(1) << bits) - 1, np.int64(0)
    for at in range(many):
        word = np.int64(slots[home(hashes[at], used)])
        if word >= 0 and word >> bits == (np.int64(hashes[at] >> np.uint64(2)) & _MARK) >> bits:
            read ^= np.int64(nexts[word & low])
    hashes[BLOCK] ^= np.uint64(read)


@compiled
def link(
    rows: I64Array, columns: I64Array, slots: I32Array, nexts: I32Array, used: I64Array,
    first: int, last: int, ordered: bool,
) -> int:  # fmt: skip
    """Put rows[first:last] into a table, each into the chain of its key (`chained`).

    Returns the first row that is not in, `last` unless the table has to grow.
    """
    nulls, hashes = rows.shape[1] - 3, np.empty(BLOCK + 1, np.uint64)
    base, ready = first, first
    for row in range(first, last):
        if crowded(used) and not divide(rows, columns, slots, used):
            return row
        if row >= ready:
            base, ready = row, look_ahead(rows, row, last, columns, rows, slots, used, hashes)
        mine = hashes[row - base]
        at = find_slot(
            rows, row, columns, nulls, mine, rows, columns, nulls, slots, used
        )  # fmt: skip
        if slots[at] < 0:
            used[TAKEN] += 1
            count_key(at, used)
        head = chained(rows, nexts, row_in(slots, at, used), row, ordered)
        put_row(slots, at, used, head, mine)
    return last


@compiled
def spread(
    rows: I64Array, columns: I64Array, old: I32Array, slots: I32Array, used: I64Array
) -> None:
    """The keys of some slots in a table, which has none of them.

    NB: a row that nothing has read ahead is a wait for memory, which all rows behind it share.
    """
    low, many, read = (np.int64(1) << used[ROW_BITS]) - 1, np.int64(0), np.int64(0)
    found, hashes = np.empty(old.size, np.int32), np.empty(_AHEAD + 1, np.uint64)
    for word in old:
        found[many] = np.int64(word) & low
        many += np.int64(word >= 0)
    for first in range(0, many, _AHEAD):
        last = min(first + _AHEAD, int(many))
        for each in range(first, last):
            read ^= rows[found[each], 0] ^ rows[found[each], columns.size]
        for each in range(first, last):
            hashes[each - first] = hash_of(rows, found[each], columns)
        for each in range(first, last):
            read ^= np.int64(slots[home(hashes[each - first], used)])
        hashes[_AHEAD] = np.uint64(read)
        for each in range(first, last):
            at = home(hashes[each - first], used)
            while slots[at] >= 0:
                at = following(at, used)
            put_row(slots, at, used, found[each], hashes[each - first])
            count_key(at, used)


@compiled
def divide(rows: I64Array, columns: I64Array, slots: I32Array, used: I64Array) -> bool:
    """One more page; false where that is no help, or there is no room for it.

    Cost: O(slots of a page).
    """
    pages, size = used[PAGES], 1 << PAGE_BITS
    if used[BITS] != PAGE_BITS or used[FULL] != 0 or (pages + 1) * size > slots.size:
        return False
    if pages > used[MASK]:
        used[MASK] = 2 * used[MASK] + 1
    source = pages & (used[MASK] >> 1)
    old = slots[source * size : (source + 1) * size].copy()
    for page in (source, pages):
        slots[page * size : (page + 1) * size] = -1
        used[COUNTS + page] = 0
    used[PAGES] = pages + 1
    spread(rows, columns, old, slots, used)
    return True


@compiled
def renumber(slots: I32Array, used: I64Array, bits: int) -> None:
    """Make room for numbers of rows of more bits; marks lose as many."""
    low, high = (np.int64(1) << used[ROW_BITS]) - 1, ~((np.int64(1) << bits) - 1)
    for at in range(used[PAGES] << used[BITS]):
        word = np.int64(slots[at])
        if word >= 0:
            slots[at] = (word & high) | (word & low)
    used[ROW_BITS] = bits
