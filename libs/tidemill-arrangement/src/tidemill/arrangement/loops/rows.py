"""Updates inside one epoch as columns, netted by hashing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels.arrays import I64Array, U64Array, compiled
from tidemill.arrangement.kernels.consolidating import consolidate_columns, overflow
from tidemill.arrangement.loops.tables import hash_words

MANY = 4096
"""So many rows are netted faster by sorting them than by hashing."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Updates `(key, val, time, diff)`, in any order, perhaps several of one record and time.

    Shapes: four columns of n; `times` are packed rounds. Columns are never written to.
    """

    keys: U64Array
    vals: U64Array
    times: U64Array
    diffs: I64Array

    def __len__(self) -> int:
        return len(self.diffs)

    @classmethod
    def concat(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.vals for part in parts]),
            np.concatenate([part.times for part in parts]),
            np.concatenate([part.diffs for part in parts]),
        )

    @classmethod
    def none(cls) -> Rows:
        """No rows."""
        word: U64Array = np.empty(0, np.uint64)
        return cls(word, word, word, np.empty(0, np.int64))

    def take(self, places: I64Array) -> Rows:
        """The rows at `places`."""
        return Rows(self.keys[places], self.vals[places], self.times[places], self.diffs[places])

    def netted(self) -> Rows:
        """One row for each record and time, none of diff zero.

        Few rows stay in the order in which they first came, many are sorted: then what is looked up
        for one after the other lies close together.

        Raises: UsageError if the diffs of one row add up to more than 64 bits hold.
        Cost: O(n) for few rows, a sort for many.
        """
        if len(self) < 2:
            return self if len(self) == 0 or self.diffs[0] else Rows.none()
        if len(self) >= MANY:
            columns, sums = consolidate_columns([self.keys, self.vals, self.times], self.diffs)
            keys, vals, times = (np.ascontiguousarray(column) for column in columns)
            return Rows(keys, vals, times, sums)
        keys, vals, times, diffs, fits = _net(self.keys, self.vals, self.times, self.diffs)
        if not fits:
            raise overflow()
        return Rows(keys, vals, times, diffs)


@compiled
def _net(
    keys: U64Array, vals: U64Array, times: U64Array, diffs: I64Array
) -> tuple[U64Array, U64Array, U64Array, I64Array, bool]:
    """The columns netted, and whether all sums fit."""
    n = diffs.size
    size = 4
    while size < 2 * n:
        size *= 2
    table = np.zeros(size, np.uint32)
    mask = np.uint64(size - 1)
    places, sums = np.empty(n, np.int64), np.empty(n, np.int64)
    used, zeros = 0, 0
    for i in range(n):
        place = hash_words(keys[i] ^ (times[i] << np.uint64(17)), vals[i] + times[i]) & mask
        while True:
            entry = np.int64(table[place]) - 1
            if entry < 0:
                table[place] = used + 1
                places[used], sums[used] = i, diffs[i]
                used += 1
                break
            j = places[entry]
            if keys[j] == keys[i] and vals[j] == vals[i] and times[j] == times[i]:
                summed = sums[entry] + diffs[i]
                if ((sums[entry] ^ summed) & (diffs[i] ^ summed)) < 0:
                    return keys, vals, times, diffs, False
                sums[entry] = summed
                break
            place = (place + np.uint64(1)) & mask
    for at in range(used):
        zeros += int(sums[at] == 0)
    kept = used - zeros
    new_keys, new_vals = np.empty(kept, np.uint64), np.empty(kept, np.uint64)
    new_times, new_diffs = np.empty(kept, np.uint64), np.empty(kept, np.int64)
    k = 0
    for at in range(used):
        if sums[at]:
            j = places[at]
            new_keys[k], new_vals[k], new_times[k] = keys[j], vals[j], times[j]
            new_diffs[k] = sums[at]
            k += 1
    return new_keys, new_vals, new_times, new_diffs, True
