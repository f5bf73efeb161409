"""Frames: the unit in which the embedded log writes, checks and reads.

A frame holds the records of one partition that were written together, as Arrow buffers, so that a
reader gets columns without touching records. All integers are little endian, all parts padded to 8
bytes:

    magic 4s · crc32 u32 · payload bytes u32 · records u32 · base offset u64 · durable u64 · parts
    u64 payload: timestamps i64[n] · key offsets i32[n+1] · value offsets i32[n+1] · key validity
    bits · value validity bits · keys · values      (a part exists if its bit in `parts` is set)

The crc covers everything behind it. `durable` is the length to which the segment was known to be on
disk when the frame was written. A broken frame in front of it is damage, not a write that was cut
off.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.looks import with_looks
from tidemill.runtime.log import Entry, LogRecord

Values: TypeAlias = "pa.Array[pa.Scalar[pa.DataType]]"

MAGIC = b"TML1"
HEADER = struct.Struct("<4sIIIQQQ")
_CHECKED_FROM = 8  # the crc covers the header from here on

KEYS, KEY_NULLS, VALUE_NULLS = 1, 2, 4

_RECORD_TYPES: dict[str, pa.DataType] = {
    "partition": pa.int64(),
    "offset": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp_ms": pa.int64(),
}
RECORD_COLUMNS = pa.schema(_RECORD_TYPES)
"""The columns in which records are read in bulk."""


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """Header of a frame: checksum, sizes, and the offset of its first record."""

    crc: int
    payload_bytes: int
    records: int
    base_offset: int
    durable: int
    parts: int

    @property
    def size(self) -> int:
        """Bytes of header and payload."""
        return HEADER.size + self.payload_bytes

    @property
    def next_offset(self) -> int:
        """Offset behind the last record."""
        return self.base_offset + self.records


def header_at(data: memoryview, position: int) -> FrameHeader | None:
    """The header at `position`; None if there is none. Says nothing about the payload."""
    if len(data) - position < HEADER.size:
        return None
    magic, crc, payload, records, base, durable, parts = HEADER.unpack_from(data, position)
    if magic != MAGIC:
        return None
    return FrameHeader(crc, payload, records, base, durable, parts)


def intact(data: memoryview, position: int, header: FrameHeader) -> bool:
    """Whether the whole frame is there and its bytes are those that were written."""
    end = position + header.size
    return end <= len(data) and zlib.crc32(data[position + _CHECKED_FROM : end]) == header.crc


def encode_frame(
    entries: Sequence[Entry], base_offset: int, durable: int, default_timestamp_ms: int
) -> bytes:
    """One frame with all of `entries`.

    Cost: a few C calls for the columns and three Python list comprehensions.
    """
    timestamps = [
        default_timestamp_ms if entry.timestamp_ms is None else entry.timestamp_ms
        for entry in entries
    ]
    parts = 0
    columns = [np.array(timestamps, np.int64).tobytes()]
    bitmaps: list[bytes] = []
    blobs: list[bytes] = []
    keys = [entry.key for entry in entries]
    if any(key is not None for key in keys):
        parts |= KEYS
        nulls = _encode_binary(keys, columns, bitmaps, blobs)
        parts |= KEY_NULLS if nulls else 0
    nulls = _encode_binary([entry.value for entry in entries], columns, bitmaps, blobs)
    parts |= VALUE_NULLS if nulls else 0
    payload = b"".join(_padded(part) for part in (*columns, *bitmaps, *blobs))
    header = HEADER.pack(MAGIC, 0, len(payload), len(entries), base_offset, durable, parts)
    crc = zlib.crc32(payload, zlib.crc32(header[_CHECKED_FROM:]))
    return MAGIC + crc.to_bytes(4, "little") + header[_CHECKED_FROM:] + payload


def _encode_binary(
    values: list[bytes | None], columns: list[bytes], bitmaps: list[bytes], blobs: list[bytes]
) -> bool:
    """Add the buffers of one column; true if it has nulls."""
    nulls = None in values
    if nulls:
        valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        bitmaps.append(np.packbits(valid, bitorder="little").tobytes())
    present = [value or b"" for value in values]
    offsets = np.zeros(len(present) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, present), np.int32, len(present)), out=offsets[1:])
    columns.append(offsets.tobytes())
    blobs.append(b"".join(present))
    return nulls


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8)


@dataclass(frozen=True, slots=True)
class Column:
    """One variable-length column of a frame: validity bits (or None), offsets, bytes."""

    validity: pa.Buffer | None
    offsets: pa.Buffer
    data: pa.Buffer

    def array(self, records: int) -> Values:
        """The values as an Arrow array, without a copy."""
        return pa.Array.from_buffers(pa.binary(), records, [self.validity, self.offsets, self.data])

    def values(self, records: int) -> list[bytes | None]:
        """The values as Python objects."""
        ends = np.frombuffer(memoryview(self.offsets), np.int32, records + 1).tolist()
        data = bytes(self.data)
        values: list[bytes | None] = [data[start:end] for start, end in with_looks(pairwise(ends))]
        if self.validity is not None:
            bits = np.frombuffer(memoryview(self.validity), np.uint8)
            for missing in np.flatnonzero(np.unpackbits(bits, bitorder="little")[:records] == 0):
                values[missing] = None
        return values


@dataclass(frozen=True, slots=True)
class Frame:
    """The records of one frame, as columns that share the memory they were read into."""

    base_offset: int
    records: int
    timestamps: pa.Buffer
    keys: Column | None
    values: Column

    @property
    def next_offset(self) -> int:
        """Offset behind the last record."""
        return self.base_offset + self.records

    def to_records(self, partition: int) -> list[LogRecord]:
        """The records, one object each."""
        keys = repeat(None) if self.keys is None else self.keys.values(self.records)
        records = map(
            LogRecord,
            repeat(partition, self.records),
            range(self.base_offset, self.next_offset),
            keys,
            self.values.values(self.records),
            np.frombuffer(memoryview(self.timestamps), np.int64, self.records).tolist(),
        )
        return list(with_looks(records))

    def to_batch(self, partition: int, start: int, stop: int) -> pa.RecordBatch:
        """The records with start <= offset < stop as RECORD_COLUMNS, without copying any bytes."""
        lower = max(start - self.base_offset, 0)
        upper = min(stop - self.base_offset, self.records)
        count = upper - lower
        keys = (
            pa.nulls(count, pa.binary())
            if self.keys is None
            else self.keys.array(self.records).slice(lower, count)
        )
        stamps = pa.Array.from_buffers(pa.int64(), self.records, [None, self.timestamps])
        first = self.base_offset + lower
        return pa.RecordBatch.from_arrays(
            [
                _int64s(np.full(count, partition, np.int64)),
                _int64s(np.arange(first, first + count, dtype=np.int64)),
                keys,
                self.values.array(self.records).slice(lower, count),
                stamps.slice(lower, count),
            ],
            schema=RECORD_COLUMNS,
        )


def decode_frame(chunk: pa.Buffer, position: int, header: FrameHeader) -> Frame:
    """The frame at `position` of `chunk`, which must be intact."""
    records = header.records
    at = position + HEADER.size

    def take(size: int) -> pa.Buffer:
        nonlocal at
        part = chunk.slice(at, size)
        at += size + -size % 8
        return part

    timestamps = take(8 * records)
    key_offsets = take(4 * (records + 1)) if header.parts & KEYS else None
    value_offsets = take(4 * (records + 1))
    bits = (records + 7) // 8
    key_validity = take(bits) if header.parts & KEY_NULLS else None
    value_validity = take(bits) if header.parts & VALUE_NULLS else None
    keys = None
    if key_offsets is not None:
        keys = Column(key_validity, key_offsets, take(_last(key_offsets, records)))
    values = Column(value_validity, value_offsets, take(_last(value_offsets, records)))
    return Frame(header.base_offset, records, timestamps, keys, values)


def _int64s(values: npt.NDArray[np.int64]) -> Values:
    """An Arrow array on the memory of `values`; pa.array would import pandas first."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values.data)])


def _last(offsets: pa.Buffer, records: int) -> int:
    return int(np.frombuffer(memoryview(offsets), np.int32, records + 1)[records])
