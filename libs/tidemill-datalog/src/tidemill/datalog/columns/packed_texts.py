"""Texts as MessagePack has them, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.kernels import compiled

_HEAD_MAX = 5
"""Bytes before a text, or before an array, at most."""


def packed_texts(parts: Sequence[pa.Array]) -> bytes:
    """All texts of some arrays without nulls, as one array of MessagePack.

    Cost: O(bytes), some 10 ns a short text; other threads may compute meanwhile. Source: twin in
    the law in tests/test_datalog_packed_texts.py, by msgspec.
    """
    return b"".join([_head(sum(map(len, parts))), *map(_packed, parts)])


def _head(count: int) -> bytes:
    if count < 1 << 4:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def _packed(texts: Any) -> bytes:
    if not len(texts):
        return b""
    _, offsets, data = texts.buffers()
    stops = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    size = int(stops[-1] - stops[0]) + _HEAD_MAX * len(texts)
    out = np.empty(size, np.uint8)
    return out[: _pack(np.frombuffer(data or b"\0", np.uint8), stops, out)].tobytes()


@compiled
def _pack(
    data: npt.NDArray[np.uint8], stops: npt.NDArray[np.int32], out: npt.NDArray[np.uint8]
) -> int:
    """Write each text behind its length; how many bytes these are."""
    to = 0
    for row in range(stops.size - 1):
        size = np.int64(stops[row + 1]) - np.int64(stops[row])
        if size < 1 << 5:
            out[to] = 0xA0 | size
            more = 0
        elif size < 1 << 8:
            out[to], more = 0xD9, 1
        elif size < 1 << 16:
            out[to], more = 0xDA, 2
        else:
            out[to], more = 0xDB, 4
        for at in range(more):
            out[to + 1 + at] = (size >> (8 * (more - 1 - at))) & 0xFF
        to += 1 + more
        for at in range(stops[row], stops[row + 1]):
            out[to] = data[at]
            to += 1
    return to
