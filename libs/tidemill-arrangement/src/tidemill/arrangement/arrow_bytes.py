"""Arrow out of bytes that somebody else wrote: read, and looked at whole, before any kernel sees
it.

Kernels of Arrow trust offsets, sizes and texts. Tables that are read here have
types that collections hold, and contents that their bytes bear out. Reading them takes no more
memory than was agreed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")

NESTING_MAX = 8
EXPANSION_MAX = 255
"""A block of LZ4 cannot become more bytes for each of its own."""
SCHEMA_BYTES_MAX = 256 << 10
"""Bytes of the schema of a collection that is made: some 5,000 columns, which are read in a
hundredth of a second. Stored ones are read however wide they are.
"""
_LANES_BYTES_MAX = 4 << 10
"""Rows have lanes of ours besides the columns of their collection."""

STORED = (
    "null, bool, whole numbers of 8 to 64 bits, floats of 32 and 64, decimals of a scale from 0, "
    "utf8, binary, dates, times, instants and durations, and lists and structs of these"
)
"""The types that a collection holds, in the words of the protos."""

_SCHEMA, _ROWS = "schema", "record batch"
_HEADER_FIELD = 2
_ORDER_FIELD, _LITTLE = 0, 0
_BUFFERS_FIELD, _COMPRESSION_FIELD = 2, 3
_LZ4 = 0


def is_stored(kind: pa.DataType) -> bool:
    """Whether a collection holds columns of a type: what is written of them comes back the same."""
    return pa.types.is_null(kind) or _comes_back(kind, NESTING_MAX)


@lru_cache(maxsize=1024)
def _comes_back(kind: pa.DataType, levels: int) -> bool:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return bool(levels > 0 and _comes_back(kind.value_type, levels - 1))
    if types.is_struct(kind):
        inner = [kind.field(at) for at in range(kind.num_fields)]
        names = {each.name for each in inner}
        # NB: a struct without fields takes no bytes, so that its rows are as many as it says.
        return (
            0 < len(names) == len(inner)
            and levels > 0
            and all(_comes_back(each.type, levels - 1) for each in inner)
        )
    if types.is_timestamp(kind):
        return kind.tz is None or _is_zone(kind)
    if types.is_decimal(kind):
        return bool(kind.scale >= 0)
    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width > 0)
    return any(
        is_one(kind)
        for is_one in (
            types.is_boolean, types.is_integer, types.is_float32, types.is_float64,
            types.is_string, types.is_large_string, types.is_binary, types.is_large_binary,
            types.is_date, types.is_time, types.is_duration,
        )
    )  # fmt: skip


def _is_zone(kind: pa.DataType) -> bool:
    try:
        pa.scalar(0, kind).as_py()
    except Exception:  # the base of zones of the machine raises what it likes
        return False
    return True


def check_columns(schema: pa.Schema) -> None:
    """Raise pa.ArrowInvalid for a name that comes twice, or a type that no collection holds."""
    if len(set(schema.names)) < len(schema):
        raise pa.ArrowInvalid(f"the columns {schema.names} are not distinct")
    for column in schema:
        column.name.encode()  # a name that is no UTF-8 shows here
        if not is_stored(column.type):
            raise pa.ArrowInvalid(
                f"the column {column.name} is {column.type}, which no collection holds; "
                f"there are {STORED}"
            )


def read_schema(data: bytes, bytes_max: int | None = None) -> pa.Schema:
    """A serialized schema, of columns that collections hold. Raises: pa.ArrowInvalid.

    One that a stranger sends has `bytes_max` at most, and is refused before it is read.
    """
    return _only_invalid(lambda: _schema_of(pa.ipc.read_message(pa.py_buffer(data)), bytes_max))


def refuse_wide(schema: pa.Schema) -> None:
    """Raise pa.ArrowInvalid for the schema of a collection that is too wide to be made."""
    _refuse_long(schema.serialize().size, SCHEMA_BYTES_MAX)


def pack_table(table: pa.Table) -> bytes:
    """A table as one Arrow stream, schema included, so that no row is still a table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpack_table(data: bytes) -> pa.Table:
    """The table of `pack_table`, of bytes that no stranger wrote: none is looked at."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def read_stream(data: bytes, *, foreign: bool = False) -> pa.Table:
    """The rows of one Arrow stream without compressed buffers and dictionaries.

    `foreign`: a stranger sends it, who may have a schema read that is as wide as one of a
    collection, and no wider. Raises: pa.ArrowInvalid, whatever is wrong with the bytes. Cost: reads
    every byte once.
    """
    return _only_invalid(lambda: _table_of(data, foreign))


def read_rows(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of one message of a stream with this schema; its buffers may be LZ4.

    Raises: pa.ArrowInvalid, whatever is wrong with the bytes. Cost: reads every byte once.
    """
    return _only_invalid(lambda: _rows_of(pa.ipc.read_message(pa.py_buffer(data)), schema))


def checked(rows: pa.Table) -> pa.Table:
    """`rows` that a reader of Arrow made of foreign bytes, after a look at all of them.

    Raises: pa.ArrowInvalid.
    """

    def looked_at() -> pa.Table:
        check_columns(rows.schema)
        rows.validate(full=True)
        return rows

    return _only_invalid(looked_at)


