"""Admissible appends: columns and values that come back, diffs that can be added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, consolidate, shown_record
from tidemill.errors import Corrupt, UsageError

DIFF_MAX = 1 << 31
"""Copies of a record that one append adds or takes away: 2^32 appends add up within 64 bits."""
ROW_BYTES_MAX = 48 * 1024 * 1024
"""A longer row would find no room in an answer, whose messages have 64 MiB."""
INCOMING_BYTES_MAX = 1 << 20
"""Rows that come in are shorter: what views make of them has to find room as well."""

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 1, tzinfo=UTC) - _EPOCH
_LAST = datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH


def conform(updates: pa.Table, schema: pa.Schema) -> pa.Table:
    """The updates with exactly the columns and types of `schema` (data columns, `_time`, `_diff`).

    Raises: UsageError naming a column that is missing, unknown, null where it may not be, or does
    not fit its type.
    """
    ordered = updates if updates.schema.equals(schema) else _in_schema(updates, schema)
    nulls = [
        column.name
        for column in schema
        if (not column.nullable or column.name in (TIME, DIFF))
        and ordered.column(column.name).null_count
    ]
    if nulls:
        raise UsageError(f"updates do not fit the schema: nulls in {nulls}", reason="CodecMismatch")
    return ordered


def _in_schema(updates: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema` in their order and types. Raises: UsageError."""
    unknown = sorted(set(updates.column_names) - set(schema.names))
    missing = sorted(set(schema.names) - set(updates.column_names))
    if unknown or missing:
        raise UsageError(
            f"updates do not fit the schema: missing {missing}, unknown {unknown}",
            reason="CodecMismatch",
        )
    try:
        return updates.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(
            f"updates do not fit the schema: {error}", reason="CodecMismatch"
        ) from error


def admitted(
    updates: pa.Table, schema: pa.Schema, row_bytes_max: int, diff_max: int | None = DIFF_MAX
) -> pa.Table:
    """Updates of an append, checked and in the form that `conform` gives.

    Raises: UsageError as `conform` does, or for a diff beyond ± `diff_max` (None: 64 bits). Also
    for a day that no calendar has (before the year 1 or after 9999), and for a row of more than
    `row_bytes_max`. Cost: O(n) over diffs, dates and instants; O(columns) where all rows are short.
    """
    conforming = conform(updates, schema)
    if diff_max is not None:
        _check_diffs(conforming, diff_max)
    _check_calendar(conforming)
    at = _row_beyond(conforming, row_bytes_max)
    if at is not None:
        raise UsageError(
            f"row {at} takes {conforming.slice(at, 1).nbytes} bytes, of {row_bytes_max} at most "
            "(limits.row_bytes_max): no answer could carry it",
            reason="RowTooLong",
        )
    return conforming


def refuse_long(sizes: Iterable[int], bytes_max: int) -> None:
    """Raises: UsageError naming the first of rows from a client that has more than `bytes_max`."""
    for number, size in enumerate(sizes, 1):
        if size > bytes_max:
            raise UsageError(
                f"rows refused: row {number} has {size:,} bytes, more than {bytes_max:,} "
                "(limits.row_bytes); nothing was written",
                reason="RowTooLong",
            )


def refuse_long_rows(rows: pa.Table, bytes_max: int) -> None:
    """Refuse rows in columns that `refuse_long` would refuse.

    Cost: O(columns) where all rows together have fewer bytes.
    """
    at = _row_beyond(rows, bytes_max)
    if at is not None:
        refuse_long([0] * at + [rows.slice(at, 1).nbytes], bytes_max)


@contextmanager
def adding_up() -> Iterator[None]:
    """Sums of stored diffs that 64 bits do not hold are Corrupt: nobody who reads can do
    anything.
    """
    try:
        yield
    except UsageError as error:
        if error.details.get("reason") != "Overflow":
            raise
        raise Corrupt(str(error), row=error.details.get("row")) from error


def _row_beyond(rows: pa.Table, bytes_max: int) -> int | None:
    # NB: whole buffers are quickly added up, and never less than what the rows take of them.
    if rows.get_total_buffer_size() <= bytes_max or rows.nbytes <= bytes_max:
        return None
    if rows.num_rows == 1:
        return 0
    half = rows.num_rows // 2
    early = _row_beyond(rows.slice(0, half), bytes_max)
    if early is not None:
        return early
    late = _row_beyond(rows.slice(half), bytes_max)
    return None if late is None else half + late


def _check_diffs(updates: pa.Table, diff_max: int) -> None:
    diffs = updates.column(DIFF).to_numpy()
    if not len(diffs):
        return
    largest = max(-int(diffs.min()), int(diffs.max()))
    if largest * len(diffs) <= diff_max:
        return
    if largest <= diff_max:
        sizes = np.abs(diffs)
        if int(sizes.sum()) <= diff_max:
            return
        at = updates.schema.get_field_index(DIFF)
        sized = updates.set_column(at, updates.schema.field(at), pa.array(sizes))
        added = consolidate(sized.drop_columns([TIME]))
    else:
        added = updates
    beyond = added.filter((pc.field(DIFF) > diff_max) | (pc.field(DIFF) < -diff_max))
    if not beyond.num_rows:
        return
    raise UsageError(
        f"one append changes the multiplicity of the row {shown_record(beyond)} by more than "
        f"{diff_max}: sums of such diffs would not be exact; write it in several appends",
        reason="DiffTooGreat",
    )


def _check_calendar(updates: pa.Table) -> None:
    for field in updates.schema:
        if not _has_days(field.type):
            continue
        name = field.name
        for leaf in _leaves(updates.column(name)):
            bounds = _calendar(leaf.type)
            if bounds is None or not len(leaf):
                continue
            limits = pc.min_max(leaf.cast(pa.int32() if leaf.type.bit_width == 32 else pa.int64()))
            least, greatest = limits["min"].as_py(), limits["max"].as_py()
            if least is not None and not bounds[0] <= least <= greatest <= bounds[1]:
                raise UsageError(
                    f"updates do not fit the schema: the column {name} is {leaf.type} with a value "
                    "outside the years 1 to 9999",
                    reason="CodecMismatch",
                )


@lru_cache(maxsize=1024)
def _has_days(kind: pa.DataType) -> bool:
    """Whether there may be values of a type, or within one, that no calendar has."""
    return any(_calendar(leaf.type) for leaf in _leaves(pa.array([], kind)))


def _leaves(column: Any) -> Iterator[Any]:  # columns of any type
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(pc.list_flatten(column))
    elif pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            yield from _leaves(pc.struct_field(column, [at]))
    else:
        yield column


def _calendar(kind: pa.DataType) -> tuple[int, int] | None:
    """The least and the greatest value of a type that Python can name; None if it names all."""
    if pa.types.is_date32(kind):
        return _FIRST.days, _LAST.days
    if pa.types.is_date64(kind):
        return _FIRST.days * 86_400_000, _LAST.days * 86_400_000
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        # A zone may name the day before or after.
        per_day = 86_400 * _PER_SECOND[kind.unit]
        return (_FIRST.days + 1) * per_day, _LAST.days * per_day - 1
    if pa.types.is_duration(kind) and kind.unit in ("s", "ms"):
        most = timedelta.max.days * 86_400 * _PER_SECOND[kind.unit]
        return -most, most
    return None
