"""Values of the solutions of a group, stretch by stretch, however many hold together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Any

from tidemill.arrangement.interval_updates import BEGIN_WORD
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow.plan import Reduce
from tidemill.datalog.dataflow.schema import TIME, Schema, value_of, word_of
from tidemill.datalog.lattices import TALLIES, Lattice
from tidemill.datalog.logical.partial import COUNTED, LOWER, UPPER, kind_of
from tidemill.datalog.sums import ExactSum
from tidemill.datalog.values import Failed, tried, whole

_HALF = 0xFFFF_FFFF
_EMPTY: Any = object()
_PARTS: Mapping[str, Callable[[int], int]] = {
    COUNTED: lambda value: 1, UPPER: lambda value: value >> 32, LOWER: lambda value: value & _HALF,
}  # fmt: skip
Merge = Callable[[Any, Any], Any]


class Stretches:
    """The stretches between the starts and ends of some rows, which are their last words but one.

    Source: a tree of segments, bottom up; twin in tests/test_datalog_stretches.py, by each stretch.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._borders = sorted({border for row in rows for border in row[-3:-1]})
        place = {border: at for at, border in enumerate(self._borders)}
        self._held = [(place[row[-3]], place[row[-2]]) for row in rows]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Start and end of each stretch, of those on which no row holds too."""
        return pairwise(self._borders)

    def merged(self, values: Sequence[Any], merge: Merge) -> list[Any]:
        """The values of the rows that hold on each stretch, merged; _EMPTY where no row holds.

        `merge` is commutative and associative, and sees each value once for a stretch.
        Cost: O(n log n) merges for n rows.
        """
        size = len(self._borders) - 1
        tree: list[Any] = [_EMPTY] * (2 * size)

        def put(at: int, value: Any) -> None:
            known = tree[at]
            tree[at] = value if known is _EMPTY else merge(known, value)

        for value, (first, last) in zip(values, self._held, strict=True):
            left, right = first + size, last + size
            while left < right:
                if left & 1:
                    put(left, value)
                    left += 1
                if right & 1:
                    right -= 1
                    put(right, value)
                left, right = left >> 1, right >> 1
        for at in range(1, size):
            if tree[at] is not _EMPTY:
                put(2 * at, tree[at])
                put(2 * at + 1, tree[at])
        return tree[size:]

    def summed(self, values: Sequence[Any], seen: Callable[[ExactSum], Any]) -> list[Any]:
        """The exact sum on each stretch, as it is seen. Cost: O(n log n) for n rows."""
        moves: list[list[tuple[Any, int]]] = [[] for _ in self._borders]
        for value, (first, last) in zip(values, self._held, strict=True):
            moves[first].append((value, 1))
            moves[last].append((value, -1))
        total, found = ExactSum(), []
        for moved in moves[:-1]:
            for value, sign in moved:
                total.add(value, sign)
            found.append(tried(seen, total))
        return found


def _tried_merge(merge: Merge) -> Merge:
    """A merge that passes on what failed before; of two reasons the first in order."""

    def merged(mine: Any, other: Any) -> Any:
        failed = [each for each in (mine, other) if isinstance(each, Failed)]
        return min(failed, key=_reason_of) if failed else tried(merge, mine, other)

    return merged


def _reason_of(failed: Failed) -> str:
    return failed.reason


class Observed:
    """The values that the lattices of a rule show of the solutions of a group.

    A solution has the columns of its group, then time, expiry, values and nulls.
    """

    def __init__(
        self, reduce: Reduce, schema: Schema, groups: int, texts: Texts,
        lattices: Mapping[str, Lattice],
    ) -> None:  # fmt: skip
        self._plan = reduce
        self._schema = schema
        self._first = TIME if reduce.by_time else TIME + 1
        self._groups = groups
        self._texts = texts
        self._lattices = lattices

    def rows(self, alive: Sequence[list[int]]) -> Iterator[tuple[list[int], str | None]]:
        """Rows of the head for all solutions of a group; with a reason, one that fails.

        Cost: O(n log n) for n solutions.
        """
        groups, stretches = self._groups, Stretches(alive)
        times = stretches.merged([each[groups] for each in alive], max)
        expiries = stretches.merged([each[groups + 1] for each in alive], min)
        seen = list(self._seen(alive, stretches))
        for at, (start, end) in enumerate(stretches):
            if times[at] is _EMPTY:
                continue
            row = self.row_of(alive[0], alive[0][-4], times[at], expiries[at])
            row[-3:] = [start, end, 1]
            yield row, self._write([values[at] for values in seen], row)

    def row_of(self, solution: Sequence[int], nulls: int, time: int, expiry: int) -> list[int]:
        """A row of the head for the group of a solution with these nulls, without values."""
        schema, row = self._schema, [0] * (self._schema.columns + 3)
        row[self._first : schema.expiry] = solution[: self._groups]
        row[schema.nulls] = (nulls & ((1 << self._groups) - 1)) << self._first
        if not self._plan.by_time:
            row[TIME] = 0 if time == BEGIN_WORD else time
            row[schema.nulls] |= int(time == BEGIN_WORD)
        row[schema.expiry] = expiry
        return row

    def _write(self, seen: Sequence[Any], row: list[int]) -> str | None:
        """Write what is seen into a row; the reason where some of it failed."""
        schema, nulls = self._schema, 0
        for column, value in enumerate(seen, schema.expiry + 1):
            if isinstance(value, Failed):
                return value.reason
            row[column], null = word_of(value, schema.kind(column), self._texts, schema.values)
            nulls |= null << column
        row[schema.nulls] |= nulls
        return None

    def _seen(self, alive: Sequence[list[int]], stretches: Stretches) -> Iterator[list[Any]]:
        """The value seen of each lattice on each stretch, or its failure."""
        place = self._groups + 2
        for name, terms in self._plan.lattices:
            columns = [self._values(alive, place + each) for each in range(len(terms))]
            place += len(terms)
            if self._plan.merges and name in TALLIES:
                sums = [stretches.merged(column, add) for column in columns]
                parts = zip(*sums, strict=True)
                yield [_EMPTY if _EMPTY in each else tried(_added, name, *each) for each in parts]
            else:
                yield self._of_lattice(name, columns[0], stretches)

    def _of_lattice(self, name: str, values: Sequence[Any], stretches: Stretches) -> list[Any]:
        kind = kind_of(name)
        if kind in (COUNTED, UPPER, LOWER):
            part = _PARTS[kind]
            return stretches.merged([0 if x is None else part(x) for x in values], add)
        if name == "count":
            return stretches.merged([int(value is not None) for value in values], add)
        if name in TALLIES:
            return stretches.summed(values, ExactSum.sum if name == "sum" else ExactSum.average)
        lattice = self._lattices[name]
        inner = [tried(lattice.inject, value) for value in values]

        def first(value: Any) -> Any:
            return lattice.observe(value)[0]

        return [
            value if value is _EMPTY or isinstance(value, Failed) else tried(first, value)
            for value in stretches.merged(inner, _tried_merge(lattice.merge))
        ]

    def _values(self, alive: Sequence[list[int]], place: int) -> list[Any]:
        """The values in a column of some solutions."""
        kind = self._plan.kinds[place - self._groups - 2]
        return [
            None if each[-4] >> place & 1
            else value_of(each[place], kind, self._texts, self._schema.values)
            for each in alive
        ]  # fmt: skip


def _added(name: str, count: int, upper: int = 0, lower: int = 0) -> Any:
    """A count, sum or average of all values by its parts. Raises: Failed."""
    if name == "count" or not count:
        return count if name == "count" else None
    total = (upper << 32) + lower
    return whole(total) if name == "sum" else total / count
