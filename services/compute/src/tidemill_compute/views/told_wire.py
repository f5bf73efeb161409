"""Changes that fragments tell one another, as columns.

Sets, and all that a fact carries, have the place of their value among the different ones. These
come once beside the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import pack_table, unpack_table
from tidemill.arrangement.column_types import column_type
from tidemill.arrangement.interval_updates import END_WORD, Change
from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.updates import one_array
from tidemill.datalog.columns.column import Column
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import DataflowEngine, OutputChanges, Schema
from tidemill.datalog.dataflow.schema import (
    NUMBERED,
    column_of,
    record_of,
    word_of,
    words_of_column,
)
from tidemill.datalog.lattices import TALLIES, Tally
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.placement import Place
from tidemill.datalog.placement.column_hashes import KeyColumn, spots_of_columns
from tidemill.datalog.placement.hashing import NULL, hash_of
from tidemill_compute.views.packed_values import pack_values, unpack_values
from tidemill_compute.views.range_wire import Dealt, dealt_table

EXPIRY, START, END, DIFF = "expiry", "start", "end", "diff"
CARRIED, LATTICE = "carried", "@"
"""The column of all that a fact carries; before the name of a lattice that has a column."""
_COUNTED = TALLIES | {"count_distinct"}
"""Lattices whose value alone does not say what was counted."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    table: bytes
    values: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Told:
    """Changes of facts: columns of time and arguments, then lattices, expiry, start, end, diff.

    A column with `values` holds places among them. Columns of keys have their position as name.
    """

    table: pa.Table
    values: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, told: OutputChanges, *, whole: bool, parts: bool) -> Told:
        """The changes as others read them. Cost: O(changes), and different values in Python.

        Facts of a `whole` predicate take the contributions to their tallies along. Readers
        of `parts` of groups have columns in place of what these carry.
        """
        schema, moves = told.schema, told.moves
        carried: Sequence[Any] = ()
        if schema.carrying:
            places, carried = told.shown(whole=whole)
            moves = moves.copy()
            moves[:, schema.carried] = places
            moves = summed(moves)
        rows, columns, values = intervals_of(moves), dict[str, pa.Array](), dict[str, Any]()
        nulls = rows[:, schema.nulls]
        for at in range(schema.expiry):
            words, null = np.ascontiguousarray(rows[:, at]), nulls >> at & 1
            if schema.kind(at) in NUMBERED:
                known, places = np.unique(np.where(null, 0, words), return_inverse=True)
                columns[str(at)] = pa.array(places.astype(np.int32), mask=null != 0)
                values[str(at)] = [*map(schema.values.value, known.tolist())]
            else:
                columns[str(at)] = column_of(words, schema.kind(at), null).to_arrow(told.texts)
        lattices = sorted((n, at) for at, (n, _) in enumerate(schema.lattices, schema.expiry + 1))
        for name, at in lattices:
            found = column_of(np.ascontiguousarray(rows[:, at]), schema.kind(at), nulls >> at & 1)
            columns[str(len(columns)) if parts else LATTICE + name] = found.to_arrow(told.texts)
        if schema.carrying:
            places_of = pa.array(rows[:, schema.carried].astype(np.int32))
            for each in zip(*map(_flat, carried), strict=True) if parts else [carried]:
                name = str(len(columns)) if parts else CARRIED
                columns[name], values[name] = places_of, each
        for name, at in ((EXPIRY, schema.expiry), (START, -3), (END, -2), (DIFF, -1)):
            columns[name] = pa.array(np.ascontiguousarray(rows[:, at]))
        return cls(pa.table(columns), values)

    @classmethod
    def unpack(cls, payload: bytes) -> Told:
        """The changes of `pack`. Raises: Corrupt."""
        packed = msgspec.msgpack.decode(payload, type=_Packed)
        values = {name: unpack_values(each) for name, each in packed.values.items()}
        return cls(unpack_table(packed.table), values)

    def pack(self, table: pa.Table) -> bytes:
        """Some of the rows, with the values that they have."""
        values = {}
        for name, known in self.values.items():
            places = one_array(table.column(name))
            of = places.fill_null(0).to_numpy()
            used = np.zeros(len(known), np.bool_)
            used[of] = True
            fewer = (np.cumsum(used) - 1).astype(np.int32)[of]
            at = table.column_names.index(name)
            null = places.is_null().to_numpy(zero_copy_only=False)
            table = table.set_column(at, name, pa.array(fewer, mask=null))
            values[name] = pack_values([known[each] for each in np.flatnonzero(used).tolist()])
        return msgspec.msgpack.encode(_Packed(pack_table(table), values))

    def key_column(self, at: int) -> KeyColumn:
        """A column of keys by its position."""
        column = one_array(self.table.column(at))
        known = self.values.get(str(at))
        if known is None:
            return column
        hashes = np.array([*map(hash_of, known)], np.uint64)[column.fill_null(0).to_numpy()]
        null = column.is_null().to_numpy(zero_copy_only=False)
        return np.where(null, np.uint64(NULL), hashes)


