"""Arrow of somebody else: taken whole, or refused with one error, and never trusted."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tidemill.arrangement import arrow_bytes


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def texts(offsets: list[int], data: bytes) -> pa.Table:
    """A table whose texts are said to stand at `offsets`, whether they do or not."""
    where = pa.array(offsets, pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, where, pa.py_buffer(data)])
    return pa.table({"t": column})


def hostile() -> Iterator[tuple[str, pa.Table | bytes]]:
    yield "offsets that lie", texts([0, 10, 5, 13], b"abcdefghijklmn")
    yield "no UTF-8", texts([0, 2], b"\xff\xfe")
    yield "a bomb of zstd", stream(pa.table({"t": ["\0" * (1 << 20)]}), "zstd")
    yield "compressed with lz4", stream(pa.table({"t": ["x" * 4096]}), "lz4")
    yield "a dictionary", pa.table({"t": pa.array(["a"]).dictionary_encode()})
    yield "half floats", pa.table({"t": pa.array([1.0], pa.float16())})
    yield "no rows of anything", b"\xff\xff\xff\xff\x08\0\0\0garbage!"
    yield "nothing", b""
    yield "many nulls in no bytes", pa.table({"t": pa.nulls(1 << 20)})


@pytest.mark.parametrize(("what", "sent"), list(hostile()), ids=[what for what, _ in hostile()])
def test_s4_a_stream_that_lies_is_refused_before_a_kernel_sees_it(
    what: str, sent: pa.Table | bytes
) -> None:
    data = sent if isinstance(sent, bytes) else stream(sent)
    with pytest.raises(pa.ArrowInvalid):
        arrow_bytes.read_stream(data)


def test_a_stream_of_rows_comes_back() -> None:
    table = pa.table({"t": ["a", None], "n": [1, 2], "l": [[1.5], []]})
    assert arrow_bytes.read_stream(stream(table)).equals(table)
    assert arrow_bytes.read_stream(stream(table.slice(0, 0))).equals(table.slice(0, 0))


def big_endian(table: pa.Table) -> bytes:
    """A stream whose schema says that the most significant byte comes first."""
    plain = table.schema.serialize().to_pybytes()
    header = bytearray(plain[8:])
    (root,) = struct.unpack_from("<I", header, 0)
    found = root + field_of(header, root, 2)
    schema = found + struct.unpack_from("<I", header, found)[0]
    described = schema - struct.unpack_from("<i", header, schema)[0]
    (size,) = struct.unpack_from("<H", header, described)
    places = bytearray(header[described : described + size])
    struct.pack_into("<i", header, schema, schema - len(header))
    struct.pack_into("<H", places, 4, len(header) + size - schema)
    header += places + struct.pack("<h", 1)
    header += bytes(-len(header) % 8)
    return struct.pack("<Ii", 2**32 - 1, len(header)) + header + stream(table)[len(plain) :]


def field_of(header: bytes | bytearray, table: int, number: int) -> int:
    """The place of a field in a table of a flatbuffer."""
    described = table - struct.unpack_from("<i", header, table)[0]
    return int(struct.unpack_from("<H", header, described + 4 + 2 * number)[0])


def test_a_stream_whose_bytes_are_in_the_other_order_is_refused() -> None:
    sent = big_endian(pa.table({"n": [1]}))
    assert pa.ipc.open_stream(sent).read_all().to_pydict() == {"n": [1 << 56]}
    with pytest.raises(pa.ArrowInvalid, match="big-endian"):
        arrow_bytes.read_stream(sent)
    with pytest.raises(pa.ArrowInvalid, match="big-endian"):
        arrow_bytes.read_schema(sent)


def shared(columns: int) -> bytes:
    """A stream of so many columns of 1,000 numbers that all lie upon one body of 1,000 numbers."""
    size = 8_000
    data = stream(pa.table({f"n{at}": [7] * 1000 for at in range(columns)}))
    for at in range(columns):
        data = data.replace(struct.pack("<qq", at * size, size), struct.pack("<qq", 0, size))
    data = data.replace(struct.pack("<q", columns * size), struct.pack("<q", size))
    return data[: -8 - (columns - 1) * size] + data[-8:]


def test_columns_that_lie_upon_the_same_bytes_are_refused() -> None:
    """Bytes that stand for a hundred times as many took that memory when the rows were sorted."""
    sent = shared(100)
    assert len(sent) < 20_000
    assert pa.ipc.open_stream(sent).read_all().column("n99").to_pylist() == [7] * 1000
    with pytest.raises(pa.ArrowInvalid, match="share a body of 8000"):
        arrow_bytes.read_stream(sent)


def test_a_schema_of_columns_without_end_is_refused_before_it_is_read() -> None:
    """To look at 200,000 columns held the interpreter for half a second."""
    wide = pa.schema([(f"c{at}", pa.int64()) for at in range(10_000)])
    with pytest.raises(pa.ArrowInvalid, match="its schema has"):
        arrow_bytes.read_schema(wide.serialize().to_pybytes(), arrow_bytes.SCHEMA_BYTES_MAX)
    with pytest.raises(pa.ArrowInvalid, match="its schema has"):
        arrow_bytes.read_stream(stream(wide.empty_table()), foreign=True)
    with pytest.raises(pa.ArrowInvalid, match="its schema has"):
        arrow_bytes.refuse_wide(wide)
    some = pa.schema([(f"c{at}", pa.int64()) for at in range(1_000)])
    packed = some.serialize().to_pybytes()
    assert arrow_bytes.read_schema(packed, arrow_bytes.SCHEMA_BYTES_MAX) == some
    arrow_bytes.refuse_wide(some)


def test_what_is_stored_is_read_however_wide_it_is() -> None:
    wide = pa.schema([(f"c{at}", pa.int64()) for at in range(10_000)])
    assert arrow_bytes.read_schema(wide.serialize().to_pybytes()) == wide
    assert arrow_bytes.read_stream(stream(wide.empty_table())).schema == wide


def test_rows_of_the_widest_collection_can_be_sent_with_lanes_of_ours() -> None:
    columns = [pa.field(f"c{at}", pa.int64()) for at in range(5_000)]
    while pa.schema(columns).serialize().size > arrow_bytes.SCHEMA_BYTES_MAX:
        columns.pop()
    arrow_bytes.refuse_wide(pa.schema(columns))
    lanes = [pa.field("_time", pa.uint64()), pa.field("_diff", pa.int64())]
    sent = stream(pa.schema([*columns, *lanes]).empty_table())
    assert len(arrow_bytes.read_stream(sent, foreign=True).schema) == len(columns) + 2


def message(table: pa.Table, compression: str | None) -> bytes:
    """The rows alone, as the log of a collection holds them."""
    return stream(table, compression)[table.schema.serialize().size :]


def test_rows_of_the_log_may_be_lz4_and_state_no_more_than_it_can_hold() -> None:
    table = pa.table({"t": ["x" * 100_000]})
    data = message(table, "lz4")
    assert arrow_bytes.read_rows(data, table.schema).to_pylist() == table.to_pylist()
    size = (100_000).to_bytes(8, "little")
    bomb = data.replace(size, (1 << 40).to_bytes(8, "little"))
    assert bomb != data
    with pytest.raises(pa.ArrowInvalid, match="stand for"):
        arrow_bytes.read_rows(bomb, table.schema)
    with pytest.raises(pa.ArrowInvalid, match="not by LZ4"):
        arrow_bytes.read_rows(message(table, "zstd"), table.schema)


def test_a_schema_with_names_that_are_no_text_is_refused() -> None:
    data = pa.schema([("abcdefgh", pa.int64())]).serialize().to_pybytes()
    with pytest.raises(pa.ArrowInvalid):
        arrow_bytes.read_schema(data.replace(b"abcdefgh", b"abc\xff\xfefgh"))
