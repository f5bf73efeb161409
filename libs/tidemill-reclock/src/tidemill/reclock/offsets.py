"""The columnar form of a remap collection over partitions: offsets to our times, many at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.reclock.remap import RemapTrace
from tidemill.reclock.remap_rows import bindings_of_rows
from tidemill.time import PARTITIONED, U64_MAX, Frontier, Partitions

U64Column = npt.NDArray[np.uint64]
Column = TypeVar("Column", npt.NDArray[np.uint64], npt.NDArray[np.int64])

UNBOUND = U64_MAX
"""Stands for the target of an offset that no closed binding covers, so it is no time here."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """For each range of partitions the offsets bound so far and when each was.

    Range i starts at partition `starts[i]` and ends before the next. Its bindings are the rows
    `first[i]` … `first[i+1]` of `offsets` and `times`, both ascending: at `times[j]` everything
    before `offsets[j]` is bound. From `ended[i]` on, if not UNBOUND, all offsets are.
    """

    starts: U64Column
    first: npt.NDArray[np.int64]
    offsets: U64Column
    times: U64Column
    ended: U64Column

    @classmethod
    def of_rows(cls, rows: pa.Table, since: int, upper: Frontier) -> Bindings:
        """The closed bindings of a remap collection's updates; those before `since` count at it.

        Shapes: columns lo, hi, offset, _time, _diff: REMAP_SCHEMA as updates.
        Raises: Corrupt if they are no antichain at some time before `upper`.
        """
        remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED, since)
        remap.insert(bindings_of_rows(rows), upper)
        return cls.of_trace(remap)

    @classmethod
    def of_trace(cls, remap: RemapTrace[Partitions]) -> Bindings:
        """The closed bindings of `remap`; those before its since count at it.

        Cost: O(bindings · ranges each covers).
        """
        changes = list(remap.changes())
        starts = _range_starts(element for _, moved in changes for element, _ in moved)
        ranges = [_Range() for _ in starts]
        index = {start: at for at, start in enumerate(starts)}
        for time, moved in changes:
            touched: set[int] = set()
            for element, diff in moved:
                end = index.get(element.hi + 1, len(ranges))
                for at in range(index[element.lo], end):
                    ranges[at].change(element.offset, diff)
                    touched.add(at)
            first_time = time == changes[0][0]
            for at in range(len(ranges)) if first_time else touched:
                ranges[at].bind(time)
        sizes = [len(bound.offsets) for bound in ranges]
        return cls(
            starts=np.array(starts, dtype=np.uint64),
            first=np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).astype(np.int64),
            offsets=np.array([o for bound in ranges for o in bound.offsets], dtype=np.uint64),
            times=np.array([t for bound in ranges for t in bound.times], dtype=np.uint64),
            ended=np.array([bound.ended for bound in ranges], dtype=np.uint64),
        )


def prepare_mapping() -> None:
    """Load the compiled loops of `map_offsets`, or compile them.

    Takes up to seconds, on a thread of the caller's.
    """
    nothing = np.zeros(0, np.uint64)
    map_offsets(Bindings.of_trace(RemapTrace(PARTITIONED, 0)), np.zeros(0, np.int64), nothing)


def map_offsets(
    bindings: Bindings, partitions: npt.NDArray[np.int64], offsets: U64Column
) -> U64Column:
    """For each partition and offset the least of our times at which it is bound, else UNBOUND.

    Shapes: (n,), (n,) in; (n,) uint64 out.
    Cost: O(n) for rows in the order of their log, else O(n log bindings); no Python per row.
    Source: twin `target_times` in tidemill.reclock.mapping.
    """
    # Imported with the first rows: whoever has none does not wait for loops.
    from tidemill.reclock.binding_loops import bind_offsets

    targets: U64Column = np.empty(len(offsets), np.uint64)
    bind_offsets(
        bindings.starts, bindings.first, bindings.offsets, bindings.times, bindings.ended,
        _plain(partitions), _plain(offsets), targets,
    )  # fmt: skip
    return targets


def _plain(column: Column) -> Column:
    """The column in memory of its own kind, so that the loop is compiled once."""
    return column if column.flags.c_contiguous and column.flags.writeable else column.copy()


def _range_starts(elements: Iterable[Partitions]) -> list[int]:
    """The partitions at which some element starts, or ends just before; ascending, from 0."""
    starts = {0}
    for element in elements:
        starts.add(element.lo)
        if element.hi < U64_MAX:
            starts.add(element.hi + 1)
    return sorted(starts)


@dataclass(slots=True)
class _Range:
    """Bindings of one range while they are collected in the order of their times."""

    covering: dict[int, int] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    ended: int = UNBOUND

    def change(self, offset: int, diff: int) -> None:
        count = self.covering.get(offset, 0) + diff
        if count:
            self.covering[offset] = count
        else:
            del self.covering[offset]

    def bind(self, time: int) -> None:
        """Note what is bound from `time` on: offsets below the least that covers the range."""
        if self.ended != UNBOUND:
            return
        if not self.covering:
            self.ended = time
            return
        bound = min(self.covering)
        if bound > (self.offsets[-1] if self.offsets else 0):
            self.offsets.append(bound)
            self.times.append(time)
