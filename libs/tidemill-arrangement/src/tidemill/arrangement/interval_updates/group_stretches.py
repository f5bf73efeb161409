"""Stretches of whole groups: what holds of a group between the starts and ends of its rows.

The rows of a group are read together, for the greatest and the least value and for sums of floats.
Nothing is taken back from these. Counts and sums beside them are added up in the same pass.

Source: a tree of segments, bottom up. Twin: tests/test_arrangement_group_stretches.py.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.float_sums import (
    LOWER_BITS,
    lower_part,
    upper_part,
)
from tidemill.arrangement.interval_updates.groups import FLOAT_SUM, GREATEST, LEAST
from tidemill.arrangement.interval_updates.rows import Change, Word
from tidemill.arrangement.interval_updates.sum_rows import SUM_WORDS
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined

_HALF = 0xFFFF_FFFF
_HEAD = 3
"""Words of a node before its values: rows, latest time, first expiry."""


@inlined
def _read(
    rows: I64Array, row: Word, groups: Word, kinds: I64Array, bases: I64Array, tree: I64Array
) -> None:  # fmt: skip
    """Write a row into the node that no stretch has."""
    nulls = rows[row, rows.shape[1] - 4]
    tree[0, 0], tree[0, 1], tree[0, 2] = 1, rows[row, groups], rows[row, groups + 1]
    for at in range(kinds.size):
        place, word = _HEAD + SUM_WORDS * at, rows[row, groups + 2 + at]
        some = 1 - ((nulls >> (groups + 2 + at)) & 1)
        tree[0, place] = some
        if kinds[at] == GREATEST or kinds[at] == LEAST:
            tree[0, place + 1], tree[0, place + 2] = word, 0
        elif kinds[at] == FLOAT_SUM:
            word *= some
            tree[0, place + 1] = upper_part(word, bases[at])
            tree[0, place + 2] = lower_part(word, bases[at])
        else:
            tree[0, place + 1], tree[0, place + 2] = some * (word >> 32), some * (word & _HALF)


@inlined
def _put(tree: I64Array, at: Word, other: Word, kinds: I64Array) -> None:
    """Merge another node into one."""
    if tree[at, 0] == 0:
        for place in range(tree.shape[1]):
            tree[at, place] = tree[other, place]
        return
    tree[at, 0] += tree[other, 0]
    tree[at, 1] = max(tree[at, 1], tree[other, 1])
    tree[at, 2] = min(tree[at, 2], tree[other, 2])
    for value in range(kinds.size):
        place = _HEAD + SUM_WORDS * value
        mine, word = tree[at, place + 1], tree[other, place + 1]
        if kinds[value] == GREATEST or kinds[value] == LEAST:
            better = word > mine if kinds[value] == GREATEST else word < mine
            if tree[other, place] > 0 and (tree[at, place] == 0 or better):
                tree[at, place + 1] = word
        else:
            tree[at, place + 1] = mine + word
            tree[at, place + 2] += tree[other, place + 2]
        if kinds[value] == FLOAT_SUM:
            tree[at, place + 1] += tree[at, place + 2] >> LOWER_BITS
            tree[at, place + 2] &= (1 << LOWER_BITS) - 1
        tree[at, place] += tree[other, place]


@compiled
def _merge(
    rows: I64Array, firsts: I64Array, held: I64Array, borders: I64Array, border_firsts: I64Array,
    groups: int, kinds: I64Array, bases: I64Array, tree: I64Array, out: I64Array,
) -> int:  # fmt: skip
    """Fill `out` with the stretches on which rows hold; how many there are."""
    found, nulls = 0, rows.shape[1] - 4
    for group in range(firsts.size - 1):
        begin = border_firsts[group]
        size = border_firsts[group + 1] - begin - 1
        for at in range(2 * size):
            tree[at, 0] = 0
        for row in range(firsts[group], firsts[group + 1]):
            _read(rows, row, groups, kinds, bases, tree)
            left, right = held[row, 0] - begin + size, held[row, 1] - begin + size
            while left < right:
                if left & 1:
                    _put(tree, left, 0, kinds)
                    left += 1
                if right & 1:
                    right -= 1
                    _put(tree, right, 0, kinds)
                left, right = left >> 1, right >> 1
        for at in range(1, size):
            if tree[at, 0] > 0:
                _put(tree, 2 * at, at, kinds)
                _put(tree, 2 * at + 1, at, kinds)
        for at in range(size):
            if tree[size + at, 0] > 0:
                for column in range(groups):
                    out[found, column] = rows[firsts[group], column]
                out[found, groups], out[found, groups + 1] = tree[size + at, 1], tree[size + at, 2]
                out[found, groups + 2] = tree[size + at, 0]
                for place in range(_HEAD, tree.shape[1]):
                    out[found, groups + place] = tree[size + at, place]
                last = groups + tree.shape[1]
                out[found, last] = rows[firsts[group], nulls] & ((np.int64(1) << groups) - 1)
                out[found, last + 1] = borders[begin + at]
                out[found, last + 2] = borders[begin + at + 1]
                found += 1
    return found


def merged_stretches(
    rows: Change, firsts: I64Array, groups: int, kinds: I64Array, bases: I64Array
) -> I64Array:
    """The stretches of groups on which rows hold, each as `Sums` tells its own.

    Rows have the columns of their group, then time, expiry, a value for each of `kinds`, and nulls;
    none is empty. The rows of group i are those from `firsts[i]` to `firsts[i + 1]`. The word of a
    greatest or least value stands in the place of a sum's upper half. The words of a sum of floats
    are as `rounded` takes them, by the exponents in `bases`. Cost: O(n log n).
    """
    many = len(firsts) - 1
    group = np.repeat(np.arange(many), np.diff(firsts))
    words, of = rows[:, -3:-1].ravel(), np.repeat(group, 2)
    order = np.lexsort((words, of))
    words, of = words[order], of[order]
    new = np.ones(len(words), np.bool_)
    new[1:] = (words[1:] != words[:-1]) | (of[1:] != of[:-1])
    held = np.empty(len(words), np.int64)
    held[order] = np.cumsum(new) - 1
    borders, border_firsts = words[new], np.searchsorted(of[new], np.arange(many + 1))
    widest = int(np.diff(border_firsts).max(initial=1))
    tree = np.empty((2 * widest, _HEAD + SUM_WORDS * kinds.size), np.int64)
    out = np.empty((len(borders), groups + tree.shape[1] + 3), np.int64)
    found = _merge(
        rows, firsts, held.reshape(-1, 2), borders, border_firsts, groups, kinds, bases, tree, out
    )
    return out[:found]
