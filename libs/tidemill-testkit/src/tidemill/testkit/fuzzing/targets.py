"""Every place where bytes come in, from users, sources, registries, stores and jobs."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.arrangement.updates import consolidate, stamp
from tidemill.catalog.origins.parquet_files import ParquetFile
from tidemill.datalog.check import check
from tidemill.datalog.goals import compile_goal
from tidemill.datalog.inputs import InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.records import parse_record
from tidemill.errors import Corrupt, TidemillError, UsageError
from tidemill.host.announcements import announced_in
from tidemill.rpc import codecs, codecs_storage
from tidemill.rpc.messages import CollectionShape
from tidemill.runtime.formats import (
    AvroFormat,
    Column,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RowDecoder,
)
from tidemill.runtime.formats.avro import AvroReader
from tidemill.runtime.formats.plain_json import PlainJson
from tidemill.runtime.formats.protobuf import MessageReader
from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.runtime.formats.rows import PlainReader
from tidemill.runtime.resources import load_resources
from tidemill.shard import Description
from tidemill.shard.conforming import admitted
from tidemill.shard.encoding import (
    decode_entry,
    decode_rollup,
    encode_rollup,
    first_entry,
    pack_part,
    rebuild,
    unpack_part,
)
from tidemill.shard.framing import ENTRY, ROLLUP, framed
from tidemill.shard.parts import Part, block_checksums, decode_part, encode_parts, sorted_updates
from tidemill.shard.state import State, initial_state
from tidemill.testkit.fuzzing.named_targets import named_targets
from tidemill.testkit.fuzzing.running import Target
from tidemill.testkit.program_texts import format_program
from tidemill.time import frontier, heartbeat

COLUMNS = [
    Column("n", "int"), Column("t", "text", True), Column("f", "float", True), Column("b", "bool", True),
]  # fmt: skip
PROGRAM = """edge(x, y) := flight(x, y, d) ^ not closed(x) if d > 30;
path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ edge(y, z);
late(x, e) := flight(x, _, d) where e = d * 2 + 1.5; near(x) := path("a", x) if x != "b\\n";
far("a", 1); far("\\u00e4", -2.5);
"""
DOCUMENT = """apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights, labels: {a: "b"}}
spec:
  http: {}
  columns: [{name: plane, type: text}, {name: delay, type: int, nullable: true}]
  timestampInterval: 50ms
  retain: all
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: delays}
spec:
  inputs: &x {flight: flights}
  program: |
    late(p, d) := flight(p, d) if d > 30;
