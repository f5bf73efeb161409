"""Rows in groups, of which all are read again when one of them changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD, Change, JoinShape, Merged, join
from tidemill.arrangement.kernels import I64Array

Alive = tuple[list[list[int]], int, int]
"""Rows of one group that hold together, and the stretch on which they do."""


@dataclass(frozen=True, slots=True)
class Touched:
    """Groups that a change touches, each from an instant on, and the rows of them from there on.

    The rows of group i are those from `firsts[i]` to `firsts[i + 1]`.
    """

    groups: I64Array
    since: I64Array
    rows: Change
    firsts: I64Array

    def pieces(self, rows: int) -> Iterable[Touched]:
        """The groups in pieces of at most so many rows, or of one group with more."""
        first, many = 0, len(self.groups)
        while first < many:
            begin = self.firsts[first]
            last = int(np.searchsorted(self.firsts, begin + rows, "right")) - 1
            last = max(last, first + 1)
            firsts = self.firsts[first : last + 1]
            yield Touched(
                self.groups[first:last], self.since[first:last],
                self.rows[begin : firsts[-1]], firsts - begin,
            )  # fmt: skip
            first = last

    def alive(self) -> Iterable[list[list[int]]]:
        """The rows of each group that has any."""
        for first, last in pairwise(self.firsts.tolist()):
            if first < last:
                yield self.rows[first:last].tolist()

    def stretches(self) -> Iterable[Alive]:
        """The rows that hold together, stretch by stretch.

        Cost: O(n log n) for n rows of a group, and the rows of each stretch.
        """
        for rows in self.alive():
            borders = sorted({border for row in rows for border in row[-3:-1]})
            coming = sorted(range(len(rows)), key=lambda at: rows[at][-3], reverse=True)
            alive: dict[int, list[int]] = {}
            ends: list[tuple[int, int]] = []
            for start, end in pairwise(borders):
                while ends and ends[0][0] <= start:
                    del alive[heappop(ends)[1]]
                while coming and rows[coming[-1]][-3] <= start:
                    at = coming.pop()
                    alive[at] = rows[at]
                    heappush(ends, (rows[at][-2], at))
                if alive:
                    yield list(alive.values()), start, end


class Regrouped:
    """Rows of `width` columns, the last one their nulls, in groups by the first columns.

    Equal rows may come several times.
    """

    def __init__(self, width: int, groups: int) -> None:
        self._width = width
        self._groups = groups
        self.kept = Merged(width, range(width - 1), width - 1)
        at, rest = np.arange(groups), np.arange(groups, width - 1)
        self._mine = JoinShape(
            np.stack([at, at]), np.stack([rest, rest]), np.empty((2, 0), np.int64), False, -1
        )

    def take(self, change: Change) -> Touched:
        """Take rows in; what there is now of the groups that they touch.

        Raises: NegativeRow. Cost: the rows of these groups.
        """
        groups, since = self._touched(change)
        self.kept.take(change)
        number = self._width - 1  # a column of matches that this join does not write
        left = np.zeros((len(groups), self._width + 3 + 2), np.int64)
        left[:, : self._groups] = groups[:, : self._groups]
        left[:, number] = np.arange(len(groups))
        left[:, -4] = groups[:, -3] & ((1 << self._groups) - 1)
        left[:, -3], left[:, -2], left[:, -1] = since, END_WORD, 1
        parts = [join(left, kept, self._mine) for kept in (self.kept.facts, self.kept.spare)]
        found = np.concatenate(parts)
        found = found[np.argsort(found[:, number], kind="stable")]
        firsts = np.searchsorted(found[:, number], np.arange(len(groups) + 1))
        rows = np.concatenate([found[:, :number], found[:, -4:]], axis=1)
        return Touched(groups, since, rows, firsts)

    def _touched(self, change: Change) -> tuple[I64Array, I64Array]:
        """A row without its diff for each group of a change, and its first instant."""
        keys = [*change.T[: self._groups], change[:, -4] & ((1 << self._groups) - 1)]
        order = np.lexsort(keys)
        new = np.zeros(len(order), np.bool_)
        new[0] = True
        for key in keys:
            new[1:] |= key[order[1:]] != key[order[:-1]]
        firsts = np.flatnonzero(new)
        return change[order[firsts], :-1], np.minimum.reduceat(change[order, -3], firsts)

    def numbers(self, columns: Sequence[int]) -> set[int]:
        """The words that stand in some columns of the rows."""
        kept = (self.kept.facts, self.kept.spare)
        return {word for each in kept for word in words_in(each.rows[: len(each)], columns)}


def words_in(rows: I64Array, columns: Sequence[int]) -> list[int]:
    """The different words in some columns. Cost: O(n log n)."""
    found: list[int] = np.unique(rows[:, list(columns)]).tolist()
    return found
