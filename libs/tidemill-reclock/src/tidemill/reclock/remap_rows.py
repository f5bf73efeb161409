"""The remap collection of a partitioned source as an ordinary collection of rows."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, consolidate, update_schema
from tidemill.reclock.remap import Binding
from tidemill.time import Partitions

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


def rows_of_bindings(bindings: Iterable[Binding[Partitions]]) -> pa.Table:
    """The bindings as updates of a remap collection."""
    rows = [(*source, time, diff) for source, time, diff in bindings]
    schema = update_schema(REMAP_SCHEMA)
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )
