"""Facts between two fragments of a view: as columns where they have some, else one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import pack_table, unpack_table
from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.arrangement.kernels import I64Array
from tidemill.arrangement.updates import one_array
from tidemill.datalog.columns.column import Column
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine, OutputChanges, Schema
from tidemill.datalog.dataflow.schema import column_of, instant_word, words_of_column
from tidemill.datalog.logical.partial import flat
from tidemill.datalog.placement import Place
from tidemill.datalog.placement.column_hashes import (
    ranges_of_columns,
    ranges_of_spots,
    spots_of_columns,
)
from tidemill.datalog.placement.hashing import spot_of
from tidemill.datalog.records import Record
from tidemill.datalog.state import decode_fields, encode_fields

EXPIRY, START, END, DIFF = "expiry", "start", "end", "diff"
PAYLOAD_ROWS = 1 << 18
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_TABLE, _RECORDS = b"T", b"R"
ColumnOf: TypeAlias = "Callable[[int], pa.Array]"
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


def dealt_table(
    stage: int, name: str, place: Place, ranges: int, table: pa.Table, column: ColumnOf
) -> Iterator[Dealt]:
    """The rows of a table in the ranges where they are wanted; `column` gives one of a place."""
    if not table.num_rows:
        return
    if place.everywhere or not place.positions or ranges == 1:
        yield from _copies(stage, name, range(ranges if place.everywhere else 1), table)
        return
    spots = spots_of_columns([*map(column, place.positions)])
    numbers = ranges_of_spots(spots, ranges)
    if place.heavy:
        heavy = np.isin(spots, np.fromiter(place.heavy, np.uint64))
        if place.pieces:
            finer = ranges_of_columns([*map(column, place.pieces)], ranges)
            numbers = np.where(heavy, finer, numbers)
        else:
            yield from _copies(stage, name, range(ranges), table.filter(pa.array(heavy)))
            table, numbers = table.filter(pa.array(~heavy)), numbers[~heavy]
            if not table.num_rows:
                return
    order = np.argsort(numbers, kind="stable")
    table, numbers = table.take(pa.array(order)), numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    for begin, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        for payload in _payloads(table.slice(begin, end - begin)):
            yield Dealt(stage, int(numbers[begin]), name, payload)


def _copies(stage: int, name: str, ranges: Iterable[int], table: pa.Table) -> Iterator[Dealt]:
    """The same rows in each of some ranges."""
    for payload in _payloads(table):
        for number in ranges:
            yield Dealt(stage, number, name, payload)


def _payloads(table: pa.Table) -> Iterator[bytes]:
    """The rows of a table in pieces: whoever passes one holds it whole."""
    for begin in range(0, table.num_rows, PAYLOAD_ROWS):
        yield table_payload(table.slice(begin, PAYLOAD_ROWS))


def table_payload(table: pa.Table) -> bytes:
    """The rows of a table as `table_in` reads them."""
    return _TABLE + pack_table(table)


def dealt_told(
    stage: int, name: str, place: Place, ranges: int, told: OutputChanges, *, whole: bool,
    parts: bool = False,
) -> Iterator[Dealt]:  # fmt: skip
    """Changes that a fragment tells, in the ranges where they are wanted.

    Facts of a `whole` predicate take the contributions to their tallies along. Readers
    of `parts` of groups have columns in place of what these carry.
    """
    schema = told.schema
    if not schema.numbered and (parts or not schema.lattices):
        table = _table_of(told)
        yield from dealt_table(
            stage, name, place, ranges, table, lambda at: one_array(table.column(at))
        )
        return
    found: dict[int, list[tuple[str, int, int]]] = {}
    for at, record, diff in told.contributions() if whole else told.records():
        record = flat(record) if parts else record
        row = pack_fact(record), instant_word(at), diff
        for number in place.ranges_of(record, ranges):
            found.setdefault(number, []).append(row)
    for number, rows in sorted(found.items()):
        for begin in range(0, len(rows), PAYLOAD_ROWS):
            packed = msgspec.msgpack.encode(rows[begin : begin + PAYLOAD_ROWS])
            yield Dealt(stage, number, name, _RECORDS + packed)


def feed_told(engine: DataflowEngine, name: str, payloads: Sequence[bytes], texts: Texts) -> None:
    """Give a fragment the changes that others have told."""
    schema = engine.schema_of(name)
    if schema is None:
        return
    for payload in payloads:
        if payload[:1] == _TABLE:
            engine.feed(name, _change_of(unpack_table(payload[1:]), schema, texts))
            continue
        rows = _records_in(payload)
        engine.feed_records(name, [(unpack_fact(f), at, END_WORD, diff) for f, at, diff in rows])


def spots_in(
    payload: bytes, place: Place, key_of: Callable[[pa.Table], Sequence[pa.Array]] | None
) -> npt.NDArray[np.uint64]:
    """The spots of the keys of rows that were dealt out, maybe several times.

    `key_of` gives the key of the rows of an input; without it they are changes that were told.
    """
    if payload[:1] == _TABLE:
        table = unpack_table(payload[1:])
        if key_of is not None:
            return spots_of_columns(key_of(table))
        return spots_of_columns([one_array(table.column(at)) for at in place.positions])
    facts = [unpack_fact(fact) for fact, _, _ in _records_in(payload)]
    return np.array([spot_of(place.key_of(fact)) for fact in facts], np.uint64)


def told_between(payload: bytes, lower: int, upper: int) -> Iterator[bytes]:
    """The changes that were told of [lower, upper), if there are any."""
    if payload[:1] == _TABLE:
        table = unpack_table(payload[1:])
        starts = table.column(START).to_numpy()
        kept = (starts >= lower) & (starts < upper)
        if kept.any():
            yield table_payload(table.filter(pa.array(kept)))
        return
    rows = [row for row in _records_in(payload) if lower <= row[1] < upper]
    if rows:
        yield _RECORDS + msgspec.msgpack.encode(rows)


def told_before(payload: bytes, at: int) -> Iterator[bytes]:
    """The facts that changes leave there just before an instant, as changes of the one before."""
    if payload[:1] == _TABLE:
        table = unpack_table(payload[1:])
        kept = (table.column(START).to_numpy() < at) & (table.column(END).to_numpy() >= at)
        table = table.filter(pa.array(kept))
        if table.num_rows:
            place = table.schema.get_field_index(START)
            starts = pa.array(np.full(table.num_rows, at - 1, np.int64))
            yield table_payload(table.set_column(place, START, starts))
        return
    present: Counter[str] = Counter()
    for fact, begin, diff in _records_in(payload):
        present[fact] += diff if begin < at else 0
    rows = [(fact, at - 1, diff) for fact, diff in present.items() if diff]
    if rows:
        yield _RECORDS + msgspec.msgpack.encode(rows)


def _records_in(payload: bytes) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = msgspec.msgpack.decode(
        payload[1:], type=list[tuple[str, int, int]]
    )
    return found


def table_in(payload: bytes) -> pa.Table:
    """The table of rows that were dealt out as one."""
    return unpack_table(payload[1:])


def _table_of(told: OutputChanges) -> pa.Table:
    """Changes as columns: time, arguments, lattices by name, expiry, start, end, diff."""
    schema, rows = told.schema, intervals_of(told.moves)
    nulls = rows[:, schema.nulls]

    def array(place: int) -> pa.Array:
        words = np.ascontiguousarray(rows[:, place])
        return column_of(words, schema.kind(place), nulls >> place & 1).to_arrow(told.texts)

    lattices = sorted((name, at) for at, (name, _) in enumerate(schema.lattices, schema.expiry + 1))
    places = [*range(schema.expiry), *(at for _, at in lattices)]
    arrays = [array(place) for place in places]
    columns = (schema.expiry, -3, -2, -1)
    arrays += [pa.array(np.ascontiguousarray(rows[:, column])) for column in columns]
    names = [*map(str, range(len(places))), EXPIRY, START, END, DIFF]
    return pa.Table.from_arrays(arrays, names)


def intervals_of(moves: I64Array) -> Change:
    """Moves (columns, instant, diff) as interval updates: where a row begins and ends, one of both.

    Moves without a partner have no end. Cost: one sort.
    """
    hashes = np.zeros(len(moves), np.uint64)
    with np.errstate(over="ignore"):
        for column in range(moves.shape[1] - 2):
            hashes = (hashes ^ moves[:, column].view(np.uint64)) * _SPREAD
            hashes ^= hashes >> np.uint64(29)
    ordered = moves[np.lexsort((moves[:, -2], hashes))]
    alike = (ordered[1:, :-2] == ordered[:-1, :-2]).all(axis=1)
    opposite = (ordered[:-1, -1] > 0) & (ordered[:-1, -1] == -ordered[1:, -1])
    pairs = np.append(alike & opposite, False)[: len(moves)]
    kept = np.append(True, ~pairs)[:-1]  # an end that has its beginning before it is part of that
    rows = np.empty((len(moves), moves.shape[1] + 1), np.int64)
    rows[:, :-2], rows[:, -2], rows[:, -1] = ordered[:, :-1], END_WORD, ordered[:, -1]
    rows[:-1, -2][pairs[:-1]] = ordered[1:, -2][pairs[:-1]]
    found: Change = rows[kept]
    return found


def _change_of(table: pa.Table, schema: Schema, texts: Texts) -> Change:
    rows = np.zeros((table.num_rows, schema.columns + 3), np.int64)
    for place in range(schema.expiry):
        column = Column.of_arrow(schema.kind(place), one_array(table.column(place)), texts)
        rows[:, place] = words_of_column(column)
        if column.nulls is not None:
            rows[:, schema.nulls] |= column.nulls.astype(np.int64) << place
    rows[:, schema.expiry] = table.column(EXPIRY).to_numpy()
    for at, name in enumerate((START, END, DIFF), -3):
        rows[:, at] = table.column(name).to_numpy()
    return rows


def pack_fact(record: Record) -> str:
    """A fact with all that it shows, as one line of JSON."""
    fields: tuple[Any, ...] = (
        record.predicate, record.arguments, record.time, record.expires, record.parafacts
    )  # fmt: skip
    return encode_fields(fields)


def unpack_fact(fact: str) -> Record:
    """The fact of `pack_fact`."""
    return Record(*decode_fields(fact))
