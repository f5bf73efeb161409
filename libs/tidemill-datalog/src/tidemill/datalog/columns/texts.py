"""Numbers for texts: a table of their bytes, which compiled loops search and fill."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.kernels import BoolArray, I64Array, U64Array, compiled
from tidemill.arrangement.kernels.byte_hashes import KEYS, Bytes, hash_of_bytes
from tidemill.arrangement.kernels.capacity import zeros
from tidemill.errors import Exhausted

Stops: TypeAlias = npt.NDArray[np.int32]

_TEXTS_FIRST, _BYTES_FIRST = 64, 1_024
_ARROW_BYTES_MAX = (1 << 31) - 1
_BLOCK = 64
"""So many texts are looked at ahead."""


@dataclass(slots=True)
class _Table:
    """Bytes of texts, one behind the other; `ends[n]` is where text n begins.

    A slot holds the number of a text and one, or 0 where it is free.
    """

    data: Bytes
    ends: I64Array
    hashes: U64Array
    slots: npt.NDArray[np.int32]

    @classmethod
    def of_size(cls, texts: int, size: int) -> _Table:
        """Room for so many texts and bytes."""
        slots = 1 << (2 * texts).bit_length()
        return cls(
            zeros((size,), np.uint8),
            zeros((texts + 1,), np.int64),
            zeros((texts,), np.uint64),
            zeros((slots,), np.int32),
        )

    def grown(self, count: int, size: int) -> _Table:
        """A table with the first `count` texts, and room for as many and for `size` bytes more."""
        used = int(self.ends[count])
        made = _Table.of_size(max(2 * count, len(self.hashes)), 2 * used + size)
        made.data[:used] = self.data[:used]
        made.ends[: count + 1] = self.ends[: count + 1]
        made.hashes[:count] = self.hashes[:count]
        _fill_slots(made.hashes, count, made.slots)
        return made


class Texts:
    """Numbers for texts. Texts of one object have equal numbers if and only if they are equal.

    For any number of threads: a number once given is final.
    Cost: some 40 bytes a text beside its own.
    Source: twin in the law in tests/test_datalog_texts.py, by a dict.
    """

    def __init__(self) -> None:
        self._growing = Lock()
        self._table = _Table.of_size(_TEXTS_FIRST, _BYTES_FIRST)
        self._count = 0
        self._known: dict[str, int] = {}
        """Texts that were asked for one by one."""
        self.made = 0
        """Characters of texts that functions made."""

    def __len__(self) -> int:
        return self._count

    def number(self, text: str) -> int:
        """The number of a text."""
        known = self._known.get(text)
        if known is None:
            data = np.frombuffer(text.encode("utf-8", "surrogatepass") or b"\0", np.uint8)
            stops = np.array([0, len(data) if text else 0], np.int32)
            known = self._known[text] = int(self._numbered(data, stops, np.zeros(1, np.bool_))[0])
        return known

    def numbers(self, texts: Any) -> I64Array:  # pyarrow has no common type
        """The number of each text of an array; of null it is 0.

        Cost: O(bytes), some 160 ns a short text beside a million; other threads may compute
        meanwhile.
        """
        if isinstance(texts, pa.ChunkedArray):
            texts = texts.combine_chunks()
        if not pa.types.is_string(texts.type):
            texts = texts.cast(pa.string())
        if not len(texts):
            return np.zeros(0, np.int64)
        _, offsets, data = texts.buffers()
        stops = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        nulls = np.zeros(len(texts), np.bool_)
        if texts.null_count:
            nulls = texts.is_null().to_numpy(zero_copy_only=False)
        found = np.frombuffer(data or b"\0", np.uint8)
        return self._numbered(found, stops, nulls)

    def _numbered(self, data: Bytes, stops: Stops, nulls: BoolArray) -> I64Array:
        numbers = np.zeros(len(nulls), np.int64)
        begin, counts = 0, np.zeros(1, np.int64)
        with self._growing:
            counts[0] = self._count
            while True:
                table = self._table
                begin = _number(
                    KEYS, data, stops, nulls, begin, numbers,
                    table.data, table.ends, table.hashes, table.slots, counts,
                )  # fmt: skip
                self._count = int(counts[0])
                if begin == len(nulls):
                    return numbers
                self._table = table.grown(self._count, int(stops[begin + 1] - stops[begin]))

    def arrow(self, numbers: I64Array, nulls: BoolArray | None = None) -> pa.Array:
        """The texts of numbers as Arrow has them. Cost: O(bytes).

        Raises: Exhausted if they have more bytes together than an array holds.
        """
        numbers = np.ascontiguousarray(numbers if nulls is None else np.where(nulls, 0, numbers))
        stops = self._stops(numbers)
        if stops[-1] > _ARROW_BYTES_MAX:
            raise Exhausted(f"texts of {stops[-1]:,} bytes do not fit into one array")
        valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        short, data = pa.py_buffer(stops.astype(np.int32)), self._copied(numbers, int(stops[-1]))
        return pa.StringArray.from_buffers(len(numbers), short, data, valid)

    def size(self, numbers: I64Array) -> int:
        """The bytes of the texts of numbers together. Cost: O(numbers)."""
        return int(self._stops(numbers)[-1])

    def large(self, numbers: I64Array) -> pa.Array:
        """The texts of numbers as large texts of Arrow, of any size together. Cost: O(bytes)."""
        stops = self._stops(numbers)
        data = self._copied(numbers, int(stops[-1]))
        return pa.LargeStringArray.from_buffers(len(numbers), pa.py_buffer(stops), data)

    def _stops(self, numbers: I64Array) -> I64Array:
        """The beginning of each text in what `_copied` makes, and the end of the last one."""
        ends, stops = self._table.ends, np.zeros(len(numbers) + 1, np.int64)
        if len(numbers):
            np.cumsum(ends[numbers + 1] - ends[numbers], out=stops[1:])
        return stops

    def _copied(self, numbers: I64Array, size: int) -> pa.Buffer:
        table, copied = self._table, np.empty(size, np.uint8)
        _copy(table.data, table.ends, numbers, copied)
        return pa.py_buffer(copied)

    def texts(self, numbers: I64Array) -> list[str]:
        """The texts of numbers."""
        table = self._table
        return [
            table.data[first:end].tobytes().decode("utf-8", "surrogatepass")
            for first, end in zip(
                table.ends[numbers].tolist(), table.ends[numbers + 1].tolist(), strict=True
            )
        ]


@compiled
def _look_ahead(
    keys: U64Array, data: Bytes, stops: Stops, nulls: BoolArray, begin: int, known: Bytes,
    ends: I64Array, hashes: U64Array, slots: npt.NDArray[np.int32], found: U64Array,
) -> int:  # fmt: skip
    """Hashes of the next texts, at most `_BLOCK`; the text that comes after these.

    The table is read at the places that `_number` asks for, so that the processor has them.
    Shapes: `found` (_BLOCK + 1,), of which the last one is of no use.
    """
    last, mask = min(begin + _BLOCK, nulls.size), np.uint64(slots.size - 1)
    read = np.uint64(0)
    for row in range(begin, last):
        mine = np.uint64(0)
        if not nulls[row]:
            mine = hash_of_bytes(keys[0], keys[1], data, int(stops[row]), int(stops[row + 1]))
        found[row - begin] = mine
        read ^= np.uint64(slots[mine & mask])
    for at in range(last - begin):
        held = np.int64(slots[found[at] & mask]) - 1
        if held >= 0:
            read ^= hashes[held] ^ np.uint64(ends[held])
    for at in range(last - begin):
        held = np.int64(slots[found[at] & mask]) - 1
        if held >= 0 and hashes[held] == found[at] and ends[held] < known.size:
            read ^= np.uint64(known[ends[held]])
    found[_BLOCK] = read
    return last


@compiled
def _number(
    keys: U64Array, data: Bytes, stops: Stops, nulls: BoolArray, begin: int, numbers: I64Array,
    known: Bytes, ends: I64Array, hashes: U64Array, slots: npt.NDArray[np.int32], counts: I64Array,
) -> int:  # fmt: skip
    """Number texts from `begin` on; the first one for which there is no room, or how many there
    are.

    `counts[0]` is how many texts are known, before and after.
    """
    mask, ahead = slots.size - 1, np.empty(_BLOCK + 1, np.uint64)
    base, ready = begin, begin
    for row in range(begin, nulls.size):
        if row >= ready:
            base, ready = row, _look_ahead(
                keys, data, stops, nulls, row, known, ends, hashes, slots, ahead
            )  # fmt: skip
        if nulls[row]:
            continue
        first, stop = int(stops[row]), int(stops[row + 1])
        found = ahead[row - base]
        slot = np.int64(found & np.uint64(mask))
        number = -1
        while slots[slot] != 0:
            held = int(slots[slot]) - 1
            if hashes[held] == found and ends[held + 1] - ends[held] == stop - first:
                same = True
                for i in range(stop - first):
                    if known[ends[held] + i] != data[first + i]:
                        same = False
                        break
                if same:
                    number = held
                    break
            slot = (slot + 1) & mask
        if number < 0:
            number = int(counts[0])
            if number == hashes.size or ends[number] + stop - first > known.size:
                return row
            for i in range(stop - first):
                known[ends[number] + i] = data[first + i]
            ends[number + 1] = ends[number] + stop - first
            hashes[number] = found
            slots[slot] = number + 1
            counts[0] = number + 1
        numbers[row] = number
    return nulls.size


@compiled
def _fill_slots(hashes: U64Array, count: int, slots: npt.NDArray[np.int32]) -> None:
    """Put the first `count` texts into free slots."""
    mask = slots.size - 1
    for number in range(count):
        slot = np.int64(hashes[number] & np.uint64(mask))
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = number + 1


@compiled
def _copy(data: Bytes, ends: I64Array, numbers: I64Array, copied: Bytes) -> None:
    """The bytes of these texts, one behind the other."""
    to = 0
    for row in range(numbers.size):
        for at in range(ends[numbers[row]], ends[numbers[row] + 1]):
            copied[to] = data[at]
            to += 1
