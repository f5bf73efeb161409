"""Reading a version: the updates that matter, accumulated or as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, between, concatenate, consolidate
from tidemill.shard.lookup import PartLookup, Scalars
from tidemill.shard.offloading import computed
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part, sort_key
from tidemill.shard.pruning import Equal, equal_scalars, parts_equal, parts_where
from tidemill.shard.state import Description, State
from tidemill.time import U64_MAX, Corrupt, UsageError

TOGETHER = 4
"""So many parts are read and decoded at the same time."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which rows, and which columns of them; everything by default."""

    columns: Sequence[str] | None = None
    equal: Equal | None = None
    where: pc.Expression | None = None


EVERYTHING = Query()


class Reader:
    """Reads versions of collections. Of a part only what the query can need is read and decoded."""

    def __init__(self, parts: PartStore) -> None:
        self._parts = parts
        self._lookup = PartLookup(parts)

    async def contents(self, state: State, as_of: int, query: Query = EVERYTHING) -> pa.Table:
        """The rows at `as_of`, each once with its multiplicity in `_diff`, in no promised order.

        Multiplicities are counted before columns are left out, and added up after. Raises: PartGone;
        Corrupt naming the row if one is negative and the collection does not allow it.
        Cost: O(n log n) in the updates up to `as_of` that the query can need; O(n) after compaction.
        """
        until = None if as_of >= U64_MAX else as_of + 1
        pieces = await self.pieces(state, 0, until, query)
        # Parts of one run have no record in common: each can be added up by itself.
        apart = len(state.batches) == 1 and state.batches[0].runs == 1
        if not apart and len(pieces) > 1:
            pieces = [concatenate(pieces)]
        contents = [
            await computed(piece.num_rows, partial(_accumulated, state.description, piece, query))
            for piece in pieces
        ]
        if not contents:
            empty = state.description.update_schema().empty_table()
            return _accumulated(state.description, empty, query)
        if len(contents) == 1:
            return contents[0]
        present = pa.concat_tables(contents)
        if query.columns is None:
            return present
        return await computed(present.num_rows, lambda: consolidate(present))

    async def changes(
        self, state: State, lower: int, upper: int | None, query: Query = EVERYTHING
    ) -> pa.Table:
        """All updates with lower <= time < upper (None: no bound), consolidated."""
        pieces = await self.pieces(state, lower, upper, query)
        updates = concatenate([state.description.update_schema().empty_table(), *pieces])
        order = [*sort_key(updates.schema, state.description.key), TIME, DIFF]
        names = list(query.columns or state.description.schema.names)

        def consolidated() -> pa.Table:
            if query.columns is not None:
                return consolidate(updates.select([*names, TIME, DIFF]))
            return consolidate(updates.select(order)).select([*names, TIME, DIFF])

        return await computed(updates.num_rows, consolidated)

    async def pieces(
        self, state: State, lower: int, upper: int | None, query: Query = EVERYTHING
    ) -> list[pa.Table]:
        """All updates with lower <= time < upper that the query selects, part by part, not added up."""
        description = state.description
        _check_columns(query, description.schema.names)
        scalars = equal_scalars(description, query.equal or {})
        chosen = [part for part in state.parts() if part.meets(lower, upper)]
        if scalars:
            chosen = parts_equal(chosen, description, scalars)
        if query.where is not None:
            chosen = parts_where(chosen, description.schema, query.where)
        tables: list[pa.Table] = []
        for start in range(0, len(chosen), TOGETHER):
            some = chosen[start : start + TOGETHER]
            read = [self._rows(description, part, scalars) for part in some]
            for part, table in zip(some, await asyncio.gather(*read), strict=True):
                selected = _selected(table, part, lower, upper, query)
                if selected.num_rows:
                    tables.append(selected)
        return tables

    async def _rows(self, description: Description, part: Part, scalars: Scalars) -> pa.Table:
        schema = description.update_schema()
        if not scalars:
            return await self._parts.table(part, schema)
        order = sort_key(schema, description.key)
        return await self._lookup.rows(part, schema, order, scalars)


def _accumulated(description: Description, updates: pa.Table, query: Query) -> pa.Table:
    """Contents that updates add up to, with the columns that the query wants."""
    order = [*sort_key(updates.schema, description.key), DIFF]
    present = consolidate(updates.select(order))
    if not description.allow_negative:
        _refuse_negative(present)
    if query.columns is None:
        return present.select([*description.schema.names, DIFF])
    return consolidate(present.select([*query.columns, DIFF]))


def _selected(table: pa.Table, part: Part, lower: int, upper: int | None, query: Query) -> pa.Table:
    start = max(lower, part.lower)
    stop = upper if part.upper is None else min(part.upper, U64_MAX if upper is None else upper)
    # The times of a part that is named for an interval are those of the interval, not of its rows.
    whole = part.lower == 0 and part.upper is None
    inside = start <= part.time_min and (stop is None or part.time_max < stop)
    if not (whole and inside):
        table = between(table, start, stop)
    return table if query.where is None else table.filter(query.where)


def _check_columns(query: Query, names: Sequence[str]) -> None:
    unknown = [name for name in query.columns or () if name not in names]
    if unknown:
        raise UsageError(f"there are no columns {unknown}", reason="UnknownColumn")


def _refuse_negative(present: pa.Table) -> None:
    least = pc.min(present.column(DIFF)).as_py()
    if least is None or least >= 0:
        return
    row = present.filter(pc.field(DIFF) < 0).slice(0, 1).to_pylist()[0]
    multiplicity = row.pop(DIFF)
    raise Corrupt(f"the row {row} has the multiplicity {multiplicity}", row=row)
