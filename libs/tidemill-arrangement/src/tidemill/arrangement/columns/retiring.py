"""What a reduction owes for one interval of times, found a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.columns.batches import ColumnBatch, Times
from tidemill.arrangement.columns.reductions import GroupReduction
from tidemill.arrangement.kernels import (
    Columns,
    I64Array,
    U64Array,
    beyond,
    consolidate,
    frontier_rows,
)
from tidemill.arrangement.kernels.changing import distinct_of, not_after, rank_in
from tidemill.arrangement.kernels.closing import ACTIVE, close_times, ranks_within
from tidemill.arrangement.kernels.packing import constant, span_of
from tidemill.arrangement.kernels.probing import count_rows, gather_packed, match_packed

_PIECE = 64

_LOCATED = 1 << 14
"""The keys that are located at a time."""

_KEYS = 1 << 16
"""The keys of a piece, at most: each of its rounds looks at all of them."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Times beyond upper at which the output of a key may change: keys (n,), times (n, lanes)."""

    keys: U64Array
    times: U64Array

    @classmethod
    def none(cls, lanes: int) -> Waiting:
        return cls(np.empty(0, np.uint64), np.empty((0, lanes), np.uint64))

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, keys: U64Array) -> Waiting:
        """Those of sorted `keys`, in their order. Cost: O(n log n)."""
        if not len(self):
            return self
        mine = np.isin(self.keys, keys)
        order = np.argsort(self.keys[mine], kind="stable")
        return Waiting(self.keys[mine][order], self.times[mine][order])


class Retirement:
    """The corrections of an output for one interval, key by key in bounded pieces.

    Nothing it reads may change meanwhile, but for compaction: it keeps the batches themselves.
    """

    def __init__(
        self,
        reduction: GroupReduction,
        fresh: Sequence[ColumnBatch],
        stored: Sequence[ColumnBatch],
        output: Sequence[ColumnBatch],
        waiting: Waiting,
        upper: Times,
        lanes: int,
    ) -> None:
        self._reduction, self._lanes = reduction, lanes
        self._stored, self._output, self._waiting = stored, output, waiting
        self._upper = frontier_rows(upper, lanes)
        parts = [batch.updates() for batch in fresh if len(batch)]
        changes = Columns.concatenate(parts) if parts else Columns.empty(lanes)
        self._changes = (consolidate(changes) if len(parts) > 1 else changes).contiguous()
        self._rows = len(self._changes) + sum(len(batch) for batch in (*stored, *output))
        self._keys = self._touched()
        self._next = 0  # the first key that no piece has
        self._block = _KEYS  # how many keys to count the rows of for the next piece
        self._piece: _Piece | None = None
        self._owed: list[Columns] = []
        self._pended: list[Waiting] = []
        self.rows_read = 0
        """How many rows of history and of changes were read so far."""

    @property
    def done(self) -> bool:
        return self._piece is None and self._next == len(self._keys)

    def work(self, limit: int) -> None:
        """Go on: fewer than twice `limit` rows are read, or `limit` and those of one key.

        Raises: UsageError if a sum does not fit in 64 bits.
        Cost: O(limit), the closure of the times of each key, and the reduction.
        """
        spent = 0
        while spent < limit and not self.done:
            if self._piece is None:
                self._piece = self._open(limit - spent)
                spent += self._piece.rows
            elif self._piece.rounds:
                spent += self._piece.next_round(self._reduction)
            else:
                self._owed.append(self._piece.owed())
                self._piece = None
        self.rows_read += spent

    def outcome(self) -> tuple[Columns, Waiting]:
        """The corrections, sorted and consolidated, and what waits from then on; once done."""
        waiting = self._waiting
        if len(waiting):
            kept = ~np.isin(waiting.keys, self._keys)
            waiting = Waiting(waiting.keys[kept], waiting.times[kept])
        pended = [waiting, *self._pended]
        return Columns.concatenate([Columns.empty(self._lanes), *self._owed]), Waiting(
            np.concatenate([part.keys for part in pended]),
            np.concatenate([part.times for part in pended]),
        )

    def _touched(self) -> U64Array:
        """The sorted keys that change or have a time that is due."""
        keys = np.empty_like(self._changes.keys)
        keys = keys[: distinct_of(self._changes.keys, keys)]
        if not len(self._waiting):
            return keys
        waits = beyond(np.ascontiguousarray(self._waiting.times.T), self._upper)
        due: U64Array = self._waiting.keys[~waits]
        return np.union1d(keys, due) if len(due) else keys

    def _open(self, limit: int) -> _Piece:
        """The next keys that have up to `limit` rows together, one at least."""
        keys = self._keys[self._next : self._next + min(self._block, limit)]
        bounds = [np.searchsorted(self._changes.keys, keys, side) for side in ("left", "right")]
        if self._rows > limit:
            rows = bounds[1] - bounds[0]
            for batch in (*self._stored, *self._output):
                count_rows(keys, batch.rows, batch.layout.table, rows)
            keys = keys[: max(1, int(np.searchsorted(np.cumsum(rows), limit, side="right")))]
        self._next += len(keys)
        self._block = min(4 * len(keys), _KEYS)
        new = self._changes.slice(int(bounds[0][0]), int(bounds[1][len(keys) - 1])).contiguous()
        owners = np.empty(len(new), np.uint64)
        rank_in(keys, new.keys, owners)
        piece = _Piece(
            keys,
            Columns(owners, new.vals, new.times, new.diffs),
            history_of(keys, self._stored, self._lanes),
            history_of(keys, self._output, self._lanes),
            self._waiting.of(keys),
            self._upper,
        )
        self._pended.append(piece.pended)
        return piece


