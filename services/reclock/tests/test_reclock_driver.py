"""The writer of a source beside another one that is a little faster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pytest

from tidemill.reclock import rows_of_bindings
from tidemill.reclock.remap_rows import REMAP_SCHEMA
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.overtaken import Overtaken
from tidemill.time import Partitions, frontier, partition_frontier
from tidemill_reclock.driver import ReclockDriver, ReclockTarget
from tidemill_reclock.settings import ReclockSettings

ROWS = pa.schema([("n", pa.int64())])
LETTERS = pa.schema([("partition", pa.int64()), ("offset", pa.uint64())])
EACH = 10
"""So many rows has each binding, and so many instants lie between two."""


@dataclass(frozen=True)
class Delivered:
    """Rows of partition 0, none of them broken."""

    rows: pa.Table
    positions: Mapping[int, int]
    letters = LETTERS.empty_table()


def delivered(start: int, stop: int) -> Delivered:
    offsets = range(start, stop)
    columns = {
        "n": pa.array(offsets, pa.int64()),
        "_partition": pa.array([0] * len(offsets), pa.int64()),
        "_offset": pa.array(offsets, pa.uint64()),
    }
    return Delivered(pa.table(columns), {0: stop})


def bound(start: int, stop: int) -> pa.Table:
    """The bindings after one instant up to another, as updates: at t the first t rows."""
    changes: list[tuple[Partitions, int, int]] = []
    for time in range(start + EACH, stop + 1, EACH):
        before, after = (partition_frontier({0: t} if t else {}) for t in (time - EACH, time))
        changes += [(e, time, -1) for e in before if e not in after.elements]
        changes += [(e, time, 1) for e in after if e not in before.elements]
    return rows_of_bindings(changes)


@pytest.mark.rule("G1")
async def test_who_is_overtaken_within_an_interval_adopts_it_and_writes_the_rest() -> None:
    clock, ids = ManualClock(), map(str, itertools.count())
    stores = MemoryConsensus(), MemoryBlob()
    now = Collections(*stores, clock, ids.__next__)
    for name, schema in (("s", ROWS), ("s/deadletters", LETTERS), ("s/remap", REMAP_SCHEMA)):
        await now.create(name, Description(schema, kind="source"), lease_ms=None)
    first = rows_of_bindings((element, 0, 1) for element in partition_frontier({}))
    await now.compare_and_append("s/remap", frontier(0), frontier(1), first, writer="remap")
    target = ReclockTarget("s", "s/remap", "s", "s/deadletters", ROWS, LETTERS)
    loser = Overtaken(*stores, clock, ids.__next__)
    driver = ReclockDriver(target, loser, clock, ReclockSettings())
    await driver.resume()
    writing = asyncio.create_task(driver.write_forever())
    ends = (0, 3 * EACH, 9 * EACH, 12 * EACH)
    for start, stop in itertools.pairwise(ends):
        upper = frontier(stop + 1)
        lower = (await now.status("s/remap")).upper
        bindings = bound(start, stop)
        await now.compare_and_append("s/remap", lower, upper, bindings, writer="remap")
        await driver.take(delivered(start, stop))
        for _ in range(1_000):
            if (await now.status("s")).upper == upper:
                break
            await asyncio.sleep(0)
            clock.move(0.1)
        assert (await now.status("s")).upper == upper
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    stored = (await now.stored("s")).sort_by("n").to_pydict()
    assert stored["n"] == list(range(ends[-1]))
    assert stored["_time"] == [EACH * (n // EACH + 1) for n in range(ends[-1])]
    assert loser.overtaken >= 3
