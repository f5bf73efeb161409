"""The facts of one predicate with their presence, and the indexes that joins ask for.

A *key* is (time, argument, …): the identity of a fact, time None for a timeless one. A *row* is
(start, end, expires, parafacts, time, argument, …): one part of the timeline of a key. Positions
count columns of the key: 0 is the time, 1 the first argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

from tidemill.datalog.allowance import row_bytes
from tidemill.datalog.lattices import Parafacts
from tidemill.datalog.logical.ranges import UNBOUNDED, Bounds
from tidemill.datalog.presence import BEGINNING, END, Instant, Interval, normalise
from tidemill.datalog.values import FLOAT_EXACT_MAX, equal, is_number

Part: TypeAlias = "tuple[Instant, Instant, Instant, Parafacts]"
"""When a fact holds: from, to, expiry, parafacts."""
Key: TypeAlias = "tuple[Any, ...]"
Timelines: TypeAlias = dict[Key, list[Part]]
"""For each key when it holds, with what."""
Row: TypeAlias = "tuple[Any, ...]"
Positions: TypeAlias = "tuple[int, ...]"

START, STOP, EXPIRES, PARAFACTS, TIME, FIRST = range(6)


ANY_VALUE = object()
"""Stands for `_` among the values that an atom under `not` is asked for."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What rows carry: some a time, some none, some an expiry, some another lattice."""

    timed: bool
    timeless: bool
    expiring: bool
    decorated: bool

    def __or__(self, other: Traits) -> Traits:
        return Traits(
            self.timed or other.timed,
            self.timeless or other.timeless,
            self.expiring or other.expiring,
            self.decorated or other.decorated,
        )


class Readable(Protocol):
    """What joins ask of the facts of a predicate, however they are kept."""

    @property
    def rows(self) -> Collection[Row]:
        """All rows."""
        ...

    @property
    def grows(self) -> bool:
        """Whether rows are added while a join runs."""
        ...

    @property
    def traits(self) -> Traits:
        """What the rows carry, or may carry."""
        ...

    def index(self, positions: Positions) -> Mapping[Any, Iterable[Row]]:
        """Rows by their values at `positions`."""
        ...

    def ranged(
        self, positions: Positions, column: int
    ) -> Mapping[Any, tuple[list[Any], list[Row]]]:
        """As `index`, each bucket sorted by a column."""
        ...

    def bounds(self, column: int) -> Bounds:
        """The range of a column."""
        ...

    def expiry_bounds(self) -> Bounds:
        """The range of the expiries."""
        ...

    def distinct(self, column: int) -> int:
        """How many values a column has, about."""
        ...


