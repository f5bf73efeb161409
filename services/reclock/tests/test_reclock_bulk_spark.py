"""A backlog written by Spark is, byte for byte, what the live operator writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.arrangement.updates import update_schema
from tidemill.errors import Unavailable
from tidemill.reclock import LiveReclock, bindings_of_rows, rows_of_bindings
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import LETTER_SCHEMA, Column, JsonFormat, RowDecoder
from tidemill.runtime.log import Entry
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.shard import Collections, Description, DirectoryBlob, SqliteConsensus
from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import SparkLauncher
from tidemill.spark.local import LocalLauncher
from tidemill.spark.local_settings import LocalSettings
from tidemill.testkit.jobs import SessionLauncher
from tidemill.time import (
    PARTITIONED,
    Antichain,
    Partitions,
    frontier,
    heartbeat,
    partition_frontier,
)
from tidemill_reclock.bulk import Backlog, LogPlace
from tidemill_reclock.bulk_spark import SparkBulkReclock

COLUMNS = (Column("plane", "text"), Column("delay", "int", nullable=True))
DECODER = RowDecoder(COLUMNS, JsonFormat(), heartbeats=True)
RECORDS = {0: 900, 1: 450}
BOUND = [(1_000, {0: 300, 1: 100}), (2_000, {0: 300, 1: 400}), (3_000, {0: 900, 1: 450})]


def record(partition: int, offset: int) -> bytes:
    """Every 50th record is broken, others are heartbeats; some rows repeat within one binding."""
    if offset % 50 == 7:
        return b"no json"
    if offset % 45 == 3:
        return heartbeat(1_000 + offset).encode()
    return json.dumps({"plane": f"N{offset % 11}", "delay": (partition * offset) % 5}).encode()


def bindings() -> list[tuple[Partitions, int, int]]:
    """The updates of a remap collection that comes to BOUND."""
    changes: list[tuple[Partitions, int, int]] = []
    before: Antichain[Partitions] = Antichain.of(PARTITIONED, [])
    for time, offsets in BOUND:
        after = partition_frontier(offsets)
        changes += [(element, time, -1) for element in before if element not in after.elements]
        changes += [(element, time, 1) for element in after if element not in before.elements]
        before = after
    return changes


async def open_stores(folder: Path) -> Collections:
    collections = Collections(
        SqliteConsensus(folder / "consensus.sqlite"),
        DirectoryBlob(folder / "blob", lambda: token_hex(8)),
        ManualClock(),
        lambda: token_hex(16),
    )
    rows = DECODER.schema.append(pa.field("_heartbeat", pa.int64()))
    await collections.create("flights", Description(rows, kind="source"), lease_ms=None)
    await collections.create(
        "flights/deadletters", Description(LETTER_SCHEMA, kind="deadletters"), lease_ms=None
    )
    return collections


def reclocked_live(upper: int) -> tuple[pa.Table, pa.Table]:
    """The output of the live path for the same records."""
    places = [(p, offset) for p, count in RECORDS.items() for offset in range(count)]
    decoded = DECODER.decode(
        [p for p, _ in places], [o for _, o in places], [record(p, o) for p, o in places]
    )
    source = partition_frontier(RECORDS)
    assert decoded.rows["_heartbeat"].null_count < decoded.rows.num_rows
    schema = DECODER.schema.append(pa.field("_heartbeat", pa.int64()))
    live_rows = LiveReclock(
        schema, BOUND[0][0], partition_column="_partition", offset_column="_offset"
    )
    live_letters = LiveReclock(LETTER_SCHEMA, BOUND[0][0])
    rows = live_rows.step(decoded.rows, bindings(), frontier(upper), source).table
    letters = live_letters.step(decoded.letters, bindings(), frontier(upper), source).table
    return rows.cast(update_schema(schema)), letters.cast(update_schema(LETTER_SCHEMA))


def backlog(upper: int) -> Backlog:
    remap = rows_of_bindings(bindings())
    assert sorted(bindings_of_rows(remap)) == sorted(bindings())
    return Backlog(
        "flights", "flights/remap", "flights", "flights/deadletters",
        {}, RECORDS, remap, 0, upper,
    )  # fmt: skip


def bulk(
    collections: Collections, folder: Path, launcher: SparkLauncher, topic: str = "flights"
) -> SparkBulkReclock:
    place = LogPlace(topic, folder / "log")
    return SparkBulkReclock(launcher, collections, place, COLUMNS, JsonFormat(), heartbeats=True)


def blob_in(folder: Path) -> BlobPlace:
    return BlobPlace(f"file:{folder / 'blob'}")


def launcher_in(folder: Path) -> LocalLauncher:
    """Jobs as processes of their own: a session of its own takes ten seconds of processor."""
    session = LocalSettings(memory_mb=600, scratch=str(folder / "scratch"))
    return LocalLauncher(folder / "jobs", blob_in(folder), session)


def as_bytes(table: pa.Table) -> bytes:
    """Rows and schema in one order, without what Arrow leaves open, such as empty bitmaps.

    A collection is a multiset: the order in which a snapshot gives its rows follows its parts.
    """
    ordered = table.sort_by([(name, "ascending") for name in table.column_names])
    plain = pa.Table.from_pylist(ordered.to_pylist(), table.schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    return bytes(sink.getvalue().to_pybytes())


async def fill(folder: Path) -> None:
    log = EmbeddedLog(folder / "log")
    await log.create_topic("flights", 2)
    for partition, count in RECORDS.items():
        entries = [Entry(None, record(partition, o), partition, 0) for o in range(count)]
        await log.append("flights", entries)
    await log.close()


@pytest.mark.server
async def test_spark_writes_byte_for_byte_what_the_live_path_writes(
    tmp_path: Path, spark: SparkSession
) -> None:
    await fill(tmp_path)
    by_spark = await open_stores(tmp_path)
    await bulk(by_spark, tmp_path, launcher_in(tmp_path)).write(backlog(3_001))

    live = await open_stores(tmp_path / "live")
    rows, letters = reclocked_live(3_001)
    for name, updates in (("flights", rows), ("flights/deadletters", letters)):
        await live.compare_and_append(name, frontier(0), frontier(3_001), updates, writer="live")
        stored = [await stores.read_updates(name) for stores in (by_spark, live)]
        assert stored[0].num_rows == updates.num_rows or name == "flights"
        assert as_bytes(stored[0]) == as_bytes(stored[1])
        for time in (999, 1_000, 1_999, 2_000, 3_000):
            snapshots = []
            for stores in (by_spark, live):
                read = await stores.read_hold(name, owner="test")
                snapshots.append(await stores.snapshot(read, time))
            assert as_bytes(snapshots[0]) == as_bytes(snapshots[1])

    # A second run of the same backlog loses its race and changes nothing.
    before = await by_spark.read_updates("flights")
    again = SessionLauncher(spark, blob_in(tmp_path))
    await bulk(by_spark, tmp_path, again).write(backlog(3_001))
    assert len(again.launched) == 1
    assert (await by_spark.read_updates("flights")).equals(before)
    assert (await by_spark.status("flights")).upper == frontier(3_001)
    await by_spark.close()
    await live.close()


@pytest.mark.server
async def test_a_job_that_fails_says_why_and_writes_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    await fill(tmp_path)
    collections = await open_stores(tmp_path)
    launcher = SessionLauncher(spark, blob_in(tmp_path))
    with pytest.raises(Unavailable, match="backfill of flights"):
        await bulk(collections, tmp_path, launcher, topic="absent").write(backlog(3_001))
    assert len(launcher.launched) == 1
    assert (await collections.status("flights")).upper == frontier(0)
    await collections.close()


def finds_modules(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import sys

    for batch in batches:
        names = ("tidemill_reclock.backfill_job", "colorsys")
        found = [" ".join(name for name in names if name in sys.modules)] * len(batch)
        yield pa.RecordBatch.from_pydict({"found": found})


@pytest.mark.server
def test_workers_begin_with_the_modules_of_a_backfill(spark: SparkSession) -> None:
    """Each worker of each stage had loaded them anew; a module that nobody names is not there."""
    finds_modules.__module__ = "__main__"  # goes to workers as it is, and imports nothing of ours
    row = spark.range(1).mapInArrow(finds_modules, "found string").collect()[0]
    assert row["found"] == "tidemill_reclock.backfill_job"
