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
    """Groups that a change touches, each from an instant on, and the rows of them from there on."""

    groups: I64Array
    since: I64Array
    rows: list[list[list[int]]]

    def stretches(self) -> Iterable[Alive]:
        """The rows that hold together, stretch by stretch.

        Cost: O(n log n) for n rows of a group, and the rows of each stretch.
        """
        for rows in self.rows:
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
        found: dict[tuple[int, ...], tuple[list[int], int]] = {}
        for row in change.tolist():
            key = self.group_of(row)
            _, first = found.get(key, (row, END_WORD))
            found[key] = row[:-1], min(first, row[-3])
        groups = np.array([row for row, _ in found.values()], np.int64)
        since = np.array([first for _, first in found.values()], np.int64)
        self.kept.take(change)
        left = np.zeros((len(groups), self._width + 3 + 2), np.int64)
        left[:, : self._groups] = groups[:, : self._groups]
        left[:, -4] = groups[:, -3] & ((1 << self._groups) - 1)
        left[:, -3], left[:, -2], left[:, -1] = since, END_WORD, 1
        rows: dict[tuple[int, ...], list[list[int]]] = {}
        for kept in (self.kept.facts, self.kept.spare):
            for match in join(left, kept, self._mine).tolist():
                row = [*match[: self._width - 1], match[-4], *match[-3:]]
                rows.setdefault(self.group_of(row), []).append(row)
        return Touched(groups, since, list(rows.values()))

    def numbers(self, columns: Sequence[int]) -> set[int]:
        """The words that stand in some columns of the rows."""
        kept = (self.kept.facts, self.kept.spare)
        return {word for each in kept for word in words_in(each.rows[: len(each)], columns)}

    def group_of(self, row: Sequence[int]) -> tuple[int, ...]:
        """The values of a group, and which of them are null."""
        mask = row[self._width - 1] & ((1 << self._groups) - 1)
        return (*row[: self._groups], mask)


def words_in(rows: I64Array, columns: Sequence[int]) -> list[int]:
    """The different words in some columns. Cost: O(n log n)."""
    found: list[int] = np.unique(rows[:, list(columns)]).tolist()
    return found
