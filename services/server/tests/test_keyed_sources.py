"""Keyed sources whose processes die at any write: at each instant the last value of each key."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.arrangement.updates import accumulate
from tidemill.catalog.bindings import read_bound_offsets
from tidemill.catalog.records.decoding import RecordDecoder
from tidemill.reclock import (
    CHANGE_SCHEMA,
    REMAP_SCHEMA,
    KeyedRows,
    RemapTrace,
    bindings_of_rows,
    target_times,
)
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import LETTER_SCHEMA
from tidemill.runtime.log import Entry
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.resources import SourceSpec, load_resources
from tidemill.runtime.resources.decoding import RecordShape, record_shape
from tidemill.shard import (
    Blob,
    Collections,
    Consensus,
    Description,
    DirectoryBlob,
    MemoryBlob,
    MemoryConsensus,
    SqliteConsensus,
)
from tidemill.shard.stores import BlobPlace
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.jobs import SessionLauncher
from tidemill.testkit.loop_threads import run_threads_on_loop
from tidemill.testkit.twins.keyed import Happened, broken, rows_at
from tidemill.testkit.whole import running
from tidemill.time import PARTITIONED, Partitions, frontier, sole_time
from tidemill_ingest.driver import SourceReader
from tidemill_ingest.settings import IngestSettings
from tidemill_reclock.bulk import LogPlace
from tidemill_reclock.bulk_spark import SparkBulkReclock
from tidemill_reclock.driver import ReclockDriver, ReclockTarget
from tidemill_reclock.keyed_job import keyed_job
from tidemill_reclock.settings import ReclockSettings
from tidemill_remap.driver import RemapDriver

INTERVAL_MS = 100
WAIT_S_MAX = 240.0
PARTITIONS = 3
ROWS = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
TARGET = ReclockTarget("s", "s/remap", "s", "s/letters", CHANGE_SCHEMA, LETTER_SCHEMA)
HEAD = "{apiVersion: tidemill.dev/v1alpha1, kind: Source, metadata: {name: s}, spec: {kafka: {topic: t},"
COLUMNS = "columns: [{name: id, type: int}, {name: name, type: text, nullable: true}]"
SPECS = {
    "upsert": f"{HEAD} {COLUMNS}, keyFormat: {{json: {{}}}}, envelope: {{upsert: {{key: [id]}}}}}}}}",
    "debezium": f"{HEAD} {COLUMNS}, envelope: {{debezium: {{key: [id]}}}}}}}}",
}


def shape_of(kind: str) -> RecordShape:
    (resource,) = load_resources(SPECS[kind])
    assert isinstance(resource.spec, SourceSpec)
    return record_shape(resource.spec, resource.spec.columns)


def decoder(kind: str) -> RecordDecoder:
    return RecordDecoder(shape_of(kind))


Stores = tuple[Consensus, Blob]


class Context:
    """The log, the stores and the clock, which outlive every process; and what was written."""

    def __init__(self, folder: Path, kind: str, stores: Stores | None = None) -> None:
        self.kind = kind
        self.clock = ManualClock(10_000)
        self.ids = map(str, itertools.count())
        self.stores = stores or (MemoryConsensus(), MemoryBlob())
        self.log = EmbeddedLog(folder)
        self.now = self.process(Fuse(None))
        self.rows: dict[int, tuple[object, ...]] = {}
        self.happened: list[Happened] = []
        self.bad = 0

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    async def create(self) -> None:
        await self.log.create_topic("t", PARTITIONS)
        for name, schema in (("s/remap", REMAP_SCHEMA), ("s", ROWS), ("s/letters", LETTER_SCHEMA)):
            held, _ = await self.now.create(name, Description(schema))
            await self.now.retain(name, None)
            await self.now.drop(held)
            await self.now.read_hold(name, owner="keeps all for the test", lease_ms=None)

    async def write(self, random: Random, count: int) -> None:
        """Changes of a few rows, each row's in its own partition; some undecodable, some broken."""
        for _ in range(count):
            key = random.randrange(8)
            held = self.rows.get(key)
            after: tuple[object, ...] | None = (key, random.choice(["a", "b", None]))
            op = random.choice(["set"] if self.kind == "upsert" else ["update", "delete", "read"])
            if self.kind == "debezium" and held is None:
                op = "create"
            if op == "delete" or (op == "set" and random.random() < 0.3):
                after = None
            before = held
            if op in ("update", "delete") and random.random() < 0.15:
                before = (key, "never")  # something of the history is missing
            await self.append(Random(random.random()), op, key, before, after)

    async def append(
        self,
        random: Random,
        op: str,
        key: int,
        before: tuple[object, ...] | None,
        after: tuple[object, ...] | None,
    ) -> None:
        def document(row: tuple[object, ...] | None) -> dict[str, object] | None:
            return None if row is None else dict(zip(("id", "name"), row, strict=True))

        value: bytes | None
        name = json.dumps({"id": key}).encode()
        if self.kind == "upsert":
            value = None if after is None else json.dumps({"name": after[1]}).encode()
        else:
            change = {"op": op[0], "before": document(before), "after": document(after)}
            value = json.dumps({"payload": change} if random.random() < 0.5 else change).encode()
        if random.random() < 0.1:
            self.bad += 1
            await self.log.append("t", [Entry(name, b"{", key % PARTITIONS)])
        ((partition, offset),) = await self.log.append("t", [Entry(name, value, key % PARTITIONS)])
        self.happened.append(Happened(0, partition, offset, op, before, after, key))
        self.rows = dict(rows_at(self.timed([0] * len(self.happened)), 0))  # type: ignore[arg-type]  # keys are numbers
        if op == "delete":
            await self.log.append("t", [Entry(name, None, key % PARTITIONS)])  # a tombstone

    def timed(self, times: list[int]) -> list[Happened]:
        return [e._replace(time=t) for e, t in zip(self.happened, times, strict=True)]

    def parts(self, collections: Collections) -> tuple[SourceReader, RemapDriver, ReclockDriver]:
        """The parts of a process of the source."""
        settings = IngestSettings(records_per_poll=7)
        return (
            SourceReader("s", self.log, "t", decoder(self.kind).decode, self.clock, settings),
            RemapDriver("s", "s/remap", collections, self.clock, INTERVAL_MS),
            ReclockDriver(
                TARGET, collections, self.clock, ReclockSettings(hold_interval_s=0.0),
                KeyedRows(ROWS, ["id"]),
            ),
        )  # fmt: skip

    async def bind(self) -> None:
        """Bind what is in the log, and write nothing of it."""
        reader, remap, _ = self.parts(self.now)
        target = self.clock.now_ms() + 2 * INTERVAL_MS
        minting = asyncio.create_task(remap.mint_forever(reader.probe))
        while sole_time((await self.now.status("s/remap")).upper) <= target:
            await asyncio.sleep(0)
            self.clock.move(0.02)
        minting.cancel()
        await asyncio.gather(minting, return_exceptions=True)

    async def run(self, collections: Collections) -> None:
        """One process of the source, until cancelled or killed."""
        reader, remap, reclock = self.parts(collections)
        reader.expect(await read_bound_offsets(collections, "s/remap", 0, "s"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(remap.mint_forever(reader.probe))
            await collections.wait_for_upper("s/remap", 1, 600.0)
            starts = await reclock.resume()
            tasks.create_task(reclock.write_forever())
            tasks.create_task(reader.deliver_from(starts, reclock.take))

    async def check(self) -> None:
        """At each instant: what the twin holds, and a letter for everything bad or broken."""
        upper = sole_time((await self.now.status("s")).upper)
        bound = sole_time((await self.now.status("s/remap")).upper)
        remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED, 0)
        remap.insert(bindings_of_rows(await self.now.read_updates("s/remap")), frontier(bound))
        times = target_times(
            remap, [Partitions(e.partition, e.partition, e.offset) for e in self.happened]
        )
        assert all(time is not None and time < upper for time in times)
        history = self.timed([time for time in times if time is not None])
        stored = await self.now.read_updates("s")
        for at in {*(each.time for each in history), upper - 1}:
            found = accumulate(stored, at).to_pylist()
            assert all(row["_diff"] == 1 for row in found)
            held = {row["id"]: (row["id"], row["name"]) for row in found}
            assert held == rows_at(history, at)
            assert len(found) == len(held)
        letters = (await self.now.read_updates("s/letters")).to_pylist()
        said = [
            (x["partition"], x["offset"])
            for x in letters
            if "JSON" not in x["reason"] and "Debezium" not in x["reason"]
        ]
        assert sorted(said) == sorted(broken(history))
        assert len(letters) == self.bad + len(said)


@pytest.fixture
async def in_turn() -> None:
    """Virtual time does not wait for a thread that reads or writes a file."""
    run_threads_on_loop(1)


async def until_all_is_written(
    world: Context, process: asyncio.Task[None], pause_s: float = 0.0
) -> None:
    """Move time on in small steps until the process has died, or has written everything.

    With `pause_s` for threads and stores between two steps; without, nobody may need real time.
    """
    # A probe of a later instant sees all that was in the log by now.
    target = world.clock.now_ms() + 2 * INTERVAL_MS
    async with asyncio.timeout(WAIT_S_MAX):
        while not process.done() and sole_time((await world.now.status("s")).upper) <= target:
            await asyncio.sleep(pause_s)
            world.clock.move(0.02)


async def end(process: asyncio.Task[None]) -> None:
    """Stop a process; it may have been killed, but not have failed."""
    process.cancel()
    (how,) = await asyncio.gather(process, return_exceptions=True)
    if isinstance(how, BaseExceptionGroup):
        how = how.split(Killed)[1]
    if how is not None and not isinstance(how, Killed | asyncio.CancelledError):
        raise AssertionError("the source failed") from how


@pytest.mark.usefixtures("in_turn")
@pytest.mark.parametrize("kind", ["upsert", "debezium"])
@pytest.mark.parametrize("seed", range(3))
async def test_processes_that_die_at_any_write_hold_what_the_oracle_holds(
    kind: str, seed: int, tmp_path: Path
) -> None:
    random, world, deaths = Random(seed), Context(tmp_path, kind), 0
    await world.create()
    for _ in range(4):
        await world.write(random, random.randrange(5, 30))
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 9), after=random.random() < 0.5)
            process = asyncio.create_task(world.run(world.process(fuse)))
            await until_all_is_written(world, process)
            await end(process)
            deaths += fuse.blown
    process = asyncio.create_task(world.run(world.process(Fuse(None))))
    await until_all_is_written(world, process)
    await end(process)
    await world.check()
    assert deaths > 0
    assert world.bad
    assert kind == "upsert" or broken(world.timed([0] * len(world.happened)))
    await world.log.close()