def _flat(carried: Sequence[tuple[str, Any]]) -> list[Any]:
    """The values that a fact of a group carries, by names of lattices."""
    found: list[Any] = []
    for _, value in carried:
        found += value if isinstance(value, tuple) else [value]
    return found


def dealt_told(stage: int, name: str, place: Place, ranges: int, told: Told) -> Iterator[Dealt]:
    """Changes that a fragment tells, in the ranges where they are wanted."""
    return dealt_table(stage, name, place, ranges, told.table, told.key_column, told.pack)


def feed_told(engine: DataflowEngine, name: str, payloads: Sequence[bytes], texts: Texts) -> None:
    """Give a fragment the changes that others have told."""
    schema = engine.schema_of(name)
    if schema is None:
        return
    for payload in payloads:
        engine.feed(name, _change_of(Told.unpack(payload), schema, texts))


def spots_in(
    payload: bytes, place: Place, key_of: Callable[[pa.Table], Sequence[pa.Array]] | None
) -> npt.NDArray[np.uint64]:
    """The spots of the keys of rows that were dealt out, maybe several times.

    `key_of` gives the key of the rows of an input; without it they are changes that were told.
    """
    if key_of is not None:
        return spots_of_columns(key_of(unpack_table(payload)))
    return spots_of_columns([*map(Told.unpack(payload).key_column, place.positions)])


def told_between(payload: bytes, lower: int, upper: int) -> Iterator[bytes]:
    """The changes that were told of [lower, upper), if there are any."""
    told = Told.unpack(payload)
    starts = told.table.column(START).to_numpy()
    kept = (starts >= lower) & (starts < upper)
    if kept.any():
        yield told.pack(told.table.filter(pa.array(kept)))


def told_before(payload: bytes, at: int) -> Iterator[bytes]:
    """The facts that changes leave there just before an instant, as changes of the one before."""
    told = Told.unpack(payload)
    table = told.table
    kept = (table.column(START).to_numpy() < at) & (table.column(END).to_numpy() >= at)
    table = table.filter(pa.array(kept))
    if table.num_rows:
        place = table.schema.get_field_index(START)
        starts = pa.array(np.full(table.num_rows, at - 1, np.int64))
        yield told.pack(table.set_column(place, START, starts))


def _change_of(told: Told, schema: Schema, texts: Texts) -> Change:
    table = told.table
    rows = np.zeros((table.num_rows, schema.columns + 3), np.int64)
    read = {str(at): at for at in range(schema.expiry)}
    read |= {LATTICE + n: at for at, (n, _) in enumerate(schema.lattices, schema.expiry + 1)}
    for name, at in read.items():
        words, null = _words(told, name, schema.kind(at), schema, texts)
        rows[:, at] = words
        if null is not None:
            rows[:, schema.nulls] |= null.astype(np.int64) << at
    for at, name in ((schema.expiry, EXPIRY), (-3, START), (-2, END), (-1, DIFF)):
        rows[:, at] = table.column(name).to_numpy()
    if schema.carrying:
        rows[:, schema.carried] = _carried(told, schema, rows, texts)
    return rows


