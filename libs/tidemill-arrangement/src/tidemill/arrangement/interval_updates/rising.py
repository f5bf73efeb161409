"""Facts that come in the order of one of their columns, as those of a table with a serial number.

A fact with a word beyond all words of its column is new, and nobody has to look it up. The facts
stand in the order of the column, so one that goes is found by a search. No index is made for
either.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.interval_updates.arranged import Arrangement
from tidemill.arrangement.interval_updates.rows import (
    BEGIN_WORD,
    Change,
    Word,
    same_columns,
    same_values,
)
from tidemill.arrangement.kernels.arrays import BoolArray, I64Array, compiled, inlined

_STEPS, _STEPS_EACH = 64, 8
"""Steps of the searches of one change, and for each row more, before an index is less work."""


@compiled
def _append_rising(
    change: I64Array, columns: I64Array, lasts: I64Array, rising: BoolArray, facts: I64Array,
    counts: I64Array, done: I64Array,
) -> None:  # fmt: skip
    """Append the rows that are added, until one does not go on in any column that has risen so far.

    `lasts` are the greatest words of the columns. `done`: the row that ends this, and the rows
    before it that are taken away, which are left out. There is room for all rows.
    """
    width, count = change.shape[1] - 3, counts[0]
    for i in range(done[0], change.shape[0]):
        done[0] = i
        if change[i, width + 2] < 0:
            done[1] += 1
            continue
        plain = change[i, width + 2] == 1 and change[i, width] < change[i, width + 1]
        nulls, rises = change[i, width - 1], False
        for at in range(columns.size):
            if rising[at]:
                word = change[i, columns[at]]
                rising[at] = plain and word > lasts[at] and (nulls >> columns[at]) & 1 == 0
                if rising[at]:
                    lasts[at], rises = word, True
        if not rises:
            counts[:] = count
            return
        for column in range(width + 2):
            facts[count, column] = change[i, column]
        count += 1
    counts[:] = count
    done[0] = change.shape[0]


@inlined
def _place_of(
    word: Word, near: Word, column: Word, facts: I64Array, count: Word, steps: I64Array
) -> np.int64:
    """The first fact whose word in an ascending column is not below some word; there is one fact.

    It is looked for near a place, then where it would be if the words had equal distances. Those
    are unsigned before they are floats: two far words may be one float.
    """
    low, high, at = np.int64(0), np.int64(count), np.int64(near)
    steps[0] += 1
    if at >= count or facts[at, column] != word:
        first, last = facts[0, column], facts[count - 1, column]
        if word <= first:
            return np.int64(0)
        if word > last:
            return np.int64(count)
        share = np.float64(np.uint64(word - first)) / np.float64(np.uint64(last - first))
        at, reach = min(np.int64(share * (count - 1)), np.int64(count) - 1), np.int64(1)
        if facts[at, column] < word:
            low = at + 1
            while at + reach < count and facts[at + reach, column] < word:
                low, reach = at + reach + 1, 2 * reach
                steps[0] += 1
            high = min(high, at + reach)
        else:
            high = at
            while at - reach >= 0 and facts[at - reach, column] >= word:
                high, reach = at - reach, 2 * reach
                steps[0] += 1
            low = max(low, at - reach + 1)
        while low < high:
            steps[0] += 1
            middle = (low + high) >> 1
            if facts[middle, column] < word:
                low = middle + 1
            else:
                high = middle
        at = low
    return at


@compiled
def _cut_risen(
    change: I64Array, key: I64Array, expiry: int, column: int, facts: I64Array, count: int,
    steps: int,
) -> int:  # fmt: skip
    """End facts where rows are taken away that say the same and last as long.

    Returns the row that is none of these, or the one at which the searches had so many steps. No
    later one is done. Rows that are added are left out.
    """
    width, near, walked = change.shape[1] - 3, np.int64(0), np.zeros(1, np.int64)
    for i in range(change.shape[0]):
        start, end, diff = change[i, width], change[i, width + 1], change[i, width + 2]
        if diff > 0:
            continue
        if diff != -1 or start >= end or walked[0] > steps or count == 0:
            return i
        row = _place_of(change[i, column], near, column, facts, count, walked)
        if (
            row == count
            or facts[row, width] > start
            or facts[row, width] >= facts[row, width + 1]
            or facts[row, width + 1] != end
            or not same_columns(change, i, key, width - 1, facts, row, key, width - 1)
            or not same_values(change, i, expiry, facts, row)
        ):
            return i
        if facts[row, width] == start:
            facts[row, width] = end
        else:
            facts[row, width + 1] = start
        near = row + 1
    return int(change.shape[0])


class Rising:
    """Facts that were all appended in the order of some columns of their key, and changed by
    nobody else.

    That `holds` until a row does not go on in this order. It ends as well where more has to be done
    than to append facts and to end them.
    """

    __slots__ = ("_columns", "_key", "_lasts", "_rising", "holds")

    def __init__(self, key: Sequence[int], holds: bool = True) -> None:
        self._key = self._columns = np.array(key, np.int64)
        self._lasts = np.full(len(key), BEGIN_WORD)
        self._rising = np.ones(len(key), np.bool_)
        self.holds = holds and len(key) > 0

    def append(self, change: Change, facts: Arrangement, done: I64Array) -> None:
        """Append the rows of a change that are added, from the row `done` says on.

        `done`: the row that ends this, or the number of rows; the rows taken away before it.
        Cost: O(change).
        """
        facts.reserve(len(change))
        _append_rising(
            change, self._columns, self._lasts, self._rising, facts.rows, facts.counts, done
        )
        self.holds = bool(done[0] == len(change))
        if not self._rising.all():
            self._columns, self._lasts = self._columns[self._rising], self._lasts[self._rising]
            self._rising = np.ones(len(self._columns), np.bool_)

    def cut(self, change: Change, many: int, facts: Arrangement, expiry: int) -> int:
        """End facts where rows are taken away that say the same and last as long, which are `many`.

        Returns the first other one of these rows, or the number of rows. Cost: O(change) where the
        facts have equal distances or go in their order, else O(log facts) for each.
        """
        if not many:
            return len(change)
        cut = _cut_risen(
            change, self._key, expiry, int(self._columns[0]), facts.rows, len(facts),
            _STEPS + _STEPS_EACH * many,
        )  # fmt: skip
        self.holds = cut == len(change)
        return cut
