"""The join of two collections by key, kept up to date within a bound on the work of each call."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.columns.arranging import ColumnArrangement
from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.columns.views import ReadableTrace
from tidemill.arrangement.kernels import Columns, I64Array, U64Array
from tidemill.arrangement.kernels.probing import join_packed, match_packed
from tidemill.time import Antichain, UsageError

_PIECE = 64
"""The pairs that a first piece has room for: a tiny change pays for no more."""

_PIECE_MAX = 1 << 18
"""The pairs of a piece that still fit in the caches."""

_KEYS = 1 << 14
"""The keys that are located at a time."""


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


class MatchQueue:
    """Matches that are still to be found, given out in pieces of bounded size.

    Waiting matches keep the batches they read, whatever traces compact meanwhile.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._queue: deque[_Matching] = deque()

    @property
    def done(self) -> bool:
        """Whether all matches were given out."""
        return not self._queue

    def match(self, fresh: ColumnBatch, stored: Sequence[ColumnBatch], swapped: bool) -> None:
        """Put a fresh batch against stored ones; `swapped`: it is of the right side."""
        if stored and len(fresh):
            columns = fresh.updates().contiguous()
            self._queue.extend(_Matching(columns, batch, swapped) for batch in stored if len(batch))

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


class ColumnJoin:
    """Every pair of updates of one key once, at the join of their times, with the product of diffs.

    A pair is matched when the later of its two batches arrives; what is to be matched waits in a
    queue and is given out piece by piece, so output never needs more memory than one call asks for.
    Its own holds let both traces compact to `upper`: later updates are beyond it and match all
    alike.
    """

    def __init__(self, lattice: ColumnLattice, storage: Storage = MEMORY, effort: int = 1) -> None:
        self.left = ColumnArrangement(lattice, "join", storage, effort)
        self.right = ColumnArrangement(lattice, "join", storage, effort)
        self._matches = MatchQueue(ColumnBatch.lanes_of(lattice))

    @property
    def upper(self) -> Times:
        """Up to where both inputs are known."""
        return self.left.upper

    @property
    def done(self) -> bool:
        """Whether all output for what was pushed was given out."""
        return self._matches.done

    def push(self, left: Columns, right: Columns, upper: Times) -> None:
        """Take the updates of both inputs at times not beyond `upper`.

        Raises: UsageError if `upper` is not beyond the last one, an update is not beyond the last
            one or is beyond this one, or a sum of diffs does not fit in 64 bits; nothing changes
            then.
        Cost: that of two inserts; matching is left to `work`.
        """
        fresh_left = self.left.batch_of(left, upper)
        fresh_right = self.right.batch_of(right, upper)
        if len(fresh_left):
            self._matches.match(fresh_left, self.right.batches(), swapped=False)
        self.left.insert(fresh_left)
        if len(fresh_right):
            self._matches.match(fresh_right, self.left.batches(), swapped=True)
        self.right.insert(fresh_right)
        self.left.compact(upper)
        self.right.compact(upper)

    def work(self, limit: int) -> Joined:
        """The next matches: at most `limit` or a quarter of a million, also inside a key.

        Not consolidated. None come only when none are left.

        Raises: UsageError if a product of diffs does not fit in 64 bits.
        Cost: O(limit), and a search for each key without a match.
        """
        return self._matches.work(limit)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on each trace; whether there was anything to do."""
        left, right = self.left.exert(effort), self.right.exert(effort)
        return left or right


class TraceJoin:
    """The join of two traces that others write and share: history first, then what comes.

    No row is copied: it reads the batches of both traces, held back no further than it needs. What
    it gives accumulates like the join at every time beyond both traces' holds at the start.
    """

    def __init__(self, left: ReadableTrace, right: ReadableTrace, name: str) -> None:
        """Raises: UsageError if a trace may already merge past its upper: it has no cut there."""
        for handle in (left, right):
            if not handle.physical.precedes(handle.upper):
                raise UsageError(
                    f"{handle.name} holds no cut at the upper {handle.upper} of its trace"
                )
        self._sides = _Followed(left.clone(name)), _Followed(right.clone(name))
        self._matches = MatchQueue(ColumnBatch.lanes_of(left.lattice))

    @property
    def upper(self) -> Times:
        """Up to where both traces were followed."""
        left, right = self._sides
        return left.position.meet(right.position)

    @property
    def done(self) -> bool:
        """Whether all output for what was followed was given out."""
        return self._matches.done

    def follow(self) -> None:
        """Take what was appended to both traces since the last call, all history at the first.

        Cost: O(log n); matching is left to `work`.
        """
        left, right = self._sides
        for side, other, swapped in ((left, right, False), (right, left, True)):
            for batch in side.take():
                self._matches.match(batch, other.taken(), swapped)
        left.release(right.position)
        right.release(left.position)

    def work(self, limit: int) -> Joined:
        """The next matches; see `ColumnJoin.work`."""
        return self._matches.work(limit)

    def close(self) -> None:
        """Drop the holds on both traces; again is fine. What waits is still given out."""
        for side in self._sides:
            side.handle.drop()


class _Followed:
    """A trace as one of its readers has followed it."""

    def __init__(self, handle: ReadableTrace) -> None:
        self.handle = handle
        self.position: Times = Antichain.minimum(handle.lattice)
        self._started = False

    def take(self) -> list[ColumnBatch]:
        """The batches since `position`, which moves to the upper of the trace."""
        handle = self.handle
        batches = handle.following(self.position) if self._started else handle.history()
        self._started, self.position = True, handle.upper
        return batches

    def taken(self) -> list[ColumnBatch]:
        """The batches up to `position`."""
        if not self._started:
            return []
        return [
            batch
            for batch in self.handle.history()
            if batch.description.upper.precedes(self.position)
        ]

    def release(self, other: Times) -> None:
        """Hold no more than what updates of the other side, all beyond `other`, still need."""
        self.handle.set_physical(self.position)
        if not other.empty:
            self.handle.set_logical(other)
