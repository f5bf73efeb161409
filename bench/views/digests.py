"""The digest by which the results of all sides are compared; needs NumPy alone, as peers have an
environment of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

U64Array = npt.NDArray[np.uint64]
Columns = Sequence[npt.NDArray[np.int64] | npt.NDArray[np.float64]]

_SEED, _FACTOR, _HALF = (
    np.uint64(0x9E37_79B9_7F4A_7C15), np.uint64(0xFF51_AFD7_ED55_8CCD), np.uint64(32),
)  # fmt: skip


def row_words(columns: Columns) -> U64Array:
    """A word for each row, as `mix` of the Rust peer makes it; a float counts by its bits."""
    words = np.full(len(columns[0]), _SEED, np.uint64)
    for column in columns:
        words ^= np.ascontiguousarray(column).view(np.uint64)
        words *= _FACTOR
        words ^= words >> _HALF
    return words


def digest(columns: Columns, diffs: npt.NDArray[np.int64] | None = None) -> str:
    """The sum of all rows, in any order, each as often as its diff says; without diffs once."""
    if not len(columns) or not len(columns[0]):
        return f"{0:016x}"
    words = row_words(columns)
    if diffs is not None:
        words = words * diffs.view(np.uint64)
    return f"{int(words.sum(dtype=np.uint64)):016x}"


def columns_of(rows: Sequence[Sequence[int]]) -> list[npt.NDArray[np.int64]]:
    """Rows of whole numbers as columns."""
    return list(np.array(rows, np.int64).T) if len(rows) else []


class Chain:
    """A digest over steps: the order of the steps counts, that of the rows in one of them does
    not.
    """

    def __init__(self) -> None:
        self._total = 0

    def add(self, columns: Columns, diffs: npt.NDArray[np.int64]) -> None:
        """The changes of one step."""
        self._total = (self._total * 31 + int(digest(columns, diffs), 16)) % 2**64

    def __str__(self) -> str:
        return f"{self._total:016x}"
