"""Updates as Arrow columns: consolidate, advance, accumulate, cut by time.

An update table has its data columns first, then `_time: uint64` and `_diff: int64`. Records are
equal by value: nulls equal nulls, NaN equals NaN, negative zero is zero. Rows are ordered by the
data columns from left to right, then by time; nulls come last, NaN just before them, text by code
point.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.row_order import ROWS_MIN, order_of
from tidemill.errors import UsageError
from tidemill.time import U64_MAX, Frontier, sole_time

TIME = "_time"
DIFF = "_diff"

Column: TypeAlias = "pa.ChunkedArray[pa.Scalar[pa.DataType]]"
Values: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"

_I64_MAX = 2**63 - 1
_DIFF_FIELD = pa.field(DIFF, pa.int64())
# `pa.array` would import pandas where it is installed, in each process.
_TURNED = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(np.array([1, 0], np.int64))])


def update_schema(data: pa.Schema) -> pa.Schema:
    """The schema of updates to records with the columns of `data`."""
    return pa.schema([*data, pa.field(TIME, pa.uint64()), pa.field(DIFF, pa.int64())])


def data_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of `schema` that belong to the record, in their order."""
    return pa.schema([field for field in schema if field.name not in (TIME, DIFF)])


def empty_updates(data: pa.Schema) -> pa.Table:
    """No updates to records with the columns of `data`."""
    return update_schema(data).empty_table()


def stamp(rows: pa.Table, time: int, diff: int = 1) -> pa.Table:
    """Every row of `rows` as one update at `time` with the same `diff`.

    A table without columns still has rows: `pa.table({}).num_rows` is kept.
    """
    n = rows.num_rows
    stamped = _with_column(rows, TIME, np.full(n, time, dtype=np.uint64))
    return _with_column(stamped, DIFF, np.full(n, diff, dtype=np.int64))


def concatenate(tables: Sequence[pa.Table]) -> pa.Table:
    """The updates of all `tables`, which have the same columns; nothing is added up yet."""
    return pa.concat_tables([table.select(tables[0].column_names) for table in tables])


def negate(table: pa.Table) -> pa.Table:
    """The updates that undo those of `table`.

    Raises: UsageError if a diff is −2^63, which has no opposite.
    """
    diffs = _diffs(table)
    if len(diffs) and int(diffs.min()) < -_I64_MAX:
        raise UsageError("a diff of -2^63 has no opposite in 64 bits", reason="Overflow")
    return _with_column(table, DIFF, -diffs)


def consolidate(table: pa.Table) -> pa.Table:
    """The same collection with at most one update for each record and time, none of diff zero.

    Shapes: n rows in; m <= n rows out, sorted by (data columns, _time).
    Raises: UsageError if the diffs of one record and time add up to more than 64 bits hold.
    Cost: O(n log n) time, O(n) memory.
    Source: twin in tidemill.testkit.twins.collections, law in tests/test_arrangement_updates.py.
    """
    keys = [name for name in table.column_names if name != DIFF and name != TIME]
    if TIME in table.column_names:
        keys.append(TIME)
    table = _with_positive_zeros(table)
    if table.num_rows == 0 or _is_one_update(table):
        return table
    if table.num_rows == 2 and (pair := _pair_in_order(table, keys)) is not None:
        return pair
    table = _sorted(table, keys)
    starts = _run_starts(table, keys)
    sums = _sums(_diffs(table), starts, table)
    kept = np.flatnonzero(sums)
    if len(kept) < table.num_rows:
        table = table.take(starts[kept])
    return _with_column(table, DIFF, sums[kept])


def _is_one_update(table: pa.Table) -> bool:
    """Whether there is one row, with a diff that is not zero and of the type of diffs."""
    if table.num_rows != 1 or table.schema.field(DIFF) != _DIFF_FIELD:
        return False
    return bool(_diffs(table)[0])


def _pair_in_order(table: pa.Table, keys: Sequence[str]) -> pa.Table | None:
    """Two updates of different records or times, in order; None if that takes a closer look.

    One value goes and another comes: most small changes. Whole numbers and texts have the order of
    Arrow in Python.
    """
    if table.schema.field(DIFF) != _DIFF_FIELD or not bool(_diffs(table).all()):
        return None
    for name in keys:
        column = table.column(name)
        if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
            return None
        first, second = column.to_pylist()
        if first is None or second is None:
            return None
        if first != second:
            return table if first < second else table.take(_TURNED)
    return None