class _Piece:
    """Some keys on their way through their moments: round r evaluates the r-th of every key."""

    def __init__(
        self, keys: U64Array, new: Columns, stored: Columns, given: Columns, waiting: Waiting,
        upper: U64Array,
    ) -> None:  # fmt: skip
        self._keys = keys
        self._source = consolidate(Columns.concatenate([stored, new])).contiguous()
        self._given = given
        self._corrections: list[Columns] = []
        self.rows = len(new) + len(stored) + len(given)
        self.rounds, self.pended = self._moments(new, stored, given, waiting, upper)

    def _moments(
        self, new: Columns, stored: Columns, given: Columns, waiting: Waiting, upper: U64Array
    ) -> tuple[list[tuple[U64Array, U64Array]], Waiting]:
        """For each round the owners and the moments, (owners,) and (lanes, owners); what waits."""
        if len(new.times) == 1 and len(new) and not len(waiting):
            first, last = span_of(new.times[0])
            if first == last:  # a chain, and one moment for every key
                owners = np.arange(len(self._keys), dtype=np.uint64)
                return [(owners, np.full((1, len(owners)), first))], waiting
        due = np.empty(len(waiting), np.uint64)
        rank_in(self._keys, waiting.keys, due)
        seeds = _by_owner((new.keys, new.times.T), (due, waiting.times))
        history = _by_owner((stored.keys, stored.times.T), (given.keys, given.times.T))
        joins = len(new.times) > 1
        owners, times, kinds = close_times(len(self._keys), *seeds, *history, upper, joins)
        active = kinds == ACTIVE
        order = np.lexsort((*times[active].T[::-1], owners[active]))
        moment_owners, moments = owners[active][order], times[active][order]
        ranks = np.empty(len(order), np.int64)
        most = ranks_within(moment_owners, ranks)
        by_rank = np.argsort(ranks, kind="stable")
        ends = np.searchsorted(ranks[by_rank], np.arange(most + 1))
        rounds = [
            (moment_owners[places], np.ascontiguousarray(moments[places].T))
            for places in (by_rank[ends[r] : ends[r + 1]] for r in range(most))
        ]
        pended = kinds > ACTIVE
        return rounds[::-1], Waiting(self._keys[owners[pended]], times[pended])

    def next_round(self, reduction: GroupReduction) -> int:
        """What the reduction of the input differs by from the output so far; how many rows it read."""
        asked_owners, asked_moments = self.rounds.pop()
        asked = np.zeros(len(self._keys), np.int64)
        asked[asked_owners] = 1
        moments = np.zeros((len(asked_moments), len(self._keys)), np.uint64)
        moments[:, asked_owners] = asked_moments
        self._forget_finished(asked, len(asked_owners))
        read = len(self._source) + len(self._given)
        group = _accumulated(self._source, asked, moments)
        before = _accumulated(self._given, asked, moments)
        owners, results, diffs = reduction(group.keys, group.vals, group.diffs)
        owed = consolidate(
            _timeless(
                np.concatenate([owners, before.keys]),
                np.concatenate([results, before.vals]),
                np.concatenate([diffs, -before.diffs]),
            )
        )
        at = np.ascontiguousarray(moments[:, owed.keys])
        correction = Columns(owed.keys, owed.vals, at, owed.diffs)
        self._corrections.append(correction)
        if self.rounds:
            self._given = consolidate(Columns.concatenate([self._given, correction])).contiguous()
        return max(1, read)

    def owed(self) -> Columns:
        """All corrections, by key."""
        found = consolidate(Columns.concatenate(self._corrections))
        return Columns(self._keys[found.keys], found.vals, found.times, found.diffs)

    def _forget_finished(self, asked: I64Array, owners: int) -> None:
        """Drop the rows of keys that have had their last round, once they are the most."""
        if 2 * owners > len(self._keys) or not len(self._source):
            return
        for name in ("_source", "_given"):
            rows: Columns = getattr(self, name)
            kept = asked[rows.keys] == 1
            if 2 * int(kept.sum()) < len(rows):
                setattr(self, name, rows.where(kept).contiguous())


