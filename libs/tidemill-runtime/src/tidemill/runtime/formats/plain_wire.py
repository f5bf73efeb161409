"""Plain records of Avro and Protobuf as columns, by compiled loops.

A record is plain if it is flat: numbers, truths and ASCII texts, each a column or passed over.
Decoders of one record read all that is torn, out of range, or has fields of other types. Whether
a record is plain follows from its bytes, its schema and the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tidemill.arrangement.kernels import BoolArray, I64Array, compiled
from tidemill.runtime.formats.columns import Column
from tidemill.runtime.formats.plain_json import (
    LENGTH_BITS,
    PlainRows,
    packed_values,
    rows_of_words,
)
from tidemill.runtime.packed_values import Bytes

INT, FLOAT32, FLOAT64, TEXT, BOOL, INT32, UINT32, UINT64 = range(8)
"""Types of fields; the last two are of Protobuf, of which `INT` has 64 bits and a sign."""
FITTING = {
    INT: "int", INT32: "int", UINT32: "int", UINT64: "int",
    FLOAT32: "float", FLOAT64: "float", TEXT: "text", BOOL: "bool",
}  # fmt: skip
"""The type of the columns that take a field."""
HEADER_BYTES = 5
_WIRES = np.array([0, 5, 1, 2, 0, 0, 0, 0], np.int64)
"""Wire type of Protobuf of each type."""
NUMBERS_MAX = 64
"""Numbers of fields of Protobuf below it are looked up; a record with a greater one is not plain.
"""


class Field(NamedTuple):
    """A field: its type, and the column that it is, −1 if it is passed over."""

    kind: int
    column: int = -1
    null: int = -1
    """Of Avro, the branch that is null in a union with null; −1 of no union."""
    optional: bool = False
    """Of Protobuf, whether it is null where it is absent."""


class PlainAvro:
    """Reads plain records that were written with one flat schema."""

    def __init__(self, columns: Sequence[Column], number: int, fields: Sequence[Field]) -> None:
        """`fields` are those of the schema, in its order; a column without a field is null."""
        self._columns = tuple(columns)
        self._header = np.frombuffer(bytes(1) + number.to_bytes(4, "big"), np.uint8)
        self._kinds = np.array([field.kind for field in fields], np.int64)
        self._places = np.array([field.column for field in fields], np.int64)
        self._nulls = np.array([field.null for field in fields], np.int64)
        self._nullable = np.array([column.nullable for column in columns], np.bool_)

    def read(self, values: Sequence[bytes | None]) -> PlainRows:
        """The plain ones of the records. Cost: O(bytes); another thread may compute meanwhile."""
        packed = packed_values(values)
        words, nulls, plain = _nothing(len(self._columns), len(values))
        if packed is not None:
            _read_avro(
                packed.data, packed.starts, packed.stops, self._header, self._kinds, self._places, self._nulls, self._nullable,
                words, nulls, plain,
            )  # fmt: skip
        return rows_of_words(self._columns, packed, words, nulls, plain)


class PlainProtobuf:
    """Reads plain messages with these fields by number; no field is required."""

    def __init__(
        self, columns: Sequence[Column], fields: Mapping[int, Field], *, framed: bool
    ) -> None:
        """`framed` messages have the header of Confluent, and are the first of their file."""
        self._columns = tuple(columns)
        self._start = HEADER_BYTES + 1 if framed else 0
        self._kinds = np.full(NUMBERS_MAX, -1, np.int64)
        self._places = np.full(NUMBERS_MAX, -1, np.int64)
        self._absent = np.ones(len(columns), np.bool_)
        for number, field in fields.items():
            if number < NUMBERS_MAX:
                self._kinds[number], self._places[number] = field.kind, field.column
            if field.column >= 0:
                self._absent[field.column] = field.optional
        self._nullable = np.array([column.nullable for column in columns], np.bool_)

    def read(self, values: Sequence[bytes | None]) -> PlainRows:
        """The plain ones of the records. Cost: O(bytes); another thread may compute meanwhile."""
        packed = packed_values(values)
        words, nulls, plain = _nothing(len(self._columns), len(values))
        if packed is not None:
            _read_protobuf(
                packed.data, packed.starts, packed.stops, self._start, self._kinds, self._places, self._absent, self._nullable,
                words, nulls, plain,
            )  # fmt: skip
            plain &= packed.lengths >= 0
        return rows_of_words(self._columns, packed, words, nulls, plain)


def _nothing(columns: int, rows: int) -> tuple[I64Array, BoolArray, BoolArray]:
    shape = (columns, rows)
    return np.zeros(shape, np.int64), np.ones(shape, np.bool_), np.zeros(rows, np.bool_)


@compiled
def varint(data: Bytes, at: int, stop: int) -> tuple[int, np.uint64]:
    """End and value of the number at `at`; the end is −1 if it does not end within 64 bits."""
    number = np.uint64(0)
    for shift in range(0, 70, 7):
        if at >= stop or (shift == 63 and data[at] > 1):
            return -1, number
        byte = np.uint64(data[at])
        at += 1
        number |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < 0x80:
            return at, number
    return -1, number


@compiled
def _number_of(data: Bytes, at: int, size: int) -> np.uint64:
    """The number in so many bytes, the least first."""
    number = np.uint64(0)
    for i in range(size):
        number |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return number


@compiled
def _read_float(data: Bytes, at: int, stop: int, kind: int) -> tuple[int, np.int64]:
    """End and bits of the decimal number at `at`; the end is −1 if it is not finite."""
    size = 4 if kind == FLOAT32 else 8
    if at + size > stop:
        return -1, np.int64(0)
    bits = _number_of(data, at, size)
    if kind == FLOAT32:
        short = np.uint32(bits)
        number = np.float64(short.view(np.float32))
    else:
        long = np.uint64(bits)
        number = np.float64(long.view(np.float64))
    if not np.isfinite(number):
        return -1, np.int64(0)
    unsigned = np.float64(number + 0.0)  # zero has no sign
    return at + size, unsigned.view(np.int64)


@compiled
def _read_text(data: Bytes, at: int, stop: int, size: np.uint64) -> tuple[int, np.int64]:
    """End and word of the text of so many bytes at `at`; the end is −1 if it is not plain."""
    if size > np.uint64(stop - at):
        return -1, np.int64(0)
    end = at + int(size)
    for place in range(at, end):
        if data[place] >= 128:
            return -1, np.int64(0)
    return end, np.int64((at << LENGTH_BITS) | (end - at))


@compiled
def _read_avro_value(data: Bytes, at: int, stop: int, kind: int) -> tuple[int, np.int64]:
    """End and word of the value at `at`; the end is −1 if it is not plain."""
    if kind in (FLOAT32, FLOAT64):
        return _read_float(data, at, stop, kind)
    if kind == BOOL:
        if at >= stop or data[at] > 1:
            return -1, np.int64(0)
        return at + 1, np.int64(data[at])
    at, number = varint(data, at, stop)
    if at < 0:
        return -1, np.int64(0)
    if kind != TEXT:
        word = np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1))
        if kind == INT32 and not -(1 << 31) <= word < 1 << 31:
            at = -1
        return at, word
    if number & np.uint64(1):
        return -1, np.int64(0)
    return _read_text(data, at, stop, number >> np.uint64(1))


@compiled
def _read_avro(
    data: Bytes,
    starts: I64Array,
    stops: I64Array,
    header: Bytes,
    kinds: I64Array,
    places: I64Array,
    nulls_of: I64Array,
    nullable: BoolArray,
    words: I64Array,
    nulls: BoolArray,
    plain: BoolArray,
) -> None:
    """Fill in the cells of each record that is plain, and say which are. Cost: O(bytes)."""
    for row in range(plain.size):
        at, stop = starts[row], stops[row]
        good = stop - at >= header.size
        for i in range(header.size):
            good = good and data[at + i] == header[i]
        at += header.size
        for field in range(kinds.size):
            null = False
            if good and nulls_of[field] >= 0:
                at, branch = varint(data, at, stop)  # twice its number: no branch is negative
                good = bool(at >= 0 and branch <= np.uint64(2) and not branch & np.uint64(1))
                null = good and np.int64(branch >> np.uint64(1)) == nulls_of[field]
            if not good:
                break
            word = np.int64(0)
            if not null:
                at, word = _read_avro_value(data, at, stop, kinds[field])
                good = at >= 0
            if places[field] >= 0:
                words[places[field], row], nulls[places[field], row] = word, null
        good = good and at == stop
        for column in range(nullable.size):
            good = good and (nullable[column] or not nulls[column, row])
        plain[row] = good


@compiled
def _read_protobuf_value(data: Bytes, at: int, stop: int, kind: int) -> tuple[int, np.int64]:
    """End and word of the value at `at`; the end is −1 if it is not plain."""
    if kind in (FLOAT32, FLOAT64):
        return _read_float(data, at, stop, kind)
    at, number = varint(data, at, stop)
    if at < 0:
        return -1, np.int64(0)
    if kind == TEXT:
        return _read_text(data, at, stop, number)
    word = np.int64(number)
    if (
        (kind == BOOL and number > np.uint64(1))
        or (kind == INT32 and not -(1 << 31) <= word < 1 << 31)
        or (kind == UINT32 and not 0 <= word < 1 << 32)
        or (kind == UINT64 and word < 0)
    ):
        return -1, word
    return at, word


@compiled
def _read_protobuf(
    data: Bytes,
    starts: I64Array,
    stops: I64Array,
    start: int,
    kinds: I64Array,
    places: I64Array,
    absent: BoolArray,
    nullable: BoolArray,
    words: I64Array,
    nulls: BoolArray,
    plain: BoolArray,
) -> None:
    """Fill in the cells of each record that is plain, and say which are. Cost: O(bytes)."""
    for row in range(plain.size):
        at, stop = starts[row], stops[row]
        good = stop - at >= start
        if good and start:  # a zero, the number of a schema, and the path of the first message
            good = data[at] == 0 and data[at + start - 1] == 0
        at += start
        for column in range(absent.size):
            nulls[column, row] = absent[column]
        while good and at < stop:
            at, tag = varint(data, at, stop)
            number = np.int64(tag >> np.uint64(3)) if at >= 0 else 0
            kind = kinds[number] if 0 < number < kinds.size else -1
            if kind < 0 or np.int64(tag & np.uint64(7)) != _WIRES[kind]:
                good = False
                break
            at, word = _read_protobuf_value(data, at, stop, kind)
            good = at >= 0
            if good and places[number] >= 0:
                words[places[number], row], nulls[places[number], row] = word, False
        for column in range(nullable.size):
            good = good and (nullable[column] or not nulls[column, row])
        plain[row] = good
