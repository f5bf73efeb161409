"""Counts and exact sums of groups, as functions of the instant.

A contribution is a row (group, time, expiry, values, nulls) with its interval. Contributions with
equal groups, expiries and intervals are added up when they come. Contributions that differ only in
starts below the frontier follow. So a group takes the memory of its different ends. Each different
time takes 24 bytes, and can be taken away again. A sum is two words, for the upper and
the lower halves of whole numbers. Neither overflows below 2^31 contributions.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement
from tidemill.arrangement.interval_updates.counted_rows import CountedRows
from tidemill.arrangement.interval_updates.multisets import Multisets, room_in
from tidemill.arrangement.interval_updates.rows import BEGIN_WORD, END_WORD, Change, Word
from tidemill.arrangement.interval_updates.slots import (
    BLOCK,
    TAKEN,
    I32Array,
    count_key,
    crowded,
    divide,
    find_slot,
    look_ahead,
    put_row,
    row_in,
)
from tidemill.arrangement.interval_updates.standing import change_standing
from tidemill.arrangement.interval_updates.sum_rows import (
    DONE,
    FULL,
    GROW,
    MIXED,
    NODES,
    SUM_WORDS,
    add_time,
    add_value,
    alike,
    begin_sum,
)
from tidemill.arrangement.interval_updates.sum_stretches import (
    KINDS,
    chain_of,
    has_negative,
    sweep,
)
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined
from tidemill.arrangement.kernels.capacity import grow

_MANY = 1 << 12
"""There is room for so many rows at a time."""
_LOOKED_AT = 16
"""So many sums of a group are compared with a contribution before it becomes one of its own."""


@inlined
def _touch(
    head: Word, newest: Word, start: Word, sums: I64Array, touched: I64Array, many: int
) -> int:  # fmt: skip
    """Note a group whose row `head` was the newest; how many are noted. See `_accumulate`."""
    place, since = sums.shape[1] - 4, np.int64(start)
    if head >= 0:
        since = min(since, sums[head, place])
        if head != newest:
            sums[head, place] = END_WORD
    if sums[newest, place] == END_WORD:
        touched[many] = newest
        many += 1
    sums[newest, place] = since
    return many


@compiled
def _take_touched(sums: I64Array, touched: I64Array, since: I64Array) -> int:
    """Write the groups that are noted, and their instants, to the front; how many there are.

    Rows that are not the newest of their group any more are left out.
    """
    place, found = sums.shape[1] - 4, 0
    for at in range(touched.size):
        row = touched[at]
        if sums[row, place] != END_WORD:
            touched[found], since[found] = row, sums[row, place]
            sums[row, place] = END_WORD
            found += 1
    return found


@compiled
def _accumulate(
    change: I64Array, columns: I64Array, values: int, since: int, sums: I64Array,
    counts: I64Array, slots: I32Array, nexts: I32Array, used: I64Array, first: int,
    touched: I64Array, many: int, words: I64Array, links: I32Array, state: I64Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Take contributions in from row `first` on; the row that is next, and how many rows are
    noted as touched by now.

    Of each touched group the newest row has its first instant, and is in `touched`.
    """
    groups = columns.size
    hashes, base, ready = np.empty(BLOCK + 1, np.uint64), first, first
    mine, nulls = groups + 2 + values, sums.shape[1] - 3
    timed = groups + 3 + SUM_WORDS * values < nulls - 1
    for i in range(first, change.shape[0]):
        if counts[0] >= sums.shape[0] or many >= touched.shape[0]:
            return FULL, i, many
        if timed and room_in(words, state) < 2:
            return NODES, i, many
        if crowded(used) and not divide(sums, columns, slots, used):
            return GROW, i, many
        if i >= ready:
            last = change.shape[0]
            base, ready = i, look_ahead(change, i, last, columns, sums, slots, used, hashes)
        slot = find_slot(
            change, i, columns, mine, hashes[i - base], sums, columns, nulls, slots, used
        )
        head = row_in(slots, slot, used)
        if head < 0:
            used[TAKEN] += 1
            count_key(slot, used)
        start, end = change[i, mine + 1], change[i, mine + 2]
        time, expiry = change[i, groups], change[i, groups + 1]
        found, row, looked = np.int64(-1), head, 0
        while row >= 0 and looked < _LOOKED_AT:
            if alike(sums, row, groups, time, expiry, end, timed):
                begun = sums[row, nulls + 1]
                if begun == start or max(begun, start) <= since:
                    found = row
                    sums[row, nulls + 1] = max(begun, start)
                    break  # to read which row is next would be one more wait for memory
            looked += 1
            row = np.int64(nexts[row])
        newest = head
        if found < 0:
            found = newest = begin_sum(change, i, groups, mine, sums, counts)
            nexts[found] = head
            put_row(slots, slot, used, found, hashes[i - base])
        if timed:
            add_time(sums, found, groups, words, links, state, time, change[i, mine + 3])
        add_value(sums, found, groups, change, i, values, change[i, mine + 3])
        many = _touch(head, newest, start, sums, touched, many)
    return DONE, change.shape[0], many


