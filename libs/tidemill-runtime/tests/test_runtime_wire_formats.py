"""Text, bytes, Avro and Protobuf: what each type becomes, and a reason for every bad record."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.runtime.formats import (
    AvroFormat,
    BytesFormat,
    Column,
    ColumnKind,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RecordFormat,
    RowDecoder,
    TextFormat,
    lengths,
)
from tidemill.runtime.formats.avro import AvroReader

INSTANT = 1_372_932_000_123
MOMENT = datetime(2013, 7, 4, 10, 0, 0, 123_000, tzinfo=UTC)
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "whole", "type": {"type": "fixed", "name": "Sixteen", "size": 16, "logicalType": "uuid"}},
        {"name": "was", "type": ["null", "State"], "default": None},
        {"name": "address", "type": ["null", {"type": "record", "name": "Address", "fields": [
            {"name": "city", "type": "string"}, {"name": "lines", "type": {"type": "array", "items": "string"}}]}]},
        {"name": "either", "type": ["null", "long", "string"]},
    ],
}  # fmt: skip
VALUE = {
    "id": 7, "note": "ä", "price": Decimal("12.50"), "at": INSTANT * 1000, "day": 15_890, "state": "PAID",
    "raw": b"\0\xff", "whole": b"a" * 16, "was": "NEW", "address": {"city": "Oslo", "lines": []}, "either": 3,
}  # fmt: skip


def avro(value: object, schema: object = ORDER, number: int = 1) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)  # type: ignore[arg-type]  # JSON
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def reader(columns: list[Column], schema: object = ORDER) -> AvroReader:
    found = AvroReader(columns)
    found.know(1, json.dumps(schema))
    return found


def decoded(columns: list[Column], value: bytes | None, schema: object = ORDER) -> object:
    """The cells of one record, or the reason why it has none."""
    decoder = RowDecoder(columns, AvroFormat(), reader(columns, schema))
    rows, letters = decoder.decode([0], [5], [value])
    if letters.num_rows:
        return letters["reason"][0].as_py()
    return [rows[column.name][0].as_py() for column in columns]


@pytest.mark.parametrize(
    ("name", "kind", "cell"),
    [
        ("id", "int", 7), ("id", "float", 7.0), ("note", "text", "ä"), ("price", "text", "12.50"),
        ("price", "float", 12.5), ("at", "int", INSTANT), ("at", "text", "2013-07-04T10:00:00.123000Z"),
        ("day", "int", 15_890), ("day", "text", "2013-07-04"), ("state", "text", "PAID"),
        ("raw", "text", base64.b64encode(b"\0\xff").decode()), ("was", "text", "NEW"),
        ("address.city", "text", "Oslo"), ("either", "int", 3), ("gone", "bool", None),
        ("price", "decimal(6,2)", Decimal("12.50")), ("at", "timestamp", MOMENT),
        ("day", "date", MOMENT.date()), ("raw", "bytes", b"\0\xff"), ("whole", "uuid", b"a" * 16), ("id", "decimal(6,2)", Decimal("7.00")),
    ],
)  # fmt: skip
def test_a_type_of_avro_becomes_what_the_table_says(
    name: str, kind: ColumnKind, cell: object
) -> None:
    assert decoded([Column(name, kind, True)], avro(VALUE)) == [cell]


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("gone", "int", "the column gone is missing"),
        ("id", "text", "the column id is int, not text"),
        ("address", "text", "the column address is a record (name a field of it)"),
        ("address.lines", "text", "the column address.lines is an array"),
        ("price", "int", "the column price is 12.50, not a whole number"),
        ("either", "text", "the column either is int, not text"),
        ("price", "decimal(6,0)", "the column price is not decimal(6,0): 12.50"),
        ("note", "date", "the column note is not date: ä"),
    ],
)
def test_what_fits_no_column_is_refused(name: str, kind: ColumnKind, reason: str) -> None:
    value = {**VALUE, "price": Decimal("12.50")}
    assert decoded([Column(name, kind)], avro(value)) == reason


def test_null_is_null_at_every_depth() -> None:
    columns = [Column("note", "text", True), Column("address.city", "text", True)]
    assert decoded(columns, avro({**VALUE, "note": None, "address": None})) == [None, None]
    reason = "the column address.city is null"
    assert decoded([Column("address.city", "text")], avro({**VALUE, "address": None})) == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the record has no value"),
        (b"", "does not begin with a zero byte and the number of a schema"),
        (b"\1\0\0\0\1\2", "does not begin with a zero byte and the number of a schema"),
        (avro(VALUE) + b"\0", "not a value of its schema: 1 bytes are left over"),
    ],
)
def test_wrong_bytes_say_what_is_wrong(value: bytes | None, reason: str) -> None:
    assert decoded([Column("id", "int")], value) == reason


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.integers(0, 60).map(lambda n: avro(VALUE)[5 : 5 + n]))
def test_whatever_the_bytes_are_decoding_ends_with_a_row_or_a_letter(body: bytes) -> None:
    columns = [Column("id", "int"), Column("at", "text", True), Column("price", "text")]
    rows, letters = RowDecoder(columns, AvroFormat(), reader(columns)).decode(
        [0], [0], [b"\0\0\0\0\1" + body]
    )
    assert rows.num_rows + letters.num_rows == 1
    rows, letters = RowDecoder([Column("id", "int")], PROTOBUF).decode([0], [0], [body])
    assert rows.num_rows + letters.num_rows == 1


def test_a_schema_that_cannot_be_read_makes_letters() -> None:
    said = decoded([Column("id", "int")], avro(VALUE), {"type": "nonsense"})
    assert str(said).startswith("its schema cannot be read")


def test_a_time_out_of_range_is_refused_as_text_and_kept_as_a_number() -> None:
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}  # fmt: skip
    value = avro({"at": 1 << 60}, schema)
    assert decoded([Column("at", "int")], value, schema) == [1 << 60]
    assert "after the year 9999" in str(decoded([Column("at", "text")], value, schema))


def _described() -> descriptor_pb2.FileDescriptorSet:
    """shop.v1.Order, as protoc describes it."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop.v1", syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )  # fmt: skip
    enum = file.enum_type.add(name="State")
    enum.value.add(name="NEW", number=0)
    enum.value.add(name="PAID", number=1)
    city = file.message_type.add(name="Address").field
    city.add(name="city", number=1, type=field.TYPE_STRING, label=1)
    order = file.message_type.add(name="Order")
    for number, (name, kind, of, label) in enumerate(
        [
            ("id", field.TYPE_INT64, "", 1), ("share", field.TYPE_FLOAT, "", 1),
            ("state", field.TYPE_ENUM, ".shop.v1.State", 1), ("raw", field.TYPE_BYTES, "", 1),
            ("at", field.TYPE_MESSAGE, ".google.protobuf.Timestamp", 1),
            ("address", field.TYPE_MESSAGE, ".shop.v1.Address", 1), ("big", field.TYPE_UINT64, "", 1),
            ("tags", field.TYPE_STRING, "", 3), ("late", field.TYPE_BOOL, "", 1),
        ], 1,
    ):  # fmt: skip
        order.field.add(name=name, number=number, type=kind, type_name=of or None, label=label)
    return descriptor_pb2.FileDescriptorSet(file=[file])


