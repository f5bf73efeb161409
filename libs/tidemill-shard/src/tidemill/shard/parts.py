"""Parts: sorted, consolidated update tables as bytes, with the statistics that let readers skip them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.arrangement.updates import consolidate
from tidemill.shard.state import Part
from tidemill.time import Corrupt, UsageError

PART_BYTES_MAX = 64 * 1024 * 1024
INLINE_BYTES_MAX = 4 * 1024
ROWS_PER_GROUP = 64 * 1024
_PARQUET_MAGIC = b"PAR1"


def conform(updates: pa.Table, schema: pa.Schema) -> pa.Table:
    """The updates with exactly the columns and types of `schema` (data columns, `_time`, `_diff`).

    Raises: UsageError naming a column that is missing, unknown, or does not fit its type.
    """
    unknown = set(updates.column_names) - set(schema.names)
    missing = set(schema.names) - set(updates.column_names)
    if unknown or missing:
        raise UsageError(
            f"updates do not fit the schema: missing {sorted(missing)}, unknown {sorted(unknown)}",
            reason="CodecMismatch",
        )
    ordered = updates.select(schema.names)
    if ordered.schema.equals(schema):
        return ordered
    try:
        return ordered.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(
            f"updates do not fit the schema: {error}", reason="CodecMismatch"
        ) from error


def sort_key(schema: pa.Schema, key: Sequence[str]) -> tuple[str, ...]:
    """The columns of a collection in the order in which its parts are sorted: the key first."""
    lanes = {"_time", "_diff"}
    rest = [name for name in schema.names if name not in key and name not in lanes]
    return (*key, *rest)


def sorted_updates(updates: pa.Table, key: Sequence[str]) -> pa.Table:
    """Consolidated and sorted by (key, other columns, _time), columns as they came."""
    names = updates.column_names
    order = [*sort_key(updates.schema, key), "_time", "_diff"]
    return consolidate(updates.select(order)).select(names)


def encode_parts(
    updates: pa.Table, key: Sequence[str], *, inline_bytes_max: int = INLINE_BYTES_MAX
) -> Iterator[tuple[Part, bytes]]:
    """Parts of sorted, consolidated updates, each with its bytes; none for no updates.

    A part without a blob key yet has `inline` set iff its bytes are small enough to live in the log.
    Cost: one encoding of the data.
    """
    if not updates.num_rows:
        return
    rows_max = max(1, PART_BYTES_MAX * updates.num_rows // max(updates.nbytes, 1))
    for start in range(0, updates.num_rows, rows_max):
        piece = updates.slice(start, rows_max)
        data = _encode(piece, small=piece.nbytes <= 8 * inline_bytes_max)
        yield describe(piece, data, key, inline=len(data) <= inline_bytes_max), data


def describe(piece: pa.Table, data: bytes, key: Sequence[str], *, inline: bool) -> Part:
    """The statistics of one part."""
    time_min, time_max = _extremes(piece["_time"])
    return Part(
        rows=piece.num_rows,
        size=len(data),
        checksum=checksum(data),
        time_min=time_min,
        time_max=time_max,
        inline=data if inline else None,
        bounds=dict(_bounds(piece, key)),
    )


def _bounds(piece: pa.Table, key: Sequence[str]) -> Iterator[tuple[str, tuple[object, object]]]:
    """Least and greatest value of the columns that filters may name: numbers, text, booleans."""
    for name in piece.column_names[:-2]:
        column = piece[name]
        if column.null_count == len(column) or not _comparable(column.type):
            continue
        least, greatest = _extremes(column)
        if isinstance(greatest, str) and len(greatest) > 64:
            continue
        yield name, (least, greatest)


def _extremes(column: Any) -> tuple[Any, Any]:
    """(least, greatest) value of a column."""
    return pc.min(column).as_py(), pc.max(column).as_py()


def _comparable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind))


def _encode(piece: pa.Table, *, small: bool) -> bytes:
    sink = pa.BufferOutputStream()
    if small:
        with pa.ipc.new_stream(sink, piece.schema) as writer:
            writer.write_table(piece.combine_chunks())
    else:
        pq.write_table(piece, sink, compression="zstd", row_group_size=ROWS_PER_GROUP)
    return bytes(sink.getvalue().to_pybytes())


def checksum(data: bytes) -> str:
    """What tells bytes apart that differ in one bit."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def decode_part(data: bytes, part: Part, schema: pa.Schema, where: str) -> pa.Table:
    """The updates of a part. Raises: Corrupt if the bytes are not the ones that were written."""
    if checksum(data) != part.checksum:
        raise Corrupt(f"the part {where} does not have the bytes that were written", object=where)
    if data[:4] == _PARQUET_MAGIC:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
    else:
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    if table.schema.equals(schema):
        return table
    return _grown(table, schema, where)


def _grown(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """A part written before nullable columns were added."""
    columns = []
    for column in schema:
        if column.name in table.column_names:
            columns.append(table[column.name].cast(column.type))
        elif column.nullable:
            columns.append(pa.nulls(table.num_rows, column.type))
        else:
            raise Corrupt(f"the part {where} lacks the column {column.name}", object=where)
    return pa.Table.from_arrays(columns, schema=schema)


def may_match(part: Part, equal: Mapping[str, object]) -> bool:
    """Whether a part may hold a row with these column values, by its statistics."""
    for name, value in equal.items():
        limits = part.bounds.get(name)
        if limits is None or value is None:
            continue
        least, greatest = limits
        try:
            if value < least or value > greatest:  # type: ignore[operator]  # one column, one type
                return False
        except TypeError:
            continue
    return True


def key_hashes(table: pa.Table, key: Sequence[str]) -> np.ndarray:
    """A 64-bit hash of each row's key columns, the same on every machine.

    Equal keys have equal hashes; a whole number and its float are different columns, hence
    different hashes never meet. Cost: O(rows).
    """
    names = list(key) or [name for name in table.column_names if name not in ("_time", "_diff")]
    hashes = np.full(table.num_rows, 0x9E3779B97F4A7C15, np.uint64)
    with np.errstate(over="ignore"):
        for name in names:
            hashes = (hashes ^ _column_hashes(table[name])) * np.uint64(0xFF51AFD7ED558CCD)
            hashes ^= hashes >> np.uint64(32)
    return hashes


def _column_hashes(column: Any) -> np.ndarray:
    """One number for each value; equal values, equal numbers."""
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    values = np.array(
        [
            int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "little")
            for value in encoded.dictionary.to_pylist()
        ]
        + [0],
        np.uint64,
    )
    places = encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    hashes: np.ndarray = values[places]
    return hashes