def _by_owner(*parts: tuple[U64Array, U64Array]) -> tuple[U64Array, U64Array]:
    """Owners ascending and the times of each, (n, lanes)."""
    owners = np.concatenate([part for part, _ in parts])
    times = np.concatenate([part for _, part in parts])
    order = np.argsort(owners, kind="stable")
    return owners[order], np.ascontiguousarray(times[order])


def history_of(keys: U64Array, batches: Sequence[ColumnBatch], lanes: int) -> Columns:
    """The rows of sorted, distinct keys in all batches, consolidated; positions stand for keys.

    Cost: a search for each key in each batch, and a sort of the rows found.
    """
    found = [_rows_of(keys, batch, lanes) for batch in batches]
    parts = [part for part in found if len(part)]
    return consolidate(Columns.concatenate(parts)).contiguous() if parts else Columns.empty(lanes)


def _rows_of(keys: U64Array, batch: ColumnBatch, lanes: int) -> Columns:
    places, room = np.zeros(4, np.int64), _PIECE
    located = np.empty(min(len(keys), _LOCATED), np.int64)
    table = batch.layout.table
    found: list[tuple[I64Array, I64Array]] = []
    done = False
    while not done:
        left, right = np.empty((2, room), np.int64)
        n = match_packed(keys, batch.rows, table, located, places, left, right)
        if n:
            found.append((left[:n], right[:n]))
        done = n < room
        room *= 16
    if not found:
        return Columns.empty(lanes)
    owners, positions = found[0]
    if len(found) > 1:
        owners = np.concatenate([part for part, _ in found])
        positions = np.concatenate([part for _, part in found])
    vals, times = np.empty(len(owners), np.uint64), np.empty((lanes, len(owners)), np.uint64)
    diffs = np.empty(len(owners), np.int64)
    gather_packed(batch.rows, table, batch.diffs, positions, vals, times, diffs)
    return Columns(owners.view(np.uint64), vals, times, diffs)


def _accumulated(rows: Columns, asked: I64Array, moments: U64Array) -> Columns:
    """The multiplicities of each owner's vals at its moment."""
    visible = not_after(rows.keys, rows.times, moments, asked)
    return consolidate(_timeless(rows.keys[visible], rows.vals[visible], rows.diffs[visible]))


def _timeless(owners: U64Array, vals: U64Array, diffs: I64Array) -> Columns:
    return Columns(owners, vals, constant(0, len(owners)).reshape(1, -1), diffs)
