"""Counts and exact sums of groups, as functions of the instant.

A contribution is a row (group, time, expiry, values, nulls) with its interval. Contributions with
equal groups, times, expiries and intervals are added up when they come. Contributions that differ
only in starts below the frontier follow. So a group takes the memory of its different ends. A sum
is two words, for the upper and the lower halves of whole numbers. Neither overflows below 2^31
contributions.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement
from tidemill.arrangement.interval_updates.rows import Change, Word
from tidemill.arrangement.interval_updates.slots import (
    BLOCK,
    ROW_BITS,
    TAKEN,
    I32Array,
    count_key,
    crowded,
    divide,
    find_slot,
    home,
    look_ahead,
    put_row,
    row_in,
)
from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined
from tidemill.arrangement.kernels.room import grow

_MANY = 1 << 12
"""There is room for so many rows at a time."""
_LOOKED_AT = 16
"""So many sums of a group are compared with a contribution before it becomes one of its own."""
_DONE, _FULL, _GROW, _MIXED = 0, 1, 2, 3
SUM_WORDS = 3
"""Of a value: how many there are, and the sums of the upper and lower halves."""


@inlined
def _add(
    sums: I64Array, row: Word, groups: Word, change: I64Array, i: Word, values: Word, diff: Word
) -> None:
    """Add a contribution to a sum."""
    nulls = change[i, groups + 2 + values]
    sums[row, groups + 2] += diff
    for at in range(values):
        if (nulls >> (groups + 2 + at)) & 1 == 0:
            value = change[i, groups + 2 + at]
            place = groups + 3 + SUM_WORDS * at
            sums[row, place] += diff
            sums[row, place + 1] += diff * (value >> 32)
            sums[row, place + 2] += diff * (value & 0xFFFF_FFFF)


@inlined
def _alike(sums: I64Array, row: Word, groups: Word, time: Word, expiry: Word, end: Word) -> bool:
    width = sums.shape[1]
    return bool(
        sums[row, width - 1] == end
        and sums[row, groups] == time
        and sums[row, groups + 1] == expiry
        and sums[row, width - 2] < end
    )


@inlined
def _begin_sum(
    change: I64Array, i: Word, groups: Word, mine: Word, sums: I64Array, counts: I64Array
) -> np.int64:
    """A sum without contributions for the group, times and interval of a contribution."""
    found, nulls = counts[0], sums.shape[1] - 3
    counts[0] += 1
    counts[1] = counts[0]
    for column in range(sums.shape[1]):
        sums[found, column] = 0
    for column in range(groups + 2):
        sums[found, column] = change[i, column]
    sums[found, nulls] = change[i, mine] & ((np.int64(1) << (groups + 2)) - 1)
    sums[found, nulls + 1], sums[found, nulls + 2] = change[i, mine + 1], change[i, mine + 2]
    return np.int64(found)


@inlined
def _touch(
    head: Word, newest: Word, start: Word, numbers: I32Array, heads: I64Array, firsts: I64Array,
    many: int,
) -> int:  # fmt: skip
    """Note a group whose row `head` was the newest; how many are noted. See `_accumulate`."""
    place = np.int64(numbers[head]) if head >= 0 else np.int64(-1)
    if 0 <= place < many and heads[place] == head:
        firsts[place] = min(firsts[place], start)
    else:
        place = np.int64(many)
        firsts[place] = start
        many += 1
    heads[place], numbers[newest] = newest, place
    return many


@compiled
def _groups_ahead(
    many: int, hashes: U64Array, slots: I32Array, used: I64Array, numbers: I32Array,
    heads: I64Array, firsts: I64Array, places: I64Array,
) -> None:  # fmt: skip
    """Read what `_touch` asks of the next `many` contributions, as `look_ahead` does for rows.

    Shapes: `places` (BLOCK + 1,), of no use to the caller.
    """
    low, read = (np.int64(1) << used[ROW_BITS]) - 1, np.int64(0)
    for at in range(many):
        word = np.int64(slots[home(hashes[at], used)])
        places[at] = numbers[word & low] if word >= 0 else -1
    for at in range(many):
        if 0 <= places[at] < heads.size:
            read ^= heads[places[at]] ^ firsts[places[at]]
    places[BLOCK] = read


@compiled
def _accumulate(
    change: I64Array, columns: I64Array, values: int, since: int, sums: I64Array,
    counts: I64Array, slots: I32Array, nexts: I32Array, used: I64Array, first: int,
    numbers: I32Array, heads: I64Array, firsts: I64Array, many: int,
) -> tuple[int, int, int]:  # fmt: skip
    """Take contributions in from row `first` on; the row that is next, and how many groups of
    `heads` are touched by now.

    Of each of these `heads` has the newest row, and `firsts` the first instant. `numbers` holds the
    place of a row among them, and anything for other rows.
    """
    groups = columns.size
    hashes, base, ready = np.empty(BLOCK + 1, np.uint64), first, first
    places = np.empty(BLOCK + 1, np.int64)
    mine, nulls = groups + 2 + values, sums.shape[1] - 3
    for i in range(first, change.shape[0]):
        if counts[0] >= sums.shape[0] or many >= heads.size:
            return _FULL, i, many
        if crowded(used) and not divide(sums, columns, slots, used):
            return _GROW, i, many
        if i >= ready:
            last = change.shape[0]
            base, ready = i, look_ahead(change, i, last, columns, sums, slots, used, hashes)
            _groups_ahead(ready - base, hashes, slots, used, numbers, heads, firsts, places)
        slot = find_slot(
            change, i, columns, mine, hashes[i - base], sums, columns, nulls, slots, used
        )
        head = row_in(slots, slot, used)
        if head < 0:
            used[TAKEN] += 1
            count_key(slot, used)
        start, end = change[i, mine + 1], change[i, mine + 2]
        time, expiry = change[i, groups], change[i, groups + 1]
        found, open_, before, looked = np.int64(-1), np.int64(-1), np.int64(-1), 0
        row = head
        while row >= 0 and looked < _LOOKED_AT and found < 0:
            gone = False
            if _alike(sums, row, groups, time, expiry, end):
                if sums[row, nulls + 1] == start or max(sums[row, nulls + 1], start) <= since:
                    found = row
                    sums[row, nulls + 1] = max(sums[row, nulls + 1], start)
                elif sums[row, nulls + 1] <= since:
                    if open_ < 0:
                        open_ = row
                    else:
                        for column in range(groups + 2, nulls):
                            sums[open_, column] += sums[row, column]
                        sums[open_, nulls + 1] = max(
                            sums[open_, nulls + 1], sums[row, nulls + 1]
                        )  # fmt: skip
                        sums[row, nulls + 1] = end
                        nexts[before] = nexts[row]
                        gone = True
            if not gone:
                before = row
            looked += 1
            if found < 0:
                row = np.int64(nexts[row])
        newest = head
        if found < 0:
            found = newest = _begin_sum(change, i, groups, mine, sums, counts)
            nexts[found] = head
            put_row(slots, slot, used, found, hashes[i - base])
        _add(sums, found, groups, change, i, values, change[i, mine + 3])
        many = _touch(head, newest, start, numbers, heads, firsts, many)
    return _DONE, change.shape[0], many


@compiled
def _chain(sums: I64Array, nexts: I32Array, head: int, first: int, rows: I64Array) -> int:
    """The rows of a group that end after an instant; -1 where there is no room for them."""
    width = sums.shape[1]
    row, size = np.int64(head), 0
    while row >= 0:
        if sums[row, width - 1] > first and sums[row, width - 2] < sums[row, width - 1]:
            if size == rows.size:
                return -1
            rows[size] = row
            size += 1
        row = np.int64(nexts[row])
    return size


@inlined
def _put_in_order(events: I64Array, many: int, event: Word) -> None:
    """One more word among some that ascend."""
    at = many
    while at > 0 and events[at - 1] > event:
        events[at] = events[at - 1]
        at -= 1
    events[at] = event


@compiled
def _chains_ahead(
    sums: I64Array, nexts: I32Array, heads: I64Array, first: int, chain: I64Array
) -> int:
    """Read the first rows of the next groups, so that the processor has them when they are asked
    for; the group that comes after these.
    """
    last, read = min(first + BLOCK, heads.size), np.int64(0)
    for group in range(first, last):
        chain[group - first] = nexts[heads[group]]
        read ^= sums[heads[group], 0]
    for group in range(first, last):
        if chain[group - first] >= 0:
            read ^= sums[chain[group - first], 0]
    chain[0] = read
    return last


@compiled
def _sweep(
    sums: I64Array, nexts: I32Array, heads: I64Array, since: I64Array, groups: int,
    places: I64Array, chain: I64Array, events: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Stretches of the groups of `heads`, each from an instant on, from where `places` say.

    `places`: the group, how many rows of `out` are filled. A group of which times or expiries
    differ is left out, and ends the call with _MIXED.
    """
    width, ready = sums.shape[1], places[0]
    while places[0] < heads.size:
        group = places[0]
        if group >= ready:
            ready = _chains_ahead(sums, nexts, heads, group, chain)
        size = _chain(sums, nexts, heads[group], since[group], chain)
        if size < 0 or 2 * size > out.shape[0] - places[1]:
            return _FULL
        for at in range(1, size):
            for column in (groups, groups + 1):
                if sums[chain[at], column] != sums[chain[0], column]:
                    places[0] += 1
                    return _MIXED
        for at in range(size):
            _put_in_order(events, 2 * at, max(since[group], sums[chain[at], width - 2]))
            _put_in_order(events, 2 * at + 1, sums[chain[at], width - 1])
        found, base = places[1], places[1]
        for at in range(2 * size - 1):
            start, end = events[at], events[at + 1]
            if start == end:
                continue
            for column in range(width):
                out[found, column] = sums[chain[0], column]
            for column in range(groups + 2, width - 3):
                out[found, column] = 0
            for each in range(size):
                row = chain[each]
                if sums[row, width - 2] <= start and sums[row, width - 1] > start:
                    for column in range(groups + 2, width - 3):
                        out[found, column] += sums[row, column]
            if out[found, groups + 2] == 0:
                continue
            same = found > base and out[found - 1, width - 1] == start
            for column in range(groups + 2, width - 3):
                same = same and out[found, column] == out[found - 1, column]
            if same:
                out[found - 1, width - 1] = end
                continue
            out[found, width - 2], out[found, width - 1] = start, end
            found += 1
        places[0] += 1
        places[1] = found
    return _DONE


