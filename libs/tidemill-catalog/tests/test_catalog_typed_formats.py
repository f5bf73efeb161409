"""A value of each type is one cell, whatever format its record has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)

from tidemill.arrangement.updates import DIFF, TIME
from tidemill.catalog.origins.parquet_files import ParquetFile
from tidemill.catalog.record_shape import TEXTS, shape_of
from tidemill.catalog.records.decoding import RecordDecoder
from tidemill.catalog.store import Stored
from tidemill.reclock import KeyedRows, pack_row
from tidemill.runtime.formats import (
    AvroFormat,
    Column,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RecordFormat,
    RowDecoder,
)
from tidemill.runtime.formats.avro import AvroReader
from tidemill.runtime.log import LogRecord
from tidemill.runtime.resources import Resource, SourceSpec, load_resources
from tidemill.runtime.resources.decoding import record_shape

Schema = Any  # of Avro: JSON
MOMENT = datetime(2026, 3, 1, 12, 30, 0, 123_456, UTC)
MICROS = 1_772_368_200_123_456
ONE = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
DOC = '{"a": [1.50], "b": null}'
LONG = {"type": "long", "logicalType": "timestamp-micros"}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


class Written(NamedTuple):
    """One value in each format; values of Avro stand beside their schemas."""

    cell: object
    json: str
    csv: str
    avro: tuple[tuple[Schema, object], ...]
    protobuf: tuple[tuple[str, object], ...]
    parquet: pa.Array[Any]
    debezium: str
    """The form of a connector that writes times and numbers as texts."""


VALUES: Mapping[str, Written] = {
    "timestamp": Written(
        MOMENT, '"2026-03-01T13:30:00.123456+01:00"', "2026-03-01T12:30:00.123456Z",
        ((LONG, MICROS), ({**LONG, "logicalType": "local-timestamp-micros"}, MICROS),
         ({**LONG, "logicalType": "timestamp-nanos"}, MICROS * 1_000 + 789),
         ("string", "2026-03-01T12:30:00.123456Z")),
        (("at", timestamp_pb2.Timestamp(seconds=MICROS // 10**6, nanos=123_456_789)),
         ("text", "2026-03-01T12:30:00.123456Z")),
        pa.array([MOMENT], pa.timestamp("us", "Europe/Oslo")), '"2026-03-01T12:30:00.123456Z"',
    ),
    "date": Written(
        date(2026, 3, 1), '"2026-03-01"', "2026-03-01",
        (({"type": "int", "logicalType": "date"}, date(2026, 3, 1)), ("string", "2026-03-01")),
        (("text", "2026-03-01"),), pa.array([date(2026, 3, 1)], pa.date32()), '"2026-03-01"',
    ),
    "duration": Written(
        timedelta(hours=-2, seconds=-1.5), '"-2h1s500ms"', "-PT2H1.5S", (("string", "-2h1s500ms"),),
        (("span", duration_pb2.Duration(seconds=-7201, nanos=-500_000_000)), ("text", "-2h1s500ms")),
        pa.array([timedelta(hours=-2, seconds=-1.5)], pa.duration("us")), '"-P0Y0M0DT2H0M1.5S"',
    ),
    "decimal(10,2)": Written(
        Decimal("12345678.90"), "12345678.9", "12345678.90",
        ((AMOUNT, Decimal("12345678.90")), ("string", "12345678.9")), (("text", "12345678.90"),),
        pa.array([Decimal("12345678.90")], pa.decimal128(10, 2)), '"12345678.90"',
    ),
    "bytes": Written(
        b"\0\xff", '"AP8="', "AP8=",
        (("bytes", b"\0\xff"), ({"type": "fixed", "name": "Two", "size": 2}, b"\0\xff")),
        (("data", b"\0\xff"),), pa.array([b"\0\xff"], pa.binary()), '"AP8="',
    ),
    "uuid": Written(
        ONE.bytes, f'"{ONE}"', ONE.hex.upper(),
        (({"type": "string", "logicalType": "uuid"}, ONE), ("string", str(ONE)),
         ({"type": "fixed", "name": "Id", "size": 16}, ONE.bytes)),
        (("text", str(ONE)),), pa.array([ONE.bytes], pa.binary(16)), f'"{ONE}"',
    ),
    "json": Written(
        '{"a":[1.5],"b":null}', DOC, f'"{DOC.replace(chr(34), chr(34) * 2)}"', (("string", DOC),),
        (("text", DOC),), pa.array([DOC]), json.dumps(DOC),
    ),
}  # fmt: skip


def cell(kind: str, record: bytes, form: RecordFormat, reader: Any = None) -> object:
    """The cell of a record, which is the same among many."""
    found = set[str]()
    for company in (1, 80):
        decoder = RowDecoder([Column("x", kind)], form, reader)
        rows, letters = decoder.decode([0] * company, range(company), [record] * company)
        assert letters["reason"].to_pylist() == []
        found |= {repr(each) for each in rows["x"].to_pylist()}
    assert len(found) == 1
    return rows["x"][0].as_py()


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_a_type_is_one_cell_of_json_and_of_csv(kind: str) -> None:
    value = VALUES[kind]
    assert cell(kind, f'{{"x": {value.json}}}'.encode(), JsonFormat()) == value.cell
    assert cell(kind, value.csv.encode(), CsvFormat()) == value.cell


def avro(value: object, schema: Schema) -> tuple[Schema, bytes]:
    """A record with the value as its only field, and its schema."""
    whole = {"type": "record", "name": "R", "fields": [{"name": "x", "type": schema}]}
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(whole), {"x": value})
    return whole, b"\0\0\0\0\1" + stream.getvalue()


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_a_type_is_one_cell_of_each_type_of_avro(kind: str) -> None:
    for schema, value in VALUES[kind].avro:
        for union in (schema, ["null", schema]):
            whole, record = avro(value, union)
            reader = AvroReader([Column("x", kind)])
            reader.know(1, json.dumps(whole))
            assert cell(kind, record, AvroFormat(), reader) == VALUES[kind].cell


FILE = descriptor_pb2.FileDescriptorProto(
    name="r.proto", package="r", syntax="proto3",
    dependency=["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"],
)  # fmt: skip
_field = descriptor_pb2.FieldDescriptorProto
_FIELDS = (
    _field(name="text", number=1, label=1, type=_field.TYPE_STRING),
    _field(name="data", number=2, label=1, type=_field.TYPE_BYTES),
    _field(name="at", number=3, label=1, type=11, type_name=".google.protobuf.Timestamp"),
    _field(name="span", number=4, label=1, type=11, type_name=".google.protobuf.Duration"),
)
FILE.message_type.add(name="R", field=_FIELDS)


def message(**fields: object) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2):
        known = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(known)
        pool.Add(known)
    pool.Add(FILE)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("r.R"))()
    for name, value in fields.items():
        if isinstance(value, timestamp_pb2.Timestamp | duration_pb2.Duration):
            getattr(made, name).MergeFromString(value.SerializeToString())
        else:
            setattr(made, name, value)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_a_type_is_one_cell_of_each_type_of_protobuf(kind: str) -> None:
    described = descriptor_pb2.FileDescriptorSet(file=[FILE]).SerializeToString()
    for name, value in VALUES[kind].protobuf:
        decoder = RowDecoder([Column(name, kind)], ProtobufFormat(described, "r.R"))
        rows, letters = decoder.decode([0], [0], [message(**{name: value})])
        assert letters["reason"].to_pylist() == []
        assert rows[name].to_pylist() == [VALUES[kind].cell]


def source_of(kind: str, more: str) -> Resource:
    text = (
        "{apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s}, spec: {"
        f"columns: [{{name: k, type: int}}, {{name: x, type: '{kind}', nullable: true}}], {more}}}}}"
    )
    (resource,) = load_resources(text)
    return resource


def spec_of(kind: str, more: str) -> SourceSpec:
    spec = source_of(kind, more).spec
    assert isinstance(spec, SourceSpec)
    return spec


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_a_type_is_one_cell_of_parquet(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"k": [1, 2], "x": pa.concat_arrays([VALUES[kind].parquet] * 2)}), file)
    spec = spec_of(kind, f"file: {{path: {file}, format: parquet}}")
    records = [
        LogRecord(0, at, None, value, 0)
        for at, value in enumerate(ParquetFile(file).read(0, 9).values)
    ]
    rows, letters = RecordDecoder(record_shape(spec, spec.columns)).decode_now(records)
    assert letters["reason"].to_pylist() == []
    assert rows["x"].to_pylist() == [VALUES[kind].cell] * 2


def change(op: str, before: str | None, after: str | None) -> bytes:
    rows = [None if x is None else f'{{"k": 1, "x": {x}}}' for x in (before, after)]
    told = ["null" if row is None else row for row in rows]
    return f'{{"op": "{op}", "before": {told[0]}, "after": {told[1]}}}'.encode()


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_a_type_is_one_cell_of_debezium(kind: str) -> None:
    """Connectors have no type for JSON, and say of a duration that it has no months."""
    spec = spec_of(kind, "kafka: {topic: t}, envelope: {debezium: {key: [k]}}")
    written = VALUES[kind].debezium
    records = [
        LogRecord(0, at, None, value, 0)
        for at, value in enumerate(
            (change("c", None, written), change("u", written, "null"), change("d", "null", None))
        )
    ]
    rows, letters = RecordDecoder(record_shape(spec, spec.columns)).decode_now(records)
    assert letters["reason"].to_pylist() == []
    row, none = pack_row([1, VALUES[kind].cell]), pack_row([1, None])
    assert rows["_after"].to_pylist() == [row, none, None]
    assert rows["_before"].to_pylist() == [None, row, none]


@pytest.mark.parametrize("resolved", [{}, {TEXTS: True}])
def test_changes_follow_from_rows_that_a_source_wrote_before(resolved: dict[str, Any]) -> None:
    """A source from before texts of JSON were read goes on with texts, as its rows have them."""
    written = VALUES["json"].debezium
    held = VALUES["json"].cell if resolved else written
    more = "kafka: {topic: t}, envelope: {debezium: {key: [k]}}"
    shape = shape_of(Stored(source_of("json", more), 0, resolved=resolved))
    state = KeyedRows(shape.schema, ["k"])
    state.restore(pa.table({"k": [1], "x": [held]}, shape.schema))
    record = LogRecord(0, 0, None, change("u", written, "null"), 0)
    changes, _ = RecordDecoder(shape).decode_now([record])
    found = state.apply(changes.append_column(TIME, pa.array([5])))
    assert found.broken == ()
    assert found.updates.to_pylist() == [
        {"k": 1, "x": held, TIME: 5, DIFF: -1},
        {"k": 1, "x": None, TIME: 5, DIFF: 1},
    ]


def test_a_text_of_json_is_a_text_where_records_are_json(tmp_path: Path) -> None:
    """Only writers without a type for JSON mean the value that a text writes."""
    record = json.dumps({"x": DOC}).encode()
    assert cell("json", record, JsonFormat()) == json.dumps(DOC)
    assert cell("json", record, JsonFormat(texts=True)) == VALUES["json"].cell
    decoder = RowDecoder([Column("x", "json")], JsonFormat(texts=True))
    _, letters = decoder.decode([0], [0], [b'{"x": "{"}'])
    assert letters["reason"].to_pylist() == ["the column x is not json: {"]
