"""Reclocking of live batches: Arrow tables of decoded rows in, Arrow updates out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import DIFF, TIME, concatenate, empty_updates
from tidemill.errors import UsageError
from tidemill.reclock.mapping import target_frontier
from tidemill.reclock.offsets import UNBOUND, Bindings, U64Column, map_offsets
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.time import PARTITIONED, U64_MAX, Antichain, Frontier, Partitions, SourceFrontier

PARTITION = "partition"
OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class LiveUpdates:
    """Rows that got their time, and the frontier of all that are still to come."""

    table: pa.Table
    frontier: Frontier


class LiveReclock:
    """The reclock operator for one partitioned source whose rows come as Arrow tables.

    The answers are those of the definition. Each row comes exactly once, at the least of our times
    whose binding, as read back from the remap collection, covers its partition and offset. Rows
    without a binding wait.

    Cost: a step costs O((arrived + waiting) · log bindings) without Python per row. Waiting rows
    are looked at only when bindings were closed.
    """

    def __init__(
        self,
        data: pa.Schema,
        as_of: int,
        *,
        partition_column: str = PARTITION,
        offset_column: str = OFFSET,
    ) -> None:
        self._data = data
        self._partition_column = partition_column
        self._offset_column = offset_column
        self._remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED, as_of)
        self._bindings = Bindings.of_trace(self._remap)
        self._source: SourceFrontier = Antichain.minimum(PARTITIONED)
        self._waiting: list[pa.Table] = []

    @property
    def frontier(self) -> Frontier:
        """The output frontier: no row comes at a time that is not beyond it."""
        return self._remap.since

    @property
    def unbound(self) -> int:
        """Number of rows that wait for a binding."""
        return sum(table.num_rows for table in self._waiting)

    @property
    def retained_bindings(self) -> int:
        """Number of bindings that are kept one by one."""
        return self._remap.retained

    def step(
        self,
        rows: pa.Table | None = None,
        bindings: Iterable[Binding[Partitions]] = (),
        remap_upper: Frontier | None = None,
        source_frontier: SourceFrontier | None = None,
    ) -> LiveUpdates:
        """Take in all parts together, then emit all that can be; `None` is nothing new.

        Shapes: `rows` has the offset column (uint64), the data columns, possibly the partition
            column (int64; absent: partition 0) and possibly `_diff` (absent: 1). The answer has the
            data columns, `_time` and `_diff`.
        Raises: UsageError for rows or bindings behind their frontier and for frontiers that go
        back;
            Corrupt for bindings that are no antichain.
        """
        before = self._remap.upper
        candidates: list[pa.Table] = []
        if rows is not None and rows.num_rows:
            self._refuse_behind(rows)
            candidates.append(rows)
        self._downgrade(source_frontier)
        self._remap.insert(bindings, remap_upper)
        if self._remap.upper != before:
            self._bindings = Bindings.of_trace(self._remap)
            candidates += self._waiting
            self._waiting = []
        emitted = [self._bound(table) for table in candidates]
        reached = target_frontier(self._remap, self._source)
        self._remap.compact(reached)
        if reached.empty:
            self._waiting = []
        return LiveUpdates(concatenate([empty_updates(self._data), *emitted]), reached)

    def _bound(self, rows: pa.Table) -> pa.Table:
        """The rows that have a time now, as updates; the others wait."""
        partitions, offsets = self._places(rows)
        targets = map_offsets(self._bindings, partitions, offsets)
        bound = targets != UNBOUND
        if not bool(bound.all()):
            self._waiting.append(rows.filter(pa.array(~bound)))
            rows, targets = rows.filter(pa.array(bound)), targets[bound]
        diffs = (
            rows.column(DIFF).to_numpy()
            if DIFF in rows.column_names
            else np.ones(rows.num_rows, dtype=np.int64)
        )
        return (
            rows.select(self._data.names)
            .append_column(TIME, pa.array(targets, pa.uint64()))
            .append_column(DIFF, pa.array(diffs, pa.int64()))
        )

    def _places(self, rows: pa.Table) -> tuple[npt.NDArray[np.int64], U64Column]:
        """Partition and offset of each row."""
        offsets = rows.column(self._offset_column).to_numpy().astype(np.uint64, copy=False)
        if self._partition_column not in rows.column_names:
            return np.zeros(len(offsets), dtype=np.int64), offsets
        partitions = rows.column(self._partition_column).to_numpy()
        return partitions.astype(np.int64, copy=False), offsets

    def _refuse_behind(self, rows: pa.Table) -> None:
        """Raise UsageError if a row is not beyond the source frontier."""
        partitions, offsets = self._places(rows)
        distinct, places = np.unique(partitions, return_inverse=True)
        least = np.full(len(distinct), U64_MAX, np.uint64)
        np.minimum.at(least, places, offsets)
        beyond = self._source.beyond()
        for partition, first in zip(distinct.tolist(), least.tolist(), strict=True):
            if not beyond.covers(Partitions(partition, partition, first)):
                raise UsageError(
                    f"row refused: partition {partition} offset {first} is not beyond the source "
                    f"frontier {self._source}",
                    reason="UpdateNotBeyondLower",
                )

    def _downgrade(self, source: SourceFrontier | None) -> None:
        if source is None:
            return
        if not self._source.precedes(source):
            raise UsageError(
                f"the source frontier {source} is not beyond {self._source}", reason="InvalidBounds"
            )
        self._source = source
