"""Texts that are kept once and numbered, without a Python object for any of them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.kernels import I64Array, U64Array
from tidemill.arrangement.kernels.texts import fill_slots, number_texts

Bytes: TypeAlias = npt.NDArray[np.uint8]
Texts: TypeAlias = "pa.Array[Any]"  # Any: texts, large or not


class KeptTexts:
    """The distinct texts that came so far, numbered in the order of arrival.

    Memory: the bytes of each text once, an offset, and two to four slots of eight bytes.
    """

    def __init__(self) -> None:
        self._data: Bytes = np.empty(1 << 10, np.uint8)
        self._offsets: I64Array = np.zeros(1 << 5, np.int64)
        self._slots: U64Array = np.zeros(1 << 6, np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return int(self._data.nbytes + self._offsets.nbytes + self._slots.nbytes)

    def number(self, data: Bytes, offsets: I64Array, texts: I64Array) -> U64Array:
        """The number of each of the `texts`, positions in `offsets`; new ones are kept.

        Cost: amortised O(bytes).
        """
        numbers = np.empty(len(texts), np.uint64)
        done = 0
        while done < len(texts):
            done, self._count = number_texts(
                data, offsets, texts, done,
                self._data, self._offsets, self._slots, self._count, numbers,
            )  # fmt: skip
            if done < len(texts):
                self._make_room(int(offsets[texts[done] + 1] - offsets[texts[done]]))
        return numbers

    def texts(self, numbers: I64Array) -> Texts:
        """The text of each number. Cost: O(bytes)."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._data)]
        kept = pa.Array.from_buffers(pa.large_string(), self._count, buffers)
        return kept.take(pa.array(numbers))

    def _make_room(self, size: int) -> None:
        """Room for one more text of `size` bytes, and for many like those that came."""
        used = int(self._offsets[self._count])
        if used + size > len(self._data):
            data = np.empty(max(used + used // 2, used + size), np.uint8)
            data[:used] = self._data[:used]
            self._data = data
        if self._count + 2 > len(self._offsets):
            offsets = np.empty(self._count + self._count // 2 + 2, np.int64)
            offsets[: self._count + 1] = self._offsets[: self._count + 1]
            self._offsets = offsets
        if 2 * (self._count + 1) > len(self._slots):
            self._slots = np.zeros(2 * len(self._slots), np.uint64)
            fill_slots(self._data, self._offsets, self._count, self._slots)
