"""Records whose key is, or is not, in a set of keys; kept up to date with bounded work a call."""

from __future__ import annotations

from collections import deque

import numpy as np

from tidemill.arrangement.columns import reductions
from tidemill.arrangement.columns.batches import MEMORY, ColumnBatch, ColumnLattice, Times
from tidemill.arrangement.columns.joining import ColumnJoin
from tidemill.arrangement.columns.reducing import ColumnReduce
from tidemill.arrangement.columns.storage import Storage
from tidemill.arrangement.kernels import Columns
from tidemill.arrangement.kernels.packing import constant


class ColumnSemijoin:
    """The records (key, val) whose key is in the other collection; with `anti`, whose key is not.

    A key is in it while it has a record there with positive multiplicity. Multiplicities of the
    records stay as they are.
    """

    def __init__(
        self, lattice: ColumnLattice, anti: bool = False, storage: Storage = MEMORY, effort: int = 1
    ) -> None:
        self._anti = anti
        self._keys = ColumnReduce(lattice, reductions.distinct, storage, effort)
        self._join = ColumnJoin(lattice, storage, effort)
        self._lanes = ColumnBatch.lanes_of(lattice)
        self._passed: deque[Columns] = deque()

    @property
    def upper(self) -> Times:
        """Up to where both inputs are known."""
        return self._join.upper

    @property
    def done(self) -> bool:
        """Whether all output for what was pushed was given out."""
        return self._join.done and not self._passed

    def push(self, records: Columns, keys: Columns, upper: Times) -> None:
        """Take the updates of both inputs at times not beyond `upper`; vals of `keys` do not
        matter.

        Raises: UsageError if `upper` is not beyond the last one, an update is not beyond the last
            one or is beyond this one, or a sum of diffs does not fit in 64 bits.
        Cost: that of the inserts and of a reduction of the keys; matching is left to `work`.
        """
        # The records are checked before the keys are taken: a refused push changes nothing.
        ColumnBatch.of(self._join.left.lattice, self.upper, upper, records)
        bare = Columns(keys.keys, constant(0, len(keys)), keys.times, keys.diffs)
        present = self._keys.step(bare, upper).updates()
        self._join.push(records, present, upper)
        if self._anti and len(records):
            self._passed.append(records)

    def work(self, limit: int) -> Columns:
        """The next updates of the output: at most `limit` matches, also inside a key.

        Not consolidated: with `anti` all records pass, then those whose key matches are taken back.
        Cost: O(limit), and a search for each key without a match.
        """
        if self._passed:
            records = self._passed.popleft()
            if len(records) > limit:
                self._passed.appendleft(records.slice(limit, len(records)))
            return records.slice(0, limit)
        found = self._join.work(limit)
        diffs = np.negative(found.diffs) if self._anti else found.diffs
        return Columns(found.keys, found.left_vals, found.times, diffs)

    def compact(self, to: Times) -> None:
        """Let what is kept of the keys forget differences that no time beyond `to` can tell."""
        self._keys.compact(to)

    def exert(self, effort: int | None = None) -> bool:
        """Spend one piece of idle maintenance on each trace; whether there was anything to do."""
        keys, join = self._keys.exert(effort), self._join.exert(effort)
        return keys or join
