"""`LiveReclock` on updates one by one: the interface of the operator of any source clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tidemill.reclock import LiveReclock
from tidemill.reclock.remap import Binding
from tidemill.testkit.twins.reclock_operator import Reclocked, ReclockOperator
from tidemill.time import PARTITIONED, Frontier, Partitions, SourceFrontier, TimeDomain

_DATA = pa.schema([("record", pa.string())])
_ROWS = pa.schema(
    [*_DATA, ("partition", pa.int64()), ("offset", pa.uint64()), ("_diff", pa.int64())]
)


class LiveOperator:
    """The operator that the service runs, for updates of a partitioned log: texts at places in it.

    An update stands in one partition: `lo == hi`.
    """

    def __init__(self, as_of: int) -> None:
        self._live = LiveReclock(_DATA, as_of)

    @property
    def frontier(self) -> Frontier:
        """The output frontier: nothing comes at a time that is not beyond it."""
        return self._live.frontier

    @property
    def unbound(self) -> int:
        """Number of updates that wait for a binding."""
        return self._live.unbound

    @property
    def retained_bindings(self) -> int:
        """Number of bindings that are kept one by one."""
        return self._live.retained_bindings

    def step(
        self,
        bindings: Iterable[Binding[Partitions]] = (),
        remap_upper: Frontier | None = None,
        data: Iterable[tuple[str, Partitions, int]] = (),
        source_frontier: SourceFrontier | None = None,
    ) -> Reclocked[str]:
        """One step, with the meaning of `ReclockOperator.step`. Raises: the errors of
        LiveReclock.
        """
        rows = [
            {"record": record, "partition": at.lo, "offset": at.offset, "_diff": diff}
            for record, at, diff in data
        ]
        table = pa.Table.from_pylist(rows, _ROWS)
        found = self._live.step(table, bindings, remap_upper, source_frontier)
        messages = (tuple(row.values()) for row in found.table.to_pylist())
        return Reclocked(tuple(messages), found.frontier)


def operator_of(domain: TimeDomain[Any], as_of: int) -> LiveOperator | ReclockOperator[str, Any]:
    """The operator of a source clock: of a partitioned log the one that the service runs."""
    return LiveOperator(as_of) if domain is PARTITIONED else ReclockOperator(domain, as_of)
