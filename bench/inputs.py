"""Inputs that both sides of the benchmark generate alike from one seed, and the digest of
results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

U64Array = npt.NDArray[np.uint64]
I64Array = npt.NDArray[np.int64]

compiled: Any = njit(cache=True)  # Any: numba ships no types

_IF_ZERO = 0x9E37_79B9_7F4A_7C15


@compiled
def _fill(state: int, numbers: U64Array, bounds: U64Array) -> int:
    x = np.uint64(state)
    for i in range(numbers.size):
        x ^= x >> np.uint64(12)
        x ^= x << np.uint64(25)
        x ^= x >> np.uint64(27)
        number = x * np.uint64(0x2545_F491_4F6C_DD1D)
        bound = bounds[i % bounds.size]
        numbers[i] = number if bound == 0 else (number >> np.uint64(11)) % bound
    return x


class Xorshift:
    """xorshift64*: the same numbers as the peer's generator with the same seed."""

    def __init__(self, seed: int) -> None:
        self._state = np.uint64(seed or _IF_ZERO)

    def rows(self, count: int, *bounds: int) -> list[U64Array]:
        """One column for each bound, filled row by row; bound 0 is the full range."""
        numbers = np.empty(count * len(bounds), np.uint64)
        self._state = np.uint64(_fill(self._state, numbers, np.array(bounds, np.uint64)))
        table = numbers.reshape(count, len(bounds))
        return [np.ascontiguousarray(column) for column in table.T]


@compiled
def _sum(words: U64Array, diffs: I64Array) -> int:
    total = np.uint64(0)
    for i in range(diffs.size):
        h = np.uint64(0x9E37_79B9_7F4A_7C15)
        for lane in range(words.shape[0]):
            h ^= words[lane, i]
            h *= np.uint64(0xFF51_AFD7_ED55_8CCD)
            h ^= h >> np.uint64(32)
        total += h * np.uint64(diffs[i])
    return total


def digest_of_words(columns: list[U64Array], diffs: I64Array) -> int:
    """The order-independent sum of mixed rows, each as often as its diff says."""
    return int(_sum(np.array(columns), diffs)) if len(diffs) else 0


def digest(columns: list[U64Array], diffs: I64Array) -> str:
    """The order-independent digest of consolidated rows, as the peer prints it."""
    return f"{digest_of_words(columns, diffs):016x}"


@compiled
def _fnv(data: Any, offsets: Any, words: U64Array) -> None:
    for i in range(words.size):
        h = np.uint64(0xCBF2_9CE4_8422_2325)
        for at in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(data[at])) * np.uint64(0x100_0000_01B3)
        words[i] = h


def text_words(texts: Any) -> U64Array:
    """Each text of an Arrow column as a number: FNV-1a, as the peer's."""
    _, offsets, data = texts.buffers()
    words = np.empty(len(texts), np.uint64)
    starts = np.frombuffer(offsets, np.int32)[texts.offset :]
    _fnv(np.frombuffer(data, np.uint8), starts, words)
    return words
