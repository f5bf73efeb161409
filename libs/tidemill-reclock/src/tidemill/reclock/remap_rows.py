"""The remap collection of a partitioned source as an ordinary collection of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, consolidate, update_schema
from tidemill.errors import Corrupt
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.time import PARTITIONED, Frontier, Partitions, frontier, sole_time

ROWS_MAX = 65_536
"""So many updates of a remap collection are taken apart at once, where all are looked at."""

REMAP_SCHEMA = pa.schema(
    [
        pa.field("lo", pa.uint64(), nullable=False),
        pa.field("hi", pa.uint64(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
    ]
)
"""Data columns: all partitions lo … hi, both inclusive, are bound up to this offset."""


def bindings_of_rows(updates: pa.Table) -> list[Binding[Partitions]]:
    """The bindings that these updates of a remap collection stand for, opposite ones cancelled."""
    updates = consolidate(updates)
    columns = [updates.column(name).to_pylist() for name in ("lo", "hi", "offset", TIME, DIFF)]
    return [
        (Partitions(lo, hi, offset), time, diff)
        for lo, hi, offset, time, diff in zip(*columns, strict=True)
    ]


def remap_problems(updates: pa.Table, since: Frontier, upper: Frontier) -> Iterator[str]:
    """The first reason for which a collection with these updates is no remap collection.

    A remap collection is, at each time between since and upper, an antichain with each element
    once. It never goes back, so each update of a source comes at one time at most. Cost: linear in
    the updates, ROWS_MAX at once.
    """
    if since.empty:
        return
    ordered = updates.sort_by(TIME)
    remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED, sole_time(since))
    try:
        for start in range(0, ordered.num_rows, ROWS_MAX):
            rows = ordered.slice(start, ROWS_MAX)
            # More bindings at the last of these times may follow behind them.
            closed = frontier(int(rows.column(TIME)[-1].as_py()))
            remap.insert(bindings_of_rows(rows), None if upper.precedes(closed) else closed)
            remap.compact(closed)
        remap.insert((), upper)
    except Corrupt as error:
        yield str(error)


def rows_of_bindings(bindings: Iterable[Binding[Partitions]]) -> pa.Table:
    """The bindings as updates of a remap collection."""
    rows = [(*source, time, diff) for source, time, diff in bindings]
    schema = update_schema(REMAP_SCHEMA)
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
