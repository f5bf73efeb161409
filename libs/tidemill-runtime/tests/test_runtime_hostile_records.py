"""Records and schemas that nobody well-meaning writes: each is a letter, soon."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.runtime.formats import (
    AvroFormat,
    BadRow,
    Column,
    JsonFormat,
    ProtobufFormat,
    RowDecoder,
    columns,
)
from tidemill.runtime.formats.avro import AvroReader, parse_schema
from tidemill.runtime.formats.columns import NESTING_MAX, check_nesting

NEVER = 2**31 - 1


def zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def record(*fields: object, name: str = "R") -> dict[str, object]:
    named = [{"name": f"f{at}", "type": field} for at, field in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named}


def letter(schema: object, body: bytes, column: Column | None = None) -> str:
    """Why a record is bad."""
    column = column or Column("f0", "text")
    reader = AvroReader([column])
    text = schema if isinstance(schema, str) else json.dumps(schema)
    reader.know(1, text)
    rows, letters = RowDecoder([column], AvroFormat(), reader).decode(
        [0], [0], [b"\0\0\0\0\x01" + body]
    )
    assert not rows.num_rows
    reason: str = letters["reason"][0].as_py()
    return reason


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value is decided before the reader sees it, which would be busy for centuries."""

    def read(*_: object) -> None:
        raise AssertionError("the reader was asked")

    monkeypatch.setattr(fastavro, "schemaless_reader", read)


def test_s2_a_date_of_never_is_a_letter() -> None:
    schema = record({"type": "int", "logicalType": "date"})
    assert "after the year 9999" in letter(schema, zigzag(NEVER))
    assert "after the year 9999" in letter(schema, zigzag(-NEVER))


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "items",
    ["null", {"type": "fixed", "name": "F", "size": 0}, record(name="E"), record("null", name="N")],
    ids=["null", "fixed of 0", "no fields", "a field of null"],
)
@pytest.mark.parametrize("count", [2**60, -(2**60), 2**63 - 1, 1 - 2**63], ids=str)
def test_s2_items_that_take_no_bytes_are_counted_before_they_are_read(
    items: object, count: int
) -> None:
    schema = record("string", {"type": "array", "items": items})
    sized = zigzag(0) if count < 0 else b""
    body = zigzag(0) + zigzag(count) + sized + zigzag(0)
    assert "items that take no bytes" in letter(schema, body)


def test_s2_records_in_records_of_nothing_are_counted_when_the_schema_is_known() -> None:
    inner: Any = record("null", name="R0")
    for level in range(1, 20):
        inner = {
            "type": "record", "name": f"R{level}",
            "fields": [{"name": "a", "type": inner}, {"name": "b", "type": f"R{level - 1}"}],
        }  # fmt: skip
    assert "more than 100000 fields" in letter(record("string", inner), zigzag(0))


TREE = record("string", ["null", "R"])


@pytest.mark.usefixtures("unread")
def test_s2_a_value_of_a_schema_that_refers_to_itself_has_a_greatest_depth() -> None:
    assert "nested more than 100 levels deep" in letter(TREE, (zigzag(0) + zigzag(1)) * 200_000)


def test_values_of_a_schema_that_refers_to_itself_are_read_where_they_are_flat() -> None:
    reader = AvroReader([Column("f0", "text")])
    reader.know(1, json.dumps(TREE))
    body = zigzag(1) + b"a" + zigzag(1) + zigzag(1) + b"b" + zigzag(0)
    assert reader(b"\0\0\0\0\x01" + body) == ["a"]


@pytest.mark.usefixtures("unread")
def test_s2_a_record_of_itself_is_a_letter() -> None:
    assert "nested more than 100 levels deep" in letter(record("R"), b"")


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "string", "logicalType": "timestamp-millis"},
        {"type": "string", "logicalType": "decimal", "precision": 4, "scale": 2},
        {"type": "string", "logicalType": "date"},
        {"type": "string", "logicalType": 5},
        {"type": "string", "logicalType": ["date"]},
    ],
    ids=str,
)
def test_s2_a_logical_type_on_another_base_means_nothing(kind: object) -> None:
    reader = AvroReader([Column("f0", "text")])
    reader.know(1, json.dumps(record(kind)))
    assert reader(b"\0\0\0\0\x01" + zigzag(1) + b"a") == ["a"]


def test_s2_a_decimal_of_a_huge_scale_is_a_letter() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 10**9, "scale": 10**9}
    assert letter(record(kind), zigzag(1) + b"\x01")


def test_s2_a_schema_nested_deeply_is_a_letter() -> None:
    deep = '{"type":"array","items":' * 3_000 + '"null"' + "}" * 3_000
    assert "nested more than 100 levels deep" in letter(deep, b"")


@pytest.mark.parametrize(
    "text", ["[]", "{}", "5", "null", '{"type":{}}', '{"type":"record","name":"R","fields":[5]}']
)
def test_s2_a_schema_that_is_none_is_a_letter(text: str) -> None:
    assert letter(text, b"")


def test_s2_the_letter_names_the_class_of_what_was_raised() -> None:
    class Odd(AvroReader):
        def __call__(self, value: bytes | None) -> list[object]:
            raise ZeroDivisionError("nobody foresaw this")

    column = Column("f0", "text")
    reader = Odd([column])
    reader.know(1, json.dumps(record("string")))
    _, letters = RowDecoder([column], AvroFormat(), reader).decode([0], [0], [b"\0\0\0\0\x01"])
    assert letters["reason"].to_pylist() == [
        "cannot be read: ZeroDivisionError: nobody foresaw this"
    ]


