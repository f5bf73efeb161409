"""Reading a version: the updates that matter, accumulated or as they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import (
    DIFF,
    TIME,
    between,
    concatenate,
    consolidate,
    shown_record,
)
from tidemill.errors import Corrupt, UsageError
from tidemill.shard.conforming import adding_up
from tidemill.shard.hashing import HASH_MAX, key_hashes
from tidemill.shard.listed import PartList
from tidemill.shard.lookup import PartLookup, Scalars, Values, searchable
from tidemill.shard.offloading import all_of, compute_beside
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part, sort_key
from tidemill.shard.pruning import (
    Equal,
    Piece,
    equal_scalars,
    matching,
    parts_equal,
    parts_where,
)
from tidemill.shard.state import Description, State
from tidemill.time import U64_MAX

Column: TypeAlias = "pa.ChunkedArray[pa.Scalar[pa.DataType]]"

TOGETHER = 4
"""So many parts are read and decoded at the same time."""
APART_ROWS_MIN = 50_000
"""A batch of so many rows is not sorted again together with the others."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which rows, and which columns of them; everything by default."""

    columns: Sequence[str] | None = None
    equal: Equal | None = None
    where: pc.Expression | None = None
    told: Callable[[int], None] | None = None
    """Told of the bytes of each part once its rows are there; what it raises ends the reading."""
    settled: Callable[[int], None] | None = None
    """Told of the bytes of rows that are surely among the contents; its errors end the reading."""
    hashes: tuple[int, int] | None = None
    """The first and last hash of the keys that are wanted; None: all."""
    added_up: bool = True
    """Whether changes of one row at one time are one update, and sorted; else they are as stored.
    """

    def crosses(self, part: Part) -> bool:
        """Whether a part may hold keys of other hashes than are wanted."""
        if self.hashes is None:
            return False
        return part.hash_min < self.hashes[0] or self.hashes[1] < part.hash_max


EVERYTHING = Query()


