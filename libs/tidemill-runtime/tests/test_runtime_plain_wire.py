"""Flat records of Avro and Protobuf are read by compiled loops, as a decoder of one reads each."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.runtime.formats import AvroFormat, Column, ProtobufFormat, RowDecoder
from tidemill.runtime.formats.avro import AvroReader
from tidemill.runtime.formats.rows import PLAIN_RECORDS_MIN

INTS = st.sampled_from([0, 1, -1, 63, -64, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)])
SHORT = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, float("inf"), float("nan")])
TEXTS = st.sampled_from(["", "a", "a\x00b", "ä", "x" * 200, "e\u0301"])
AVRO: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "int": ("int", SHORT), "long": ("int", INTS), "double": ("float", FLOATS),
    "float": ("float", FLOATS), "string": ("text", TEXTS), "boolean": ("bool", st.booleans()),
}  # fmt: skip
Field = descriptor_pb2.FieldDescriptorProto
PROTOBUF: dict[Any, tuple[str, st.SearchStrategy[Any]]] = {
    Field.TYPE_INT32: ("int", SHORT), Field.TYPE_INT64: ("int", INTS),
    Field.TYPE_UINT32: ("int", st.sampled_from([0, 7, 2**32 - 1])),
    Field.TYPE_UINT64: ("int", st.sampled_from([0, 7, 2**63 - 1, 2**64 - 1])),
    Field.TYPE_SINT64: ("int", INTS), Field.TYPE_FIXED32: ("int", st.just(9)),
    Field.TYPE_DOUBLE: ("float", FLOATS), Field.TYPE_FLOAT: ("float", FLOATS),
    Field.TYPE_STRING: ("text", TEXTS), Field.TYPE_BOOL: ("bool", st.booleans()),
}  # fmt: skip
HEADER = b"\0\0\0\0\x01"


def rows_of(decoder: RowDecoder, records: list[bytes | None]) -> dict[int, tuple[object, ...]]:
    """The row or the letter of each record, with the very bits of numbers."""
    found: dict[int, tuple[object, ...]] = {}
    rows, letters = decoder.decode([0] * len(records), range(len(records)), records)
    rows.validate(full=True)
    for row in rows.to_pylist():
        cells = [struct.pack("d", c) if isinstance(c, float) else c for c in row.values()]
        found[row["_offset"]] = tuple(cells[:-2])
    for letter in letters.to_pylist():
        found[letter["offset"]] = ("letter", letter["reason"], letter["raw"])
    assert len(found) == len(records) == rows.num_rows + letters.num_rows
    return found


def check(decoder: RowDecoder, records: list[bytes | None], plain: bytes) -> None:
    many = rows_of(decoder, [plain, *records, *[plain] * PLAIN_RECORDS_MIN])
    for number, record in enumerate([plain, *records]):
        (alone,) = rows_of(decoder, [record]).values()
        assert many[number] == alone


@st.composite
def damaged(draw: st.DrawFn, record: bytes) -> bytes | None:
    """The record, or one like it that is most likely none."""
    what = draw(st.sampled_from(["as it is", "as it is", "cut", "longer", "flipped", "nothing"]))
    at = draw(st.integers(0, max(len(record) - 1, 0)))
    if what == "cut":
        return record[:at]
    if what == "flipped" and record:
        return record[:at] + bytes([draw(st.integers(0, 255))]) + record[at + 1 :]
    return {"as it is": record, "longer": record + b"\0", "nothing": None}.get(what, record)


def columns_of(
    draw: Callable[[st.SearchStrategy[Any]], Any], kinds: dict[str, str]
) -> list[Column]:
    """Some of the fields as columns in any order, and perhaps one that no field is."""
    names = draw(st.permutations(sorted(kinds)))
    names = names[: draw(st.integers(1, len(names)))]
    columns = [Column(name, kinds[name], draw(st.booleans())) for name in names]
    return [*columns, *([Column("none", "text", True)] if draw(st.booleans()) else [])]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_record_of_avro_is_the_same_among_plain_ones_and_alone(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.sampled_from(sorted(AVRO)), min_size=1, max_size=5))
    unions = [data.draw(st.sampled_from(["", "null first", "null last"])) for _ in drawn]
    fields, cells = [], {}
    for at, (kind, union) in enumerate(zip(drawn, unions, strict=True)):
        written = {"": kind, "null first": ["null", kind], "null last": [kind, "null"]}[union]
        fields.append({"name": f"f{at}", "type": written})
        cells[f"f{at}"] = (st.none() | AVRO[kind][1]) if union else AVRO[kind][1]
    schema = {"type": "record", "name": "R", "fields": fields}
    columns = columns_of(data.draw, {f"f{at}": AVRO[kind][0] for at, kind in enumerate(drawn)})
    reader = AvroReader(columns)
    reader.know(1, json.dumps(schema))
    reader.know(2, json.dumps({"type": "record", "name": "R", "fields": fields[:1]}))
    decoder = RowDecoder(columns, AvroFormat(), reader)

    def encoded(value: dict[str, object]) -> bytes:
        stream = BytesIO()
        fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
        return HEADER + stream.getvalue()

    values = data.draw(st.lists(st.fixed_dictionaries(cells), min_size=1, max_size=12))
    records = [data.draw(damaged(encoded(value))) for value in values]
    other = [record and record[:4] + b"\x02" + record[5:] for record in records[:2]]
    check(decoder, [*records, *other], encoded(values[0]))


def message_class(descriptors: descriptor_pb2.FileDescriptorSet) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptors.file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("R"))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_message_is_the_same_among_plain_ones_and_alone(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.sampled_from(sorted(PROTOBUF)), min_size=1, max_size=5))
    syntax = data.draw(st.sampled_from(["proto2", "proto3"]))
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax=syntax)
    made = file.message_type.add(name="R")
    made.oneof_decl.add(name="choice")
    for at, kind in enumerate(drawn):
        number = data.draw(st.sampled_from([2 * at + 1, 2 * at + 2, 100 + at]))
        field = made.field.add(name=f"f{at}", number=number, type=kind, label=1)
        if at < 2 and data.draw(st.booleans()):
            field.oneof_index = 0
    if not any(field.HasField("oneof_index") for field in made.field):
        del made.oneof_decl[:]
    made.field.add(name="more", number=40, type=11, label=3, type_name=".R")
    descriptors = descriptor_pb2.FileDescriptorSet(file=[file])
    columns = columns_of(data.draw, {f"f{at}": PROTOBUF[kind][0] for at, kind in enumerate(drawn)})
    columns = [column for column in columns if column.name != "none"]
    framed = data.draw(st.booleans())
    form = ProtobufFormat(descriptors.SerializeToString(), "R", framed)
    message = message_class(descriptors)

    def encoded(value: dict[str, object]) -> bytes:
        written: bytes = message(**value).SerializeToString()
        return (HEADER + b"\0" if framed else b"") + written

    cells = {f"f{at}": PROTOBUF[kind][1] for at, kind in enumerate(drawn)}
    some = st.fixed_dictionaries({}, optional=cells)
    values = data.draw(st.lists(some, min_size=1, max_size=12))
    records = [data.draw(damaged(encoded(value))) for value in values]
    records += [encoded({"more": [message()]}), encoded(values[0]) + b"\x08\x07\x08\x08"]
    check(RowDecoder(columns, form), records, encoded(values[0]))


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_ordinary_records_are_plain_and_no_decoder_of_one_sees_them(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    alone = RowDecoder._read_alone

    def told(own: RowDecoder, values: Any, places: Any) -> Any:
        asked.append(len(values))
        return alone(own, values, places)

    monkeypatch.setattr(RowDecoder, "_read_alone", told)
    columns = [Column("n", "int"), Column("x", "float"), Column("t", "text"), Column("b", "bool")]
    values = [{"n": at - 500, "x": at / 8, "t": f"t{at}", "b": at % 2 == 0} for at in range(1_000)]
    if form == "avro":
        kinds = zip("nxtb", ["long", "double", "string", "boolean"], strict=True)
        fields = [{"name": name, "type": kind} for name, kind in kinds]
        schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
        reader = AvroReader(columns)
        reader.know(1, json.dumps({"type": "record", "name": "R", "fields": fields}))
        decoder, records = RowDecoder(columns, AvroFormat(), reader), []
        for value in values:
            stream = BytesIO()
            fastavro.schemaless_writer(stream, schema, value)
            records.append(HEADER + stream.getvalue())
    else:
        file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
        made = file.message_type.add(name="R")
        for number, (name, kind) in enumerate(zip("nxtb", [3, 1, 9, 8], strict=True), 1):
            made.field.add(name=name, number=number, type=kind, label=1)
        descriptors = descriptor_pb2.FileDescriptorSet(file=[file])
        message = message_class(descriptors)
        decoder = RowDecoder(columns, ProtobufFormat(descriptors.SerializeToString(), "R"))
        records = [message(**value).SerializeToString() for value in values]
    rows, letters = decoder.decode([1] * 1_000, range(1_000), records)
    assert (letters.num_rows, asked) == (0, [])
    assert rows.select(["n", "x", "t", "b"]).to_pylist() == values
