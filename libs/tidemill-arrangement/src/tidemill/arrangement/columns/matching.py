"""Pairs of updates with one key, found and given out in pieces of bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.columns.batches import ColumnBatch
from tidemill.arrangement.columns.retiring import history_of
from tidemill.arrangement.kernels import Columns, I64Array, U64Array, consolidate
from tidemill.arrangement.kernels.changing import heavy_keys
from tidemill.arrangement.kernels.joining import cross_rows
from tidemill.arrangement.kernels.probing import count_rows, join_packed, match_packed
from tidemill.errors import UsageError

_PIECE = 64
"""The pairs that a first piece has room for: a tiny change pays for no more."""

_PIECE_MAX = 1 << 18
"""The pairs of a piece that still fit in the caches."""

_KEYS = 1 << 14
"""The keys that are located at a time."""

_MANY = 16
"""From so many updates of a key on both sides on they are netted before they are paired."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Matches: the key, the val of either side, the join of times, the product of diffs.

    Shapes: (n,) each, times (lanes, n). Not consolidated.
    """

    keys: U64Array
    left_vals: U64Array
    right_vals: U64Array
    times: U64Array
    diffs: I64Array

    @classmethod
    def concatenate(cls, parts: Sequence[Joined], lanes: int) -> Joined:
        """The matches of all `parts`. Cost: O(n)."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            nothing = np.empty(0, np.uint64)
            times = np.empty((lanes, 0), np.uint64)
            return cls(nothing, nothing, nothing, times, np.empty(0, np.int64))
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.left_vals for part in parts]),
            np.concatenate([part.right_vals for part in parts]),
            np.concatenate([part.times for part in parts], axis=1),
            np.concatenate([part.diffs for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.diffs)


class _Matching:
    """The matches of fresh updates with one stored batch, a bounded piece at a time."""

    __slots__ = ("_batch", "_fresh", "_places", "_positions", "_room", "_swapped", "done")

    def __init__(self, fresh: Columns, batch: ColumnBatch, swapped: bool) -> None:
        self._fresh, self._batch, self._swapped = fresh, batch, swapped
        self._places = np.zeros(4, np.int64)
        self._positions = np.empty(min(len(fresh), _KEYS), np.int64)
        self._room = _PIECE
        self.done = False

    def work(self, limit: int) -> Joined | None:
        """At most `limit` more matches; none: there is no further one."""
        fresh, batch = self._fresh, self._batch
        room = min(self._room, limit)
        lefts, rights = np.empty(room, np.int64), np.empty(room, np.int64)
        table = batch.layout.table
        n = match_packed(
            fresh.keys, batch.rows, table, self._positions, self._places, lefts, rights
        )
        self.done = n < room
        self._room = min(self._room * 16, _PIECE_MAX)
        if not n:
            return None
        keys, left_vals, right_vals = np.empty((3, n), np.uint64)
        times, diffs = np.empty((fresh.lanes, n), np.uint64), np.empty(n, np.int64)
        if not join_packed(
            lefts[:n], rights[:n], self._swapped, fresh.keys, fresh.vals, fresh.times, fresh.diffs,
            batch.rows, table, batch.diffs, keys, left_vals, right_vals, times, diffs,
        ):  # fmt: skip
            raise UsageError("a product of diffs does not fit in 64 bits", reason="Overflow")
        return Joined(keys, left_vals, right_vals, times, diffs)


class Wave:
    """The pairs of updates of one key that has many on both sides, netted before they are paired.

    An update at t makes with all updates of the other side the same as with these lifted to t and
    added up. So both sides are cut at one time: the earlier half of each, lifted to the meet of the
    later half of the other and consolidated, meets that half as a whole; halves of the same times
    are cut again. What comes accumulates as all pairs would, at every time.

    Cost: along a chain O((m + n) · log(m + n) · vals) rows for m and n updates, where pairs are
    m · n; memory for the updates of the key.
    """

    def __init__(
        self, key: int, fresh: Columns, stored: Sequence[ColumnBatch], swapped: bool
    ) -> None:
        self._key, self._swapped = key, swapped
        self._fresh, self._stored = fresh, stored
        self._to_cut: list[tuple[Columns, Columns]] = []
        self._to_cross: list[tuple[Columns, Columns]] = []
        self._at = 0  # how many pairs of the last to cross were given out
        self._started = False

    @property
    def done(self) -> bool:
        return self._started and not self._to_cut and not self._to_cross

    def work(self, limit: int) -> Joined | None:
        """At most `limit` more pairs; none: there is no further one."""
        if not self._started:
            key = np.array([self._key], np.uint64)
            self._to_cut = [(self._fresh, history_of(key, self._stored, self._fresh.lanes))]
            self._started = True
        while not self._to_cross and self._to_cut:
            self._cut(*self._to_cut.pop())
        if not self._to_cross:
            return None
        fresh, stored = self._to_cross[-1]
        n = min(limit, len(fresh) * len(stored) - self._at)
        found = self._cross(fresh, stored, n)
        self._at += n
        if self._at == len(fresh) * len(stored):
            self._to_cross.pop()
            self._at = 0
        return found

    def _cut(self, fresh: Columns, stored: Columns) -> None:
        """Cut both at one time, or have them crossed as they are."""
        pairs = [(fresh, stored)]
        cut = _halves(fresh, stored) if min(len(fresh), len(stored)) >= _MANY else None
        if cut is not None:
            earlier, later = cut
            self._to_cut += cut
            pairs = [
                (later[0], _lifted(earlier[1], later[0])),
                (_lifted(earlier[0], later[1]), later[1]),
            ]
        self._to_cross += [(a, b) for a, b in pairs if len(a) and len(b)]

    def _cross(self, fresh: Columns, stored: Columns, n: int) -> Joined:
        left, right = (stored, fresh) if self._swapped else (fresh, stored)
        vals, diffs = np.empty((2, n), np.uint64), np.empty(n, np.int64)
        times = np.empty((fresh.lanes, n), np.uint64)
        if not cross_rows(
            left.vals, left.times, left.diffs, right.vals, right.times, right.diffs,
            self._at, vals[0], vals[1], times, diffs,
        ):  # fmt: skip
            raise UsageError("a product of diffs does not fit in 64 bits", reason="Overflow")
        return Joined(np.full(n, self._key, np.uint64), vals[0], vals[1], times, diffs)


def _halves(
    fresh: Columns, stored: Columns
) -> tuple[tuple[Columns, Columns], tuple[Columns, Columns]] | None:
    """Both before a time and both from it on, by the total order of times; none if all are one."""
    times = np.concatenate([fresh.times, stored.times], axis=1)
    ranks = np.unique(times, axis=1, return_inverse=True)[1].reshape(-1)
    if not ranks.any():
        return None
    at = max(1, int(np.partition(ranks, len(ranks) // 2)[len(ranks) // 2]))
    before = ranks < at
    cuts = before[: len(fresh)], before[len(fresh) :]
    earlier, later = (
        tuple(
            side.where(cut == early).contiguous()
            for side, cut in zip((fresh, stored), cuts, strict=True)
        )
        for early in (True, False)
    )
    return (earlier[0], earlier[1]), (later[0], later[1])


def _lifted(rows: Columns, asked: Columns) -> Columns:
    """The rows lifted to the meet of the times at which they are asked for, and added up."""
    if not len(rows) or not len(asked):
        return rows
    lifted = np.maximum(rows.times, asked.times.min(axis=1)[:, None])
    return consolidate(Columns(rows.keys, rows.vals, lifted, rows.diffs)).contiguous()


class MatchQueue:
    """Matches that are still to be found, given out in pieces of bounded size.

    Waiting matches keep the batches they read, whatever traces compact meanwhile.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._queue: deque[_Matching | Wave] = deque()

    @property
    def done(self) -> bool:
        """Whether all matches were given out."""
        return not self._queue

    def match(self, fresh: ColumnBatch, stored: Sequence[ColumnBatch], swapped: bool) -> None:
        """Put a fresh batch against stored ones; `swapped`: it is of the right side."""
        present = [batch for batch in stored if len(batch)]
        if not present or not len(fresh):
            return
        columns = fresh.updates().contiguous()
        for key in _many_on_both(columns, present):
            first, last = np.searchsorted(columns.keys, key), np.searchsorted(
                columns.keys, key, side="right"
            )  # fmt: skip
            self._queue.append(Wave(int(key), columns.slice(first, last), present, swapped))
            rest = columns.slice(0, first), columns.slice(last, len(columns))
            columns = Columns.concatenate(rest).contiguous()
        self._queue.extend(_Matching(columns, batch, swapped) for batch in present)

    def work(self, limit: int) -> Joined:
        """The next matches: at most `limit` or a quarter of a million, also inside a key.

        Not consolidated. None come only when none are left.

        Raises: UsageError if a product of diffs does not fit in 64 bits.
        Cost: O(limit), and a search for each key without a match.
        """
        found: list[Joined] = []
        limit = min(limit, _PIECE_MAX)
        while self._queue and limit > 0:
            matching = self._queue[0]
            piece = matching.work(limit)
            if piece is not None:
                found.append(piece)
                limit -= len(piece)
            if matching.done:
                self._queue.popleft()
        return Joined.concatenate(found, self._lanes)


def _many_on_both(fresh: Columns, stored: Sequence[ColumnBatch]) -> U64Array:
    """The keys that have many fresh rows and many stored ones. Cost: O(n)."""
    keys = np.empty(len(fresh) // _MANY, np.uint64)
    keys = keys[: heavy_keys(fresh.keys, _MANY, keys)]
    if len(keys):
        counts = np.zeros(len(keys), np.int64)
        for batch in stored:
            count_rows(keys, batch.rows, batch.layout.table, counts)
        keys = keys[counts >= _MANY]
    return keys