class Table:
    """All rows of a predicate; indexes and statistics are made on first use and kept.

    `traits`, given while a recursion is in progress, says that rows may still be added: then old
    parts of a key may stay among the rows beside the newer ones that say more, and nothing is known
    of the values.
    """

    __slots__ = (
        "_bounds", "_covers", "_distinct", "_indexes", "_ranged", "_traits", "grows", "rows",
    )  # fmt: skip

    def __init__(self, rows: list[Row], traits: Traits | None = None) -> None:
        self.rows = rows
        self.grows = traits is not None
        self._indexes: dict[Positions, dict[Any, list[Row]]] = {}
        self._ranged: dict[tuple[Positions, int], dict[Any, tuple[list[Any], list[Row]]]] = {}
        self._covers: dict[Positions, dict[Any, list[Interval]]] = {}
        self._bounds: dict[int, Bounds] = {}
        self._distinct: dict[int, int] = {}
        self._traits = traits

    @classmethod
    def of_timelines(cls, timelines: dict[Key, list[Part]]) -> Table:
        """A finished table of facts and their timelines."""
        return cls([(*part, *key) for key, parts in timelines.items() for part in parts])

    @property
    def bytes_held(self) -> int:
        """What the rows take, about."""
        return len(self.rows) * row_bytes(len(self.rows[0]) - TIME - 1) if self.rows else 0

    @property
    def on_columns(self) -> bool:
        """Whether the rows are columns, of which objects are made only when somebody looks at them."""
        return False

    def extend(self, rows: Sequence[Row]) -> None:
        """Add rows to a growing table and to its indexes."""
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
            index = {}
            _fill(index, positions, self.rows)
            self._indexes[positions] = index  # whole: views in other threads may look into it
        return index

    def ranged(self, positions: Positions, column: int) -> dict[Any, tuple[list[Any], list[Row]]]:
        """As `index`, each bucket sorted by `column` beside the list of its values; nulls are left
        out.
        """
        ranged = self._ranged.get((positions, column))
        if ranged is None:
            at = TIME + column
            buckets: dict[Any, list[Row]] = self.index(positions) if positions else {(): self.rows}
            ranged = {}
            for key, rows in buckets.items():
                ordered = sorted((row for row in rows if row[at] is not None), key=itemgetter(at))
                ranged[key] = ([row[at] for row in ordered], ordered)
            self._ranged[positions, column] = ranged
        return ranged

    def cover(self, positions: Positions) -> dict[Any, list[Interval]]:
        """For the values at `positions`, when any row with them is present."""
        cover = self._covers.get(positions)
        if cover is None:
            buckets: dict[Any, list[Row]] = self.index(positions) if positions else {(): self.rows}
            cover = {
                key: normalise((row[START], row[STOP]) for row in rows)
                for key, rows in buckets.items()
                if rows
            }
            self._covers[positions] = cover
        return cover

    def bounds(self, column: int) -> Bounds:
        """The range of a column; unbounded where values are no numbers or may still change."""
        known = self._bounds.get(column)
        if known is None:
            if self.grows:
                return UNBOUNDED
            known = self._bounds[column] = _bounds_of(row[TIME + column] for row in self.rows)
        return known

    def expiry_bounds(self) -> Bounds:
        """The range of the expiries."""
        if self.grows or not self.rows:
            return UNBOUNDED
        expiries = [row[EXPIRES] for row in self.rows]
        return Bounds(min(expiries), max(expiries), False)

    def distinct(self, column: int) -> int:
        """How many values a column has; a guess where that may still change."""
        if self.grows:
            return max(1, len(self.rows) // 4)
        known = self._distinct.get(column)
        if known is None:
            at = TIME + column
            known = self._distinct[column] = max(1, len({row[at] for row in self.rows}))
        return known

    @property
    def traits(self) -> Traits:
        """What the rows carry, or may carry in a growing table."""
        if self._traits is None:
            times = {row[TIME] is None for row in self.rows}
            self._traits = Traits(
                False in times,
                True in times,
                any(row[EXPIRES] != END for row in self.rows),
                any(row[PARAFACTS] is not None for row in self.rows),
            )
        return self._traits


def rows_like(table: Readable, wanted: Sequence[Any], widened: Sequence[int] = ()) -> Iterable[Row]:
    """The rows with the wanted arguments, ANY_VALUE for any; whole numbers at `widened` count as
    their floats.

    Cost: a look into an index; for a float beyond 2^53, of which several whole numbers may be one,
    all rows that have the other arguments.
    """
    far = [at for at in widened if is_far(wanted[at - 1])]
    known = [at for at, value in enumerate(wanted, 1) if value is not ANY_VALUE and at not in far]
    rows: Iterable[Row] = table.rows
    if known:
        key = tuple(wanted[at - 1] for at in known)
        rows = table.index(tuple(known)).get(key[0] if len(key) == 1 else key, ())
    if not far:
        return rows
    return [row for row in rows if all(equal(row[TIME + at], wanted[at - 1]) for at in far)]


def is_far(value: object) -> bool:
    """Whether a value is a float that several whole numbers may widen to."""
    return type(value) is float and not -FLOAT_EXACT_MAX < value < FLOAT_EXACT_MAX


def _fill(index: dict[Any, list[Row]], positions: Positions, rows: Iterable[Row]) -> None:
    key_of = itemgetter(*(TIME + position for position in positions))
    for row in rows:
        key = key_of(row)
        bucket = index.get(key)
        if bucket is None:
            index[key] = [row]
        else:
            bucket.append(row)


def _bounds_of(values: Iterable[Any]) -> Bounds:
    known = list(values)
    numbers = [value for value in known if value is not None]
    nullable = len(numbers) < len(known)
    if not numbers:
        return Bounds(0, 0, nullable)
    if not is_number(numbers[0]):
        return Bounds(BEGINNING, END, nullable)
    return Bounds(min(numbers), max(numbers), nullable)
