"""The facts of one predicate as they are now, with the supports of each and the indexes that joins
ask for.

A *support* is one reason for a fact: an input, a match of a rule, a group, a solution that lives
on. Its value is (expires, parafacts). The *row* of a fact merges its supports: the latest expiry,
every other lattice merged. Rows have the shape of `tidemill.datalog.tables`, present
from the beginning without end, because an incremental engine looks at one instant only.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from sys import getsizeof
from typing import Any, TypeAlias

from tidemill.datalog.evaluation.timelines import same_parafacts
from tidemill.datalog.incremental.extremes import Extreme
from tidemill.datalog.lattices import Lattice, Parafacts, merge_parafacts
from tidemill.datalog.logical.ranges import UNBOUNDED, Bounds
from tidemill.datalog.presence import BEGINNING, END, Instant
from tidemill.datalog.tables import EXPIRES, PARAFACTS, TIME, Key, Positions, Row, Traits
from tidemill.datalog.values import Failed

Value: TypeAlias = "tuple[Instant, Parafacts]"
Bucket: TypeAlias = "dict[Row, None] | tuple[Row, ...]"
"""Rows with one value: a tuple where there is one, which takes a quarter of the memory, or a dict
of several.
"""
Ranged: TypeAlias = "dict[Any, tuple[list[Any], list[Row]]]"

PLAIN: Value = (END, None)
"""The value of what neither ends nor carries anything; one object, so that it is told by identity."""
GIVEN = "given"
"""The source of facts that are given from outside, and neither end nor carry anything."""
_ALONE: dict[Any, Value] = {GIVEN: PLAIN}
"""The supports of every fact that has no other; shared by all of them, and never changed."""
_SAMPLE = 1_000
_MANY = 16


class Only(Mapping[Any, Value]):
    """The supports of a fact that has one. Takes a fifth of the memory of a dict."""

    __slots__ = ("source", "value")

    def __init__(self, source: Any, value: Value) -> None:
        self.source = source
        self.value = value

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter((self.source,))

    def __getitem__(self, source: Any) -> Value:
        if source != self.source:
            raise KeyError(source)
        return self.value

    def values(self) -> Any:
        """Its value."""
        return (self.value,)

    def items(self) -> Any:
        """Its source and value."""
        return ((self.source, self.value),)


class FactTable:
    """Facts, their supports, and indexes kept in step with every change.

    What is known of the rows (bounds of columns, traits) only ever widens, in powers of two;
    `shape` counts how often it did, so that a plan made for the rows so far can be told from one
    that is void. Cost: a change costs O(indexes), and O(bucket) for an index that is sorted; the
    latest expiry of a fact with many supports is known in O(log supports).
    """

    def __init__(self, predicate: str, kinds: Sequence[str] = ()) -> None:
        self.predicate = predicate
        self._numbers = {0, *(at for at, kind in enumerate(kinds, 1) if kind in ("int", "float"))}
        self.supports: dict[Key, dict[Any, Value] | Only] = {}
        self._expiries_of: dict[Key, Extreme] = {}
        self.shape = 0
        self._rows: dict[Key, Row] = {}
        self._indexes: dict[Positions, tuple[dict[Any, Bucket], Callable[[Row], Any]]] = {}
        self._ranged: dict[tuple[Positions, int], tuple[Ranged, Callable[[Row], Any]]] = {}
        self._bounds: dict[int, Bounds] = {}
        self._expiries = Bounds(0, 0, False)
        self._traits = Traits(False, False, False, False)

    @property
    def rows(self) -> Collection[Row]:
        """All rows: a view that follows every change."""
        return self._rows.values()

    @property
    def grows(self) -> bool:
        """Never while a join runs: changes are made between joins."""
        return False

    @property
    def traits(self) -> Traits:
        """What the rows carry, or have carried."""
        return self._traits

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: Key) -> Row | None:
        """The row of a fact, None if it is absent."""
        return self._rows.get(key)

    def put(self, key: Key, row: Row | None) -> None:
        """Replace the row of a fact, or remove it."""
        old = self._rows.get(key)
        if old is not None:
            self._forget(old)
        if row is None:
            self._rows.pop(key, None)
            return
        self._rows[key] = row
        for bucket_of, key_of in self._indexes.values():
            value = key_of(row)
            bucket = bucket_of.get(value)
            if bucket is None:
                bucket_of[value] = (row,)
            elif isinstance(bucket, tuple):
                bucket_of[value] = {bucket[0]: None, row: None}
            else:
                bucket[row] = None
        self._move_ranged(None, row)
        self._widen(row)

    def _forget(self, row: Row) -> None:
        for bucket_of, key_of in self._indexes.values():
            value = key_of(row)
            bucket = bucket_of[value]
            if isinstance(bucket, tuple):
                del bucket_of[value]
                continue
            del bucket[row]
            if len(bucket) == 1:
                bucket_of[value] = (*bucket,)
        self._move_ranged(row, None)

    def _move_ranged(self, old: Row | None, new: Row | None) -> None:
        """Keep the sorted indexes in step with a row that goes, and one that comes."""
        for (_, column), (sorted_of, key_of) in self._ranged.items():
            if old is not None:
                _remove(sorted_of, key_of(old), old, TIME + column)
            if new is not None:
                _insert(sorted_of, key_of(new), new, TIME + column)

    # Supports.

    def support(self, key: Key, source: Any, value: Value) -> None:
        """A fact has this support from now on, or this value of it."""
        known = self.supports.get(key)
        if known is None:
            alone = source is GIVEN and value is PLAIN
            self.supports[key] = _ALONE if alone else Only(source, value)
            return
        if isinstance(known, Only):
            if known.source == source:
                self.supports[key] = Only(source, value)
                return
            known = self.supports[key] = {known.source: known.value}
        elif known is _ALONE:
            known = self.supports[key] = dict(_ALONE)
        old = known.get(source)
        known[source] = value
        if len(known) < _MANY:
            return
        expiries = self._expiries_of.get(key)
        if expiries is None:
            expiries = self._expiries_of[key] = Extreme(descending=True)
            for mine, _ in known.values():
                expiries.enter(mine)
            return
        if old is not None:
            expiries.leave(old[0])
        expiries.enter(value[0])

    def given(self, key: Key) -> bool:
        """Whether a fact is given from outside, and there neither ends nor carries anything."""
        known = self.supports.get(key)
        return known is _ALONE or (known is not None and GIVEN in known)

    def withdraw(self, key: Key, source: Any) -> Value:
        """A fact has this support no longer; the value that it had."""
        known = self.supports[key]
        if known is _ALONE and source is GIVEN:
            del self.supports[key]
            return PLAIN
        if isinstance(known, Only):
            del self.supports[key]
            return known[source]
        value = known.pop(source)
        expiries = self._expiries_of.get(key)
        if expiries is not None:
            if len(known) < _MANY:
                del self._expiries_of[key]
            else:
                expiries.leave(value[0])
        if not known:
            del self.supports[key]
        return value

    def latest_expiry(self, key: Key) -> Instant | None:
        """The latest expiry of the supports of a fact where they are many, None where they are few."""
        expiries = self._expiries_of.get(key)
        if expiries is None:
            return None
        latest: Instant = expiries.inner()
        return latest

    # What is known of the rows.

    def _widen(self, row: Row) -> None:
        traits = self._traits
        if row[TIME] is None:
            if not traits.timeless:
                self._learn(Traits(False, True, False, False))
        elif not traits.timed:
            self._learn(Traits(True, False, False, False))
        if row[PARAFACTS] is not None and not traits.decorated:
            self._learn(Traits(False, False, False, True))
        if row[EXPIRES] != END:
            if not traits.expiring:
                self._learn(Traits(False, False, True, False))
            known = self._expiries
            if not known.low <= row[EXPIRES] <= known.high:
                self._expiries = _wider(known, row[EXPIRES])
                self.shape += 1
        for column, known in self._bounds.items():
            value = row[TIME + column]
            if value is None:
                if not known.nullable:
                    self._bounds[column] = Bounds(known.low, known.high, True)
                    self.shape += 1
            elif known.low != BEGINNING and not known.low <= value <= known.high:
                self._bounds[column] = _wider(known, value)
                self.shape += 1

    def _learn(self, traits: Traits) -> None:
        self._traits = self._traits | traits
        self.shape += 1

    def bounds(self, column: int) -> Bounds:
        """A range that holds the numbers of a column, with room; unbounded where they are no
        numbers.
        """
        if column not in self._numbers:
            return UNBOUNDED
        known = self._bounds.get(column)
        if known is None:
            at = TIME + column
            known = Bounds(0, 0, False)
            for row in self._rows.values():
                value = row[at]
                if value is None:
                    known = Bounds(known.low, known.high, True)
                elif known.low != BEGINNING and not known.low <= value <= known.high:
                    known = _wider(known, value)
            self._bounds[column] = known
        return known

    def expiry_bounds(self) -> Bounds:
        """A range that holds the expiries."""
        if not self._traits.expiring:
            return Bounds(BEGINNING, END, False)
        return Bounds(self._expiries.low, END, False)

    def distinct(self, column: int) -> int:
        """How many values a column has: from an index, or from a sample."""
        index = self._indexes.get((column,))
        if index is not None:
            return max(1, len(index[0]))
        at = TIME + column
        sample = {row[at] for row in islice(self._rows.values(), _SAMPLE)}
        seen = min(_SAMPLE, len(self._rows))
        if len(sample) * 2 > seen:
            return max(1, len(sample) * len(self._rows) // max(1, seen))
        return max(1, len(sample))

    # Indexes.

    def index(self, positions: Positions) -> Mapping[Any, Bucket]:
        """Rows by their values at `positions`; made on first use, then kept."""
        index = self._indexes.get(positions)
        if index is None:
            key_of = _key_at(positions)
            bucket_of: dict[Any, Bucket] = {}
            for row in self._rows.values():
                value = key_of(row)
                bucket = bucket_of.get(value)
                if bucket is None:
                    bucket_of[value] = (row,)
                elif isinstance(bucket, tuple):
                    bucket_of[value] = {bucket[0]: None, row: None}
                else:
                    bucket[row] = None
            index = self._indexes[positions] = (bucket_of, key_of)
        return index[0]

    def key_at(self, positions: Positions) -> Callable[[Row], Any]:
        """What stands for a row in the index on `positions`."""
        self.index(positions)
        return self._indexes[positions][1]

    def ranged(self, positions: Positions, column: int) -> Ranged:
        """As `index`, each bucket sorted by `column` beside the list of its values; nulls are left
        out.
        """
        ranged = self._ranged.get((positions, column))
        if ranged is None:
            key_of = _key_at(positions)
            sorted_of: Ranged = {}
            at = TIME + column
            for row in sorted(
                (row for row in self._rows.values() if row[at] is not None), key=itemgetter(at)
            ):
                values, rows = sorted_of.setdefault(key_of(row), ([], []))
                values.append(row[at])
                rows.append(row)
            ranged = self._ranged[positions, column] = (sorted_of, key_of)
        return ranged[0]

    # Sizes.

    def arrangements(self) -> list[tuple[Positions, int | None, int]]:
        """Each index: the columns of its key, the column it is sorted by, how many keys it has."""
        found: list[tuple[Positions, int | None, int]] = [
            (positions, None, len(index[0])) for positions, index in self._indexes.items()
        ]
        found += [(at, column, len(index[0])) for (at, column), index in self._ranged.items()]
        return found

    def size_bytes(self) -> int:
        """About how many bytes the rows and indexes take, from a sample of the rows."""
        sample = list(islice(self._rows.values(), _SAMPLE))
        if not sample:
            return 0
        row = sum(getsizeof(row) + sum(map(getsizeof, row)) for row in sample) / len(sample)
        supports = len(self._rows) * getsizeof({None: None})
        total = int(row * len(self._rows)) + getsizeof(self._rows) + supports
        for index, _ in self._indexes.values():
            buckets = list(islice(index.values(), _SAMPLE))
            each = sum(map(getsizeof, buckets)) / max(1, len(buckets))
            total += getsizeof(index) + int(each * len(index))
        for ranged, _ in self._ranged.values():
            total += getsizeof(ranged) + 16 * len(self._rows)
        return total


def _key_at(positions: Positions) -> Callable[[Row], Any]:
    if not positions:
        return _nothing
    return itemgetter(*(TIME + position for position in positions))


def _nothing(_: Row) -> tuple[()]:
    return ()


def _insert(sorted_of: Ranged, key: Any, row: Row, at: int) -> None:
    value = row[at]
    if value is None:
        return
    bucket = sorted_of.get(key)
    if bucket is None:
        sorted_of[key] = ([value], [row])
        return
    place = bisect_right(bucket[0], value)
    bucket[0].insert(place, value)
    bucket[1].insert(place, row)


def _remove(sorted_of: Ranged, key: Any, row: Row, at: int) -> None:
    value = row[at]
    if value is None:
        return
    values, rows = sorted_of[key]
    place = bisect_left(values, value)
    while rows[place] is not row and rows[place] != row:
        place += 1
    del values[place], rows[place]
    if not values:
        del sorted_of[key]


def _wider(known: Bounds, value: Any) -> Bounds:
    """Bounds that also hold a value, rounded outwards to powers of two."""
    if isinstance(value, float) and not math.isfinite(value):
        return Bounds(BEGINNING, END, known.nullable)
    if value < known.low:
        return Bounds(-_power(-value), known.high, known.nullable)
    if value > known.high:
        return Bounds(known.low, _power(value), known.nullable)
    return known


def _power(value: float) -> int:
    return 1 << math.ceil(value).bit_length()


def merged_value(supports: Mapping[Any, Value], lattices: Mapping[str, Lattice]) -> Value | None:
    """The value that the supports of a fact have together, None for no supports. Raises: Failed."""
    if supports is _ALONE:
        return PLAIN
    expires: Instant | None = None
    parafacts: Parafacts = None
    for mine, passed in supports.values():
        if expires is None:
            expires, parafacts = mine, passed
            continue
        if mine > expires:
            expires = mine
        if passed is not parafacts:
            parafacts = merge_parafacts(parafacts, passed, lattices)
    return None if expires is None else (expires, parafacts)


def same_value(row: Row, value: Value) -> bool:
    """Whether a row says the same as a value; tallies are the same only if they are one object."""
    return bool(row[EXPIRES] == value[0]) and same_parafacts(row[PARAFACTS], value[1])


def equal_value(row: Row, value: Value) -> bool:
    """Whether a row says the same as a value, whatever its tallies are made of.

    Cost: O(contributions).
    """
    return bool(row[EXPIRES] == value[0] and row[PARAFACTS] == value[1])


def grown(old: Row, new: Row, lattices: Mapping[str, Lattice]) -> bool:
    """Whether the new row of a fact says at least as much as the old one; of tallies, all
    contributions.
    """
    if new[EXPIRES] < old[EXPIRES]:
        return False
    if old[PARAFACTS] is None or same_parafacts(old[PARAFACTS], new[PARAFACTS]):
        return True
    if new[PARAFACTS] is None:
        return False
    names = {name for name, _ in old[PARAFACTS]}
    if not names <= {name for name, _ in new[PARAFACTS]}:
        return False
    mine = tuple(item for item in new[PARAFACTS] if item[0] in names)
    try:
        return bool(merge_parafacts(old[PARAFACTS], mine, lattices) == mine)
    except Failed:
        return False


def row_of(key: Key, value: Value) -> Row:
    """A row that is present from the beginning without end."""
    return (BEGINNING, END, value[0], value[1], *key)