class Sums:
    """Counts and sums of groups. A stretch of a group is a row: group, time, expiry, count, sums.

    `groups` columns tell groups apart and `values` columns are summed up; a contribution has the
    group, time, expiry, values and nulls.
    """

    __slots__ = ("_firsts", "_groups", "_heads", "_many", "_numbers", "_values", "rows")

    def __init__(self, groups: int, values: int) -> None:
        self._groups = groups
        self._values = values
        self.rows = Arrangement(groups + 3 + SUM_WORDS * values + 1)
        self._numbers: I32Array = np.empty(0, np.int32)
        self._heads, self._firsts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._many = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all sums and their index."""
        return self.rows.nbytes + int(self._numbers.nbytes)

    def add(self, change: Change, since: int) -> None:
        """Take contributions in. Cost: O(change), if a group has few different ends."""
        rows, columns, first = self.rows, np.arange(self._groups), 0
        while first < len(change):
            more = min(len(change) - first, _MANY)
            rows.reserve(more)
            index = rows.index(range(self._groups))
            if len(self._numbers) < len(rows.rows):
                grow(self, "_numbers", len(rows.rows), len(self._numbers))
            if self._many == len(self._heads):
                for name in ("_heads", "_firsts"):
                    grow(self, name, max(more, 2 * self._many), self._many)
            said, first, self._many = _accumulate(
                change, columns, self._values, since, rows.rows, rows.counts, index.slots,
                index.nexts, index.used, first, self._numbers, self._heads, self._firsts,
                self._many,
            )  # fmt: skip
            index.linked = len(rows)
            if said == _GROW:
                index.grow(rows.rows, len(change) - first)

    def touched(self) -> tuple[I64Array, I64Array]:
        """Of each group that was added to since the last call a row, and the first instant."""
        many, self._many = self._many, 0
        heads, firsts = self._heads[:many], self._firsts[:many]
        self._heads, self._firsts = np.empty(0, np.int64), np.empty(0, np.int64)
        return heads, firsts

    def stretches(
        self, heads: I64Array, since: I64Array
    ) -> tuple[I64Array, list[tuple[int, I64Array]]]:
        """Stretches of the groups, each from an instant of its own on.

        Shapes: stretches (n, columns + 2) with start and end. A group of different times or
        expiries is answered by its number among `heads` and its contributions.
        Cost: O(rows of the groups · the different instants of one).
        """
        rows = self.rows
        index = rows.index(range(self._groups))
        places = np.zeros(2, np.int64)
        size = BLOCK
        chain, events = np.empty(size, np.int64), np.empty(2 * size, np.int64)
        out = np.empty((2 * len(heads) + 2 * size, rows.columns + 2), np.int64)
        parts: list[I64Array] = []
        mixed: list[tuple[int, I64Array]] = []
        while True:
            said = _sweep(
                rows.rows, index.nexts, heads, since, self._groups, places, chain, events, out
            )
            if said == _DONE:
                parts.append(out[: places[1]])
                return (parts[0] if len(parts) == 1 else np.concatenate(parts)), mixed
            if said == _MIXED:
                number = int(places[0]) - 1
                size_now = _chain(rows.rows, index.nexts, heads[number], since[number], chain)
                mixed.append((number, rows.rows[chain[:size_now]]))
                continue
            parts.append(out[: places[1]])
            places[1] = 0
            size *= 2
            chain, events = np.empty(size, np.int64), np.empty(2 * size, np.int64)
            out = np.empty((2 * len(heads) + 2 * size, rows.columns + 2), np.int64)
