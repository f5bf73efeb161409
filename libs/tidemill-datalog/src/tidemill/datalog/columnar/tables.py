"""A table whose rows are columns; row objects are made only if somebody looks at them."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from tidemill.arrangement.relational import Groups, extent
from tidemill.datalog.allowance import column_bytes, row_bytes
from tidemill.datalog.columnar.arrangements import Arrangements
from tidemill.datalog.columnar.columns import END_WORD, Columns, surely_absent, surely_endless
from tidemill.datalog.columns.column import words_of
from tidemill.datalog.logical.ranges import UNBOUNDED, Bounds
from tidemill.datalog.presence import END
from tidemill.datalog.tables import Row, Table, Traits

_POWER_MAX = 2.0**1000
_SMALL_BITS, _SMALL_STEP = 32, 4


class Statistics:
    """What a planner asks of the rows of columns: how many, what they carry, which values they
    have.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._bounds: dict[int, Bounds] = {}
        self.counted: dict[int, int] = {}
        self._traits: Traits | None = None
        self._rounded: dict[tuple[tuple[int, ...], bool], Rounded] = {}

    @property
    def rows(self) -> Collection[Row]:
        """Something as long as the rows; nobody who plans looks at one."""
        return range(len(self.columns))  # type: ignore[return-value]  # only its length is asked for

    @property
    def grows(self) -> bool:
        """Never: the table is finished."""
        return False

    @property
    def traits(self) -> Traits:
        """What the rows carry."""
        if self._traits is None:
            columns = self.columns
            time, expires, n = columns.time, columns.expires, len(columns)
            if time.nulls is None:
                timeless = 0
            else:
                timeless = n if surely_absent(time) else int(np.count_nonzero(time.nulls))
            expiring = n > 0 and not surely_endless(expires) and extent(expires)[0] != END_WORD
            self._traits = Traits(timeless < n, timeless > 0, expiring, bool(columns.lattices))
        return self._traits

    @property
    def lattices(self) -> frozenset[str]:
        """The names of the lattices that the rows carry."""
        return frozenset(self.columns.lattices)

    @property
    def carried(self) -> tuple[object, ...]:
        """All that the rows carry, as words to look up by."""
        traits = self.traits
        return traits.timed, traits.timeless, traits.expiring, *sorted(self.columns.lattices)

    def rounded(self, weighed: tuple[tuple[int, ...], bool]) -> Rounded:
        """What plans are made for, if the ranges of some columns and perhaps those of the expiries
        matter.
        """
        known = self._rounded.get(weighed)
        if known is None:
            known = self._rounded[weighed] = Rounded(self, *weighed)
        return known

    def bounds(self, column: int) -> Bounds:
        """The range of a column."""
        known = self._bounds.get(column)
        if known is None:
            known = self._bounds[column] = self.columns.key(column).bounds()
        return known

    def expiry_bounds(self) -> Bounds:
        """The range of the expiries."""
        expires = self.columns.expires
        if not len(expires):
            return UNBOUNDED
        low, high = extent(expires)
        return Bounds(END if low == END_WORD else low, END if high == END_WORD else high, False)

    def distinct(self, column: int) -> int:
        """How many values a column has."""
        return _distinct(self.columns, self.counted, column)


class Rounded:
    """Statistics rounded outwards to powers of two, so that a plan made for them fits other rows as
    well.

    `key` is equal where the plan would be the same. Ranges are known of the columns at `weighed`
    alone, and of the expiries if `expiries` says so; counts of values are those of the rows it is
    made for.
    """

    def __init__(self, of: Statistics, weighed: tuple[int, ...], expiries: bool) -> None:
        self._columns, self._counted = of.columns, of.counted  # and not `of`, which knows this
        self._bounds = {at: rounded(of.bounds(at)) for at in weighed}
        self._expiries = rounded(of.expiry_bounds()) if expiries else UNBOUNDED
        self.rows = range(1 << len(of.rows).bit_length())
        self.grows = False
        self.traits = of.traits
        self.lattices = of.lattices
        ranges = [(known.low, known.high, known.nullable) for known in self._bounds.values()]
        ends = (self._expiries.low, self._expiries.high) if expiries else None
        self.key = (*ranges, ends, len(self.rows), *of.carried)

    def bounds(self, column: int) -> Bounds:
        """A range that holds the values of a column."""
        return self._bounds.get(column, UNBOUNDED)

    def expiry_bounds(self) -> Bounds:
        """A range that holds the expiries."""
        return self._expiries

    def distinct(self, column: int) -> int:
        """How many values a column has."""
        return _distinct(self._columns, self._counted, column)


def _distinct(columns: Columns, counted: dict[int, int], column: int) -> int:
    """How many values a column has, one at least; counted once."""
    known = counted.get(column)
    if known is None:
        words = words_of([columns.keys[column]])
        known = counted[column] = max(1, len(Groups.of(words, len(columns))))
    return known


def rounded(bounds: Bounds) -> Bounds:
    """Bounds that hold all of these, at powers of two or infinite."""
    return Bounds(-power(-bounds.low), power(bounds.high), bounds.nullable)


def power(value: float) -> float:
    """A power of two, or zero, not below the value; infinity beyond the powers that floats have.

    Small ones are powers of sixteen, so that plans for them are not made anew while a view begins.
    """
    if value <= 0:
        return 0
    if value > _POWER_MAX:
        return math.inf
    bits = (math.ceil(value) - 1).bit_length()
    return 1 << (bits if bits > _SMALL_BITS else -(-bits // _SMALL_STEP) * _SMALL_STEP)


class ColumnTable(Table):
    """A finished table on columns. Cost of the first look at its rows: O(n), a tuple for each.

    `like` is one of the same rows at other instants, of which what their columns say is taken over.
    """

    __slots__ = ("_made", "_statistics", "arranged", "columns")

    def __init__(self, columns: Columns, like: ColumnTable | None = None) -> None:
        self.columns = columns
        self.arranged: Arrangements = (
            Arrangements(columns) if like is None else like.arranged.at(columns)
        )
        """The rows put together by columns, for every rule and every view that looks at this table."""
        self._statistics: Statistics = Statistics(columns) if like is None else like._statistics
        self._made: list[Row] | None = None
        super().__init__([])
        self._made = None

    @property
    def rows(self) -> list[Row]:
        """The rows as objects."""
        if self._made is None:
            self._made = self.columns.to_rows()
        return self._made

    @rows.setter
    def rows(self, rows: list[Row]) -> None:
        self._made = rows

    @property
    def bytes_held(self) -> int:
        """What the columns take, and their rows if somebody has looked at them."""
        values, made = len(self.columns.arguments), 0 if self._made is None else len(self._made)
        return len(self.columns) * column_bytes(values) + made * row_bytes(values)

    @property
    def on_columns(self) -> bool:
        """They are."""
        return True

    @property
    def statistics(self) -> Statistics:
        """What a planner asks, answered from the columns."""
        return self._statistics

    @property
    def traits(self) -> Traits:
        """What the rows carry."""
        return self._statistics.traits

    def bounds(self, column: int) -> Bounds:
        """The range of a column."""
        return self._statistics.bounds(column)

    def expiry_bounds(self) -> Bounds:
        """The range of the expiries."""
        return self._statistics.expiry_bounds()

    def distinct(self, column: int) -> int:
        """How many values a column has."""
        return self._statistics.distinct(column)


__all__ = ["ColumnTable", "Statistics", "power"]
