"""From a log to a collection while processes die at any write: every record once, at its time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tidemill.catalog.bindings import read_bound_offsets
from tidemill.catalog.records.decisions import DECISIONS_SCHEMA, Decisions
from tidemill.reclock import REMAP_SCHEMA, RemapTrace, bindings_of_rows, target_times
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import LETTER_SCHEMA, Column, JsonFormat, RowDecoder
from tidemill.runtime.log import Entry, LogRecord
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.loop_threads import run_threads_on_loop
from tidemill.time import PARTITIONED, Partitions, frontier, sole_time
from tidemill_ingest.driver import SourceBroken, SourceReader
from tidemill_ingest.settings import IngestSettings
from tidemill_reclock.driver import ReclockDriver, ReclockTarget
from tidemill_reclock.settings import ReclockSettings
from tidemill_remap.driver import RemapDriver

INTERVAL_MS = 100
TARGET = ReclockTarget(
    "s", "s/remap", "s", "s/letters",
    pa.schema([pa.field("n", pa.int64(), nullable=False)]), LETTER_SCHEMA,
)  # fmt: skip
DECODER = RowDecoder([Column("n", "int")], JsonFormat())


async def decode(records: Sequence[LogRecord]) -> tuple[pa.Table, pa.Table]:
    return DECODER.decode(
        [r.partition for r in records], [r.offset for r in records], [r.value for r in records]
    )


class Context:
    """The log, the stores and the clock, which outlive every process."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(10_000)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.log = EmbeddedLog(folder)
        self.now = self.process(Fuse(None))
        self.numbers = itertools.count()
        self.places: dict[int, Partitions] = {}
        self.bad: dict[tuple[int, int], str] = {}

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    async def create(self, partitions: int) -> None:
        await self.log.create_topic("topic", partitions)
        for name, schema in (
            ("s/remap", REMAP_SCHEMA),
            ("s", TARGET.row_schema),
            ("s/letters", LETTER_SCHEMA),
        ):
            retain_ms = 0 if name == "s/remap" else None
            held, _ = await self.now.create(name, Description(schema, retain_ms=retain_ms))
            if retain_ms is None:
                await self.now.retain(name, None)
            await self.now.drop(held)
        await self.now.read_hold("s/remap", owner="keeps all bindings for the test", lease_ms=None)

    async def write(self, random: Random, count: int) -> None:
        """Records of which some cannot be decoded; where each landed is noted."""
        entries = []
        for _ in range(count):
            n = next(self.numbers)
            text = json.dumps({"n": n}) if random.random() < 0.9 else '{"n": "none"'
            entries.append((n, Entry(str(n).encode(), text.encode())))
        landed = await self.log.append("topic", [entry for _, entry in entries])
        for (n, entry), (partition, offset) in zip(entries, landed, strict=True):
            if b"none" in (entry.value or b""):
                self.bad[partition, offset] = (entry.value or b"").decode()
            else:
                self.places[n] = Partitions(partition, partition, offset)

    async def run(self, collections: Collections) -> None:
        """One process of the source: ingest, remap and reclock, until cancelled or killed."""
        settings = IngestSettings(records_per_poll=7)
        reader = SourceReader("s", self.log, "topic", decode, self.clock, settings)
        remap = RemapDriver("s", "s/remap", collections, self.clock, INTERVAL_MS)
        reclock = ReclockDriver(
            TARGET, collections, self.clock, ReclockSettings(hold_interval_s=0.0)
        )
        reader.expect(await read_bound_offsets(collections, "s/remap", 0, "s"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(remap.mint_forever(reader.probe))
            await collections.wait_for_upper("s/remap", 1, 600.0)
            starts = await reclock.resume()
            tasks.create_task(reclock.write_forever())
            tasks.create_task(reader.deliver_from(starts, reclock.take))

    async def check(self) -> None:
        """Every record bound so far is there once, at the least time whose binding covers it."""
        upper = sole_time((await self.now.status("s/remap")).upper)
        remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED, 0)
        remap.insert(bindings_of_rows(await self.now.read_updates("s/remap")), frontier(upper))
        rows = (await self.now.read_updates("s")).to_pylist()
        assert {row["n"] for row in rows} == set(self.places)
        times = target_times(remap, [self.places[row["n"]] for row in rows])
        assert [(row["_time"], row["_diff"]) for row in rows] == [(time, 1) for time in times]
        letters = (await self.now.read_updates("s/letters")).to_pylist()
        assert {(x["partition"], x["offset"]): x["raw"] for x in letters} == self.bad
        assert len(letters) == len(self.bad)


async def until(world: Context, process: asyncio.Task[None], n: int) -> None:
    """Move time on in small steps until the process has died or `n` records are written."""
    for _ in range(4_000):
        written = (await world.now.status("s")).updates + (
            await world.now.status("s/letters")
        ).updates
        if process.done() or written == n:
            return
        await asyncio.sleep(0)
        world.clock.move(0.02)
    pytest.fail(f"the source stands still: {written} of {n} records written")


@pytest.fixture(autouse=True)
async def files_are_read_and_written_in_turn() -> None:
    """Virtual time does not wait for a thread that reads or writes a file."""
    run_threads_on_loop(1)


async def end(process: asyncio.Task[None]) -> None:
    """Stop a process; it may have been killed, but not have failed."""
    process.cancel()
    (how,) = await asyncio.gather(process, return_exceptions=True)
    if isinstance(how, BaseExceptionGroup):
        how = how.split(Killed)[1]
    if how is not None and not isinstance(how, Killed | asyncio.CancelledError):
        raise AssertionError("the source failed") from how


@pytest.mark.parametrize("seed", range(8))
async def test_every_record_arrives_once_whatever_write_kills_the_process(
    seed: int, tmp_path: Path
) -> None:
    random, world = Random(seed), Context(tmp_path)
    await world.create(random.randrange(1, 4))
    deaths = total = 0
    for _ in range(5):
        count = random.randrange(40)
        await world.write(random, count)
        total += count
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 9), after=random.random() < 0.5)
            process = asyncio.create_task(world.run(world.process(fuse)))
            await until(world, process, total)
            await end(process)
            deaths += fuse.blown
    process = asyncio.create_task(world.run(world.process(Fuse(None))))
    await until(world, process, total)
    await end(process)
    await world.check()
    assert deaths > 0
    await world.log.close()


