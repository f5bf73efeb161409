"""The reclock operator of partitioned logs over columns of numbers.

Importing it imports numba: callers that may not need it import it where they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tidemill.arrangement.kernels import I64Array, U64Array, compiled
from tidemill.reclock.mapping import target_frontier
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    Antichain,
    Frontier,
    Partitions,
    SourceFrontier,
    UsageError,
)

_DENSE = 1 << 16
"""Partitions whose numbers span no more than this are counted without being looked up."""


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """n updates of a partitioned log: where they stand in it, the word of the record, the diff."""

    partitions: U64Array
    offsets: U64Array
    vals: U64Array
    diffs: I64Array

    def __len__(self) -> int:
        return len(self.diffs)


@dataclass(frozen=True, slots=True)
class ReclockedColumns:
    """Result of one step, in no order, and the frontier of all that is still to come."""

    vals: U64Array
    times: U64Array
    diffs: I64Array
    frontier: Frontier


@compiled
def _spread(
    owners: U64Array, offsets: U64Array, vals: U64Array, diffs: I64Array, ends: I64Array,
    out_offsets: U64Array, out_vals: U64Array, out_diffs: I64Array,
) -> bool:  # fmt: skip
    """Rows by owner, in their order; whether the offsets of each then ascend.

    One diff for all rows stays that. `ends` holds where the rows of each owner start, and
    afterwards where they end.
    """
    ascending, each = True, diffs.size == owners.size
    starts = ends.copy()
    for i in range(owners.size):
        owner = owners[i]
        at = ends[owner]
        ends[owner] = at + 1
        out_offsets[at], out_vals[at] = offsets[i], vals[i]
        if each:
            out_diffs[at] = diffs[i]
        if at > starts[owner] and offsets[i] < out_offsets[at - 1]:
            ascending = False
    return ascending


@compiled
def _cuts(
    offsets: U64Array, starts: I64Array, ends: I64Array, bounds: U64Array, unbounded: U64Array,
    cuts: I64Array,
) -> int:  # fmt: skip
    """How far each owner's rows go that are before its bound; how many rows that is in all."""
    total = 0
    for owner in range(starts.size):
        low, high = starts[owner], ends[owner]
        if unbounded[owner]:
            low = high
        elif low < high and offsets[low] < bounds[owner]:
            step = 1
            while low + step < high and offsets[low + step] < bounds[owner]:
                low += step
                step *= 2
            end = min(high, low + step)
            low += 1
            while low < end:
                middle = (low + end) // 2
                if offsets[middle] < bounds[owner]:
                    low = middle + 1
                else:
                    end = middle
        cuts[owner] = low
        total += low - starts[owner]
    return total


@compiled
def _take(
    vals: U64Array, diffs: I64Array, starts: I64Array, cuts: I64Array,
    out_vals: U64Array, out_diffs: I64Array,
) -> None:  # fmt: skip
    n = 0
    each = 1 if diffs.size > 1 else 0
    for owner in range(starts.size):
        for at in range(starts[owner], cuts[owner]):
            out_vals[n], out_diffs[n] = vals[at], diffs[at * each]
            n += 1
        starts[owner] = cuts[owner]


