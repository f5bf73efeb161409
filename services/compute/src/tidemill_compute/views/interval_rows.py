"""Rows of collections as interval updates of a dataflow and back, without an object for a row.

A collection holds when a row begins and when it ends, in two updates; an event's row says its end.
So an event is one interval update, and its end, when that comes, says nothing new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.interval_updates import END_WORD, Change, rows_of
from tidemill.arrangement.kernels import BoolArray, I64Array
from tidemill.arrangement.updates import DIFF, TIME, one_array
from tidemill.catalog.record_rows import PredicateShape, endless, record_of, row_of
from tidemill.datalog.columns.column import Column, Unsuited
from tidemill.datalog.columns.spelling import MOMENTS, SPELLED
from tidemill.datalog.columns.texts import Texts
from tidemill.datalog.dataflow import OutputChanges, Schema
from tidemill.datalog.dataflow.schema import TIME as TIME_PLACE
from tidemill.datalog.dataflow.schema import column_of, rows_of_presences, words_of_column
from tidemill.datalog.dataflow.schema import record_of as told_record
from tidemill.datalog.logical.forms import Type
from tidemill.datalog.presence import END, ErrorMove, Presence
from tidemill.errors import Corrupt
from tidemill_compute.views.view_updates import update_table

INSTANT_MAX = END_WORD
"""Instants are below this one."""


def changes_of(
    updates: pa.Table, shape: PredicateShape, schema: Schema, texts: Texts, at: int | None = None
) -> Change:
    """Updates of an input as interval updates; with `at` they are all present from there on.

    Raises: Corrupt for columns of another type. Cost: O(rows), and a look-up for each text.
    """
    if shape.timed and at is None:
        updates = _beginning(updates, shape)
    if schema.numbered:
        return _changes_of_records(updates, shape, schema, texts, at)
    words: list[I64Array | int] = [0] * (schema.columns + 3)
    nulls: I64Array | int = 0 if shape.timed else 1 << TIME_PLACE

    def read(kind: Type, column: int) -> tuple[I64Array, BoolArray | None]:
        whole = one_array(updates.column(column))
        if pa.types.is_null(whole.type):
            whole = whole.cast(shape.schema.field(column).type)
        found = _column(kind, whole, texts)
        if found is None:
            raise Corrupt(
                f"input {shape.predicate}: column {updates.column_names[column]} is of type "
                f"{whole.type}, not {kind.value}"
            )
        return words_of_column(found), found.nulls

    read_as = [(at, kind, at - 1) for at, kind in enumerate(schema.kinds, 1)]
    if shape.timed:
        read_as.append((TIME_PLACE, Type.INT, shape.arguments))
    first = shape.arguments + 2 * shape.timed
    for column, (lattice, _) in enumerate(shape.lattices if schema.lattices else (), first):
        place = schema.place(lattice)
        assert place is not None
        read_as.append((place, schema.kind(place), column))
    for place, kind, column in read_as:
        words[place], null = read(kind, column)
        if null is not None:
            nulls = nulls | null.astype(np.int64) << place
    ends: I64Array | int = END_WORD
    if shape.timed:
        ends, endless_ = read(Type.INT, shape.arguments + 1)
        ends = ends if endless_ is None else np.where(endless_, END_WORD, ends)
    words[schema.expiry], words[schema.nulls] = ends, nulls
    starts = _instants(updates) if at is None else at
    words[-3:] = starts, ends, updates.column(DIFF).to_numpy()
    rows = rows_of(words, updates.num_rows)
    present = rows[:, -3] < rows[:, -2]
    found: Change = rows if bool(present.all()) else rows[present]
    return found


def _changes_of_records(
    updates: pa.Table, shape: PredicateShape, schema: Schema, texts: Texts, at: int | None
) -> Change:
    """Updates of facts that carry parafacts or have sets, one by one; see `changes_of`."""
    make = record_of(shape)
    columns = [updates.column(name).to_pylist() for name in shape.schema.names]
    rows = zip(*columns, strict=True) if columns else [()] * updates.num_rows
    starts = _instants(updates).tolist() if at is None else [at] * updates.num_rows
    presences = []
    for row, start in zip(rows, starts, strict=True):
        record = make(row)
        end = END if record.expires is None else record.expires
        presences.append(Presence(record, start, end))
    found = rows_of_presences(schema, presences, texts)
    found[:, -1] = updates.column(DIFF).to_numpy()
    return found[found[:, -3] < found[:, -2]]


def _beginning(updates: pa.Table, shape: PredicateShape) -> pa.Table:
    """Updates of events but for those at or after the end of the event, which say nothing new."""
    expires = updates.column(shape.arguments + 1)
    ends = np.asarray(pc.fill_null(expires, END_WORD).to_numpy(), np.int64)
    says = _instants(updates) < ends
    return updates if bool(says.all()) else updates.filter(pa.array(says))


def _instants(updates: pa.Table) -> npt.NDArray[np.int64]:
    times = np.asarray(updates.column(TIME).to_numpy(), np.uint64)
    instants: npt.NDArray[np.int64] = np.minimum(times, np.uint64(INSTANT_MAX)).astype(np.int64)
    return instants


def _column(kind: Type, array: pa.Array, texts: Texts) -> Column | None:
    if kind is Type.BOOL and array.type == pa.bool_():
        nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        flags = array.fill_null(False).to_numpy(zero_copy_only=False)
        return Column(kind, flags, nulls)
    if kind in MOMENTS or kind in SPELLED:
        try:
            return Column.of_arrow(kind, array, texts)
        except Unsuited:
            return None
    wanted = {Type.INT: (pa.int64(),), Type.FLOAT: (pa.float64(), pa.int64())}
    if array.type not in wanted.get(kind, (pa.string(),)):
        return None
    return Column.of_arrow(kind if kind in wanted else Type.TEXT, array, texts)


def updates_of(told: OutputChanges, shape: PredicateShape, lower: int) -> pa.Table:
    """Begins and ends of one predicate as updates of its collection, from `lower` on.

    Earlier instants become `lower`, where the view begins. Cost: O(updates).
    """
    moves, schema = told.moves, told.schema
    if schema.numbered:
        return _updates_of_records(told, shape, lower)
    nulls = moves[:, schema.nulls]
    some = nulls if bool(nulls.any()) else None

    def array(place: int, kind: Type) -> pa.Array:
        null = None if some is None else some >> place & 1
        return column_of(np.ascontiguousarray(moves[:, place]), kind, null).to_arrow(told.texts)

    arrays = [array(number, kind) for number, kind in enumerate(schema.kinds, 1)]
    if shape.timed:
        arrays.append(array(TIME_PLACE, Type.INT))
        ends, endless_ = moves[:, schema.expiry], moves[:, schema.expiry] == END_WORD
        # Rows in any order are the same bytes: what sorts them leaves nothing under a null.
        arrays.append(pa.array(np.where(endless_, 0, ends), mask=endless_))
    for name, _ in shape.lattices:
        place = schema.place(name)
        assert place is not None
        arrays.append(array(place, schema.kind(place)))
    arrays += [pa.repeat(pa.scalar(True), len(moves))] * len(shape.marked)
    arrays = [each.cast(field.type) for each, field in zip(arrays, shape.schema, strict=True)]
    times = np.maximum(moves[:, -2], lower).astype(np.uint64)
    arrays += [pa.array(times), pa.array(np.ascontiguousarray(moves[:, -1]))]
    fields = [*shape.schema, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _updates_of_records(told: OutputChanges, shape: PredicateShape, lower: int) -> pa.Table:
    """Begins and ends of facts that carry lattices or have sets, one by one; see `updates_of`."""
    make = row_of(shape)
    moves = [(make(record), int(max(at, lower)), diff) for at, record, diff in told.records()]
    return update_table(moves, shape.schema)


def without_endless(told: OutputChanges) -> tuple[OutputChanges, list[ErrorMove]]:
    """The changes of rows that a collection holds, and the errors of those with infinite values."""
    schema, moves = told.schema, told.moves
    if schema.numbered:
        infinite = np.array(
            [endless(told_record(schema, move, told.texts)) is not None for move in moves.tolist()],
            np.bool_,
        )
        return _apart(told, infinite)
    places = [at for at in range(schema.columns) if schema.kind(at) is Type.FLOAT]
    infinite = np.zeros(len(moves), np.bool_)
    for place in places:
        infinite |= np.isinf(np.ascontiguousarray(moves[:, place]).view(np.float64))
    return _apart(told, infinite)


def _apart(
    told: OutputChanges, infinite: npt.NDArray[np.bool_]
) -> tuple[OutputChanges, list[ErrorMove]]:
    schema, moves, failed = told.schema, told.moves, []
    if not infinite.any():
        return told, []
    for move in moves[infinite].tolist():
        text = endless(told_record(schema, move, told.texts))
        assert text is not None
        failed.append((text, move[-2], move[-1]))
    return OutputChanges(schema, moves[~infinite], told.texts), failed


def error_moves(found: Sequence[ErrorMove], lower: int) -> list[tuple[tuple[str], int, int]]:
    """Errors as rows of their collection, from `lower` on."""
    sums: dict[tuple[str, int], int] = {}
    for text, at, diff in found:
        key = text, max(at, lower)
        sums[key] = sums.get(key, 0) + diff
    return [((text,), at, diff) for (text, at), diff in sums.items() if diff]


class FailingTexts:
    """The errors that hold in some range: one text of two ranges is one error."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def take(self, errors: Iterable[ErrorMove]) -> list[ErrorMove]:
        """Errors that begin and held in no range before, and that end and hold in none any more."""
        found = []
        sums: Counter[tuple[int, str]] = Counter()
        for text, at, diff in errors:
            sums[at, text] += diff
        for (at, text), diff in sorted(sums.items()):
            before = self._counts[text]
            self._counts[text] += diff
            if bool(before) != bool(self._counts[text]):
                found.append((text, at, 1 if self._counts[text] else -1))
        self._counts = +self._counts
        return found