def advance(table: pa.Table, since: Frontier) -> pa.Table:
    """Replace each time by its representative under `since`, then consolidate.

    Accumulations at times beyond `since` are unchanged; detail not beyond it is lost. An empty
    `since` moves no time.

    Raises: UsageError if the diffs of one record and time overflow.
    Cost: O(n log n) time, O(n) memory.
    """
    if since.empty or table.num_rows == 0:
        return consolidate(table)
    times = np.maximum(_times(table), np.uint64(sole_time(since)))
    return consolidate(_with_column(table, TIME, times))


def accumulate(table: pa.Table, as_of: int) -> pa.Table:
    """The collection at `as_of`: each record once, with its multiplicity (not zero) in `_diff`.

    Negative multiplicities are returned as they are.

    Shapes: data columns and `_diff`, sorted by the data columns.
    Raises: UsageError if a multiplicity does not fit in 64 bits.
    Cost: O(n log n) time, O(n) memory.
    """
    until = None if as_of >= U64_MAX else as_of + 1
    return consolidate(between(table, 0, until).drop_columns([TIME]))


def overdrawn(table: pa.Table) -> pa.Table:
    """The updates after which their record is there less often than not at all, consolidated.

    Shapes: n rows in; m <= n rows out, sorted by (data columns, _time).
    Raises: UsageError if the diffs of one record and time overflow.
    Cost: O(n log n) time, O(n) memory.
    """
    table = consolidate(table)
    if table.num_rows == 0:
        return table
    starts = _run_starts(table, [n for n in table.column_names if n not in (TIME, DIFF)])
    diffs = _diffs(table)
    counts = np.cumsum(diffs)  # wraps beyond 64 bits, and back at the next record
    before = np.repeat(counts[starts] - diffs[starts], np.diff([*starts, len(diffs)]))
    return table.filter(pa.array(counts - before < 0))


def first_of_each(table: pa.Table, names: Sequence[str], by: str) -> pa.Table:
    """Of rows that are equal in all columns `names` the one with the least `by`, sorted by both.

    Shapes: n rows in; m <= n rows out. Cost: O(n log n) time, O(n) memory.
    """
    if table.num_rows < 2:
        return table
    table = _sorted(table, [*names, by])
    starts = _run_starts(table, names)
    return table if len(starts) == table.num_rows else table.take(pa.array(starts))


def ordered(table: pa.Table, names: Sequence[str]) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """The rows in the order of the columns `names`; which differ there from the row before.

    Rows that are equal in them stay in their order. Shapes: n rows in; n rows and n flags out.
    Cost: O(n log n) time, O(n) memory.
    """
    differs = np.zeros(table.num_rows, dtype=np.bool_)
    if table.num_rows:
        table = _sorted(table, names)
        differs[_run_starts(table, names)] = True
    return table, differs


def between(table: pa.Table, lower: int, upper: int | None) -> pa.Table:
    """The updates with lower <= _time < upper, in their order; `None` is no bound above."""
    if not table.num_rows:
        return table
    times = _times(table)
    kept: npt.NDArray[np.bool_] = np.ones(len(times), dtype=np.bool_)
    if lower > 0:
        kept &= times >= np.uint64(lower)
    if upper is not None and upper <= U64_MAX:
        kept &= times < np.uint64(upper)
    return table if bool(kept.all()) else table.filter(pa.array(kept))


