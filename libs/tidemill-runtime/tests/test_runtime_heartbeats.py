"""Heartbeats: records that say how far event time has come, beside events of any format."""

from __future__ import annotations

import json
from io import BytesIO

import fastavro
import pytest
from google.protobuf import descriptor_pb2

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
)
from tidemill.runtime.formats.avro import AvroReader
from tidemill.time import heartbeat

BEAT = b"tidemill-heartbeat: 1700000000000"


def _descriptors() -> bytes:
    described = descriptor_pb2.FileDescriptorSet()
    file = described.file.add(name="e.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="Event")
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(
        name="id", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_INT64, json_name="id"
    )
    return described.SerializeToString()


AVRO = {"type": "record", "name": "Event", "fields": [{"name": "id", "type": "long"}]}


def _avro(number: int) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), {"id": number})
    return b"\0\0\0\0\x01" + stream.getvalue()


def _decoder(
    columns: tuple[Column, ...], record_format: RecordFormat, heartbeats: bool
) -> RowDecoder:
    reader = None
    if isinstance(record_format, AvroFormat):
        reader = AvroReader(columns)
        reader.know(1, json.dumps(AVRO))
    return RowDecoder(columns, record_format, reader, heartbeats)


@pytest.mark.parametrize(
    ("record_format", "event", "kind"),
    [
        (JsonFormat(), b'{"id": 7}', "int"),
        (CsvFormat(), b"7", "int"),
        (TextFormat(), b"7", "text"),
        (BytesFormat("hex"), b"7", "text"),
        (ProtobufFormat(_descriptors(), "t.Event"), b"\x08\x07", "int"),
        (AvroFormat(), _avro(7), "int"),
    ],
)
def test_c2_a_heartbeat_is_one_in_every_format(
    record_format: RecordFormat, event: bytes, kind: ColumnKind
) -> None:
    """C2: beside events of any format, and only for who asks; its columns are filled, or null."""
    columns = (Column("id", kind),)
    decoder = _decoder(columns, record_format, True)
    rows, letters = decoder.decode([0, 0, 1], [5, 6, 7], [event, BEAT, event])
    assert letters.num_rows == 0
    assert rows["_heartbeat"].to_pylist() == [None, None, 1_700_000_000_000]
    assert list(zip(*(rows[n].to_pylist() for n in ("_partition", "_offset")), strict=True)) == [
        (0, 5), (1, 7), (0, 6),
    ]  # fmt: skip
    assert rows["id"].null_count == 0
    alone, _ = decoder.decode([0], [0], [event])
    assert alone.schema.equals(rows.schema)
    plain = _decoder(columns, record_format, False).decode([0, 0], [0, 1], [event, BEAT])
    assert plain.rows.num_rows + plain.letters.num_rows == 2
    assert "_heartbeat" not in plain.rows.column_names


@pytest.mark.parametrize(
    "wrong", [b"", b" ", b" x", b" -1", b" 1.5", b" 9223372036854775808", b" 1 2"]
)
def test_c2_a_heartbeat_without_an_instant_is_a_dead_letter(wrong: bytes) -> None:
    """C2: who sends a broken heartbeat is told, and nothing moves."""
    decoder = RowDecoder((Column("id", "int"),), JsonFormat(), heartbeats=True)
    rows, letters = decoder.decode([0], [3], [b"tidemill-heartbeat:" + wrong])
    assert rows.num_rows == 0
    (letter,) = letters.to_pylist()
    assert letter["reason"].startswith("a heartbeat names one instant, in whole milliseconds")
    assert letter["raw"] == (b"tidemill-heartbeat:" + wrong).decode()


@pytest.mark.parametrize("until", [-1, 2**63])
def test_c2_no_heartbeat_is_written_for_an_instant_outside_of_the_timeline(until: int) -> None:
    """C2: what could only become a dead letter is refused where it is written."""
    with pytest.raises(UsageError, match="outside of the timeline"):
        heartbeat(until)
