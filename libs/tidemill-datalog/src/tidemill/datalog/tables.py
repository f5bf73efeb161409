"""The facts of one predicate with their presence, and the indexes that matches look into.

A *key* is (time, argument, …): the identity of a fact, time None for a timeless one. A *row* is
(start, end, expires, parafacts, time, argument, …): one part of the timeline of a key. Positions
count columns of the key: 0 is the time, 1 the first argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from tidemill.arrangement.looks import with_looks
from tidemill.datalog.allowance import row_bytes
from tidemill.datalog.values import FLOAT_EXACT_MAX, equal

Key: TypeAlias = "tuple[Any, ...]"
Row: TypeAlias = "tuple[Any, ...]"
Fact: TypeAlias = "tuple[str, Key]"
Positions: TypeAlias = "tuple[int, ...]"

START, STOP, EXPIRES, PARAFACTS, TIME, FIRST = range(6)
ANY_VALUE = object()
"""Stands for `_` among the values that an atom under `not` is asked for."""


class Table:
    """All rows of a predicate; indexes are made on first use and kept."""

    __slots__ = ("_indexes", "rows")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._indexes: dict[Positions, dict[Any, list[Row]]] = {}

    @property
    def bytes_held(self) -> int:
        """Bytes of the rows, about."""
        return len(self.rows) * row_bytes(len(self.rows[0]) - TIME - 1) if self.rows else 0

    def extend(self, rows: Sequence[Row]) -> None:
        """Add rows, also to the indexes."""
        self.rows.extend(rows)
        for positions, index in self._indexes.items():
            _fill(index, positions, rows)

    def of_key(self, key: Key) -> list[Row]:
        """The rows of one fact."""
        positions = tuple(range(len(key)))
        return self.index(positions).get(key if len(key) > 1 else key[0], [])

    def index(self, positions: Positions) -> dict[Any, list[Row]]:
        """Rows by their values at `positions`: the value itself for one position, else a tuple."""
        index = self._indexes.get(positions)
        if index is None:
            index = self._indexes[positions] = {}
            _fill(index, positions, self.rows)
        return index


def rows_like(table: Table, wanted: Sequence[Any], widened: Sequence[int] = ()) -> Iterable[Row]:
    """The rows with the wanted arguments, ANY_VALUE for any; whole numbers at `widened` count as
    their floats.

    Cost: a look into an index. Several whole numbers may widen to one float beyond 2^53: there it
    is a look at all rows with the other arguments.
    """
    far = [at for at in widened if _is_far(wanted[at - 1])]
    known = [at for at, value in enumerate(wanted, 1) if value is not ANY_VALUE and at not in far]
    rows: Iterable[Row] = table.rows
    if known:
        key = tuple(wanted[at - 1] for at in known)
        rows = table.index(tuple(known)).get(key[0] if len(key) == 1 else key, ())
    if not far:
        return rows
    return [row for row in rows if all(equal(row[TIME + at], wanted[at - 1]) for at in far)]


def _is_far(value: object) -> bool:
    """Whether a value is a float that several whole numbers may widen to."""
    return type(value) is float and not -FLOAT_EXACT_MAX < value < FLOAT_EXACT_MAX


def _fill(index: dict[Any, list[Row]], positions: Positions, rows: Iterable[Row]) -> None:
    key_of = itemgetter(*(TIME + position for position in positions))
    for row in with_looks(rows):
        key = key_of(row)
        bucket = index.get(key)
        if bucket is None:
            index[key] = [row]
        else:
            bucket.append(row)