async def test_two_processes_of_one_source_write_what_one_would(tmp_path: Path) -> None:
    random, world = Random(1), Context(tmp_path)
    await world.create(2)
    processes = [
        asyncio.create_task(world.run(world.process(Fuse(writes)))) for writes in (None, 25)
    ]
    total = 0
    for count in (30, 5, 60):
        await world.write(random, count)
        total += count
        await until(world, processes[0], total)
    for process in processes:
        await end(process)
    await world.check()
    await world.log.close()


async def test_an_idle_source_advances_every_interval(tmp_path: Path) -> None:
    world = Context(tmp_path)
    await world.create(2)
    process = asyncio.create_task(world.run(world.now))
    for _ in range(60):
        await asyncio.sleep(0)
        world.clock.move(0.02)
    upper = sole_time((await world.now.status("s")).upper)
    assert world.clock.now_ms() - upper <= INTERVAL_MS
    assert (upper - 1) % INTERVAL_MS == 0
    await end(process)
    await world.log.close()


class Recreated:
    """A log whose topic has lost its records between two looks."""

    def __init__(self, bounds: list[dict[int, tuple[int, int]]]) -> None:
        self._bounds = iter(bounds)

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return next(self._bounds)

    async def identity(self, topic: str) -> str | None:
        return None

    async def reader(self, topic: str, starts: object) -> None:
        raise AssertionError("nothing may be read")


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ([{0: (0, 9)}, {0: (0, 3)}], "TopicRecreated"),
        ([{0: (0, 9), 1: (0, 9)}, {0: (0, 9)}], "PartitionsLost"),
    ],
)
async def test_a_source_that_is_not_what_it_was_is_broken(
    bounds: list[dict[int, tuple[int, int]]], reason: str
) -> None:
    reader = SourceReader("s", Recreated(bounds), "topic", decode, ManualClock(0), IngestSettings())
    await reader.probe()
    with pytest.raises(SourceBroken) as broken:
        await reader.probe()
    assert broken.value.reason == reason


