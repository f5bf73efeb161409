"""Sums of groups as rows: group, time, expiry, count, sums, times, touched, nulls, start and end.

The column of times is there where sums are timed. It has the number of a multiset and one more. It
is 0 where all contributions have the time of the row, which is there as often as they are. A group
is *touched* from an instant on, which the newest of its sums has; other sums have `END_WORD`.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.multisets import melded, node_of
from tidemill.arrangement.interval_updates.rows import END_WORD, Word
from tidemill.arrangement.interval_updates.slots import I32Array
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

DONE, FULL, GROW, MIXED, NODES = 0, 1, 2, 3, 4
"""Reasons of a loop to stop: it needs more room, or leaves a group out."""
SUM_WORDS = 3
"""Of a value: how many there are, and the sums of the upper and lower halves."""


@inlined
def add_value(
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
def begin_sum(
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
    sums[found, nulls - 1] = END_WORD
    sums[found, nulls] = change[i, mine] & ((np.int64(1) << (groups + 2)) - 1)
    sums[found, nulls + 1], sums[found, nulls + 2] = change[i, mine + 1], change[i, mine + 2]
    return np.int64(found)


@inlined
def alike(
    sums: I64Array, row: Word, groups: Word, time: Word, expiry: Word, end: Word, timed: bool
) -> bool:  # fmt: skip
    """Whether a sum may take in what has some time, expiry and end, but for the start."""
    width = sums.shape[1]
    return bool(
        sums[row, width - 1] == end
        and (timed or sums[row, groups] == time)
        and sums[row, groups + 1] == expiry
        and sums[row, width - 2] < end
    )


@inlined
def add_time(
    sums: I64Array, row: Word, groups: Word, words: I64Array, links: I32Array, state: I64Array,
    time: Word, diff: Word,
) -> None:  # fmt: skip
    """Add a time to those of a sum, whose count is still the one before.

    A sum whose contributions have one time has no heap, but its time and count.
    """
    place = sums.shape[1] - 5
    if sums[row, place] == 0:
        if sums[row, groups] == time or sums[row, groups + 2] == 0:
            sums[row, groups] = time
            return
        top = node_of(words, links, state, sums[row, groups], sums[row, groups + 2])
    else:
        top = np.int64(sums[row, place]) - 1
        if words[top, 0] == time and words[top, 1] + diff != 0:
            words[top, 1] += diff
            return
    node = node_of(words, links, state, time, diff)
    _set_heap(sums, row, groups, words, np.int64(melded(words, links, state, top, node)))


@inlined
def _set_heap(sums: I64Array, row: Word, groups: Word, words: I64Array, top: Word) -> None:
    sums[row, sums.shape[1] - 5] = top + 1
    if top >= 0:
        sums[row, groups] = words[top, 0]


@compiled
def absorb(
    sums: I64Array, into: Word, row: Word, groups: int, last: int,
    words: I64Array, links: I32Array, state: I64Array,
) -> None:  # fmt: skip
    """Add one sum to another, which is taken from the place `last` on for its heap or nulls."""
    place = sums.shape[1] - 5
    if last == place:
        theirs = np.int64(sums[row, place]) - 1
        if theirs < 0:
            if sums[row, groups + 2] != 0:
                add_time(
                    sums, into, groups, words, links, state, sums[row, groups],
                    sums[row, groups + 2],
                )  # fmt: skip
        else:
            mine = np.int64(sums[into, place]) - 1
            if mine < 0 and sums[into, groups + 2] != 0:
                mine = node_of(words, links, state, sums[into, groups], sums[into, groups + 2])
            top = np.int64(melded(words, links, state, mine, theirs))
            _set_heap(sums, into, groups, words, top)
            sums[row, place] = 0
    for column in range(groups + 2, last):
        sums[into, column] += sums[row, column]
    sums[row, sums.shape[1] - 2] = sums[row, sums.shape[1] - 1]
