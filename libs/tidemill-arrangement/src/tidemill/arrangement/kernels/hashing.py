"""Hashes of rows of numbers: to spread them, and to compare collections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled, inlined

_START = 0x9E37_79B9_7F4A_7C15
_FACTOR = 0xFF51_AFD7_ED55_8CCD


@inlined
def mixed(state: np.uint64, word: np.uint64) -> np.uint64:
    """One more word into a hash; every bit of both reaches every bit above it, and 32 below."""
    state = (state ^ word) * np.uint64(_FACTOR)
    return state ^ (state >> np.uint64(32))


@compiled
def _mix_into(hashes: U64Array, column: U64Array) -> None:
    for i in range(hashes.size):
        hashes[i] = mixed(hashes[i], column[i])


def hash_rows(columns: Sequence[U64Array]) -> U64Array:
    """A hash of each row. Cost: O(n · columns)."""
    hashes = np.full(len(columns[0]), _START, np.uint64)
    for column in columns:
        _mix_into(hashes, column)
    return hashes


def digest(columns: Sequence[U64Array], diffs: I64Array) -> int:
    """One word for a collection, the same in any order and however its rows are split up.

    Cost: O(n · columns).
    """
    return int((hash_rows(columns) * diffs.view(np.uint64)).sum(dtype=np.uint64))
