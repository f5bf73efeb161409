"""Rows between two fragments of a view: the range that each is for, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import pack_table, unpack_table
from tidemill.datalog.placement import Place
from tidemill.datalog.placement.column_hashes import (
    KeyColumn,
    ranges_of_columns,
    ranges_of_spots,
    spots_of_columns,
)

PAYLOAD_ROWS = 1 << 18
ColumnOf: TypeAlias = "Callable[[int], KeyColumn]"
"""A column of a key by its position in a place."""
LAST = -1
"""In the place of a stage: what is put together where all of them have ended."""


class Dealt(NamedTuple):
    """Rows for one range of one fragment, under the name by which it reads them."""

    stage: int
    range: int
    name: str
    payload: bytes


WIRE = "stage int, range int, name string, payload binary"
"""A row of an exchange, as Spark has it."""
_FIELDS = pa.schema(
    [
        ("stage", pa.int32()), ("range", pa.int32()), ("name", pa.string()),
        ("payload", pa.binary()),
    ]
)  # fmt: skip


def wire_batch(dealt: Sequence[Dealt]) -> pa.RecordBatch:
    """Rows of an exchange."""
    columns = zip(*dealt, strict=True)
    arrays = [pa.array(each, f.type) for each, f in zip(columns, _FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_FIELDS)


def table_payload(table: pa.Table) -> bytes:
    """The rows of a table as `table_in` reads them."""
    return pack_table(table)


def table_in(payload: bytes) -> pa.Table:
    """The table of rows that were dealt out as one."""
    return unpack_table(payload)


def dealt_table(
    stage: int, name: str, place: Place, ranges: int, table: pa.Table, column: ColumnOf,
    pack: Callable[[pa.Table], bytes] = table_payload,
) -> Iterator[Dealt]:  # fmt: skip
    """The rows of a table in the ranges where they are wanted; `column` gives one of a place."""
    if not table.num_rows:
        return
    if place.everywhere or not place.positions or ranges == 1:
        for payload in map(pack, _pieces(table)):
            for number in range(ranges if place.everywhere else 1):
                yield Dealt(stage, number, name, payload)
        return
    spots = spots_of_columns([*map(column, place.positions)])
    numbers = ranges_of_spots(spots, ranges)
    if place.heavy:
        heavy = np.isin(spots, np.fromiter(place.heavy, np.uint64))
        if place.pieces:
            finer = ranges_of_columns([*map(column, place.pieces)], ranges)
            numbers = np.where(heavy, finer, numbers)
        else:
            for payload in map(pack, _pieces(table.filter(pa.array(heavy)))):
                yield from (Dealt(stage, number, name, payload) for number in range(ranges))
            table, numbers = table.filter(pa.array(~heavy)), numbers[~heavy]
            if not table.num_rows:
                return
    order = np.argsort(numbers, kind="stable")
    table, numbers = table.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for begin, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        for payload in map(pack, _pieces(table.slice(begin, end - begin))):
            yield Dealt(stage, int(numbers[begin]), name, payload)


def _pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The rows of a table in pieces: whoever passes one holds it whole."""
    for begin in range(0, table.num_rows, PAYLOAD_ROWS):
        yield table.slice(begin, PAYLOAD_ROWS)
