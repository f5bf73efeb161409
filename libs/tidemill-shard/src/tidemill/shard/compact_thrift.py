"""Structs of Thrift in the compact protocol: the headers of pages and the footers of Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _MAP, STRUCT = range(1, 13)
_SIZE_APART = 15
"""In the place of a size, or of the distance to a field: it follows by itself."""


class Field(NamedTuple):
    """A field of a struct. The value of a list is the kind of its members, and these."""

    kind: int
    value: Any


Struct: TypeAlias = "Mapping[int, Field]"
"""Fields by their numbers, ascending."""


def read_struct(data: bytes | memoryview, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins at `at`, and where it ends.

    Raises: IndexError where the bytes end before it does; ValueError for what Parquet has not.
    """
    reader = _Reader(data, at)
    return reader.struct(), reader.at


class _Reader:
    """Reads values one after the other from `at` on."""

    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def struct(self) -> Struct:
        found: dict[int, Field] = {}
        number = 0
        while head := self._byte():
            distance, kind = head >> 4, head & 15
            number = number + distance if distance else self._signed()
            found[number] = Field(kind, kind == TRUE if kind <= FALSE else self._value(kind))
        return found

    def _value(self, kind: int) -> Any:
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == BINARY:
            return self._bytes(self._whole())
        if kind == STRUCT:
            return self.struct()
        if kind == LIST:
            head = self._byte()
            inner, size = head & 15, head >> 4
            size = self._whole() if size == _SIZE_APART else size
            return inner, [self._value(inner) for _ in range(size)]
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        raise ValueError(f"a value of the kind {kind}")

    def _byte(self) -> int:
        found = self._data[self.at]
        self.at += 1
        return found

    def _bytes(self, size: int) -> bytes:
        if self.at + size > len(self._data):
            raise IndexError(f"{size} bytes at {self.at}")
        self.at += size
        return bytes(self._data[self.at - size : self.at])

    def _whole(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
        return found | byte << shift

    def _signed(self) -> int:
        found = self._whole()
        return found >> 1 ^ -(found & 1)


def write_fields(fields: Struct, after: int = 0) -> bytes:
    """The fields, of which the first follows the number `after`, without the end of the struct.

    A struct in them may be the bytes that it is written as.
    """
    out = bytearray()
    for number, (kind, value) in fields.items():
        distance = number - after
        if 0 < distance < _SIZE_APART:
            out.append(distance << 4 | kind)
        else:
            out.append(kind)
            out += _signed(number)
        after = number
        if kind > FALSE:
            out += _written(kind, value)
    return bytes(out)


def _written(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return _signed(value)
    if kind == BINARY:
        return b"".join((_whole(len(value)), value))
    if kind == STRUCT:
        known: bytes = value if isinstance(value, bytes) else write_fields(value) + b"\0"
        return known
    if kind == LIST:
        inner, members = value
        size = len(members)
        head = bytes([min(size, _SIZE_APART) << 4 | inner])
        apart = _whole(size) if size >= _SIZE_APART else b""
        return head + apart + b"".join(_written(inner, each) for each in members)
    return bytes([value]) if kind in (TRUE, FALSE, BYTE) else bytes(value)


def _whole(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> bytes:
    return _whole(value << 1 ^ value >> 63)
