"""Followers that crash, resume, filter, project and stop, beside compaction: as a list of updates
says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    Progress,
    ReadCapability,
)
from tidemill.time import frontier, sole_time

ROWS = pa.schema([("row", pa.string()), ("n", pa.int64())])
Row: TypeAlias = tuple[object, ...]
Update: TypeAlias = tuple[Row, int]
"""A row and a time."""


@dataclass
class World:
    """One collection, and every update that was written to it."""

    random: Random
    written: list[tuple[tuple[str, int], int, int]] = field(default_factory=list)
    upper: int = 0

    def __post_init__(self) -> None:
        self.stores = MemoryConsensus(), MemoryBlob()
        self.clock, self.names = ManualClock(), count()
        self.limits = Limits(inline_bytes_max=self.random.choice([0, 400, 100_000]), part_bytes_max=2_000)  # fmt: skip
        self.store = self.opened()

    def opened(self) -> Collections:
        """A process that knows nothing yet."""
        names = self.names
        return Collections(*self.stores, self.clock, lambda: f"{next(names)}", limits=self.limits)

    async def write(self) -> None:
        """Rows come, and some of those that are there go."""
        random, new = self.random, self.upper + self.random.randrange(1, 5)
        rows: list[tuple[tuple[str, int], int, int]] = []
        for _ in range(random.randrange(0, 12)):
            row = random.choice("abc"), random.randrange(4)
            rows.append((row, random.randrange(self.upper, new), 1))
        here = [row for row, n in self.contents(self.upper - 1).items() if n > 0]
        gone = random.sample(here, min(len(here), 2))
        rows += [(row, random.randrange(self.upper, new), -1) for row in gone]
        table = pa.table(
            {
                "row": pa.array([row for (row, _), _, _ in rows], pa.string()),
                "n": pa.array([n for (_, n), _, _ in rows], pa.int64()),
                "_time": pa.array([time for _, time, _ in rows], pa.uint64()),
                "_diff": pa.array([diff for _, _, diff in rows], pa.int64()),
            }
        )
        await self.store.compare_and_append("c", frontier(self.upper), frontier(new), table, writer="w")  # fmt: skip
        self.written += rows
        self.upper = new

    def contents(self, at: int) -> Counter[tuple[str, int]]:
        """The contents at an instant."""
        found: Counter[tuple[str, int]] = Counter()
        for row, time, diff in self.written:
            if time <= at:
                found[row] += diff
        return +found


@dataclass
class Follower:
    """A client that knows its capability and how far it has come, whatever process serves it."""

    read: ReadCapability
    columns: tuple[str, ...] | None
    least: int | None
    seen: Counter[Update] = field(default_factory=Counter)
    began: int | None = None
    reached: int | None = None

    def wants(self, rows: Counter[Update]) -> Counter[Update]:
        """The updates that a client would make of whole updates by itself."""
        found: Counter[Update] = Counter()
        for (row, time), diff in rows.items():
            assert isinstance(row[1], int)
            if self.least is None or row[1] >= self.least:
                place = [ROWS.names.index(name) for name in self.columns or ROWS.names]
                found[tuple(row[at] for at in place), time] += diff
        return Counter({update: diff for update, diff in found.items() if diff})

    async def follow(self, store: Collections, until: int, crash_after: int) -> None:
        """Take what comes before `until`; after so many statements the process is gone."""
        if self.reached is None:
            self.began = until - 1
        at = self.began if self.reached is None else self.reached - 1
        assert at is not None
        stream = store.subscribe(
            self.read, at, snapshot=self.reached is None, up_to=until, columns=self.columns,
            where=None if self.least is None else pc.field("n") >= self.least,
        )  # fmt: skip
        fresh: Counter[Update] = Counter()
        async for event in stream:
            if isinstance(event, Progress):
                # Stated updates stay; those after the last statement are lost with the process.
                self.seen.update(fresh)
                self.reached = sole_time(event.upper)
                fresh.clear()
                crash_after -= 1
                if crash_after <= 0:
                    break
                continue
            names = self.columns or tuple(ROWS.names)
            for record in event.table.to_pylist():
                update = tuple(record[name] for name in names), record["_time"]
                assert update not in fresh, "updates of one statement are added up"
                fresh[update] = record["_diff"]
        await stream.aclose()


@pytest.mark.rule("SU1", "SU2", "SU5", "SU6", "P6", "P7")
@pytest.mark.parametrize("seed", range(24))
async def test_followers_of_every_kind_get_each_update_once_whatever_is_compacted(
    seed: int,
) -> None:
    random = Random(seed)
    world = World(random)
    await world.store.create("c", Description(ROWS, key=random.choice([(), ("row",)])), lease_ms=None)  # fmt: skip
    await world.write()
    followers = []
    for _ in range(4):
        read = await world.store.read_hold("c", owner="f", lease_ms=60_000)
        columns = random.choice([None, ("n",), ("row",), ("n", "row")])
        followers.append(Follower(read, columns, random.choice([None, 0, 2])))
    for _ in range(14):
        await world.write()
        for follower in random.sample(followers, 2):
            process = random.choice([world.store, world.opened()])
            least = max(follower.reached or 1, 1)
            until = random.randrange(least, world.upper) + 1
            await follower.follow(process, until, random.randrange(1, 3))
            assert follower.reached is not None
            if random.random() < 0.7:
                held = frontier(follower.reached - 1)
                follower.read = await process.downgrade(follower.read, held)
        if random.random() < 0.4:
            await world.opened().compact("c")
            await world.opened().collect_garbage("c", grace_ms=0)
    for follower in followers:
        await follower.follow(world.opened(), world.upper, 100)
        assert follower.began is not None
        whole: Counter[Update] = Counter()
        for row, n in world.contents(follower.began).items():
            whole[row, follower.began] += n
        for row, time, diff in world.written:
            if time > follower.began:
                whole[row, time] += diff
        assert Counter({u: n for u, n in follower.seen.items() if n}) == follower.wants(whole)
    assert sum(follower.reached or 0 for follower in followers) == 4 * world.upper
