"""Whether the rows of a change are surely new, which streams in the order of time are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.arrangement.interval_updates.rows import BEGIN_WORD, Change, hash_of, same_columns
from tidemill.arrangement.kernels.arrays import I64Array, compiled

_OLD, _NEW, _UNDATED, _UNORDERED = 0, 1, 2, 3
_ALIKE_MAX = 64
"""Rows of one time that are compared with each other; more of them are hashed."""


@compiled
def _latest(change: I64Array, times: I64Array, latest: int) -> int:
    """The latest time of a change, and of what came before it."""
    for row in range(change.shape[0]):
        for at in range(times.size):
            latest = max(latest, change[row, times[at]])
    return latest


@compiled
def _judged(change: I64Array, times: I64Array, key: I64Array, latest: int) -> tuple[int, int]:
    """A verdict on a change, and the latest time. The first row that is surely old ends it."""
    width = change.shape[1] - 3
    nulls, newest, before, begin, ordered = width - 1, latest, latest, 0, True
    hashes = np.empty(_ALIKE_MAX, np.uint64)
    mask = np.int64(0)
    for at in range(times.size):
        mask |= np.int64(1) << times[at]
    for row in range(change.shape[0]):
        time = change[row, times[0]]
        for at in range(1, times.size):
            time = max(time, change[row, times[at]])
        if change[row, nulls] & mask != 0:
            return _UNDATED, newest
        empty = change[row, width] >= change[row, width + 1]
        if time <= latest or empty or change[row, width + 2] != 1:
            return _OLD, _latest(change, times, newest)
        newest = max(newest, time)
        if time != before:
            ordered = ordered and time > before
            before, begin = time, row
        ordered = ordered and row - begin < _ALIKE_MAX
        if ordered:
            mine = hash_of(change, row, key)
            hashes[row - begin] = mine
            for other in range(begin, row):
                if hashes[other - begin] == mine and same_columns(
                    change, row, key, nulls, change, other, key, nulls
                ):
                    return _OLD, _latest(change, times, newest)
    return (_NEW if ordered else _UNORDERED), newest


@compiled
def _apart(change: I64Array, key: I64Array) -> bool:
    """Whether no two rows agree in their key."""
    nulls, size = change.shape[1] - 4, 16
    while size < 2 * change.shape[0]:
        size *= 2
    slots = np.full(size, -1, np.int32)
    bits = 0
    while (1 << bits) < size:
        bits += 1
    for row in range(change.shape[0]):
        at = np.int64(hash_of(change, row, key) >> np.uint64(64 - bits))
        while slots[at] >= 0:
            if same_columns(change, row, key, nulls, change, np.int64(slots[at]), key, nulls):
                return False
            at = (at + 1) & (size - 1)
        slots[at] = row
    return True


class Novelty:
    """Knows the latest time of all rows so far: a row with a later time is new.

    `times` are the columns of a row's times, of which the latest counts; `key` those that tell rows
    apart, which contain them. Without times nothing is surely new.
    """

    __slots__ = ("_dated", "_key", "_latest", "_times")

    def __init__(self, times: Sequence[int], key: Sequence[int]) -> None:
        self._times = np.array(times, np.int64)
        self._key = np.array(key, np.int64)
        self._latest = BEGIN_WORD
        self._dated = len(times) > 0

    def follow(self, other: Novelty) -> None:
        """Know what another one knows."""
        self._latest, self._dated = other._latest, other._dated

    def admit(self, change: Change) -> bool:
        """Whether all rows of a change are new, different and added, on intervals that are not
        empty. False if that is not sure.

        A change that was not shown ends that for all later ones. Cost: O(change), and O(1) for the
        changes after a row without a time.
        """
        if not self._dated:
            return False
        verdict, self._latest = _judged(change, self._times, self._key, self._latest)
        self._dated = verdict != _UNDATED
        return verdict == _NEW or (verdict == _UNORDERED and bool(_apart(change, self._key)))
