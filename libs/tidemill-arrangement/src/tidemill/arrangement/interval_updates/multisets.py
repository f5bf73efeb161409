"""Multisets of words of which the greatest is known, as heaps of one table of nodes.

A node has a word, how often it is there, and two heaps of words that are not greater. A word that
was taken away is there less than no times, until it meets its opposite at the top of its heap.
Source: skew heaps (Sleator and Tarjan, 1986); twin in tests/test_arrangement_summing.py.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.interval_updates.rows import Word
from tidemill.arrangement.interval_updates.slots import I32Array
from tidemill.arrangement.kernels.arrays import I64Array, compiled, inlined
from tidemill.arrangement.kernels.capacity import grow

USED, FREE, FREED = 0, 1, 2
"""Places in `state`: nodes of the table, the first that is free, and the number of those."""
_NODES_MIN = 1 << 10


@inlined
def room_in(words: I64Array, state: I64Array) -> np.int64:
    """Number of nodes that there is room for."""
    return np.int64(words.shape[0] - state[USED] + state[FREED])


@inlined
def node_of(words: I64Array, links: I32Array, state: I64Array, word: Word, count: Word) -> np.int64:
    """A heap of one word."""
    if state[FREED] > 0:
        node = np.int64(state[FREE])
        state[FREE] = links[node, 0]
        state[FREED] -= 1
    else:
        node = np.int64(state[USED])
        state[USED] += 1
    words[node, 0], words[node, 1] = word, count
    links[node, 0] = links[node, 1] = -1
    return node


@inlined
def _free(links: I32Array, state: I64Array, node: Word) -> None:
    links[node, 0] = state[FREE]
    state[FREE] = node
    state[FREED] += 1


@inlined
def _meld(words: I64Array, links: I32Array, left: Word, right: Word) -> np.int64:
    """One heap of two. Cost: amortised O(log n)."""
    a, b = np.int64(left), np.int64(right)
    if a < 0:
        return b
    if b < 0:
        return a
    if words[a, 0] < words[b, 0]:
        a, b = b, a
    root = a
    while b >= 0:
        below = np.int64(links[a, 1])
        links[a, 1] = links[a, 0]
        if below < 0 or words[below, 0] < words[b, 0]:
            below, b = b, below
        links[a, 0] = below
        a = below
    return root


@compiled
def settled(words: I64Array, links: I32Array, state: I64Array, root: Word) -> int:
    """The heap whose top is there, more often or less than no times, and nowhere else in it."""
    top = np.int64(root)
    while top >= 0:
        left, right = np.int64(links[top, 0]), np.int64(links[top, 1])
        again = left >= 0 and words[left, 0] == words[top, 0]
        again = again or (right >= 0 and words[right, 0] == words[top, 0])
        if words[top, 1] != 0 and not again:
            break
        below = _meld(words, links, left, right)
        if words[top, 1] == 0:
            _free(links, state, top)
            top = below
            continue
        words[top, 1] += words[below, 1]
        links[top, 0] = _meld(words, links, links[below, 0], links[below, 1])
        links[top, 1] = -1
        _free(links, state, below)
    return int(top)


@compiled
def melded(words: I64Array, links: I32Array, state: I64Array, left: Word, right: Word) -> int:
    """One heap of two, settled."""
    return settled(words, links, state, _meld(words, links, left, right))


@compiled
def _nodes(links: I32Array, root: Word, out: I64Array, first: int) -> int:
    """Write the nodes of a heap into `out` from a place on, parents first; the place after them."""
    last = first + 1
    out[first] = root
    at = first
    while at < last:
        for side in range(2):
            if links[out[at], side] >= 0:
                out[last] = links[out[at], side]
                last += 1
        at += 1
    return last


@compiled
def told(
    words: I64Array, links: I32Array, roots: I64Array, out: I64Array, rows: I64Array
) -> int:  # fmt: skip
    """The nodes of heaps, and the place of its heap for each; how many they are."""
    found = 0
    for at in range(roots.size):
        if roots[at] >= 0:
            last = _nodes(links, roots[at], out, found)
            for place in range(found, last):
                rows[place] = at
            found = last
    return found


@compiled
def _kept(
    words: I64Array, links: I32Array, rows: I64Array, place: int, nodes: I64Array,
    new_words: I64Array, new_links: I32Array,
) -> int:  # fmt: skip
    """Copy the heaps of all rows into a new table, each in order, equal words as one node.

    The column `place` has the root of the heap of a row, and one more. A row whose interval is
    empty has none.
    """
    found, start = 0, rows.shape[1] - 2
    for row in range(rows.shape[0]):
        root = np.int64(rows[row, place]) - 1
        if root < 0 or rows[row, start] >= rows[row, start + 1]:
            continue
        first, size = found, _nodes(links, root, nodes, 0)
        listed = np.empty(size, np.int64)
        for at in range(size):
            listed[at] = words[nodes[at], 0]
        for at in np.argsort(listed)[::-1]:
            word, times = listed[at], words[nodes[at], 1]
            if found > first and new_words[found - 1, 0] == word:
                new_words[found - 1, 1] += times
                found -= new_words[found - 1, 1] == 0
            else:
                new_words[found, 0], new_words[found, 1] = word, times
                found += 1
        for at in range(first, found):
            new_links[at, 0] = at + 1 if at + 1 < found else -1
            new_links[at, 1] = -1
        rows[row, place] = first + 1 if found > first else 0
    return found


class Multisets:
    """The nodes of many multisets. A multiset is the number of its top node, -1 for none."""

    __slots__ = ("_known", "links", "state", "words")

    def __init__(self) -> None:
        self.words: I64Array = np.empty((0, 2), np.int64)
        self.links: I32Array = np.empty((0, 2), np.int32)
        self.state = np.array([0, -1, 0], np.int64)
        self._known = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all nodes, with room for more."""
        return int(self.words.nbytes + self.links.nbytes)

    def reserve(self, more: int) -> None:
        """Have room for more nodes. Cost: amortised O(1) for each."""
        used, free = int(self.state[USED]), int(self.state[FREED])
        if len(self.words) - used + free < more:
            for name in ("words", "links"):
                grow(self, name, max(used + more, used + (used >> 1)), used)

    def entries(self, roots: I64Array) -> tuple[I64Array, I64Array]:
        """The words of some multisets and their counts, and for each the place of its multiset.

        Shapes: entries (n, 2), places (n,). Cost: O(words).
        """
        nodes, places = np.empty((2, int(self.state[USED])), np.int64)
        found = told(self.words, self.links, roots, nodes, places)
        return self.words[nodes[:found]], places[:found]

    def compact(self, rows: I64Array, place: int) -> None:
        """Forget the nodes that no row has, and all but one of equal words, where that may be half.

        The column `place` has the multiset of a row, and one more. Cost: amortised O(log n) for
        each node that has come.
        """
        used = int(self.state[USED])
        if used < max(_NODES_MIN, 2 * self._known):
            return
        words, links = np.empty((used, 2), np.int64), np.empty((used, 2), np.int32)
        found = self._known = _kept(
            self.words, self.links, rows, place, np.empty(used, np.int64), words, links
        )
        self.words, self.links = words[: 2 * found].copy(), links[: 2 * found].copy()
        self.state[:] = found, -1, 0
