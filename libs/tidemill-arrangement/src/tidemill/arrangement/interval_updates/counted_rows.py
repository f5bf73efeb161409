"""Sums, and the greatest or least of some words, on each stretch between the borders of rows."""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, compiled


@compiled
def _spread(first: I64Array, last: I64Array, words: I64Array, tree: I64Array) -> None:
    """The greatest word on each leaf: a word is on those from `first` to before `last`.

    These leaves are some whole branches of the tree, O(log n) of them.
    """
    size = tree.size // 2
    for at in range(words.size):
        left, right = first[at] + size, last[at] + size
        while left < right:
            if left & 1:
                tree[left] = max(tree[left], words[at])
                left += 1
            if right & 1:
                right -= 1
                tree[right] = max(tree[right], words[at])
            left, right = left >> 1, right >> 1
    for at in range(2, 2 * size):
        tree[at] = max(tree[at], tree[at >> 1])


class CountedRows:
    """Rows with counts, each from its start to its end, and the stretches between all of these.

    Shapes: `starts`, `ends`, `counts` (n,); `borders` (m + 1,) for m stretches.
    Source: twin in tests/test_arrangement_counted_rows.py, by each instant.
    """

    def __init__(self, starts: I64Array, ends: I64Array, counts: I64Array) -> None:
        self._starts, self._ends, self._counts = starts, ends, counts
        self.borders = np.unique(np.concatenate([starts, ends]))

    def sums(self, values: I64Array) -> I64Array:
        """The sum of the values of the rows that hold on each stretch. Cost: O(n log n).

        Shapes: values (n, k), sums (m, k).
        """
        moves = np.zeros((len(self.borders), values.shape[1]), np.int64)
        np.add.at(moves, np.searchsorted(self.borders, self._starts), values)
        np.subtract.at(moves, np.searchsorted(self.borders, self._ends), values)
        return np.cumsum(moves[:-1], axis=0)

    def greatest(self, words: I64Array) -> I64Array:
        """The greatest of the words whose counts are together above 0 on each stretch.

        On a stretch without any it is the least of all words of 64 bits. Cost: O(n log n).
        """
        instants = np.concatenate([self._starts, self._ends])
        counts, of = np.concatenate([self._counts, -self._counts]), np.tile(words, 2)
        order = np.lexsort((instants, of))
        instants, of, there = instants[order], of[order], np.cumsum(counts[order]) > 0
        begun = np.flatnonzero(there[:-1] & (instants[:-1] < instants[1:]))
        size = len(self.borders) - 1
        tree = np.full(2 * size, np.iinfo(np.int64).min)
        first, last = (np.searchsorted(self.borders, instants[begun + at]) for at in (0, 1))
        _spread(first, last, of[begun], tree)
        return tree[size:]
