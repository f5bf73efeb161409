"""The durable bindings of a source: where they begin, and the latest of them."""

from __future__ import annotations

from tidemill.arrangement.updates import DIFF, stamp
from tidemill.reclock import Minter, bindings_of_rows, rows_of_bindings
from tidemill.shard import Collections
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    Partitions,
    frontier,
    partition_offsets,
    sole_time,
)


async def begin_bindings(collections: Collections, remap: str, begins: int, source: str) -> None:
    """Bind nothing of a source at `begins`, unless something is bound already."""
    nothing = Partitions(0, U64_MAX, 0)
    await collections.compare_and_append(
        remap,
        frontier(begins),
        frontier(begins + 1),
        rows_of_bindings([(nothing, begins, 1)]),
        writer=source,
    )


async def latest_bindings(collections: Collections, remap: str, source: str) -> Minter[Partitions]:
    """A view of bindings that have begun: the latest one is all that minting needs."""
    reader, _ = await collections.acquire(remap, owner=f"remap:{source}")
    try:
        upper = (await collections.status(remap)).upper
        as_of = U64_MAX if upper.empty else sole_time(upper) - 1
        rows = await collections.snapshot(reader, as_of)
    finally:
        await collections.drop(reader)
    bindings = stamp(rows.drop_columns([DIFF]), as_of)
    return Minter(PARTITIONED, as_of, bindings_of_rows(bindings), upper)


async def read_bound_offsets(
    collections: Collections, remap: str, begins: int, source: str
) -> dict[int, int]:
    """Offsets that the durable bindings have for a source, per partition."""
    await begin_bindings(collections, remap, begins, source)
    return partition_offsets((await latest_bindings(collections, remap, source)).view.current)