"""
AVRO: dict[str, object] = {
    "type": "record", "name": "R", "fields": [
        {"name": "n", "type": "long"},
        {"name": "t", "type": ["null", "string"]},
        {"name": "f", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "b", "type": "boolean"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "next", "type": ["null", "R"]},
        {"name": "many", "type": {"type": "array", "items": "null"}},
        {"name": "named", "type": {"type": "map", "values": "long"}},
    ],
}  # fmt: skip
AVRO_COLUMNS = [
    *COLUMNS,
    Column("day", "text"),
    Column("at", "text"),
    Column("next.n", "int", True),
]
SLOW = 0.2
"""Programs and documents take milliseconds each."""
NUMBER = b"\0\0\0\0\x01"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _program(data: bytes) -> None:
    program = parse(_text(data))
    format_program(program)
    check(program, InputSchemas(closed=False))


def _goals() -> Target:
    checked = check(parse('late("a", 1); late("b", 2);'), InputSchemas())
    seeds = (b"late(x, y)", b'late("a", y)', b"late(x, 3)")
    return Target("goals", seeds, lambda data: compile_goal(_text(data), checked), (UsageError,))


def _rows(decoder: RowDecoder, data: bytes) -> None:
    rows, letters = decoder.decode([0, 0], [1, 2], [data, b""])
    assert rows.num_rows + letters.num_rows == 2
    rows.validate(full=True)
    letters.validate(full=True)


def _plain_rows(reader: PlainReader | None, whole: bytes, head: bytes, data: bytes) -> None:
    """The record between two others, as the compiled reader of plain ones sees it."""
    assert reader is not None
    arrays, plain = reader.read([whole, head + data, whole])
    assert plain[0]
    assert plain[2]
    for array in arrays:
        assert len(array) == plain.sum()
        array.validate(full=True)


def _avro_value(schema: object, value: object) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)  # type: ignore[arg-type]
    return stream.getvalue()


def _avro_rows(text: str, data: bytes) -> None:
    reader = AvroReader(AVRO_COLUMNS)
    reader.know(1, text)
    _rows(RowDecoder(AVRO_COLUMNS, AvroFormat(), reader), NUMBER + data)


def _avro() -> Iterator[Target]:
    inner = {"n": 7, "t": "ä", "f": b"\x01", "b": True, "day": 15, "at": 10**15, "next": None,
             "many": [None, None], "named": {"a": 1}}  # fmt: skip
    plain = json.loads(json.dumps(AVRO).replace('"logicalType"', '"was"'))
    value = _avro_value(plain, {**inner, "next": inner})
    known = AvroReader(AVRO_COLUMNS)
    known.know(1, json.dumps(AVRO))
    decoder = RowDecoder(AVRO_COLUMNS, AvroFormat(), known)
    yield Target("avro-values", (value,), lambda data: _rows(decoder, NUMBER + data))
    flat = {"type": "record", "name": "F", "fields": [
        {"name": "n", "type": "long"}, {"name": "t", "type": ["null", "string"]},
        {"name": "f", "type": "double"}, {"name": "b", "type": "boolean"}, {"name": "x", "type": "float"},
    ]}  # fmt: skip
    row = _avro_value(flat, {"n": -7, "t": "a", "f": 1.5, "b": True, "x": 0.25})
    plain_reader = AvroReader(COLUMNS)
    plain_reader.know(1, json.dumps(flat))
    whole = NUMBER + row
    among = partial(_plain_rows, plain_reader.plain_reader([whole]), whole, NUMBER)
    yield Target("avro-plain-values", (row,), among)
    texts = (json.dumps(AVRO).encode(), b'{"type":"record","name":"R","fields":[]}')
    yield Target("avro-schemas", texts, lambda data: _avro_rows(_text(data), value))


def _descriptors() -> bytes:
    order = descriptor_pb2.DescriptorProto(name="Order")
    order.field.add(name="n", number=1, type=3, label=1)
    order.field.add(name="t", number=2, type=9, label=1)
    order.field.add(name="f", number=3, type=1, label=1)
    order.field.add(name="b", number=4, type=8, label=1)
    order.field.add(name="more", number=5, type=11, label=3, type_name=".Order")
    order.field.add(name="at", number=6, type=11, label=1, type_name=".google.protobuf.Timestamp")
    file = descriptor_pb2.FileDescriptorProto(
        name="o.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.append(order)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def _protobuf() -> Iterator[Target]:
    columns = [*COLUMNS, Column("at", "text", True)]
    message = (
        b"\x08\x07\x12\x01a\x19\0\0\0\0\0\0\xf0?\x20\x01\x2a\x02\x08\x01\x32\x04\x08\x07\x10\x01"
    )
    decoder = RowDecoder(columns, ProtobufFormat(_descriptors(), "Order"))
    yield Target("protobuf-values", (message,), partial(_rows, decoder))
    reader, whole = MessageReader(COLUMNS, ProtobufFormat(_descriptors(), "Order")), message[:16]
    among = partial(_plain_rows, reader.plain_reader([whole]), whole, b"")
    yield Target("protobuf-plain-values", (whole, message), among)

    def of(descriptors: bytes) -> None:
        _rows(RowDecoder(columns, ProtobufFormat(descriptors, "Order")), message)

    yield Target("protobuf-descriptors", (_descriptors(),), of, (UsageError,))


def _table() -> pa.Table:
    return pa.table(
        {
            "n": [3, 1, 2],
            "t": ["a", None, "ä" * 40],
            "f": [0.5, -1.0, None],
            "l": pa.array([[1], [], None], pa.list_(pa.int64())),
        }
    )


def _parts() -> Iterator[tuple[Part, bytes, pa.Schema]]:
    for rows, inline in ((_table(), 1 << 16), (pa.concat_tables([_table()] * 100), 1 << 16)):
        updates = sorted_updates(stamp(rows, 5), ())
        ((part, data),) = encode_parts(updates, (), inline_bytes_max=inline)
        yield part, data, updates.schema


def _state() -> State:
    state = initial_state(Description(_table().schema), frontier(3))
    part = next(iter(_parts()))[0]
    return replace(state, staged={"w": (part,)}, garbage={"a/part-1-x": 4})


def _version(data: bytes) -> None:
    rebuild(decode_entry(framed(ENTRY, data), "a version").cells, "a version")


def _stored() -> Iterator[Target]:
    corrupt = (Corrupt,)
    state = _state()
    entry = msgspec.msgpack.encode(first_entry("me", state))
    rollup = encode_rollup(state)
    header = len(framed(ROLLUP, b""))
    yield Target("versions", (entry,), _version, corrupt)
    yield Target(
        "rollups", (rollup[header:],),
        lambda data: decode_rollup(framed(ROLLUP, data), "a rollup"), corrupt,
    )  # fmt: skip
    yield Target(
        "damaged-versions", (framed(ENTRY, entry),), lambda data: decode_entry(data, "it"), corrupt
    )
    described = tuple(pack_part(part) for part, _, _ in _parts())
    yield Target("part-descriptions", described, unpack_part, corrupt)
    for number, (part, good, schema) in enumerate(_parts()):
        read = partial(_inline_part, part, schema)
        yield Target(f"inline-parts-{number}", (good,), read, corrupt)
    updates = consolidate(stamp(_table(), 5))
    ((part, good),) = encode_parts(updates, (), inline_bytes_max=0)
    yield Target(
        "parquet-objects", (good,),
        lambda data: _used(decode_part(data, _part_of(part, data, inline=False), updates.schema)),
        corrupt,
    )  # fmt: skip


def _part_of(part: Part, data: bytes, *, inline: bool) -> Part:
    """A part whose bytes are these, with the checksums that they have."""
    if inline:
        return replace(part, inline=data, size=len(data))
    return replace(part, key="c/part-1-x", size=len(data), checksums=block_checksums(data))


def _inline_part(part: Part, schema: pa.Schema, data: bytes) -> None:
    _used(decode_part(data, _part_of(part, data, inline=True), schema))


def _inserted(schema: pa.Schema, data: bytes) -> None:
    _used(admitted(codecs.table_in(data, foreign=True), schema, 1 << 20))


def _used(updates: pa.Table) -> None:
    """Use rows as readers do: sort them, add them up, show them."""
    consolidate(updates)
    for column in updates.column_names[:-2]:
        str(updates[column])
        updates[column].to_pylist()


def _arrow() -> Iterator[Target]:
    usage = (UsageError,)
    updates = stamp(_table(), 5)
    streams = (pack_table(updates), pack_table(updates.slice(0, 0)))
    yield Target("arrow-rows", streams, partial(_inserted, updates.schema), usage)
    shape = codecs_storage.shape_out(CollectionShape(_table().schema))
    yield Target("arrow-schemas", (shape.arrow_schema,), _created, usage)


def _created(data: bytes) -> None:
    message = codecs_storage.shape_out(CollectionShape(_table().schema))
    message.arrow_schema = data
    Description(codecs_storage.shape_in(message).schema).update_schema()


@cache
def _scratch() -> Path:
    """A file of this process alone; children write it one after the other."""
    return Path(tempfile.mkdtemp(prefix="fuzz-")) / "rows.parquet"


def _parquet_file(data: bytes) -> None:
    path = _scratch()
    path.write_bytes(data)
    file = ParquetFile(path, cells_max=100_000)
    count = file.count(0)
    if count:
        file.read(0, count)


def _parquet_files() -> Target:
    sink = pa.BufferOutputStream()
    table = _table().append_column("at", pa.array([1, 2, None], pa.timestamp("ns", "UTC")))
    pq.write_table(table, sink, row_group_size=2)
    good = sink.getvalue().to_pybytes()
    _scratch()
    return Target("parquet-files", (good,), _parquet_file, (TidemillError,))


class _Answering(HttpRegistry):
    """A registry whose every answer has the same body."""

    def __init__(self, body: bytes) -> None:
        super().__init__(RegistryAccess("http://127.0.0.1"))
        self._body = body

    async def _fetch(self, path: str) -> bytes | None:
        return self._body


def _registry_answer(data: bytes) -> None:
    asyncio.run(_Answering(data).schema(1))


def _texts() -> Iterator[Target]:
    usage = (UsageError,)
    yield Target("programs", (PROGRAM.encode(),), _program, usage, SLOW)
    yield Target(
        "documents", (DOCUMENT.encode(),), lambda data: load_resources(_text(data)), usage, SLOW
    )
    records = (b'p(1, "a\\u00e4", -2.5, {1, 2}) @time(10)', b"late(3, null, true)", b"{a(1)}")
    yield Target("records", records, lambda data: parse_record(_text(data)), usage)
    yield _goals()
    row = b'{"n": 1, "t": "a\\u00e4", "f": -1.5e3, "b": true, "more": [{"x": null}]}'
    yield Target("json-rows", (row,), partial(_rows, RowDecoder(COLUMNS, JsonFormat())))
    plain = b'{"n": 1, "t": "a", "f": -1.5, "b": true, "more": null}'
    among = partial(_plain_rows, PlainJson(COLUMNS), plain, b"")
    yield Target("plain-rows", (plain, row), among)
    beats = RowDecoder(COLUMNS, JsonFormat(), heartbeats=True)
    yield Target("heartbeats", (heartbeat(1_700_000_000_000).encode(), row), partial(_rows, beats))
    line = '1,"a ""ä""",-1.5e3,true'.encode()
    yield Target(
        "csv-rows", (line, b"1,a,2,false"), partial(_rows, RowDecoder(COLUMNS, CsvFormat()))
    )
    told = b'{"collection":"s/remap","process":"me","number":4}'
    yield Target("announcements", (told,), announced_in)
    answer: Mapping[str, object] = {
        "schema": json.dumps(AVRO), "references": [{"name": "a", "subject": "s", "version": 1}],
    }  # fmt: skip
    yield Target(
        "registry-answers", (json.dumps(answer).encode(), b'{"schema":"5"}'), _registry_answer,
        (TidemillError,),
    )  # fmt: skip


@cache
def targets() -> tuple[Target, ...]:
    """All of them; each begins with inputs that it takes."""
    return (
        *_texts(), *_avro(), *_protobuf(), *_stored(), *_arrow(), _parquet_files(), *named_targets()
    )  # fmt: skip
