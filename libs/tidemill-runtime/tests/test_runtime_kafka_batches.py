"""Batches of Kafka read as columns say what the client's own records say."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import numpy as np
import pytest
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from tidemill.runtime import kafka_batches
from tidemill.runtime.formats import (
    AvroFormat,
    BytesFormat,
    Column,
    CsvFormat,
    JsonFormat,
    ProtobufFormat,
    RowDecoder,
    TextFormat,
)
from tidemill.runtime.formats.avro import AvroReader
from tidemill.runtime.formats.lengths import UNREAD_REASON
from tidemill.runtime.kafka_batches import HEADER_BYTES, Batch, BatchedRecords, prepare_reading
from tidemill.runtime.kafka_record_loops import read_records
from tidemill.runtime.log import LogRecord, columns_of
from tidemill.runtime.packed_values import UNREAD, PackedValues, lengths_of

Cells: TypeAlias = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]
"""Key, value, timestamp and headers of a record."""

FILE = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
FILE.message_type.add(name="R").field.add(name="value", number=1, type=9, label=1)
DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[FILE]).SerializeToString()
VALUES = st.lists(st.none() | st.binary(max_size=9), max_size=9)
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.integers(0, 1 << 42),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=20,
)


def packed(records: Sequence[Cells], compression: int = 0) -> bytes:
    """A batch as a producer sends it."""
    builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, 1 << 20)
    for at, (key, value, stamp, headers) in enumerate(records):
        assert builder.append(at, timestamp=stamp, key=key, value=value, headers=headers)
    return bytes(builder.build())


def read(data: bytes, position: int = 0) -> list[Batch]:
    """The batches of an answer of a broker, from a position on."""
    answer = SimpleNamespace(
        _records=fetcher.MemoryRecords(data), _check_crcs=True, _isolation_level=0, _tp="t",
        next_fetch_offset=position,
    )  # fmt: skip
    return list(kafka_batches._Batches(3, answer))


def no_objects(partition: int, records: Sequence[Any]) -> Batch:
    raise AssertionError("an object was made of each record")


@given(RECORDS, st.integers(0, 4))
def test_columns_are_the_records_of_the_client(records: list[Cells], compression: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_batches, "_batch_of", no_objects)
        (batch,) = read(packed(records, compression))
    told = BatchedRecords([batch])
    expected = [LogRecord(3, at, *cells[:3]) for at, cells in enumerate(records)]
    assert list(told) == [told[at - len(told)] for at in range(len(told))] == expected
    assert list(columns_of(told).values) == [value for _, value, _, _ in records]


@given(RECORDS, st.integers(0, 30))
def test_a_position_may_lie_within_a_batch(records: list[Cells], position: int) -> None:
    found = [
        record.offset
        for batch in read(packed(records), position)
        for record in [*BatchedRecords([batch])]
    ]
    assert found == list(range(position, len(records)))


@given(RECORDS, st.data())
def test_torn_records_are_corrupt(records: list[Cells], data: st.DataObject) -> None:
    body = packed(records)[HEADER_BYTES:]
    torn = body[: data.draw(st.integers(0, len(body) - 1))]
    for some in (torn, body + b"\0"):
        rows = np.empty((6, len(records)), np.int64)
        assert not read_records(np.frombuffer(some or b"\0", np.uint8), rows)


@given(st.binary(min_size=1, max_size=60), st.integers(1, 5))
def test_any_bytes_are_read_or_refused(data: bytes, count: int) -> None:
    rows = np.empty((6, count), np.int64)
    if read_records(np.frombuffer(data, np.uint8), rows):
        starts, lengths = rows[2::2], rows[3::2]
        assert (lengths >= -1).all()
        assert (starts + np.maximum(lengths, 0) <= len(data)).all()


def test_a_batch_that_cannot_be_read_is_an_error_of_the_client() -> None:
    data = bytearray(packed([(None, b"v", 1, [])]))
    data[-2] ^= 1
    with pytest.raises(CorruptRecordException):
        read(bytes(data))


def test_without_a_compiler_records_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed([(b"k", None, 7, []), (None, b"v", 8, [("h", b"x")])], compression=3)
    expected = list(BatchedRecords(read(data)))
    monkeypatch.setattr(kafka_batches, "has_loops", lambda: False)
    prepare_reading()
    assert list(BatchedRecords(read(data))) == expected
    assert expected == [LogRecord(3, 0, b"k", None, 7), LogRecord(3, 1, None, b"v", 8)]


@pytest.mark.parametrize("offsets", [[7], [7, 8, 9], [7, 9], [7, 9, 10, 40]])
def test_offsets_of_a_batch_have_the_gaps_that_compaction_left(offsets: list[int]) -> None:
    nothing = PackedValues.of([None] * len(offsets))
    batch = Batch(3, np.array(offsets), np.array(offsets), nothing, nothing)
    before, after = batch.cut(2)
    rest = [] if after is None else after.offsets.tolist()
    assert [*before.offsets.tolist(), *rest] == offsets
    assert [record.offset for record in BatchedRecords([batch])[-2:]] == offsets[-2:]


@given(st.lists(VALUES.filter(len), min_size=1, max_size=4), st.data())
def test_packed_values_are_the_values(parts: list[list[bytes | None]], data: st.DataObject) -> None:
    values = [value for part in parts for value in part]
    found = PackedValues.joined([PackedValues.of([b"before", *part, b"x"])[1:-1] for part in parts])
    assert PackedValues.of(found) is found
    assert not found.data.flags.writeable
    assert [found[at] for at in range(len(values))] == list(found) == values
    assert lengths_of(found).tolist() == lengths_of(values).tolist()
    some = slice(data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9)))
    assert list(found[some]) == values[some]


def bomb(compression: int, size: int, at: int = 7) -> bytes:
    """A batch of one record of so many zeros, at an offset, as a producer may send it."""
    if not size:
        data = bytearray(packed([(None, b"x" * 100, 5, [])], compression))
        data[HEADER_BYTES:] = b"no compression has these bytes"
        data[8:12] = (len(data) - 12).to_bytes(4)
    else:
        builder = DefaultRecordBatchBuilder(2, compression, 0, -1, -1, -1, size + (1 << 20))
        assert builder.append(0, timestamp=5, key=None, value=bytes(size), headers=[])
        data = bytearray(builder.build())
    data[:8] = at.to_bytes(8)
    data[17:21] = calc_crc32c(memoryview(data)[21:]).to_bytes(4)
    return bytes(data)


@pytest.mark.parametrize("compression", [1, 2, 3, 4], ids=["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("size", [3 << 20, 0], ids=["bomb", "garbage"])
def test_a_batch_that_unpacks_to_more_than_the_limit_is_one_letter(
    compression: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """33 KB of a producer were a gigabyte of every process that read them, after each restart."""
    monkeypatch.setattr(kafka_batches, "UNPACKED_BYTES_MAX", 2 << 20)
    before = packed([(None, b'{"a": 1}', 1, [])])
    (first, second) = read(before + bomb(compression, size))
    (told,) = BatchedRecords([second])
    assert first.values[0] == b'{"a": 1}'
    assert (told.offset, told.timestamp_ms, told.value) == (7, 5, UNREAD)


@pytest.mark.parametrize("compression", [1, 2, 3, 4], ids=["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("loops", [True, False], ids=["loops", "objects"])
def test_a_batch_longer_than_what_is_unpacked_at_once_is_read_in_runs(
    compression: int, loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of logs as gzip, the broker's default limit, is more than 64 MiB: lost as one."""
    records: list[Cells] = [
        (b"k%d" % at, b"a line of a log, %d" % at + b" " * (at % 90), 1_000 + at, [("h", b"x")])
        for at in range(9_000)
    ]
    data, whole = packed(records, compression), packed(records)
    (expected,) = read(whole)
    monkeypatch.setattr(kafka_batches, "UNPACKED_BYTES_MAX", 100_000)
    monkeypatch.setattr(kafka_batches, "RUN_BYTES", 70_000)
    monkeypatch.setattr(kafka_batches, "has_loops", lambda: loops)
    (first,) = read(packed(records[:3], compression))
    found = read(data)
    assert len(found) > 5
    assert max(batch.values.data.nbytes for batch in found) <= 170_000
    assert list(BatchedRecords(found)) == list(BatchedRecords([expected]))
    assert list(BatchedRecords([first])) == list(BatchedRecords([expected]))[:3]
    later = read(data, 5_001)  # as a process that stopped within the batch
    assert list(BatchedRecords(later)) == list(BatchedRecords([expected]))[5_001:]
    monkeypatch.setattr(kafka_batches, "BATCH_BYTES_MAX", 400_000)
    *some, letter = list(BatchedRecords(read(data)))
    assert some == list(BatchedRecords([expected]))[: len(some)]
    assert 2_000 < len(some) < 8_999
    assert (letter.offset, letter.value) == (8_999, UNREAD)


