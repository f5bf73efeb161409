"""Facts between two fragments of a view: as columns where they have some, else one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.columns.column import Column
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine, Schema, Told
from tidemill.datalog.dataflow.schema import column_of, instant_word, words_of_column
from tidemill.datalog.placement import Place
from tidemill.datalog.placement.column_hashes import ranges_of_columns
from tidemill.datalog.ranges.packing import pack_fact, unpack_fact

START, DIFF, EXPIRY = "start", "diff", "expiry"
_TABLE, _RECORDS = b"T", b"R"


class Dealt(NamedTuple):
    """Rows for one range of one fragment, under the name by which it reads them."""

    stage: int
    range: int
    name: str
    payload: bytes


def dealt_table(
    stage: int, name: str, place: Place, ranges: int, table: pa.Table, key: Sequence[pa.Array]
) -> Iterator[Dealt]:
    """The rows of a table in the ranges where they are wanted, by the columns of their key."""
    if not table.num_rows:
        return
    if place.everywhere or not place.positions:
        payload = _TABLE + encoded(table)
        for number in range(ranges if place.everywhere else 1):
            yield Dealt(stage, number, name, payload)
        return
    numbers = ranges_of_columns(key, ranges)
    order = np.argsort(numbers, kind="stable")
    table, numbers = table.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for begin, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        payload = _TABLE + encoded(table.slice(begin, end - begin))
        yield Dealt(stage, int(numbers[begin]), name, payload)


def dealt_told(
    stage: int, name: str, place: Place, ranges: int, told: Told, *, whole: bool
) -> Iterator[Dealt]:
    """Changes that a fragment tells, in the ranges where they are wanted.

    Facts of a `whole` predicate take the contributions to their tallies along.
    """
    schema = told.schema
    if not schema.numbered and not schema.lattices:
        table = _table_of(told)
        key = [_joined(table.column(at)) for at in place.positions]
        yield from dealt_table(stage, name, place, ranges, table, key)
        return
    found: dict[int, list[tuple[str, int, int]]] = {}
    for at, record, diff in told.contributions() if whole else told.records():
        row = pack_fact(record), instant_word(at), diff
        for number in place.ranges_of(record, ranges):
            found.setdefault(number, []).append(row)
    for number, rows in sorted(found.items()):
        yield Dealt(stage, number, name, _RECORDS + msgspec.msgpack.encode(rows))


def feed_told(engine: DataflowEngine, name: str, payloads: Sequence[bytes], texts: Texts) -> None:
    """Give a fragment the changes that others have told."""
    schema = engine.schema_of(name)
    if schema is None:
        return
    for payload in payloads:
        if payload[:1] == _TABLE:
            engine.feed(name, _change_of(decoded(payload[1:]), schema, texts))
            continue
        rows = msgspec.msgpack.decode(payload[1:], type=list[tuple[str, int, int]])
        engine.feed_records(name, [(unpack_fact(f), at, END_WORD, diff) for f, at, diff in rows])


def table_in(payload: bytes) -> pa.Table:
    """The table of rows that were dealt out as one."""
    return decoded(payload[1:])


def encoded(table: pa.Table) -> bytes:
    """A table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decoded(payload: bytes) -> pa.Table:
    """The table of `encoded`."""
    return pa.ipc.open_stream(pa.py_buffer(payload)).read_all()


def _table_of(told: Told) -> pa.Table:
    """Changes as columns: time, arguments, expiry, start, diff."""
    schema, moves = told.schema, told.moves
    nulls = moves[:, schema.nulls]

    def array(place: int) -> pa.Array:
        words = np.ascontiguousarray(moves[:, place])
        return column_of(words, schema.kind(place), nulls >> place & 1).to_arrow(told.texts)

    arrays = [array(place) for place in range(schema.expiry)]
    arrays += [_words(moves, schema.expiry), _words(moves, -2), _words(moves, -1)]
    names = [*map(str, range(schema.expiry)), EXPIRY, START, DIFF]
    return pa.Table.from_arrays(arrays, names)


def _words(moves: I64Array, column: int) -> pa.Array:
    return pa.array(np.ascontiguousarray(moves[:, column]))


def _change_of(table: pa.Table, schema: Schema, texts: Texts) -> Change:
    rows = np.zeros((table.num_rows, schema.columns + 3), np.int64)
    for place in range(schema.expiry):
        column = Column.of_arrow(schema.kind(place), _joined(table.column(place)), texts)
        rows[:, place] = words_of_column(column)
        if column.nulls is not None:
            rows[:, schema.nulls] |= column.nulls.astype(np.int64) << place
    rows[:, schema.expiry] = table.column(EXPIRY).to_numpy()
    rows[:, -3], rows[:, -2] = table.column(START).to_numpy(), END_WORD
    rows[:, -1] = table.column(DIFF).to_numpy()
    return rows


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
