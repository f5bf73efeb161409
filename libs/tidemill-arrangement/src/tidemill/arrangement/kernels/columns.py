"""Updates as parallel columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tidemill.arrangement.kernels.arrays import BoolArray, I64Array, U64Array

Array = TypeVar("Array", U64Array, I64Array)

_SHORT = 4096
"""Up to this many rows a column of one value is cheaper to write than to describe."""


@dataclass(frozen=True, slots=True)
class Columns:
    """n updates: key, val, a time of one to four lanes, diff.

    Kernels that say so expect them sorted by (key, val, time lanes) and consolidated: no two rows
    equal in all of these, no diff zero.

    Shapes: keys (n,), vals (n,), times (lanes, n), diffs (n,).
    """

    keys: U64Array
    vals: U64Array
    times: U64Array
    diffs: I64Array

    @classmethod
    def empty(cls, lanes: int) -> Columns:
        """No updates at times of so many lanes."""
        nothing = np.empty(0, np.uint64)
        return cls(nothing, nothing, np.empty((lanes, 0), np.uint64), np.empty(0, np.int64))

    @classmethod
    def at(cls, time: Sequence[int], keys: U64Array, vals: U64Array, diffs: I64Array) -> Columns:
        """Updates that all happen at one time; its lanes take no memory if there are many."""
        stamps = np.array(time, np.uint64)[:, None]
        if len(keys) > _SHORT:
            return cls(keys, vals, np.broadcast_to(stamps, (len(time), len(keys))), diffs)
        return cls(keys, vals, np.repeat(stamps, len(keys), axis=1), diffs)

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """The updates of all `parts`, at least one, one after the other. Cost: O(n)."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.vals for part in parts]),
            np.concatenate([part.times for part in parts], axis=1),
            np.concatenate([part.diffs for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.diffs)

    @property
    def lanes(self) -> int:
        return len(self.times)

    @property
    def columns(self) -> list[U64Array]:
        """Key, val and the lanes of time, in the order by which rows are sorted."""
        return [self.keys, self.vals, *self.times]

    def contiguous(self) -> Columns:
        """The same rows in arrays of one kind, so that a loop over them is compiled once.

        Cost: nothing, but O(n) for columns that took no memory or are views across rows.
        """
        return Columns(
            _plain(self.keys), _plain(self.vals), _plain(self.times), _plain(self.diffs)
        )  # fmt: skip

    def slice(self, start: int, end: int) -> Columns:
        """Rows from `start` to before `end`, as views."""
        rows = slice(start, end)
        return Columns(self.keys[rows], self.vals[rows], self.times[:, rows], self.diffs[rows])

    def where(self, kept: BoolArray) -> Columns:
        """The rows that `kept` says. Cost: O(n)."""
        return Columns(
            self.keys[kept], self.vals[kept], self.times[:, kept], self.diffs[kept]
        )  # fmt: skip


def _plain(column: Array) -> Array:
    plain = column.flags.c_contiguous and column.flags.writeable
    return column if plain else column.copy()