def test_the_position_within_a_batch_is_that_of_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = packed([(None, b"x" * 90, 1, [])] * 3_000, 4)
    monkeypatch.setattr(kafka_batches, "UNPACKED_BYTES_MAX", 10_000)
    monkeypatch.setattr(kafka_batches, "RUN_BYTES", 10_000)
    answer = SimpleNamespace(
        _records=fetcher.MemoryRecords(data), _check_crcs=True, _isolation_level=0, _tp="t",
        next_fetch_offset=0,
    )  # fmt: skip
    batches = kafka_batches._Batches(3, answer)
    for batch in batches:
        assert batches.next_fetch_offset == batch.offsets[-1] + 1
    assert batches.next_fetch_offset == 3_000


@pytest.mark.parametrize("magic", [0, 1])
def test_a_legacy_batch_that_unpacks_to_more_than_the_limit_is_one_letter(
    magic: Literal[0, 1], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = LegacyRecordBatchBuilder(magic, 1, 8 << 20)
    for at, value in enumerate([b"a", bytes(3 << 20)]):
        builder.append(at, timestamp=5, key=None, value=value)
    data = (1).to_bytes(8) + bytes(builder.build())[8:]  # as a broker numbers it
    (good,) = read(data)
    assert good.offsets.tolist() == [0, 1]
    assert [len(value or b"") for value in good.values] == [1, 3 << 20]
    monkeypatch.setattr(kafka_batches, "UNPACKED_BYTES_MAX", 2 << 20)
    (batch,) = read(data)
    assert (batch.offsets.tolist(), batch.values[0]) == ([1], UNREAD)


def test_a_batch_within_the_limit_is_read_however_well_it_was_compressed() -> None:
    (batch,) = read(bomb(4, 3 << 20))
    assert batch.values[0] == bytes(3 << 20)


@pytest.mark.parametrize(
    "written",
    [
        JsonFormat(),
        CsvFormat(),
        TextFormat(),
        BytesFormat(),
        AvroFormat(),
        ProtobufFormat(DESCRIPTORS, "R"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_no_format_takes_what_stands_for_such_a_batch_for_a_row(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_batches, "UNPACKED_BYTES_MAX", 2 << 20)
    (batch,) = read(bomb(4, 3 << 20))
    columns = [Column("value", "text", True)]
    reader = AvroReader(columns) if isinstance(written, AvroFormat) else None
    for values in (batch.values, [batch.values[0]]):
        rows, letters = RowDecoder(columns, written, reader).decode(
            [3], batch.offsets.tolist(), values
        )
        assert rows.num_rows == 0
        assert letters["reason"].to_pylist() == [UNREAD_REASON]