class WaitingColumns:
    """Updates by partition and offset; a frontier takes out its part of each partition at once.

    Cost: O(n) to build from offsets that ascend in each partition, a sort else; an extraction costs
    O(partitions · log of what it takes) and the rows that it takes.
    """

    __slots__ = ("_diffs", "_ends", "_offsets", "_partitions", "_starts", "_vals")

    def __init__(self, updates: SourceColumns) -> None:
        self._partitions, owners = _owners(updates.partitions)
        counts = np.bincount(owners.view(np.int64), minlength=len(self._partitions))
        self._ends: I64Array = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        self._ends = self._ends[: len(self._partitions)]
        self._starts = self._ends.copy()
        self._offsets: U64Array = np.empty(len(updates), np.uint64)
        self._vals: U64Array = np.empty(len(updates), np.uint64)
        diffs = updates.diffs
        if len(diffs) and bool((diffs == diffs[0]).all()):
            diffs = diffs[:1].copy()
        self._diffs: I64Array = np.empty_like(diffs)
        self._diffs[:1] = diffs[:1]
        rows = (updates.offsets, updates.vals, diffs)
        out = (self._offsets, self._vals, self._diffs)
        if not _spread(owners, *rows, self._ends, *out):
            order = np.lexsort((updates.offsets, owners))
            self._offsets, self._vals = updates.offsets[order], updates.vals[order]
            self._diffs = diffs[order] if len(diffs) == len(order) else diffs

    def __len__(self) -> int:
        return int((self._ends - self._starts).sum())

    def remaining(self) -> SourceColumns:
        """The updates that were not taken out. Cost: O(n)."""
        sizes = self._ends - self._starts
        kept = np.zeros(len(self._offsets) + 1, np.int64)
        np.add.at(kept, self._starts, 1)
        np.add.at(kept, self._ends, -1)
        there = np.cumsum(kept[:-1]) > 0
        partitions = np.repeat(self._partitions, sizes)
        diffs = np.broadcast_to(self._diffs, len(there))[there]
        return SourceColumns(partitions, self._offsets[there], self._vals[there], diffs)

    def extract(self, held: SourceFrontier) -> tuple[U64Array, I64Array]:
        """Take out the vals and diffs of every update whose time is not beyond `held`."""
        bounds, unbounded = _bounds(self._partitions, held)
        return self.extract_before(bounds, unbounded)

    def extract_before(self, bounds: U64Array, unbounded: U64Array) -> tuple[U64Array, I64Array]:
        """Take out what is before the bound of its partition, or all where there is none.

        Shapes: a bound for each distinct partition in order, and whether there is none.
        """
        cuts = np.empty_like(self._starts)
        n = _cuts(self._offsets, self._starts, self._ends, bounds, unbounded, cuts)
        vals, diffs = np.empty(n, np.uint64), np.empty(n, np.int64)
        _take(self._vals, self._diffs, self._starts, cuts, vals, diffs)
        return vals, diffs


class ColumnReclock:
    """`ReclockOperator` for a partitioned log whose updates are columns: the same promises.

    Each update comes out exactly once, in the first step in which a closed binding gives its time.
    What waits lies in logarithmically many runs by partition and offset.
    """

    __slots__ = ("_remap", "_source", "_waiting")

    def __init__(self, as_of: int) -> None:
        self._remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED, as_of)
        self._source: SourceFrontier = Antichain.minimum(PARTITIONED)
        self._waiting: list[WaitingColumns] = []

    @property
    def frontier(self) -> Frontier:
        """The output frontier: nothing comes at a time that is not beyond it."""
        return self._remap.since

    @property
    def unbound(self) -> int:
        """How many source updates wait for a binding."""
        return sum(len(run) for run in self._waiting)

    def step(
        self,
        bindings: Iterable[Binding[Partitions]] = (),
        remap_upper: Frontier | None = None,
        data: SourceColumns | None = None,
        source_frontier: SourceFrontier | None = None,
    ) -> ReclockedColumns:
        """Take in all parts together, then do all work that can be done.

        `None` leaves a frontier as it is, and is no data. The data are beyond the source frontier
        before the step.

        Raises: UsageError for updates or bindings behind their frontier and for frontiers that go
            back; Corrupt for bindings that are no antichain.
        """
        before = self._remap.upper
        arrived = self._arrived(data)
        if source_frontier is not None:
            self._downgrade(source_frontier)
        self._remap.insert(bindings, remap_upper)
        found: list[tuple[int, U64Array, I64Array]] = []
        for time, held in self._remap.steps():
            # What waits was tried with all bindings that were closed before this step.
            tried = [*arrived, *self._waiting] if before.less_equal(time) else arrived
            found += ((time, *run.extract(held)) for run in tried)
        self._waiting = _geometric([*self._waiting, *arrived])
        reached = target_frontier(self._remap, self._source)
        self._remap.compact(reached)
        if reached.empty:
            self._waiting = []
        return _reclocked(found, reached)

    def _arrived(self, data: SourceColumns | None) -> list[WaitingColumns]:
        if data is None or not len(data):
            return []
        arrived = WaitingColumns(data)
        bounds, unbounded = _bounds(data.partitions, self._source)
        behind = (unbounded != 0) | (data.offsets < bounds)
        if behind.any():
            at = int(behind.argmax())
            partition = int(data.partitions[at])
            time = Partitions(partition, partition, int(data.offsets[at]))
            raise UsageError(
                f"source update refused: {time} is not beyond the source frontier {self._source}",
                reason="UpdateNotBeyondLower",
                time=time,
                frontier=self._source,
            )
        return [arrived]

    def _downgrade(self, source: SourceFrontier) -> None:
        if not self._source.precedes(source):
            raise UsageError(
                f"the source frontier {source} is not beyond {self._source}", reason="InvalidBounds"
            )
        self._source = source


