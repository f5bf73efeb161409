"""Columns of a collection as Spark has them: types that lose nothing, and batches of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.errors import UsageError

BATCH_ROWS = 100_000
"""Rows that cross from Python to the JVM at once."""
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}


def spark_type(kind: pa.DataType) -> pa.DataType:
    """The type in Arrow that Spark has for a column: a wider one for unsigned numbers.

    Times of a day are texts. Instants are of microseconds.
    """
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", spark_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, spark_type(f.type)) for f in kind])
    return kind


def lanes_of(schema: pa.Schema, *, time: bool = False, diff: bool = False) -> pa.Schema:
    """Data columns with `_time`, with `_diff`, or with both."""
    if time:
        schema = schema.append(pa.field(TIME, pa.uint64()))
    return schema.append(pa.field(DIFF, pa.int64())) if diff else schema


def shown_schema(schema: pa.Schema) -> pa.Schema:
    """Columns with the types that Spark has for them. `_time` is of milliseconds."""
    return pa.schema(
        [pa.field(f.name, pa.int64() if f.name == TIME else spark_type(f.type)) for f in schema]
    )


def struct_type(schema: pa.Schema) -> StructType:
    """The schema of a DataFrame with these columns, all of which may be null."""
    shown = shown_schema(schema)
    return StructType(
        [StructField(f.name, from_arrow_type(f.type, prefer_timestamp_ntz=True)) for f in shown]
    )


def chosen(schema: pa.Schema, wanted: StructType) -> list[str]:
    """The columns that a DataFrame names.

    Raises: UsageError for one that is not there, or is of another type.
    """
    known = {field.name: field.dataType for field in struct_type(schema)}
    for field in wanted:
        if field.name not in known:
            raise UsageError(
                f"there is no column {field.name}: {', '.join(known)}", reason="UnknownColumn"
            )
        if field.dataType != known[field.name]:
            raise UsageError(
                f"the column {field.name} is {known[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}: read it as it is, and cast it then",
                reason="UnknownColumn",
            )
    return [field.name for field in wanted]


def copies(table: pa.Table) -> pa.Table:
    """Each row as often as `_diff` says, without it. Raises: UsageError for a negative one."""
    diffs = table.column(DIFF)
    rows = table.drop_columns([DIFF])
    limits = pc.min_max(diffs).as_py()
    if limits["min"] == limits["max"] == 1:
        return rows
    if limits["min"] < 0:
        raise UsageError(
            "some multiplicities are negative: read the rows with their multiplicities, "
            "option('multiplicity', 'true')",
            reason="multiplicity",
        )
    return rows.take(pa.array(np.repeat(np.arange(table.num_rows), diffs.to_numpy())))


def batches(table: pa.Table, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns of these names as Spark has them, in batches of BATCH_ROWS at most.

    Raises: UsageError for a value that Spark's type cannot hold.
    """
    shown = shown_schema(pa.schema([table.schema.field(name) for name in names]))
    try:
        cast = table.select(list(names)).cast(shown)
    except pa.ArrowInvalid as error:
        raise UsageError(f"Spark cannot hold a value: {error}", reason="CodecMismatch") from error
    yield from cast.to_batches(max_chunksize=BATCH_ROWS)