class VersionReader:
    """Reads versions of collections. Of a part only what the query can need is read and decoded."""

    def __init__(self, parts: PartStore) -> None:
        self._parts = parts
        self._lookup = PartLookup(parts)

    async def contents(self, state: State, as_of: int, query: Query = EVERYTHING) -> pa.Table:
        """The rows at `as_of`, each once with its multiplicity in `_diff`, in no promised order.

        Multiplicities are counted before columns are left out, and added up after. Raises:
        PartGone; Corrupt naming the row if one is negative and the collection does not allow it.
        Cost: O(n) in the updates up to `as_of` that the query can need. O(m log m) in those m that
        may share a record with an update outside the oldest batch.
        """
        until = None if as_of >= U64_MAX else as_of + 1
        description = state.description
        oldest, others = _parted(state)
        pieces = await self.pieces(others, 0, until, query)
        recent = concatenate([description.no_updates(), *pieces])
        touched = await compute_beside(
            recent.num_rows if oldest.batches else 0,
            lambda: _Touched.by(recent if oldest.batches else recent.slice(0, 0), description),
        )
        settled: list[pa.Table] = []

        def kept_apart(part: Part, updates: pa.Table) -> pa.Table:
            alone, shared = touched.split(updates)
            settled.append(_accumulated(description, alone, query, in_order=True))
            if query.settled is not None:
                query.settled(sum(table.nbytes for table in settled))
            return shared

        shared = await self._make(oldest, 0, until, query, kept_apart)
        rest = concatenate([recent, *shared])
        if rest.num_rows or not settled:
            settled.append(
                await compute_beside(
                    rest.num_rows, lambda: _accumulated(description, rest, query, in_order=False)
                )
            )
        present = pa.concat_tables([table for table in settled if table.num_rows] or settled[:1])
        if query.columns is None or len(settled) == 1:
            return present
        return await compute_beside(present.num_rows, lambda: _added(present))

    async def changes(
        self, state: State, lower: int, upper: int | None, query: Query = EVERYTHING
    ) -> pa.Table:
        """All updates with lower <= time < upper (None: no bound), consolidated if so wanted."""
        pieces = await self._make(state, lower, upper, query, lambda part, rows: rows, follows=True)
        if not pieces:
            return nothing_read(state.description, query)
        if not query.added_up:
            names = [*(query.columns or state.description.schema.names), TIME, DIFF]
            return concatenate([piece.select(names) for piece in pieces])
        updates = concatenate([state.description.no_updates(), *pieces])
        order = [*sort_key(updates.schema, state.description.key), TIME, DIFF]
        names = list(query.columns or state.description.schema.names)

        def consolidated() -> pa.Table:
            if query.columns is not None:
                return _added(updates.select([*names, TIME, DIFF]))
            return _added(updates.select(order)).select([*names, TIME, DIFF])

        return await compute_beside(updates.num_rows, consolidated)

    async def pieces(
        self, state: State, lower: int, upper: int | None, query: Query = EVERYTHING
    ) -> list[pa.Table]:
        """All updates with lower <= time < upper that the query selects, part by part, not added
        up.
        """
        return await self._make(state, lower, upper, query, lambda part, updates: updates)

    async def _make(
        self,
        state: State,
        lower: int,
        upper: int | None,
        query: Query,
        make: Callable[[Part, pa.Table], pa.Table],
        follows: bool = False,
    ) -> list[pa.Table]:
        """The results of `make` on the selected updates of each part that has some, several at a
        time. A reader that `follows` has passed the parts that end before `upper`.
        """
        description = state.description
        _check_columns(query, description.schema.names)
        scalars = equal_scalars(description, query.equal or {})

        def wanted(pieces: Iterable[Piece]) -> list[Piece]:
            met = [piece for piece in pieces if piece.meets(lower, upper)]
            if met and scalars:
                met = parts_equal(met, description, scalars)
            if met and query.where is not None:
                met = parts_where(met, description.schema, query.where)
            return met

        pieces = wanted(state.pieces_from(lower))
        chosen = [piece for piece in pieces if isinstance(piece, Part)]
        if len(chosen) < len(pieces):
            chosen = wanted(await self._parts_of(pieces, query))

        seen = [0]

        async def make_one(part: Part) -> pa.Table | None:
            passed = follows and (upper is None or part.time_max < upper)
            table = await self._rows(description, part, scalars, passed)

            def work() -> pa.Table | None:
                chosen = selected(table, part, lower, upper, query, description.key)
                seen[0] += chosen.nbytes
                return make(part, chosen) if chosen.num_rows else None

            return await compute_beside(table.num_rows, work)

        tables: list[pa.Table] = []
        for start in range(0, len(chosen), TOGETHER):
            some = chosen[start : start + TOGETHER]
            alone = len(some) == 1  # a task of its own is another turn of the event loop
            found = [await make_one(some[0])] if alone else await all_of(map(make_one, some))
            tables += [table for table in found if table is not None]
            if query.told is not None:
                query.told(seen.pop())
                seen.append(0)
        return tables

    async def _parts_of(self, pieces: Sequence[Part | PartList], query: Query) -> list[Part]:
        """The parts among pieces, and those that are listed.

        Lists of other hashes than are wanted are not read.
        """
        first, last = query.hashes or (0, HASH_MAX)
        found: list[Part] = []
        for piece in pieces:
            if isinstance(piece, Part):
                found.append(piece)
            elif piece.hash_min <= last and first <= piece.hash_max:
                found += await self._parts.parts_of([piece])
        return found

    async def _rows(
        self, description: Description, part: Part, scalars: Scalars, passed: bool
    ) -> pa.Table:
        if not scalars:
            return await self._parts.table(part, description, passed=passed)
        return await self._lookup.rows(part, description, scalars)


def nothing_read(description: Description, query: Query) -> pa.Table:
    """The updates of a query that meets none."""
    empty = description.no_updates()
    return empty if query.columns is None else empty.select([*query.columns, TIME, DIFF])


def _parted(state: State) -> tuple[State, State]:
    """The oldest batch, if it is large and its parts share no record with each other, and all
    others.
    """
    large = bool(state.batches) and state.batches[0].rows >= APART_ROWS_MIN
    count = 1 if large and state.batches[0].runs == 1 else 0
    oldest, others = state.batches[:count], state.batches[count:]
    return replace(state, batches=oldest), replace(state, batches=others)


@dataclass(frozen=True, slots=True)
class _Touched:
    """Which updates may be of a record that some other updates are of, by one column.

    `values` are those of the other updates; None if every update may be.
    """

    column: str
    values: Values | None

    @classmethod
    def by(cls, others: pa.Table, description: Description) -> _Touched:
        """Told by the first column that parts are sorted by; rows without columns are all one
        record.
        """
        columns = sort_key(others.schema, description.key)
        if not columns:
            return cls("", None)
        column = columns[0]
        exact = searchable(others.schema.field(column).type)
        return cls(column, others.column(column).unique() if exact or not others.num_rows else None)

    def split(self, updates: pa.Table) -> tuple[pa.Table, pa.Table]:
        """(updates of records that the others do not touch, the rest), each in their order."""
        if self.values is None:
            return updates.slice(0, 0), updates
        if not len(self.values):
            return updates, updates.slice(0, 0)
        touched = pc.is_in(updates.column(self.column), value_set=self.values)
        return updates.filter(pc.invert(touched)), updates.filter(touched)