def _owners(partitions: U64Array) -> tuple[U64Array, U64Array]:
    """The distinct partitions in order, and for each row the position of its own among them."""
    if not len(partitions):
        return partitions, partitions
    low, high = int(partitions.min()), int(partitions.max())
    if high - low >= _DENSE:
        distinct, owners = np.unique(partitions, return_inverse=True)
        return distinct, owners.astype(np.uint64)
    distinct = np.arange(low, high + 1, dtype=np.uint64)
    return distinct, partitions - np.uint64(low) if low else partitions


def _bounds(partitions: U64Array, held: SourceFrontier) -> tuple[U64Array, U64Array]:
    """For each partition the least offset beyond `held`, and whether there is none (1)."""
    bounds = np.full(len(partitions), U64_MAX, np.uint64)
    unbounded = np.ones(len(partitions), np.uint64)
    if held.empty or not len(partitions):
        return bounds, unbounded
    elements = np.array([tuple(element) for element in held], np.uint64)
    single = elements[:, 0] == elements[:, 1]
    for low, high, offset in elements[~single]:
        inside = (partitions >= low) & (partitions <= high)
        bounds[inside] = np.minimum(bounds[inside], offset)
        unbounded[inside] = 0
    named = elements[single]
    named = named[np.argsort(named[:, 0])]
    if len(named):
        places = np.minimum(np.searchsorted(named[:, 0], partitions), len(named) - 1)
        is_named = named[places, 0] == partitions
        bounds = np.where(is_named, np.minimum(bounds, named[places, 2]), bounds)
        unbounded[is_named] = 0
    return bounds, unbounded


def _geometric(runs: Sequence[WaitingColumns]) -> list[WaitingColumns]:
    """The same updates in runs of which each has less than half the updates of the one before."""
    kept: list[WaitingColumns] = []
    for run in sorted((run for run in runs if len(run)), key=len, reverse=True):
        kept.append(run)
        while len(kept) > 1 and 2 * len(kept[-1]) >= len(kept[-2]):
            a, b = kept.pop().remaining(), kept.pop().remaining()
            both = SourceColumns(
                np.concatenate([a.partitions, b.partitions]),
                np.concatenate([a.offsets, b.offsets]),
                np.concatenate([a.vals, b.vals]),
                np.concatenate([a.diffs, b.diffs]),
            )
            kept.append(WaitingColumns(both))
    return kept


def _reclocked(
    found: Sequence[tuple[int, U64Array, I64Array]], reached: Frontier
) -> ReclockedColumns:
    times = [np.full(len(vals), time, np.uint64) for time, vals, _ in found]
    nothing = np.empty(0, np.uint64)
    return ReclockedColumns(
        np.concatenate([nothing, *(vals for _, vals, _ in found)]),
        np.concatenate([nothing, *times]),
        np.concatenate([np.empty(0, np.int64), *(diffs for _, _, diffs in found)]),
        reached,
    )
