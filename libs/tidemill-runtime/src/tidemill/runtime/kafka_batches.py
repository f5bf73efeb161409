"""Records of Kafka by batches, as a broker sends them: columns first, records when asked for.

aiokafka makes an object of each record, which took two thirds of reading. It keeps what has arrived
in one dictionary of its fetcher, which is replaced here, and hides the bytes, which are kept here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias, overload

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from aiokafka import AIOKafkaConsumer, codec
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from tidemill.arrangement.machine_code import has_loops
from tidemill.runtime.log import ColumnarRecords, LogRecord, RecordColumns
from tidemill.runtime.packed_values import UNREAD, PackedValues

Numbers: TypeAlias = npt.NDArray[np.int64]

LOG_APPEND_TIME = 1
HEADER_BYTES = 61
"""Bytes of a batch before its records; the last four say how many they are."""
_LENGTH_AT = 8
_COUNT_AT = 57
_MAGIC_AT, _COMPRESSION_AT, _LEGACY_AT, _COMPRESSION_BITS = 16, 22, 17, 7
_NO_TIMESTAMP = -1
_RECORD_BYTES_MIN = 7


class _Snappy:
    """Snappy in the framing of Java's library; bytes become at most 21 times as many."""

    @staticmethod
    def decompress_into(packed: bytes, room: npt.NDArray[np.uint8]) -> int:
        """Fill the room, and say how far. Raises: DecompressionError."""
        try:
            found = codec.snappy_decode(packed)
        except Exception as error:  # of a client that trusts its bytes
            raise cramjam.DecompressionError(type(error).__name__) from None
        if len(found) > len(room):
            raise cramjam.DecompressionError("more than there is room for")
        room[: len(found)] = np.frombuffer(found, np.uint8)
        return len(found)


class _SnappyStream:
    """Snappy in the framing of Java's library, block by block."""

    def __init__(self, packed: bytes) -> None:
        self._left = memoryview(packed)[16:]
        self._made = bytearray()

    def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end. Raises: OSError."""
        while len(self._made) < size and self._left:
            length = int.from_bytes(self._left[:4])
            block, self._left = self._left[4 : 4 + length], self._left[4 + length :]
            try:
                if cramjam.snappy.decompress_raw_len(block) > UNPACKED_BYTES_MAX:
                    raise OSError("a block of more than there is room for")
                self._made += bytes(cramjam.snappy.decompress_raw(block))
            except cramjam.DecompressionError as error:
                raise OSError(str(error)) from None
        found = bytes(self._made[:size])
        del self._made[:size]
        return found


UNPACKED_BYTES_MAX = (64 << 20) + (1 << 16)
"""So many bytes of a batch are unpacked at once: those of one record that is decoded. 33 KB of zstd
stand for a gigabyte.
"""
BATCH_BYTES_MAX = 1 << 30
"""So many bytes of a batch are read: what the broker's default limit is as gzip, at the most."""
RUN_BYTES = 8 << 20
"""Bytes by which a batch is unpacked that is longer than what is unpacked at once."""
_ROOM_BYTES, _ROOM_TIMES = 1 << 16, 16
"""Room in which a batch is unpacked first, in bytes and by its own size."""
_UNPACK: Mapping[int, Any] = {1: cramjam.gzip, 2: _Snappy, 3: cramjam.lz4, 4: cramjam.zstd}
"""By the number of a compression, what undoes it in a given room."""
COMPRESSIONS = tuple(_UNPACK)
_STREAMS = {1: "gzip", 3: "lz4", 4: "zstd"}


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition whose offsets ascend."""

    partition: int
    offsets: Numbers
    timestamps: Numbers
    keys: PackedValues
    values: PackedValues

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return int(self.offsets[0])

    def cut(self, count: int) -> tuple[Batch, Batch | None]:
        """The first records, and the others if there are any."""
        return self._at(slice(count)), self._at(slice(count, None)) if count < len(self) else None

    def since(self, offset: int) -> Batch | None:
        """The records from an offset on, if there are any."""
        return self.cut(int(np.searchsorted(self.offsets, offset)))[1]

    def _at(self, some: slice) -> Batch:
        return Batch(
            self.partition, self.offsets[some], self.timestamps[some], self.keys[some],
            self.values[some],
        )  # fmt: skip


class BatchedRecords(ColumnarRecords):
    """The records of some batches, one batch behind the other."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        sizes = list(map(len, batches))
        self._stops = list(accumulate(sizes))
        self._columns = RecordColumns(
            np.repeat(np.array([batch.partition for batch in batches], np.int64), sizes),
            np.concatenate([batch.offsets for batch in batches]).view(np.uint64),
            PackedValues.joined([batch.values for batch in batches]),
        )

    @property
    def columns(self) -> RecordColumns:
        """Partitions, offsets and values."""
        return self._columns

    @property
    def keys(self) -> PackedValues:
        """The key of each; copied when asked for."""
        return PackedValues.joined([batch.keys for batch in self._batches])

    def __len__(self) -> int:
        return self._stops[-1]

    @overload
    def __getitem__(self, at: int) -> LogRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[LogRecord]: ...
    def __getitem__(self, at: int | slice) -> LogRecord | Sequence[LogRecord]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        number = bisect_right(self._stops, at % len(self))
        batch = self._batches[number]
        row = at % len(self) - self._stops[number]
        return LogRecord(
            batch.partition, int(batch.offsets[row]), batch.keys[row], batch.values[row],
            int(batch.timestamps[row]),
        )  # fmt: skip