class Sums:
    """Counts and sums of groups. A stretch of a group is a row: group, time, expiry, count, sums.

    `groups` columns tell groups apart and `values` columns are summed up; a contribution has the
    group, time, expiry, values and nulls. Those of one group may have several times where sums are
    `timed`. The time of a stretch is the latest of those that hold, its expiry the first.
    """

    __slots__ = (
        "_facts", "_groups", "_last", "_many", "_past", "_timed", "_times", "_touched", "_values",
        "rows",
    )  # fmt: skip

    def __init__(self, groups: int, values: int, timed: bool = False) -> None:
        self._groups = groups
        self._values = values
        self._timed = timed
        self._last = groups + 3 + SUM_WORDS * values
        self.rows = Arrangement(self._last + timed + 2)
        self._times = Multisets()
        self._facts: I32Array = np.empty(0, np.int32)
        """Places at which the fact of the group of each sum was seen last, or anything."""
        self._touched = np.empty(0, np.int64)
        self._many, self._past = 0, BEGIN_WORD

    @property
    def nbytes(self) -> int:
        """The bytes of all sums, their index and their times."""
        return self.rows.nbytes + int(self._facts.nbytes) + self._times.nbytes

    def add(self, change: Change, since: int) -> None:
        """Take contributions in. Cost: O(change), O(log n) for each with a time of its own."""
        rows, columns, first = self.rows, np.arange(self._groups), 0
        self._past, times = since, self._times
        while first < len(change):
            more = min(len(change) - first, _MANY)
            rows.reserve(more, len(change) - first)
            index = rows.index(range(self._groups))
            if self._many == len(self._touched):
                grow(self, "_touched", max(more, 2 * self._many), self._many)
            said, first, self._many = _accumulate(
                change, columns, self._values, since, rows.rows, rows.counts, index.slots,
                index.nexts, index.used, first, self._touched, self._many, times.words,
                times.links, times.state,
            )  # fmt: skip
            index.linked = len(rows)
            if said == GROW:
                index.grow(rows.rows, len(change) - first)
            elif said == NODES:
                times.reserve(2 * more)

    def touched(self) -> tuple[I64Array, I64Array]:
        """Of each group that was added to since the last call a row, and the first instant.

        Many rows are in the order of memory, which is read so from its front to its back.
        """
        touched, self._many = self._touched[: self._many], 0
        self._touched = np.empty(0, np.int64)
        if len(touched) > BLOCK:
            touched.sort()
        since = np.empty(len(touched), np.int64)
        found = _take_touched(self.rows.rows, touched, since)
        return touched[:found], since[:found]

    def change_standing(
        self, heads: I64Array, since: I64Array, facts: Arrangement, first: int, kinds: I64Array
    ) -> tuple[Change, int, int, I64Array]:
        """Changes of facts that are changed where they stand, then facts that are to be added.

        The numbers of facts that go, which are the first, and of changes that are made follow. Then
        the places of other groups in `heads`. No index of the facts has columns beyond the group,
        which stands from `first` on. No row is told with its opposite. Cost: O(groups).
        """
        if len(self._facts) < len(self.rows.rows):
            grow(self, "_facts", len(self.rows.rows), len(self._facts))
        return change_standing(
            self.rows, heads, since, self._past, self._groups, self._last, self._facts, facts,
            first, kinds,
        )  # fmt: skip

    def stretches(self, heads: I64Array, since: I64Array) -> I64Array:
        """Stretches of the groups, each from an instant of its own on.

        Shapes: (n, columns + 2) with start and end, those of one group in order.
        Cost: O(n log n) for n ends of a group, and for n times where the latest is taken away.
        O(ends · different instants) for groups of few ends, which is less.
        """
        rows, times, size = self.rows, self._times, BLOCK
        index = rows.index(range(self._groups))
        places, kinds = np.zeros(2, np.int64), np.empty(KINDS, np.int64)
        totals = np.empty(self._last, np.int64)
        chain, events, out = self._room(len(heads), size)
        parts: list[I64Array] = []
        while True:
            said = sweep(
                rows.rows, index.nexts, heads, since, self._past, self._groups, self._last, kinds,
                totals, places, chain, events, times.words, times.links, times.state, out,
            )  # fmt: skip
            if said == DONE:
                parts.append(out[: places[1]])
                return parts[0] if len(parts) == 1 else np.concatenate(parts)
            if said == MIXED:
                number = int(places[0]) - 1
                first = int(since[number])
                size_now = chain_of(rows.rows, index.nexts, heads[number], first, chain)
                parts.append(self._mixed(chain[:size_now], first))
                continue
            if said == NODES:
                times.reserve(_MANY)
                continue
            parts.append(out[: places[1]])
            places[1] = 0
            size *= 2
            chain, events, out = self._room(len(heads), size)

    def _room(self, groups: int, size: int) -> tuple[I64Array, I64Array, I64Array]:
        """Room for chains of some size, their starts and ends, and stretches."""
        out = np.empty((2 * groups + 2 * size, self._last + 3), np.int64)
        return np.empty(size, np.int64), np.empty(2 * size, np.int64), out

    def _mixed(self, chain: I64Array, first: int) -> I64Array:
        """The stretches of a group of many sums, or whose latest time may be taken away.

        Cost: O(n log n) for n sums; for all times of them where some are taken away.
        """
        rows, groups, last = self.rows.rows[chain], self._groups, self._last
        rows[:, -2] = np.maximum(rows[:, -2], first)
        counts, words = rows[:, groups + 2], rows[:, groups]
        counted = latest = CountedRows(rows[:, -2], rows[:, -1], counts)
        if self._timed and has_negative(self.rows.rows, chain, groups, last, self._times.words):
            entries, of = self._times.entries(rows[:, last] - 1)
            of = np.concatenate([np.flatnonzero(rows[:, last] == 0), of])
            plain = len(of) - len(entries)
            words = np.concatenate([words[of[:plain]], entries[:, 0]])
            counts = np.concatenate([counts[of[:plain]], entries[:, 1]])
            latest = CountedRows(rows[of, -2], rows[of, -1], counts)
        totals = counted.sums(rows[:, groups + 2 : last])
        there = np.flatnonzero(totals[:, 0])
        found = np.repeat(rows[:1, [*range(last), -3, -2, -1]], len(there), axis=0)
        if latest is not counted or (words != words[0]).any() or self._timed:
            found[:, groups] = latest.greatest(words)[there]
        if (rows[:, groups + 1] != rows[0, groups + 1]).any():
            found[:, groups + 1] = ~counted.greatest(~rows[:, groups + 1])[there]
        found[:, groups + 2 : last] = totals[there]
        found[:, -2], found[:, -1] = counted.borders[there], counted.borders[there + 1]
        return _joined(found, groups, last)

    def compact(self, since: int) -> None:
        """Forget what has ended by `since`."""
        self.rows.compact(since)
        if self._timed:
            kept = self.rows.rows[: len(self.rows)]
            self._times.compact(kept, self._last)


def _joined(stretches: I64Array, groups: int, last: int) -> I64Array:
    """Stretches of one group without borders between two that say the same."""
    begins = np.ones(len(stretches), np.bool_)
    begins[1:] = stretches[1:, -2] != stretches[:-1, -1]
    begins[1:] |= (stretches[1:, groups:last] != stretches[:-1, groups:last]).any(axis=1)
    first = np.flatnonzero(begins)
    found = stretches[first]
    found[:, -1] = stretches[np.append(first[1:], len(stretches))[: len(first)] - 1, -1]
    return found
