"""The join of two collections by key, kept up to date within a bound on the work of each call."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.columns.arranging import ColumnArrangement
from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.kernels import Columns, I64Array, U64Array
from tidemill.arrangement.kernels.probing import join_packed, match_packed
from tidemill.time import UsageError

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


class ColumnJoin:
    """Every pair of updates of one key once, at the join of their times, with the product of diffs.

    A pair is matched when the later of its two batches arrives; what is to be matched waits in a
    queue and is given out piece by piece, so output never needs more memory than one call asks for.
    Waiting matches keep the batches they read, whatever the traces compact meanwhile. Its own holds
    let both traces compact to `upper`: later updates are beyond it and match all alike.
    """

    def __init__(self, lattice: ColumnLattice, storage: Storage = MEMORY, effort: int = 1) -> None:
        self.left = ColumnArrangement(lattice, "join", storage, effort)
        self.right = ColumnArrangement(lattice, "join", storage, effort)
        self._lanes = ColumnBatch.lanes_of(lattice)
        self._queue: deque[_Matching] = deque()

    @property
    def upper(self) -> Times:
        """Up to where both inputs are known."""
        return self.left.upper

    @property
    def done(self) -> bool:
        """Whether all output for what was pushed was given out."""
        return not self._queue

    def push(self, left: Columns, right: Columns, upper: Times) -> None:
        """Take the updates of both inputs at times not beyond `upper`.

        Raises: UsageError if `upper` is not beyond the last one, an update is not beyond the last
            one or is beyond this one, or a sum of diffs does not fit in 64 bits; nothing changes
            then.
        Cost: that of two inserts; matching is left to `work`.
        """
        fresh_left = self.left.batch_of(left, upper)
        fresh_right = self.right.batch_of(right, upper)
        stored_right = self.right.batches() if len(fresh_left) else []
        self._match(fresh_left, stored_right, swapped=False)
        self.left.insert(fresh_left)
        if len(fresh_right):
            self._match(fresh_right, self.left.batches(), swapped=True)
        self.right.insert(fresh_right)
        self.left.compact(upper)
        self.right.compact(upper)

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

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on each trace; whether there was anything to do."""
        left, right = self.left.exert(effort), self.right.exert(effort)
        return left or right

    def _match(self, fresh: ColumnBatch, stored: Sequence[ColumnBatch], swapped: bool) -> None:
        if stored:
            columns = fresh.updates().contiguous()
            self._queue.extend(_Matching(columns, batch, swapped) for batch in stored)