DESCRIBED = _described()
PROTOBUF = ProtobufFormat(DESCRIBED.SerializeToString(), "shop.v1.Order")


def message(**fields: object) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    pool.Add(known)
    pool.Add(DESCRIBED.file[0])
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Order"))(**fields)
    return bytes(made.SerializeToString())


def from_message(columns: list[Column], value: bytes, form: ProtobufFormat = PROTOBUF) -> object:
    rows, letters = RowDecoder(columns, form).decode([0], [5], [value])
    if letters.num_rows:
        return letters["reason"][0].as_py()
    return [rows[column.name][0].as_py() for column in columns]


@pytest.mark.parametrize(
    ("name", "kind", "cell"),
    [
        ("id", "int", 7), ("id", "float", 7.0), ("share", "float", 0.5), ("state", "text", "PAID"),
        ("state", "int", 1), ("raw", "text", "AP8="), ("at", "int", INSTANT),
        ("at", "text", "2013-07-04T10:00:00.123000Z"), ("address.city", "text", "Oslo"),
        ("late", "bool", False), ("raw", "bytes", b"\0\xff"), ("at", "timestamp", MOMENT),
    ],
)  # fmt: skip
def test_a_field_of_a_message_becomes_what_the_table_says(
    name: str, kind: ColumnKind, cell: object
) -> None:
    at = {"seconds": INSTANT // 1000, "nanos": INSTANT % 1000 * 1_000_000}
    value = message(id=7, share=0.5, state=1, raw=b"\0\xff", at=at, address={"city": "Oslo"})
    assert from_message([Column(name, kind)], value) == [cell]
    framed = ProtobufFormat(PROTOBUF.descriptors, PROTOBUF.message, framed=True)
    for path in (b"\0", b"\4\2\0"):  # [0], and [1, 0] as zigzag numbers
        assert from_message([Column(name, kind)], b"\0\0\0\0\1" + path + value, framed) == [cell]


def test_a_field_without_value_is_its_default_or_null() -> None:
    assert from_message([Column("id", "int"), Column("at", "int", True)], b"") == [0, None]
    assert from_message([Column("at", "int")], b"") == "the column at is null"
    assert from_message([Column("address.city", "text", True)], b"") == [None]


def test_bad_messages_say_what_is_wrong() -> None:
    assert str(from_message([Column("id", "int")], b"\xff")).startswith("not such a message")
    assert "more than 64 bits" in str(from_message([Column("big", "int")], message(big=1 << 63)))
    assert "no name" in str(from_message([Column("state", "text")], message(state=9)))
    framed = ProtobufFormat(PROTOBUF.descriptors, PROTOBUF.message, framed=True)
    for value in (b"", b"\1\0\0\0\1\0", b"\0\0\0\0\1\xff"):
        assert isinstance(from_message([Column("id", "int")], value, framed), str)


@pytest.mark.parametrize(
    ("column", "form", "says"),
    [
        (Column("gone", "int"), PROTOBUF, "has no field gone"),
        (Column("tags", "text"), PROTOBUF, "repeated"),
        (Column("address", "text"), PROTOBUF, "address.city"),
        (Column("id", "text"), PROTOBUF, "int or float"),
        (Column("id", "int"), ProtobufFormat(PROTOBUF.descriptors, "Order"), "shop.v1.Order"),
        (Column("id", "int"), ProtobufFormat(b"\xff", "Order"), "no descriptor set"),
    ],
)
def test_columns_that_can_never_be_filled_are_refused_at_once(
    column: Column, form: ProtobufFormat, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        RowDecoder([column], form)


def test_a_descriptor_set_without_what_it_imports_is_refused() -> None:
    lacking = descriptor_pb2.FileDescriptorSet.FromString(PROTOBUF.descriptors)
    lacking.file[0].dependency.append("other.proto")
    with pytest.raises(UsageError, match="include_imports"):
        RowDecoder([Column("id", "int")], ProtobufFormat(lacking.SerializeToString(), "Order"))


def test_text_and_bytes_fill_one_column() -> None:
    text = RowDecoder([Column("line", "text")], TextFormat())
    rows, letters = text.decode([0] * 3, range(3), ["e\u0301".encode(), b"\xff", None])
    assert rows["line"].to_pylist() == ["é"]
    assert letters["reason"].to_pylist() == [
        "not UTF-8: invalid start byte at byte 0", "the record has no value",
    ]  # fmt: skip
    for encoding, written in (("base64", "AP8="), ("hex", "00ff")):
        form = BytesFormat("hex" if encoding == "hex" else "base64")
        rows, letters = RowDecoder([Column("b", "text")], form).decode([0], [0], [b"\0\xff"])
        assert rows["b"].to_pylist() == [written]
    with pytest.raises(UsageError):
        RowDecoder([Column("n", "int")], TextFormat())


@pytest.mark.parametrize("form", [JsonFormat(), CsvFormat()])
def test_a3_a_row_of_one_byte_too_many_is_a_letter_in_any_company(
    form: RecordFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: texts count by their bytes, other cells for eight; a record beyond its own limit is not
    decoded.
    """
    monkeypatch.setattr(lengths, "RECORD_BYTES_MAX", 400)
    columns = [Column("a", "text", nullable=True), Column("n", "int")]
    texts = ["x" * 92, "x" * 93, "\u00e4" * 46, "\u00e4" * 47, "", "y" * 500]
    values = [
        f'{{"a": "{text}", "n": 1}}'.encode() if form == JsonFormat() else f"{text},1".encode()
        for text in texts
    ]
    decoder = RowDecoder(columns, form, row_bytes=100)
    rows, letters = decoder.decode([0] * 6, list(range(6)), values)
    assert rows["_offset"].to_pylist() == [0, 2, 4]
    assert dict(zip(letters["offset"].to_pylist(), letters["reason"].to_pylist(), strict=True)) == {
        1: "its row has 101 bytes, more than 100 (limits.row_bytes)",
        3: "its row has 102 bytes, more than 100 (limits.row_bytes)",
        5: "the record has more than 400 bytes",
    }
    alone = [decoder.decode([0], [at], [value]) for at, value in enumerate(values)]
    assert pa.concat_tables([each.rows for each in alone]).equals(rows)
    order = [("offset", "ascending")]
    told = pa.concat_tables([each.letters for each in alone])
    assert told.equals(letters.sort_by(order))