def _only_invalid(work: Callable[[], T]) -> T:
    """The value of `work`; every exception of it is pa.ArrowInvalid.

    The readers of Arrow raise what the place of a damage suggests: OSError, KeyError, errors of
    UTF-8.
    """
    try:
        return work()
    except pa.ArrowInvalid:
        raise
    except Exception as error:  # a decoder of foreign bytes, as said above
        raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from error


def _schema_of(message: pa.ipc.Message, bytes_max: int | None) -> pa.Schema:
    if message.type != _SCHEMA:  # which Arrow does not ask, and reads whatever it is as one
        raise pa.ArrowInvalid(f"a {message.type} where a schema belongs")
    header = message.metadata.to_pybytes()
    if bytes_max is not None:
        _refuse_long(len(header), bytes_max)
    _refuse_swapped(header)
    schema = pa.ipc.read_schema(message)
    check_columns(schema)
    return schema


def _refuse_long(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise pa.ArrowInvalid(f"its schema has {size:,} bytes, of {bytes_max:,} at most")


def _refuse_swapped(header: bytes) -> None:
    """Raise pa.ArrowInvalid where the most significant byte of a number comes first.

    A reader of single messages takes them as they are.
    """
    schema = _table_in(header, _root(header), _HEADER_FIELD)
    at = None if schema is None else _field(header, schema, _ORDER_FIELD)
    if at is not None and struct.unpack_from("<h", header, at)[0] != _LITTLE:
        raise pa.ArrowInvalid("its numbers are big-endian: send them little-endian")


def _table_of(data: bytes, foreign: bool) -> pa.Table:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    bytes_max = SCHEMA_BYTES_MAX + _LANES_BYTES_MAX if foreign else None
    schema = _schema_of(messages.read_next_message(), bytes_max)
    batches = []
    for message in messages:
        if _compression_of(message.metadata.to_pybytes()) is not None:
            raise pa.ArrowInvalid("its buffers are compressed: send them as they are")
        batches.append(_rows_of(message, schema))
    table = pa.Table.from_batches(batches, schema)
    if table.num_rows > 8 * len(data):
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(data)} bytes")
    return table


def _rows_of(message: pa.ipc.Message, schema: pa.Schema) -> pa.RecordBatch:
    if message.type != _ROWS:
        raise pa.ArrowInvalid(f"a {message.type} where rows belong")
    header = message.metadata.to_pybytes()
    _refuse_shared(header, message.body.size)
    codec = _compression_of(header)
    if codec is not None:
        if codec != _LZ4:
            raise pa.ArrowInvalid("its buffers are compressed, and not by LZ4")
        stated = _stated_bytes(header, message.body)
        if stated > EXPANSION_MAX * message.body.size:
            raise pa.ArrowInvalid(f"{message.body.size} bytes say that they stand for {stated}")
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def _refuse_shared(header: bytes, body_bytes: int) -> None:
    """Raise pa.ArrowInvalid where buffers lie upon each other.

    A thousand columns of the same bytes take as much memory as any others once they are sorted.
    """
    taken = sum(abs(length) for _, length in _buffers(header))
    if taken > body_bytes:
        raise pa.ArrowInvalid(f"its buffers of {taken} bytes share a body of {body_bytes}")


def _compression_of(header: bytes) -> int | None:
    """The number of the codec that a message of rows says; None if its buffers are as they are."""
    rows = _table_in(header, _root(header), _HEADER_FIELD)
    how = None if rows is None else _table_in(header, rows, _COMPRESSION_FIELD)
    if how is None:
        return None
    at = _field(header, how, 0)
    return _LZ4 if at is None else header[at]


def _buffers(header: bytes) -> list[tuple[int, int]]:
    """(offset, length) in the body of each buffer of a message of rows."""
    rows = _table_in(header, _root(header), _HEADER_FIELD)
    buffers = None if rows is None else _table_in(header, rows, _BUFFERS_FIELD)
    if buffers is None:
        return []
    (count,) = struct.unpack_from("<I", header, buffers)
    return [
        struct.unpack_from("<qq", header, at)
        for at in range(buffers + 4, buffers + 4 + 16 * count, 16)
    ]


def _stated_bytes(header: bytes, body: pa.Buffer) -> int:
    """The sum of what the compressed buffers of a message say they hold."""
    view = memoryview(body)
    return sum(
        abs(struct.unpack_from("<q", view, offset)[0])
        for offset, length in _buffers(header)
        if length >= 8
    )


# NB: the header of a message is a flatbuffer, of which pyarrow does not tell how rows are
# compressed.
def _root(header: bytes) -> int:
    return int(struct.unpack_from("<I", header, 0)[0])


def _field(header: bytes, table: int, number: int) -> int | None:
    """Place of a field of a table; None if it has its default."""
    described = table - struct.unpack_from("<i", header, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", header, described)[0]:
        return None
    inside = struct.unpack_from("<H", header, described + at)[0]
    return table + inside if inside else None


def _table_in(header: bytes, table: int, number: int) -> int | None:
    """Place that a field refers to; None if there is nothing."""
    at = _field(header, table, number)
    return None if at is None else at + int(struct.unpack_from("<I", header, at)[0])
