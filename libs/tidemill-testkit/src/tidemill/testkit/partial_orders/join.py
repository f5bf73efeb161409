"""The join of two collections by key, kept up to date within a bound on the work of each call."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

from tidemill.arrangement.trace import SharedTrace, Spine
from tidemill.testkit.partial_orders.replay import joined_histories
from tidemill.testkit.partial_orders.row_batches import Record, RowBatch, history_of_key
from tidemill.testkit.partial_orders.update_sets import Update, consolidate_updates
from tidemill.time import Antichain, Lattice

K = TypeVar("K", bound=Record)
V = TypeVar("V", bound=Record)
W = TypeVar("W", bound=Record)
T = TypeVar("T", bound=Record)

Joined = tuple[tuple[K, V, W], T, int]


class Join(Generic[K, V, W, T]):
    """Every pair of updates of one key once, at the join of their times, with the product of diffs.

    A pair is matched when the later of its two batches arrives. Matches wait in a queue and are
    given out piece by piece, so output never needs more memory than one piece. Queued
    matches keep the batches they read, whatever the traces compact meanwhile.
    """

    def __init__(self, lattice: Lattice[T], effort: int = 1) -> None:
        self._lattice = lattice
        left: Spine[T, RowBatch[tuple[K, V], T]] = Spine(lattice, effort)
        right: Spine[T, RowBatch[tuple[K, W], T]] = Spine(lattice, effort)
        self.left = SharedTrace(left)
        self.right = SharedTrace(right)
        self._left_hold = self.left.hold("join")
        self._right_hold = self.right.hold("join")
        self._queue: deque[Iterator[Joined[K, V, W, T]]] = deque()

    @property
    def upper(self) -> Antichain[T]:
        """Up to where both inputs are known."""
        return self.left.upper

    @property
    def done(self) -> bool:
        """Whether all output for what was pushed was given out."""
        return not self._queue

    def push(
        self,
        left: Iterable[Update[tuple[K, V], T]],
        right: Iterable[Update[tuple[K, W], T]],
        upper: Antichain[T],
    ) -> None:
        """Take the updates of both inputs at times not beyond `upper`.

        Raises: UsageError if `upper` is not beyond the last one, or an update is not beyond the
            last one or is beyond this one. Nothing changes then.
        Cost: that of two inserts; matching is left to `work`.
        """
        lower, left, right = self.upper, list(left), list(right)
        if lower == upper and not left and not right:
            return
        fresh_left = RowBatch.of(self._lattice, lower, upper, left)
        fresh_right = RowBatch.of(self._lattice, lower, upper, right)
        stored_right = self._right_hold.history()
        self.left.insert(fresh_left)
        self.right.insert(fresh_right)
        stored_left = self._left_hold.history()
        if len(fresh_left) and any(len(batch) for batch in stored_right):
            self._queue.append(self._matches_left(fresh_left, stored_right))
        if len(fresh_right) and any(len(batch) for batch in stored_left):
            self._queue.append(self._matches_right(stored_left, fresh_right))
        self._left_hold.set_physical(upper)
        self._right_hold.set_physical(upper)

    def work(self, limit: int) -> list[Joined[K, V, W, T]]:
        """The next updates of the output, consolidated: at most `limit` matches, also inside a key.

        Cost: O(limit), and a search for each key without a match.
        """
        found: list[Joined[K, V, W, T]] = []
        while self._queue and len(found) < limit:
            wanted = limit - len(found)
            piece = list(islice(self._queue[0], wanted))
            found += piece
            if len(piece) < wanted:
                self._queue.popleft()
        return consolidate_updates(found)

    def compact(self, to: Antichain[T]) -> None:
        """Permit both traces to forget differences between times that look alike beyond `to`.

        `to` is at or before upper: later updates are beyond it, so their matches are the same.
        """
        self._left_hold.set_logical(to)
        self._right_hold.set_logical(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on each trace; whether there was anything to do."""
        left, right = self.left.exert(effort), self.right.exert(effort)
        return left or right

    def _matches_left(
        self, fresh: RowBatch[tuple[K, V], T], stored: Sequence[RowBatch[tuple[K, W], T]]
    ) -> Iterator[Joined[K, V, W, T]]:
        for key in keys_of(fresh):
            others = history(stored, key)
            if others:
                for v, w, time, diff in joined_histories(
                    self._lattice, history_of_key(fresh, key), others
                ):
                    yield (key, v, w), time, diff

    def _matches_right(
        self, stored: Sequence[RowBatch[tuple[K, V], T]], fresh: RowBatch[tuple[K, W], T]
    ) -> Iterator[Joined[K, V, W, T]]:
        for key in keys_of(fresh):
            others = history(stored, key)
            if others:
                for v, w, time, diff in joined_histories(
                    self._lattice, others, history_of_key(fresh, key)
                ):
                    yield (key, v, w), time, diff


def keys_of(batch: RowBatch[tuple[K, V], T]) -> list[K]:
    """The distinct keys of a batch in their order."""
    return list(dict.fromkeys(key for key, _ in batch.data))


def history(batches: Iterable[RowBatch[tuple[K, V], T]], key: K) -> list[tuple[V, T, int]]:
    """`(value, time, diff)` of one key in all `batches`, not consolidated across them.

    Cost: O(log n) for each batch, and the rows of the key.
    """
    return [edit for batch in batches for edit in history_of_key(batch, key)]
