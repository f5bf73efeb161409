"""Numbers of failures, which open pages ask for every few seconds: no commit, and few reads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pyarrow as pa
import pytest

from tidemill.catalog.store import Stored
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.resources import load_resources
from tidemill.shard import (
    Collections,
    CollectionStatus,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
)
from tidemill.time import frontier, sole_time
from tidemill_query.failure_counts import FailureCounts

ROWS = pa.schema([("reason", pa.string())])
KINDS = {"Source": "deadletters", "View": "errors"}
ASKED = 5
NOTHING: Mapping[str, CollectionStatus] = {}


class CountedReads(MemoryBlob):
    """Counts the objects that are read."""

    reads = 0

    async def get(self, key: str) -> bytes | None:
        self.reads += 1
        return await super().get(key)


class World:
    """A resource whose collection of failures is in objects, so that reading it shows."""

    def __init__(self, kind: str) -> None:
        spec = {"Source": "{format: {json: {}}, columns: [{name: n, type: int}], http: {}}"}.get(
            kind, '{program: "p(x) := t(x);"}'
        )
        text = f"apiVersion: tidemill.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: r}}\nspec: {spec}\n"
        self.stored = Stored(load_resources(text, "test.yaml")[0], 0)
        self.name = f"r/{KINDS[kind]}"
        self.blob = CountedReads()
        ids = map(str, itertools.count())
        self.collections = Collections(
            MemoryConsensus(), self.blob, ManualClock(), ids.__next__,
            limits=Limits(inline_bytes_max=0, cache_bytes_max=0),
        )  # fmt: skip
        self.counts = FailureCounts(self.collections)

    async def create(self) -> None:
        await self.collections.create(self.name, Description(ROWS), lease_ms=None)

    async def change(self, rows: Mapping[str, int]) -> None:
        upper = (await self.collections.status(self.name)).upper
        at = sole_time(upper)
        table = pa.table(
            {
                "reason": list(rows),
                "_time": pa.array([at] * len(rows), pa.uint64()),
                "_diff": pa.array(list(rows.values()), pa.int64()),
            }
        )
        await self.collections.compare_and_append(
            self.name, upper, frontier(at + 1), table, writer="test"
        )

    async def ask(self) -> tuple[set[object], int, int]:
        """Numbers that were told of several questions, and the reads and commits of all."""
        before = (await self.collections.status(self.name)).version
        self.blob.reads = 0
        told = [await self.counts.of(self.stored, NOTHING) for _ in range(ASKED)]
        after = (await self.collections.status(self.name)).version
        return (
            {number for each in told for number in each.values()},
            self.blob.reads,
            after - before,
        )


async def test_dead_letters_are_counted_without_a_read_or_a_commit() -> None:
    world = World("Source")
    await world.create()
    assert await world.ask() == ({0}, 0, 0)
    for step in range(4):
        await world.change({f"letter {step}": 1, f"another {step}": 1})
        assert await world.ask() == ({2 * step + 2}, 0, 0)


async def test_failed_solutions_are_read_once_for_each_change() -> None:
    world = World("View")
    await world.create()
    assert await world.ask() == ({0}, 0, 0)
    await world.change({"a": 1, "b": 1})
    assert await world.ask() == ({2}, 1, 0)
    await world.change({"a": -1})
    assert await world.ask() == ({1}, 2, 0)
    await world.change({})
    assert await world.ask() == ({1}, 0, 0), "upper alone has moved"


@pytest.mark.parametrize("kind", KINDS)
async def test_counts_of_resources_that_are_gone_are_forgotten(kind: str) -> None:
    world = World(kind)
    await world.create()
    await world.change({"a": 1})
    await world.counts.of(world.stored, NOTHING)
    world.counts.keep({"r"})
    assert (await world.ask())[1] == 0
    world.counts.keep(set())
    assert (await world.ask())[1] == (1 if kind == "View" else 0)