def _sorted(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """`table` sorted by `keys`; itself, uncopied, if it is sorted already."""
    sortable = [name for name in keys if not pa.types.is_null(table.schema.field(name).type)]
    if not sortable or table.num_rows == 1:
        return table
    columns = [_comparable(table.column(name)) for name in sortable]
    order = order_of(columns) if table.num_rows >= ROWS_MIN else None
    if order is None:
        indices = pc.sort_indices(
            pa.table(columns, names=[str(at) for at in range(len(columns))]),
            sort_keys=[(str(at), "ascending") for at in range(len(columns))],
        )
        order = indices.to_numpy()
    return table if bool((order[1:] > order[:-1]).all()) else table.take(pa.array(order))


def one_array(column: pa.ChunkedArray[Any]) -> Values:
    """The values of a column side by side. Cost: a copy, unless they are that already."""
    if column.num_chunks == 1:
        return column.chunk(0)  # to combine one chunk copies it
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined


def _run_starts(table: pa.Table, keys: Sequence[str]) -> npt.NDArray[np.int64]:
    """The first row of each run of rows that are equal in all `keys`."""
    changed = np.zeros(table.num_rows, dtype=np.bool_)
    changed[0] = True
    for name in keys:
        column = _comparable(table.column(name))
        if not pa.types.is_null(column.type) and len(column) > 1:
            changed[1:] |= _differs_from_before(one_array(column))
            if bool(changed.all()):
                break
    return np.flatnonzero(changed)


def _differs_from_before(column: Values) -> npt.NDArray[np.bool_]:
    """Flags of the values of a column that differ from the value before.

    Most columns lack nulls: they are compared in one call.
    """
    if pa.types.is_integer(column.type) and not column.null_count:
        numbers = column.to_numpy()
        return np.asarray(numbers[1:] != numbers[:-1])
    here, before = column.slice(1), column.slice(0, len(column) - 1)
    differs = _flags(pc.not_equal(here, before))
    if column.null_count:
        differs |= _flags(here.is_null()) ^ _flags(before.is_null())
    if pa.types.is_floating(here.type):
        differs &= ~(_flags(pc.is_nan(here)) & _flags(pc.is_nan(before)))
    return differs


def _flags(column: object) -> npt.NDArray[np.bool_]:
    """A boolean Arrow column as NumPy, null read as false."""
    flags = cast("pa.BooleanArray", column)
    known = flags.fill_null(False) if flags.null_count else flags
    return np.asarray(known.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _comparable(column: Column) -> Column:
    """The column itself, or for types without an order their values as canonical text."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if not pa.types.is_nested(column.type):
        return column
    texts = [
        None if value is None else json.dumps(value, sort_keys=True, default=str)
        for value in (scalar.as_py() for scalar in column)
    ]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _with_positive_zeros(table: pa.Table) -> pa.Table:
    """`table` with negative zeros written as zero, so that equal records are the same bytes."""
    for at, field in enumerate(table.schema):
        if pa.types.is_float32(field.type) or pa.types.is_float64(field.type):
            positive = pc.add(table.column(at), pa.scalar(0.0)).cast(field.type)
            table = table.set_column(at, field, positive)
    return table


def shown_record(table: pa.Table, at: int = 0) -> str:
    """A record for a message, whatever it holds."""
    record = table.slice(at, 1).select(data_schema(table.schema).names)
    try:
        return json.dumps(record.to_pylist()[0], ensure_ascii=False, default=str)
    except (ValueError, OverflowError):  # a day that Python has no name for
        return str(record)


def _sums(
    diffs: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], table: pa.Table
) -> npt.NDArray[np.int64]:
    """The sum of each run of `diffs` of a sorted table, exactly or not at all."""
    largest = max(-int(diffs.min()), int(diffs.max()))
    if largest * len(diffs) <= _I64_MAX:
        return np.add.reduceat(diffs, starts)
    # Halves of 32 bits add up without overflow; the high half tells whether the sum fits.
    low: npt.NDArray[np.int64] = np.add.reduceat(diffs & 0xFFFFFFFF, starts)
    high: npt.NDArray[np.int64] = np.add.reduceat(diffs >> 32, starts) + (low >> 32)
    beyond = (high < -(2**31)) | (high >= 2**31)
    if bool(beyond.any()):
        row = shown_record(table, int(starts[int(beyond.argmax())]))
        raise UsageError(
            f"the diffs of one record add up to more than 64 bits hold: {row}",
            reason="Overflow",
            row=row,
        )
    return (high << 32) | (low & 0xFFFFFFFF)


def _times(table: pa.Table) -> npt.NDArray[np.uint64]:
    return np.asarray(table.column(TIME).to_numpy(), dtype=np.uint64)


def _diffs(table: pa.Table) -> npt.NDArray[np.int64]:
    return np.asarray(table.column(DIFF).to_numpy(), dtype=np.int64)


def _with_column(
    table: pa.Table, name: str, values: npt.NDArray[np.uint64] | npt.NDArray[np.int64]
) -> pa.Table:
    """`table` with this column set, in its place if it was there, else appended."""
    column = pa.array(values)
    at = table.schema.get_field_index(name)
    field = pa.field(name, column.type)
    return table.append_column(field, column) if at < 0 else table.set_column(at, field, column)