@pytest.mark.usefixtures("in_turn")
async def test_two_processes_of_one_keyed_source_write_what_one_would(tmp_path: Path) -> None:
    random, world = Random(5), Context(tmp_path, "debezium")
    await world.create()
    processes = [
        asyncio.create_task(world.run(world.process(Fuse(writes)))) for writes in (None, 25)
    ]
    for count in (30, 5, 40):
        await world.write(random, count)
        await until_all_is_written(world, processes[0])
    for process in processes:
        await end(process)
    await world.check()
    await world.log.close()


@pytest.mark.server
@pytest.mark.parametrize("kind", ["upsert", "debezium"])
async def test_changes_that_a_job_has_written_are_what_the_oracle_holds(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    names = map(str, itertools.count())
    blob = DirectoryBlob(tmp_path / "blob", names.__next__)
    stores = SqliteConsensus(tmp_path / "consensus.sqlite"), blob
    random, world = Random(11), Context(tmp_path / "log", kind, stores)
    await world.create()
    for _ in range(3):
        await world.write(random, 25)
        await world.bind()
    _, _, reclock = world.parts(world.now)
    backlog = reclock.backlog(await reclock.resume())
    assert backlog is not None
    assert backlog.records > 75
    shape = shape_of(kind)
    launcher = SessionLauncher(spark, BlobPlace(f"file:{tmp_path / 'blob'}"))
    bulk = SparkBulkReclock(
        launcher, world.now, LogPlace("t", tmp_path / "log"), shape.value, shape.value_format,
        job=keyed_job(shape),
    )  # fmt: skip
    await bulk.write(backlog)
    assert len(launcher.launched) == 1
    for name in ("s", "s/letters"):
        assert sole_time((await world.now.status(name)).upper) == backlog.upper
    # The live path holds what the job has left, and goes on.
    await world.write(random, 25)
    process = asyncio.create_task(world.run(world.process(Fuse(None))))
    for _ in range(2):
        # The first may end with a binding that `bind` had asked a real store for when it was
        # cancelled.
        await until_all_is_written(world, process, 0.001)
    await end(process)
    await world.check()
    assert world.bad
    assert kind == "upsert" or broken(world.timed([0] * len(world.happened)))
    await world.log.close()
    await world.now.close()


JSON_ROWS = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: documents}
spec:
  kafka: {topic: documents}
  envelope: {debezium: {key: [id]}}
  columns: [{name: id, type: int}, {name: body, type: json}]
"""


async def test_a_source_that_is_applied_now_reads_json_that_a_connector_gives_as_text(
    tmp_path: Path,
) -> None:
    row = {"id": 1, "body": '{"a": [1.50]}'}
    change = json.dumps({"op": "c", "before": None, "after": row}).encode()
    async with running(tmp_path, JSON_ROWS) as process:
        await process.context.log.append("documents", [Entry(None, change)])
        while not (found := await process.answer("documents")):
            await asyncio.sleep(0.05)
        assert found == [(1, '{"a":[1.5]}')]
