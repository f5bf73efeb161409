"""The join of two collections by key, kept up to date within a bound on the work of each call."""

from __future__ import annotations

from tidemill.arrangement.columns.arranging import ColumnArrangement
from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.matching import Joined, MatchQueue
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.columns.views import ReadableTrace
from tidemill.arrangement.kernels import Columns
from tidemill.errors import UsageError
from tidemill.time import Antichain


class ColumnJoin:
    """Every pair of updates of one key once, at the join of their times, with the product of diffs.

    A pair is matched when the later of its two batches arrives; what is to be matched waits in a
    queue and is given out piece by piece, so output never needs more memory than one call asks for.
    Pairs of a key with many updates on both sides are netted first: see `Wave`.
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