class Overtaken(Recreated):
    """A log whose first answer arrives only after the second one has."""

    def __init__(self, bounds: list[dict[int, tuple[int, int]]]) -> None:
        super().__init__(bounds)
        self.overtaken = asyncio.Event()
        self.asked = 0

    async def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        self.asked += 1
        answer = await super().bounds(topic)
        if self.asked == 1:
            await self.overtaken.wait()
        return answer


async def test_an_answer_that_was_overtaken_by_a_later_one_breaks_nothing() -> None:
    origin = Overtaken([{0: (0, 69)}, {0: (0, 73)}, {0: (0, 70)}])
    reader = SourceReader("s", origin, "topic", decode, ManualClock(0), IngestSettings())
    first = asyncio.create_task(reader.probe())
    await asyncio.sleep(0)
    assert await reader.probe() == {0: 73}
    origin.overtaken.set()
    assert await first == {0: 69}
    # Offsets that the later one knew are not forgotten.
    with pytest.raises(SourceBroken):
        await reader.probe()


async def test_a_source_remembers_over_restarts_how_far_it_was_bound() -> None:
    reader = SourceReader(
        "s", Recreated([{0: (0, 3)}]), "topic", decode, ManualClock(0), IngestSettings()
    )
    reader.expect({0: 9})
    with pytest.raises(SourceBroken):
        await reader.probe()


async def test_records_that_a_retention_took_before_they_were_read_break_the_source() -> None:
    reader = SourceReader(
        "s", Recreated([{0: (5, 9)}]), "topic", decode, ManualClock(0), IngestSettings()
    )
    with pytest.raises(SourceBroken) as broken:
        await reader.deliver_from({0: 3}, lambda delivery: asyncio.sleep(0))
    assert broken.value.reason == "RecordsLost"


async def decisions() -> Decisions:
    ids = map(str, itertools.count())
    collections = Collections(MemoryConsensus(), MemoryBlob(), ManualClock(), ids.__next__)
    held, _ = await collections.create("s/decisions", Description(DECISIONS_SCHEMA))
    await collections.drop(held)
    return Decisions(collections, "s/decisions")


@pytest.mark.parametrize("first", [0, 2])
async def test_v6_records_lost_after_the_source_was_first_seen_break_it(first: int) -> None:
    kept = await decisions()
    before = Recreated([{0: (first, 5)}])
    seen = SourceReader("s", before, "t", decode, ManualClock(0), IngestSettings(), kept)
    assert await seen.probe() == {0: 5}
    after = Recreated([{0: (5, 9)}])
    reader = SourceReader("s", after, "t", decode, ManualClock(0), IngestSettings(), kept)
    reader.expect({0: 5})
    with pytest.raises(SourceBroken, match=f"records {first} to 4") as broken:
        await reader.deliver_from({}, lambda delivery: asyncio.sleep(0))
    assert broken.value.reason == "RecordsLost"


async def test_v6_records_lost_before_the_source_was_first_seen_are_not_missed() -> None:
    origin = Recreated([{0: (5, 9)}])
    reader = SourceReader(
        "s", origin, "t", decode, ManualClock(0), IngestSettings(), await decisions()
    )
    with pytest.raises(AssertionError, match="nothing may be read"):
        await reader.deliver_from({}, lambda delivery: asyncio.sleep(0))