def _words(
    told: Told, name: str, kind: Type, schema: Schema, texts: Texts
) -> tuple[I64Array, BoolArray | None]:
    """The words of a column and where it is null. Raises: OtherType, Unsuited."""
    array, known = one_array(told.table.column(name)), told.values.get(name)
    if known is None and kind not in NUMBERED:
        column = Column.of_arrow(kind, array, texts)
        return words_of_column(column), column.nulls
    if known is None:
        array, known = _coded(array, texts)
    found = [word_of(each, kind, texts, schema.values) for each in known] or [(0, True)]
    places = array.fill_null(0).to_numpy()
    null = array.is_null().to_numpy(zero_copy_only=False)
    null |= np.array([each for _, each in found])[places]
    words = np.array([word for word, _ in found], np.int64)[places]
    return np.where(null, 0, words), null


def _coded(array: pa.Array, texts: Texts) -> tuple[pa.Array, list[Any]]:
    """The places of the values of a column, and its different values."""
    coded = array.dictionary_encode()
    kind = Type((column_type(array.type) or "").partition("(")[0])
    return coded.indices, Column.of_arrow(kind, coded.dictionary, texts).python(texts)


def _carried(told: Told, schema: Schema, rows: Change, texts: Texts) -> I64Array:
    """The numbers of what facts carry."""
    if CARRIED in told.values:
        places, known = told.table.column(CARRIED).to_numpy(), told.values[CARRIED]
    else:
        names = [name for name in told.table.column_names if name.startswith(LATTICE)]
        coded = [_coded(one_array(told.table.column(name)), texts) for name in names]
        places, known = _combined(names, coded, len(rows))
    counted = [
        any(name in _COUNTED and not isinstance(v, Tally) for name, v in each) for each in known
    ]
    given = schema.values.given
    if not any(counted):
        first = record_of(schema, rows[0].tolist(), texts)
        numbers = [given(replace(first, parafacts=each)) for each in known]
        found: I64Array = np.array(numbers, np.int64)[places]
        return found
    # Contributions to a count have the fact in their identity.
    return np.fromiter(
        (
            given(replace(record_of(schema, row, texts), parafacts=known[at]))
            for row, at in zip(rows.tolist(), places.tolist(), strict=True)
        ),
        np.int64, len(rows),
    )  # fmt: skip


def _combined(
    names: Sequence[str], coded: Sequence[tuple[pa.Array, list[Any]]], rows: int
) -> tuple[I64Array, list[tuple[tuple[str, Any], ...]]]:
    """The places of the parafacts of rows that have a column for each lattice, and these."""
    columns = np.zeros((rows, len(names)), np.int64)
    for at, (indices, known) in enumerate(coded):
        known.append(None)
        columns[:, at] = indices.fill_null(len(known) - 1).to_numpy()
    different, places = np.unique(columns, axis=0, return_inverse=True)
    lattices = [name.removeprefix(LATTICE) for name in names]
    found = [
        tuple((n, known[at]) for n, (_, known), at in zip(lattices, coded, each, strict=True))
        for each in different.tolist()
    ]
    return places.reshape(-1), found


def summed(moves: I64Array) -> I64Array:
    """Moves (columns, instant, diff) of which equal ones are one; opposite ones are none."""
    if len(moves) < 2:
        return moves
    hashes = _hashes(moves, moves.shape[1] - 1)
    ordered = moves[np.argsort(hashes, kind="stable")]
    begins = np.flatnonzero(np.append(True, (ordered[1:, :-1] != ordered[:-1, :-1]).any(axis=1)))
    if len(begins) == len(ordered):
        return moves
    found = ordered[begins]
    found[:, -1] = np.add.reduceat(ordered[:, -1], begins)
    kept: I64Array = found[found[:, -1] != 0]
    return kept


def _hashes(moves: I64Array, columns: int) -> npt.NDArray[np.uint64]:
    hashes = np.zeros(len(moves), np.uint64)
    with np.errstate(over="ignore"):
        for column in range(columns):
            hashes = (hashes ^ moves[:, column].view(np.uint64)) * _SPREAD
            hashes ^= hashes >> np.uint64(29)
    return hashes


def intervals_of(moves: I64Array) -> Change:
    """Moves (columns, instant, diff) as interval updates: where a row begins and ends, one of both.

    Moves without a partner have no end. Cost: one sort.
    """
    hashes = _hashes(moves, moves.shape[1] - 2)
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
