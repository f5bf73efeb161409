"""Merges by a Spark job: what they leave is what the service's own merge leaves, or nothing
changes.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from secrets import token_hex

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.errors import Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    Description,
    DirectoryBlob,
    MemoryConsensus,
    UpperMismatch,
    compaction,
)
from tidemill.shard.encoding import unpack_part
from tidemill.shard.part_store import Limits
from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import FailureKind, JobDone, JobFailed
from tidemill.testkit.jobs import SessionLauncher
from tidemill.time import Frontier, frontier
from tidemill_compaction.bulk_spark import SparkMerge
from tidemill_compaction.driver import CompactionDriver
from tidemill_compaction.settings import CompactionSettings
from tidemill_compute.arranging import SparkArrange

ROWS = pa.schema([("plane", pa.string()), ("delay", pa.int64())])
APPENDS, ROWS_EACH = 9, 120
SINCE = 5
SETTINGS = CompactionSettings(batches_max=4, spark_rows=500)


class World:
    """A collection of some batches in a folder; rows come and go, so that much of it cancels."""

    def __init__(self, folder: Path) -> None:
        names = count(1)
        self.place = BlobPlace(f"file:{folder / 'blob'}")
        self.blob = DirectoryBlob(folder / "blob", lambda: token_hex(8))
        self.clock = ManualClock(1_000_000)
        self.collections = Collections(
            MemoryConsensus(), self.blob, self.clock, lambda: f"{next(names):032x}",
            limits=Limits(inline_bytes_max=0, part_bytes_max=2_000),
        )  # fmt: skip

    async def fill(self) -> None:
        description = Description(ROWS, key=("plane",))
        read, _ = await self.collections.create("t", description, lease_ms=None)
        for time in range(APPENDS):
            rows = [(f"N{n % 50}", n % 7, 1) for n in range(ROWS_EACH)]
            if time:
                rows += [(f"N{n % 50}", n % 7, -1) for n in range(0, ROWS_EACH, 2)]
            planes, delays, diffs = zip(*rows, strict=True)
            table = pa.table(
                {
                    "plane": planes, "delay": delays,
                    "_time": pa.array([time] * len(rows), pa.uint64()), "_diff": diffs,
                }
            )  # fmt: skip
            await self.collections.compare_and_append(
                "t", frontier(time), frontier(time + 1), table, writer="w"
            )
        await self.collections.downgrade(read, frontier(SINCE))

    async def contents(self) -> list[pa.Table]:
        """The readable contents at each instant."""
        read = await self.collections.read_hold("t", owner="test")
        found = [await self.collections.snapshot(read, time) for time in range(SINCE, APPENDS)]
        order = [("plane", "ascending"), ("delay", "ascending")]
        return [table.sort_by(order) for table in found]

    async def read_sorted(self) -> pa.Table:
        order = [(name, "ascending") for name in ("plane", "delay", "_time")]
        return (await self.collections.read_updates("t")).sort_by(order)

    async def shape(self) -> tuple[int, Frontier, Frontier]:
        status = await self.collections.status("t")
        return status.batches, status.since, status.upper


@pytest.mark.server
async def test_a_big_merge_is_a_job_and_leaves_what_the_service_would(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "RANGE_BYTES", 4_000)  # several ranges, so several tasks
    by_spark, alone = World(tmp_path / "spark"), World(tmp_path / "alone")
    for world in (by_spark, alone):
        await world.fill()
    before = await by_spark.contents()
    launcher = SessionLauncher(spark, by_spark.place)
    bulk = SparkMerge(launcher, by_spark.collections)
    driver = CompactionDriver(by_spark.collections, by_spark.clock, SETTINGS, bulk=bulk)
    await driver.look()
    await driver.settle()
    assert len(launcher.launched) == driver.counts.merges == 1
    spec = msgspec.msgpack.decode(launcher.launched[0].spec)
    assert len(spec["ranges"]) > 1
    own = CompactionDriver(alone.collections, alone.clock, SETTINGS)
    await own.look()
    assert own.counts.merges == 1
    assert await by_spark.contents() == before == await alone.contents()
    assert (await by_spark.read_sorted()).equals(await alone.read_sorted())
    assert (await by_spark.read_sorted()).num_rows < sum(t.num_rows for t in before)
    assert await by_spark.shape() == await alone.shape()
    assert (await by_spark.shape())[0] == 1
    # Nothing is left to do, so nothing is launched again.
    await driver.look()
    assert len(launcher.launched) == 1


@pytest.mark.server
async def test_a_merge_that_came_too_late_changes_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = World(tmp_path)
    await world.fill()
    before = await world.contents()
    bulk = SparkMerge(SessionLauncher(spark, world.place), world.collections)
    late = await world.collections.due_merge("t")
    gone = await world.collections.due_merge("t")
    assert late is not None
    assert gone is not None
    await world.collections.compact("t")
    # Another merge was faster: its result stays.
    shape = await world.shape()
    assert not await bulk.merge(late)
    assert await world.shape() == shape
    # The inputs of the job have been deleted since.
    world.clock.move(1_000)
    assert await world.collections.collect_garbage("t", 1) > 0
    assert not await bulk.merge(gone)
    assert await world.contents() == before


@pytest.mark.server
async def test_a_job_that_fails_is_told_of_and_changes_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = World(tmp_path)
    await world.fill()
    before, shape = await world.contents(), await world.shape()
    merge = await world.collections.due_merge("t")
    assert merge is not None
    key = merge.work.inputs[0].key
    assert key is not None
    file = tmp_path / "blob" / key
    data = file.read_bytes()
    file.write_bytes(b"?" * len(data))
    launcher = SessionLauncher(spark, world.place)
    with pytest.raises(Unavailable, match=f"(?s)the merge of t failed.*{key}"):
        await SparkMerge(launcher, world.collections).merge(merge)
    file.write_bytes(data)
    assert (await world.shape(), await world.contents()) == (shape, before)


@pytest.mark.server
async def test_an_arrangement_by_another_key_holds_the_same_at_every_instant(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = World(tmp_path)
    await world.fill()
    launcher = SessionLauncher(spark, world.place)
    arranging = SparkArrange(launcher, world.collections)
    description = Description(ROWS, key=("delay",))
    held, _ = await world.collections.create(
        "t/by-delay", description, lease_ms=None, start=frontier(SINCE)
    )
    built = await arranging.build("t", "t/by-delay")
    assert built > 0
    contents = await world.contents()
    order = [("plane", "ascending"), ("delay", "ascending")]
    for time, expected in zip(range(SINCE, APPENDS), contents, strict=True):
        found = await world.collections.snapshot(held, time)
        assert found.sort_by(order).equals(expected)
    for part in (await world.collections.state("t/by-delay")).parts():
        table = await world.collections._core.parts.table(part, description)
        delays = table["delay"].to_pylist()
        assert delays == sorted(delays)
    # Again there is nothing to do; what comes later is added, and only that.
    assert await arranging.build("t", "t/by-delay") == 0
    assert len(launcher.launched) == 1
    more = pa.table(
        {
            "plane": ["late"], "delay": [3], "_time": pa.array([APPENDS], pa.uint64()),
            "_diff": [1],
        }
    )  # fmt: skip
    await world.collections.compare_and_append(
        "t", frontier(APPENDS), frontier(APPENDS + 1), more, writer="w"
    )
    assert await arranging.build("t", "t/by-delay") == 1
    newest = await world.collections.snapshot(held, APPENDS)
    read = await world.collections.read_hold("t", owner="newest")
    expected = await world.collections.snapshot(read, APPENDS)
    assert newest.sort_by(order).equals(expected.sort_by(order))
    # The first job once more is late: it loses its race.
    shape = (await world.collections.state("t/by-delay")).batches
    spec = launcher.launched[0]
    outcome = await launcher.launch(spec)
    assert isinstance(outcome, JobDone)
    late = await world.collections.append_parts(
        "t/by-delay", frontier(SINCE), frontier(APPENDS),
        [unpack_part(part) for part in msgspec.msgpack.decode(outcome.result)["parts"]],
        writer="late",
    )  # fmt: skip
    assert isinstance(late, UpperMismatch)
    assert (await world.collections.state("t/by-delay")).batches == shape


class Nobody:
    """Runs no job: each fails."""

    remote = False
    asked = 0

    async def launch(self, job: object) -> JobFailed:
        self.asked += 1
        return JobFailed(FailureKind.DRIVER, "nobody is here", "none")

    async def tend_forever(self) -> None: ...

    async def close(self) -> None: ...


async def test_small_merges_are_made_here(tmp_path: Path) -> None:
    world, nobody = World(tmp_path), Nobody()
    await world.fill()
    bulk = SparkMerge(nobody, world.collections)
    settings = msgspec.structs.replace(SETTINGS, spark_rows=10_000)
    driver = CompactionDriver(world.collections, world.clock, settings, bulk=bulk)
    await driver.look()
    assert driver.counts.merges > 0
    assert nobody.asked == 0


async def test_what_a_job_could_not_do_is_done_here(tmp_path: Path) -> None:
    world, nobody, said = World(tmp_path), Nobody(), list[str]()
    await world.fill()
    before = await world.contents()
    bulk = SparkMerge(nobody, world.collections)
    driver = CompactionDriver(
        world.collections, world.clock, SETTINGS, lambda _, message: said.append(message), bulk=bulk
    )
    await driver.look()
    await driver.settle()
    assert (nobody.asked, driver.counts.merges, driver.counts.skipped) == (1, 0, 1)
    assert "nobody is here" in said[0]
    await driver.look()
    assert (nobody.asked, driver.counts.merges) == (1, 1)
    assert await world.contents() == before
