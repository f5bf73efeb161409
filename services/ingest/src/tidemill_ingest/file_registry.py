"""Which file is which partition, as a durable collection."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.shard import Collections, UpperMismatch
from tidemill.time import frontier, sole_time


class CollectionRegistry:
    """Guarantees of FileRegistry. A file that was added is known before any of its rows is read."""

    def __init__(self, collections: Collections, collection: str) -> None:
        self._collections = collections
        self._collection = collection

    async def paths(self) -> Sequence[str]:
        """The paths in the order of their partitions."""
        reader = await self._collections.read_hold(self._collection, owner="files")
        try:
            upper = sole_time((await self._collections.status(self._collection)).upper)
            if upper == 0:
                return []
            rows = await self._collections.snapshot(reader, upper - 1)
        finally:
            await self._collections.drop(reader)
        known = dict(zip(rows["partition"].to_pylist(), rows["path"].to_pylist(), strict=True))
        return [known[partition] for partition in range(len(known))]

    async def add(self, paths: Sequence[str]) -> Sequence[str]:
        """Append new paths as further partitions, durably; returns all paths."""
        while True:
            upper = sole_time((await self._collections.status(self._collection)).upper)
            known = list(await self.paths())
            numbered = set(known)
            fresh = [path for path in paths if path not in numbered]
            if not fresh:
                return known
            rows = pa.table(
                {
                    "partition": list(range(len(known), len(known) + len(fresh))),
                    "path": fresh,
                    "_time": pa.array([upper] * len(fresh), pa.uint64()),
                    "_diff": pa.array([1] * len(fresh), pa.int64()),
                }
            )
            outcome = await self._collections.compare_and_append(
                self._collection, frontier(upper), frontier(upper + 1), rows, writer="files"
            )
            if not isinstance(outcome, UpperMismatch):
                return [*known, *fresh]