def prepare_reading() -> None:
    """Load the loops that read batches, where they are ready or compiled; for a thread."""
    if has_loops():
        from tidemill.runtime.kafka_record_loops import read_records  # loads loops

        read_records(np.frombuffer(b"\0", np.uint8), np.empty((6, 0), np.int64))


def read_by_batches(consumer: AIOKafkaConsumer) -> None:
    """Have a consumer that has started return a `Batch` where it returns a record otherwise."""
    consumer._fetcher._records = _Arrived(consumer._fetcher._records)


class _KeptBytes(MemoryRecords):  # type: ignore[misc]  # of a client without types
    """Batches of one answer that remember their bytes; for others what they were."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


fetcher.MemoryRecords = _KeptBytes


class _Arrived(dict[Any, Any]):
    """Answers of brokers by partition, each read by batches."""

    def __setitem__(self, place: Any, found: Any) -> None:
        if isinstance(found, FetchResult):
            found._partition_records = _Batches(place.partition, found._partition_records)
        super().__setitem__(place, found)


class _Batches:
    """The batches of one answer; aiokafka reads on behind the last one that it has taken."""

    def __init__(self, partition: int, answer: Any) -> None:
        self._partition = partition
        self._answer = answer
        self._stop = 0
        self._begun: Iterator[Batch] = iter(())

    @property
    def next_fetch_offset(self) -> int:
        """The offset behind all batches so far, also those that nobody may see."""
        return int(self._answer.next_fetch_offset)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        answer = self._answer
        while (batch := next(self._begun, None)) is None:
            if not answer._records.has_next():
                raise StopIteration
            start = self._stop
            size = answer._records.data[start + _LENGTH_AT : start + _LENGTH_AT + 4]
            self._stop += _LENGTH_AT + 4 + int.from_bytes(size)
            found = answer._records.next_batch()
            if answer._check_crcs and not found.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {answer._tp}")
            self._begun = self._visible(found, start)
        return batch

    def _visible(self, found: Any, start: int) -> Iterator[Batch]:
        """Records that somebody may see; meanwhile the next offset is the one behind each run."""
        answer = self._answer
        first, before = answer.next_fetch_offset, None
        for batch in () if self._is_hidden(found) else self._read(found, start):
            left = batch.since(first) if batch.first < first else batch  # it begins within a batch
            if left is not None:
                if before is not None:
                    answer.next_fetch_offset = left.first
                    yield before
                before = left
        answer.next_fetch_offset = found.next_offset
        if before is not None:
            yield before

    def _read(self, found: Any, start: int) -> Iterator[Batch]:
        """The records of the batch that begins at a place of the answer, in runs if it is long."""
        whole = memoryview(self._answer._records.data)[start : self._stop]
        body = whole[HEADER_BYTES:]
        magic = whole[_MAGIC_AT]  # which a message of version 0 or 1 does not tell
        compression = whole[_COMPRESSION_AT if magic == 2 else _LEGACY_AT] & _COMPRESSION_BITS
        if compression in COMPRESSIONS:
            packed = bytes(body if magic == 2 else _legacy_value(whole))
            made = unpacked(compression, packed)
            if made is None:
                yield from self._in_runs(found, whole)
                return
            body = made
        batch = self._decoded(
            found, int.from_bytes(whole[_COUNT_AT:HEADER_BYTES], signed=True), body
        )
        if batch is not None:
            yield batch

    def _in_runs(self, found: Any, whole: memoryview) -> Iterator[Batch]:
        """The records of a long batch, some MiB at a time, and a letter for those not read."""
        head = bytearray(whole[:HEADER_BYTES])
        packed, count = bytes(whole[HEADER_BYTES:]), int.from_bytes(head[_COUNT_AT:])
        head[_COMPRESSION_AT] &= ~_COMPRESSION_BITS
        known = isinstance(found, DefaultRecordBatch)
        for number, body in runs(found.compression_type, packed, count) if known else ():
            head[_COUNT_AT:] = number.to_bytes(4)
            if batch := self._decoded(DefaultRecordBatch(bytes(head) + body), number, body):
                yield batch
            count -= number
        if count or not known:
            yield _unread(self._partition, found)

    def _decoded(self, found: Any, count: int, body: bytes | memoryview) -> Batch | None:
        """The records of a batch whose bytes are not compressed, or were unpacked."""
        known = isinstance(found, DefaultRecordBatch) and found.compression_type in (
            0,
            *COMPRESSIONS,
        )
        if has_loops() and known:
            from tidemill.runtime.kafka_record_loops import read_records  # loads loops

            data = np.frombuffer(body, np.uint8)
            rows = np.empty((6, min(count, len(data) // _RECORD_BYTES_MIN + 1)), np.int64)
            if count > 0 and read_records(data, rows):
                late = found.timestamp_type == LOG_APPEND_TIME
                stamps = rows[1] + found.first_timestamp
                return Batch(
                    self._partition, rows[0] + found.base_offset,
                    np.full(count, found.max_timestamp) if late else stamps,
                    PackedValues(data, rows[2], rows[3]), PackedValues(data, rows[4], rows[5]),
                )  # fmt: skip
        records = list(found)  # raises what is wrong with it
        return _batch_of(self._partition, records) if records else None

    def _is_hidden(self, batch: Any) -> bool:
        """Whether a batch is a marker of transactions, or of one that was aborted."""
        answer = self._answer
        if answer._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            answer._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and answer._contains_abort_marker(batch):
                answer._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in answer._aborted_producers:
                return True
        return bool(batch.is_control_batch)


def unpacked(compression: int, packed: bytes) -> memoryview | None:
    """The bytes that a batch was compressed from.

    None if they are more than UNPACKED_BYTES_MAX, or if there are none: `runs` may have them. Cost:
    a copy.
    """
    for room in (_ROOM_BYTES + _ROOM_TIMES * len(packed), UNPACKED_BYTES_MAX):
        made = np.empty(min(room, UNPACKED_BYTES_MAX), np.uint8)
        with suppress(cramjam.DecompressionError):
            length = _UNPACK[compression].decompress_into(packed, made)
            return memoryview(made[:length].tobytes())
    return None


def runs(compression: int, packed: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    """Numbers of whole records of a batch of `count`, one run behind the other, and their bytes.

    It ends early before bytes that are no such records, a record of more than UNPACKED_BYTES_MAX,
    or more than BATCH_BYTES_MAX. Cost: memory of RUN_BYTES, or of the longest record.
    """
    stream: Any = (
        pa.CompressedInputStream(pa.BufferReader(packed), _STREAMS[compression])
        if compression in _STREAMS
        else _SnappyStream(packed)
    )
    held, read = b"", 0
    while count > 0:
        try:
            more = stream.read(min(RUN_BYTES, UNPACKED_BYTES_MAX - len(held)))
            held, read = held + more, read + len(more)
            number, end = _whole_records(held)
            wrong = not more or number > count or read > BATCH_BYTES_MAX
            if wrong or (number == count and (end < len(held) or stream.read(1))):
                return
        except OSError:
            return
        if number:
            yield number, held[:end]
        held, count = held[end:], count - number


def _whole_records(data: bytes) -> tuple[int, int]:
    """The number of whole records that these bytes begin with, and the end of the last one."""
    number = at = 0
    while at < len(data):
        size, place = 0, at
        for shift in range(0, 35, 7):
            if place == len(data):
                return number, at
            size |= (data[place] & 127) << shift
            place += 1
            if data[place - 1] < 128:
                break
        if size & 1 or place + (size >> 1) > len(data):  # below zero, or not yet whole
            return number, at
        number, at = number + 1, place + (size >> 1)
    return number, at


def _legacy_value(whole: memoryview) -> memoryview:
    """The compressed messages in a message of version 0 or 1."""
    at = _LEGACY_AT + (1 if whole[_MAGIC_AT] == 0 else 9)  # behind the attributes, or the timestamp
    at += 4 + max(0, int.from_bytes(whole[at : at + 4], signed=True))
    return whole[at + 4 :]


def _unread(partition: int, found: Any) -> Batch:
    """One record in place of those of a batch that cannot be unpacked, at the last offset."""
    return Batch(
        partition, np.array([found.next_offset - 1]),
        np.array([getattr(found, "max_timestamp", _NO_TIMESTAMP)]),
        PackedValues.of([None]), PackedValues.of([UNREAD]),
    )  # fmt: skip


def _batch_of(partition: int, records: Sequence[Any]) -> Batch:
    """A batch of records that are objects."""
    return Batch(
        partition,
        np.array([record.offset for record in records], np.int64),
        np.array(
            [_NO_TIMESTAMP if (at := record.timestamp) is None else at for record in records],
            np.int64,
        ),
        PackedValues.of([record.key for record in records]),
        PackedValues.of([record.value for record in records]),
    )