def test_items_of_schemas_without_such_types_are_not_counted() -> None:
    plain = record(
        "string", {"type": "array", "items": "string"}, {"type": "map", "values": "null"}
    )
    assert not parse_schema(json.dumps(plain)).skimming.unbounded
    assert parse_schema(json.dumps(TREE)).skimming.unbounded


def descriptors(**changes: Any) -> bytes:
    item = descriptor_pb2.DescriptorProto(name="Item")
    item.field.add(name="price", number=1, type=1, label=1)
    order = descriptor_pb2.DescriptorProto(name="Order")
    order.field.add(name="items", number=1, type=11, label=3, type_name=".Item")
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", syntax="proto3", **changes)
    file.message_type.extend([item, order])
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def test_s3_a_column_below_a_repeated_message_is_refused_when_it_is_named() -> None:
    with pytest.raises(UsageError, match=r"items\.price is or is in items, a repeated field"):
        RowDecoder([Column("items.price", "float")], ProtobufFormat(descriptors(), "Order"))


@pytest.mark.parametrize("name", ["google/protobuf/nothing.proto", "google/protobuf/../x.proto"])
def test_s3_a_file_that_protobuf_does_not_have_is_refused(name: str) -> None:
    written = ProtobufFormat(descriptors(dependency=[name]), "Order")
    with pytest.raises(UsageError, match="protobuf has no file"):
        RowDecoder([Column("items", "text")], written)


def test_a_schema_may_be_of_use_to_none() -> None:
    with pytest.raises(BadRow, match="its schema cannot be read"):
        parse_schema("not json")


def test_a4_half_of_a_surrogate_pair_in_a_schema_makes_a_letter() -> None:
    schema = r'{"type": "record", "name": "R", "fields": [{"name": "f0", "type": "t\ud800"}]}'
    assert r"t\ud800" in letter(schema, b"\0")


def depth_of(value: bytes) -> int:
    """The greatest depth of brackets outside of texts, byte by byte."""
    depth, most, within, escaped = 0, 0, False, False
    for byte in value.decode("latin-1"):
        if within:
            within = escaped or byte != '"'
            escaped = byte == "\\" and not escaped
        elif byte == '"':
            within = True
        else:
            depth += (byte in "[{") - (byte in "]}")
            most = max(most, depth)
    return most


PIECES = st.one_of(
    st.sampled_from(["[", "[[[", "{", "]", "}", ","]), st.text('a"\\[{\n').map(json.dumps)
)


@given(st.lists(PIECES), st.sampled_from([1, 2, 7, 1 << 16]))
def test_the_depth_of_a_record_is_that_of_its_brackets_outside_of_texts(
    pieces: list[str], slice_bytes: int
) -> None:
    value = ("[" * (NESTING_MAX - 3) + "".join(pieces)).encode()
    refused = False
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(columns, "_SLICE_BYTES", slice_bytes)
            check_nesting(value)
    except BadRow:
        refused = True
    assert refused == (depth_of(value) > NESTING_MAX)


@pytest.mark.parametrize("piece", [b"a", b"[", b'\\"', b"\\\\", b"\\n", b'","'])
def test_the_depth_of_a_long_record_is_found_without_a_loop_over_its_bytes(piece: bytes) -> None:
    """A text of 1 MB with a hundred brackets held the interpreter for a quarter of a second."""
    value = b'["' + b"[" * 200 + piece * ((1 << 20) // len(piece)) + b'"]'

    def lines_of(work: Callable[[bytes], object]) -> int:
        run = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal run
            run += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work(value)
        finally:
            sys.settrace(before)
        return run

    assert lines_of(depth_of) > len(value)
    assert lines_of(check_nesting) < len(value) / 100


def test_the_depth_of_a_long_record_is_found_in_the_memory_of_two_copies() -> None:
    """A dozen bytes were taken for each of a record's, and a record has up to 48 MB."""
    value = b'["' + b"[" * 200 + rb"a\\b\"" * (1 << 20) + b'"]'
    tracemalloc.start()
    try:
        check_nesting(value)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2.5 * len(value) + (4 << 20)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b'{"b": [%LISTS], "a": 5}', "the column a is int, not text"),
        (b'{"a": [%LISTS]}', "the column a is a list, not text"),
        (b'{"a": {"b": [%LISTS]}}', "the column a is an object, not text"),
        (b'{"b": [%LISTS]}', "the column a is missing"),
        (b"[%LISTS]", "not a JSON object"),
        (b'{"b": [%LISTS}', "not JSON: "),
    ],
)
def test_no_objects_are_made_to_say_why_a_record_is_bad(record: bytes, says: str) -> None:
    """Sixty-four megabytes of brackets were more than a gigabyte, for one letter."""
    value = record.replace(b"%LISTS", b",".join([b"[]"] * 1_000_000))
    decoder = RowDecoder([Column("a", "text")], JsonFormat())
    tracemalloc.start()
    try:
        rows, letters = decoder.decode([0], [0], [value])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.num_rows == 0
    assert says in letters["reason"][0].as_py()
    assert most < 3 * len(value) + (4 << 20)