def _accumulated(
    description: Description, updates: pa.Table, query: Query, *, in_order: bool
) -> pa.Table:
    """Contents that updates add up to, with the columns that the query wants.

    `in_order` says that the updates are consolidated and sorted, as parts hold them. If no value of
    their first column comes twice, each update is a record already, and nothing is added.
    """
    order = [*sort_key(updates.schema, description.key), DIFF]
    present = updates.select(order)
    if not (in_order and len(order) > 1 and _strictly_ascending(present.column(0))):
        present = _added(present)
    if not description.allow_negative:
        _refuse_negative(present)
    if query.columns is None:
        return present.select([*description.schema.names, DIFF])
    return _added(present.select([*query.columns, DIFF]))


def _added(updates: pa.Table) -> pa.Table:
    """Stored updates, consolidated. Raises: Corrupt naming a row of which there are too many."""
    with adding_up():
        return consolidate(updates)


def _strictly_ascending(column: Column) -> bool:
    """Whether no value of a sorted column comes twice."""
    if not searchable(column.type):
        return False
    differs = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
    return bool(pc.all(differs, skip_nulls=False).as_py())


def selected(
    table: pa.Table,
    part: Part,
    lower: int,
    upper: int | None,
    query: Query,
    key: Sequence[str],
) -> pa.Table:
    """The updates of a part at lower <= time < upper (None: no bound) that a query selects.

    `key` are the columns that its hashes are of, all if empty.
    """
    start = max(lower, part.lower)
    stop = upper if part.upper is None else min(part.upper, U64_MAX if upper is None else upper)
    # The times of a part that is named for an interval are those of the interval, not of its rows.
    whole = part.lower == 0 and part.upper is None
    inside = start <= part.time_min and (stop is None or part.time_max < stop)
    if not (whole and inside):
        table = between(table, start, stop)
    if query.hashes is not None and query.crosses(part):
        first, last = query.hashes
        hashes = key_hashes(table, key)
        kept = (hashes >= np.uint64(first)) & (hashes <= np.uint64(last))
        table = table.filter(pa.array(kept))
    return table if query.where is None else matching(table, query.where)


def _check_columns(query: Query, names: Sequence[str]) -> None:
    unknown = [name for name in query.columns or () if name not in names]
    if unknown:
        raise UsageError(f"there are no columns {unknown}", reason="UnknownColumn")


def _refuse_negative(present: pa.Table) -> None:
    least = pc.min(present.column(DIFF)).as_py()
    if least is None or least >= 0:
        return
    wrong = present.filter(pc.field(DIFF) < 0)
    row, multiplicity = shown_record(wrong), wrong.column(DIFF)[0].as_py()
    raise Corrupt(f"the row {row} has the multiplicity {multiplicity}", row=row)


def updates_between(parts: Sequence[Part | PartList], lower: int, upper: int) -> float:
    """About the number of updates from `lower` to before `upper`.

    The updates of a part are taken to be spread evenly over its times. Cost: O(p).
    """
    return sum(
        part.rows
        * (min(upper, part.time_max + 1) - max(part.time_min, lower))
        / (part.time_max + 1 - part.time_min)
        for part in parts
        if part.meets(lower, upper)
    )


def upper_of_rows(parts: Sequence[Part | PartList], lower: int, upper: int, rows_max: int) -> int:
    """An instant in (lower, upper] below which about `rows_max` updates from `lower` on lie.

    The updates of a part are taken to be spread evenly over its times. Cost: O(p log p).
    """
    met = [part for part in parts if part.meets(lower, upper)]
    spans = [(max(part.time_min, lower), part.time_max + 1) for part in met]

    def below(bound: int) -> float:
        return updates_between(met, lower, bound)

    if below(upper) <= rows_max:
        return upper
    ends = {end for first, last in spans for end in (first, last) if lower < end < upper}
    borders = sorted({lower + 1, upper, *ends})
    at = bisect_right(borders, rows_max, key=lambda bound: int(below(bound)))
    first = borders[max(at - 1, 0)]
    if below(first) >= rows_max or at >= len(borders):
        return first
    last, least, most = borders[at], below(first), below(borders[at])
    return min(last, max(first, first + int((last - first) * (rows_max - least) / (most - least))))
