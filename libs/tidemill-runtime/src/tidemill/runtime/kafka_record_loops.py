"""The records of a batch of Kafka, found by compiled loops that let other threads compute."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tidemill.arrangement.kernels import I64Array, compiled
from tidemill.runtime.packed_values import Bytes

Place: TypeAlias = "int | np.int64"


@compiled
def _number(data: Bytes, at: Place, stop: Place) -> tuple[Place, np.int64]:
    """End and value of the number at `at`; the end is −1 if it does not end within 64 bits."""
    number = np.uint64(0)
    for shift in range(0, 70, 7):
        if at < 0 or at >= stop or (shift == 63 and data[at] > 1):
            return -1, np.int64(0)
        byte = np.uint64(data[at])
        at += 1
        number |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < 128:
            break
    return at, np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1))


@compiled
def _bytes(data: Bytes, at: Place, stop: Place) -> tuple[Place, Place, np.int64]:
    """End, start and length of the bytes at `at`; the length of null is −1.

    The end is −1 if they do not end before `stop`.
    """
    at, length = _number(data, at, stop)
    start, length = at, max(length, np.int64(-1))
    if at < 0 or length > stop - at:
        return -1, start, length
    return at + max(length, np.int64(0)), start, length


@compiled
def read_records(data: Bytes, rows: I64Array) -> bool:
    """Fill in the offset and timestamp, less those of the batch, and the places of key and value.

    Whether the records fill `data`, and have nothing wrong; if not, rows may have been written.

    Shapes: `rows` has six rows (offset, timestamp, start and length of key, of value) and a column
    for each record. Cost: O(bytes that are no key and no value).
    Source: layout of batches of version 2, Kafka's protocol guide.
    """
    at: Place = 0
    for row in range(rows.shape[1]):
        at, size = _number(data, at, data.size)
        if at < 0 or size < 0 or size > data.size - at:
            return False
        stop = at + size
        at, rows[1, row] = _number(data, at + 1, stop)  # behind the attributes, which say nothing
        at, rows[0, row] = _number(data, at, stop)
        at, rows[2, row], rows[3, row] = _bytes(data, at, stop)
        at, rows[4, row], rows[5, row] = _bytes(data, at, stop)
        at, headers = _number(data, at, stop)
        if at < 0 or headers < 0:
            return False
        while headers > 0 and at >= 0:
            at, _, name = _bytes(data, at, stop)
            at, _, _ = _bytes(data, at if name >= 0 else -1, stop)
            headers -= 1
        if at != stop:
            return False
    return at == data.size
