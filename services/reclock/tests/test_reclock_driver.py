"""The writer of a source beside another one that is a little faster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import BeforeSince
from tidemill.reclock import CHANGE_SCHEMA, KeyedRows, rows_of_bindings
from tidemill.reclock.remap_rows import REMAP_SCHEMA
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Appended, Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.state import KEEP_ALL_MS
from tidemill.testkit.faults.overtaken import Overtaken
from tidemill.testkit.turns import Turns
from tidemill.time import Frontier, Partitions, frontier, partition_frontier, sole_time
from tidemill_reclock.driver import ReclockDriver, ReclockTarget
from tidemill_reclock.settings import ReclockSettings

ROWS = pa.schema([("n", pa.int64())])
LETTERS = pa.schema([("partition", pa.int64()), ("offset", pa.uint64())])
EACH = 10
"""So many rows has each binding, and so many instants lie between two."""
PATIENCE_S = 5_000.0
"""Virtual seconds, of which a writer needs some: a tenth of one is a turn of the event loop."""


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


async def make_target(collections: Collections) -> ReclockTarget:
    """A source of which nothing is bound yet."""
    for name, schema in (("s", ROWS), ("s/deadletters", LETTERS), ("s/remap", REMAP_SCHEMA)):
        await collections.bind(name, Description(schema, kind="source"), frontier(0))
    first = rows_of_bindings((element, 0, 1) for element in partition_frontier({}))
    await collections.compare_and_append("s/remap", frontier(0), frontier(1), first, writer="remap")
    return ReclockTarget("s", "s/remap", "s", "s/deadletters", ROWS, LETTERS)


@pytest.mark.rule("G1")
async def test_who_is_overtaken_within_an_interval_adopts_it_and_writes_the_rest() -> None:
    clock, ids = ManualClock(), map(str, itertools.count())
    stores = MemoryConsensus(), MemoryBlob()
    now = Collections(*stores, clock, ids.__next__)
    target = await make_target(now)
    loser = Overtaken(*stores, clock, ids.__next__)
    driver = ReclockDriver(target, loser, clock, ReclockSettings())
    await driver.resume()
    turns = Turns(clock, 0.1)
    writing = asyncio.create_task(driver.write_forever())
    ends = (0, 3 * EACH, 9 * EACH, 12 * EACH)
    for start, stop in itertools.pairwise(ends):
        upper = frontier(stop + 1)
        lower = (await now.status("s/remap")).upper
        bindings = bound(start, stop)
        await now.compare_and_append("s/remap", lower, upper, bindings, writer="remap")
        await driver.take(delivered(start, stop))
        while (await now.status("s")).upper != upper:
            assert clock.monotonic_s() < PATIENCE_S, "the writer does not come to the upper"
            await turns.take()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    stored = (await now.read_updates("s")).sort_by("n").to_pydict()
    assert stored["n"] == list(range(ends[-1]))
    assert stored["_time"] == [EACH * (n // EACH + 1) for n in range(ends[-1])]
    assert loser.overtaken >= 3


async def test_a_reader_of_a_bound_backlog_waits_for_the_writer() -> None:
    """Memory is bounded by the setting, whatever is bound already."""
    clock, ids = ManualClock(), map(str, itertools.count())
    now = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    target = await make_target(now)
    bindings, end = bound(0, 3 * EACH), frontier(3 * EACH + 1)
    await now.compare_and_append("s/remap", frontier(1), end, bindings, writer="remap")
    driver = ReclockDriver(target, now, clock, ReclockSettings(unbound_rows_max=EACH))
    await driver.resume()
    taking = asyncio.create_task(driver.take(delivered(0, EACH)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not taking.done()
    writing = asyncio.create_task(driver.write_forever())
    async with asyncio.timeout(60):
        await taking
        await driver.take(delivered(EACH, 3 * EACH))
        while (await now.status("s")).upper != end:
            await asyncio.sleep(0)
            clock.move(0.1)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert sorted((await now.read_updates("s"))["n"].to_pylist()) == list(range(3 * EACH))


class Stepping(Collections):
    """All that rests is advanced whenever changes are read: between a look at one upper and at
    another.
    """

    stepped = 0

    async def changes(self, *asked: Any, **how: Any) -> pa.Table:
        if await self.rests("s/remap"):
            self.stepped += 1
            await self.step_pace("pace", frontier(100 * self.stepped + 100), {}, ())
        return await super().changes(*asked, **how)


@pytest.mark.parametrize("keyed", [False, True])
async def test_d5_who_looks_while_a_rest_goes_on_is_not_behind_it_and_writes_what_comes_later(
    keyed: bool,
) -> None:
    clock, ids = ManualClock(), map(str, itertools.count())
    collections = Stepping(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    target = await make_target(collections)
    if keyed:
        target = replace(target, row_schema=CHANGE_SCHEMA)
    outputs = (target.rows, target.letters)
    held = KeyedRows(ROWS, ("n",)) if keyed else None
    driver = ReclockDriver(target, collections, clock, ReclockSettings(), held)
    await driver.resume()
    writing = asyncio.create_task(driver.write_forever())

    async def reach(upper: int) -> None:
        reached: list[Frontier] = []
        async with asyncio.timeout(60):
            while {*reached, driver.written} != {frontier(upper)} and not writing.done():
                reached = [(await collections.status(each)).upper for each in outputs]
                await asyncio.sleep(0)
                clock.move(0.1)
        assert not writing.done(), writing

    async def bind(lower: int, upper: int, bindings: pa.Table | None) -> None:
        answer = await collections.compare_and_append(
            "s/remap", frontier(lower), frontier(upper), bindings, writer="remap"
        )
        assert answer == Appended(frontier(upper))

    await driver.take(
        Delivered(CHANGE_SCHEMA.empty_table(), {0: EACH}) if keyed else delivered(0, EACH)
    )
    await bind(1, EACH + 1, bound(0, EACH))
    await reach(EACH + 1)
    await collections.open_pace("pace")
    numbers = {
        each: await collections.follow(each, ("pace",), frontier(EACH + 1))
        for each in (target.remap, *outputs)
    }
    await collections.step_pace("pace", frontier(100), {"s": numbers}, ())
    for _ in range(1_000):
        await asyncio.sleep(0)
        clock.move(0.1)
    assert collections.stepped == 1
    assert not writing.done(), writing
    assert driver.committed() == {0: EACH}
    assert driver.written.precedes(frontier(100))
    assert (await collections.status("s")).upper == frontier(200)
    await bind(200, 300, None)
    await reach(300)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


@pytest.mark.rule("G12")
@pytest.mark.parametrize("retain_ms", [4 * EACH, KEEP_ALL_MS])
async def test_g12_bindings_are_held_as_far_back_as_the_rows_can_be_read(retain_ms: int) -> None:
    """Not only as far as a restart needs them; and no further: they are merged with the rows."""
    clock, ids = ManualClock(), map(str, itertools.count())
    now = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    target = await make_target(now)
    await now.read_hold("s/remap", owner="reclock:s", lease_ms=None)
    for name, kept_ms in (("s", retain_ms), ("s/deadletters", retain_ms), ("s/remap", 0)):
        await now.retain(name, kept_ms)
    driver = ReclockDriver(target, now, clock, ReclockSettings(hold_interval_s=0.0))
    await driver.resume()
    writing = asyncio.create_task(driver.write_forever())
    for start in range(0, 20 * EACH, EACH):
        stop = start + EACH
        lower = (await now.status("s/remap")).upper
        bindings = bound(start, stop)
        await now.compare_and_append("s/remap", lower, frontier(stop + 1), bindings, writer="remap")
        await driver.take(delivered(start, stop))
        async with asyncio.timeout(60):
            while (await now.status("s")).upper != frontier(stop + 1):
                await asyncio.sleep(0)
                clock.move(0.1)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    rows, remap = [(await now.status(name)).since for name in ("s", "s/remap")]
    assert remap.precedes(rows)
    assert sole_time(remap) >= sole_time(rows) - 2 * EACH
    assert (sole_time(rows) > 10 * EACH) == (retain_ms == 4 * EACH)


@pytest.mark.rule("G13")
@pytest.mark.parametrize("begins", [0, 3 * EACH + 5, 4 * EACH, 9 * EACH])
async def test_g13_sources_of_shared_bindings_put_a_record_at_one_instant(begins: int) -> None:
    """Bindings before the later source's begin count for it at once; it goes on alike, also
    anew.
    """
    clock, ids = ManualClock(), map(str, itertools.count())
    now = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    target = await make_target(now)
    later = replace(target, source="l", rows="l", letters="l/deadletters", begins=begins)
    for name, schema in ((later.rows, ROWS), (later.letters, LETTERS)):
        await now.bind(name, Description(schema, kind="source"), frontier(begins))
    await now.compare_and_append(
        "s/remap", frontier(1), frontier(10 * EACH + 1), bound(0, 10 * EACH), writer="remap"
    )
    drivers = [ReclockDriver(each, now, clock, ReclockSettings()) for each in (target, later)]
    for stop in (10 * EACH, 12 * EACH):
        for driver in drivers:
            start = (await driver.resume()).get(0, 0)
            writing = asyncio.create_task(driver.write_forever())
            await driver.take(delivered(start, 12 * EACH))
            async with asyncio.timeout(60):
                while driver.written != frontier(stop + 1):
                    await asyncio.sleep(0)
                    clock.move(0.1)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        more = bound(10 * EACH, 12 * EACH)
        await now.compare_and_append(
            "s/remap", frontier(10 * EACH + 1), frontier(12 * EACH + 1), more, writer="remap"
        )
    first, second = [(await now.read_updates(name)).sort_by("n").to_pydict() for name in ("s", "l")]
    assert first["n"] == second["n"] == list(range(12 * EACH))
    assert second["_time"] == [max(at, begins) for at in first["_time"]]


async def test_d3_who_may_no_longer_know_what_was_bound_when_says_so() -> None:
    clock, ids = ManualClock(), map(str, itertools.count())
    now = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    target = await make_target(now)
    await now.compare_and_append(
        "s/remap", frontier(1), frontier(9 * EACH + 1), bound(0, 9 * EACH), writer="remap"
    )
    await now.read_hold("s/remap", at=frontier(5 * EACH), owner="reclock:s", lease_ms=None)
    driver = ReclockDriver(target, now, clock, ReclockSettings())
    with pytest.raises(BeforeSince, match="apply it again"):
        await driver.resume()
