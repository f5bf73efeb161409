"""Spark reads collections as of an instant, whatever happens to them meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StructType

from tidemill.arrangement.updates import consolidate
from tidemill.client.spark import TidemillSource, reading
from tidemill.client.spark import scanning as scanning_module
from tidemill.client.spark.objects import LocatedObjects, fetched
from tidemill.errors import BeforeSince, Corrupt, Unavailable, UnknownCapability, UsageError
from tidemill.rpc.server import serve
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections, Description, DirectoryBlob, Limits, SqliteConsensus
from tidemill.shard.blob_objects import Bucket, bucket_blob
from tidemill.shard.part_store import PartGone
from tidemill.time import frontier
from tidemill_query.storage import StorageDriver

SCHEMA = pa.schema(
    [
        ("n", pa.int64()), ("s", pa.string()), ("f", pa.float64()), ("b", pa.bool_()),
        ("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("small", pa.uint16()),
        ("money", pa.decimal128(12, 2)), ("tags", pa.list_(pa.string())),
    ]
)  # fmt: skip
ROWS = 600


def updates(time: int, numbers: range, diff: int = 1, s: str = "a") -> pa.Table:
    """A row for each number, all at one time."""
    rows = [
        {
            "n": n, "s": None if n % 7 == 0 else f"{s}{n % 5}", "f": n / 4, "b": n % 2 == 0, "d": n % 100,
            "t": n * 1_000_000, "small": n % 60_000, "money": Decimal(n) / 4, "tags": [s] * (n % 3),
            "_time": time, "_diff": diff,
        }
        for n in numbers
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, Description(SCHEMA).update_schema())


class Place:
    """Durable collections in a folder, with tiny parts, behind a server in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        numbers = count()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.folder = folder / "objects"
        self.store = Collections(
            SqliteConsensus(folder / "log"),
            DirectoryBlob(self.folder, lambda: f"u{next(numbers)}"),
            SystemClock(),
            lambda: f"{next(numbers):032d}",
            limits=Limits(inline_bytes_max=0, part_bytes_max=8_000, cache_bytes_max=0),
        )
        driver = StorageDriver(self.store, SystemClock())
        self.server = self.run(serve("127.0.0.1:0", storage=driver))
        self.upper = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def options(self, **more: str) -> dict[str, str]:
        return {"address": f"127.0.0.1:{self.server.port}", "collection": "c", **more}

    async def write(self, table: Callable[[int], pa.Table]) -> None:
        bounds = frontier(self.upper), frontier(self.upper + 1)
        await self.store.compare_and_append("c", *bounds, table(self.upper), writer="w")
        self.upper += 1

    async def churn(self) -> None:
        """Append, merge, and delete what nobody keeps."""
        await self.write(lambda at: updates(at, range(5), s="z"))
        await self.store.compact("c")
        await self.store.collect_garbage("c", 0)

    def snapshot(self, at: int, **more: Any) -> pa.Table:
        async def read() -> pa.Table:
            table = await self.store.read_without_hold("c", at, **more)
            assert table is not None
            return table

        return consolidate(self.run(read()))

    def close(self) -> None:
        self.run(self.server.stop(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A collection of several batches and parts, with rows that were taken away."""
    made = Place(tmp_path)
    made.run(made.store.bind("c", Description(SCHEMA, key=("n",), retain_ms=2)))
    made.run(made.write(lambda at: updates(at, range(ROWS))))
    made.run(made.write(lambda at: updates(at, range(ROWS, ROWS + 50))))
    made.run(made.write(lambda at: updates(at, range(0, ROWS, 9), diff=-1)))
    yield made
    made.close()


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    spark.dataSource.register(TidemillSource)
    return spark.read.format("tidemill").options(**options).load()


def rows_of(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


def in_process(options: dict[str, str], schema: Any = None) -> tuple[Any, list[Any]]:
    """A reader and its partitions, as the driver plans them."""
    source = TidemillSource(options)
    reader = source.reader(schema or source.schema())
    return reader, list(reader.partitions())


def scanned(reader: Any, pieces: list[Any]) -> list[str]:
    batches = [batch for piece in pieces for batch in reader.read(piece)]
    return rows_of(pa.Table.from_batches(batches))


def as_spark(table: pa.Table) -> pa.Table:
    """A snapshot with the types that Spark has for it, and without multiplicities."""
    at = table.schema.get_field_index("small")
    return table.drop_columns(["_diff"]).set_column(at, "small", table["small"].cast(pa.int32()))


@pytest.mark.server
@pytest.mark.parametrize("pushing", ["true", "false"])
def test_a_collection_is_read_as_of_an_instant_with_columns_and_filters(
    spark: SparkSession, place: Place, pushing: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushing)
    options = place.options(rowsPerPartition="100")
    for at in (1, 2):
        frame = load(spark, {**options, "asOf": str(at)})
        assert frame.rdd.getNumPartitions() > 1
        assert rows_of(frame.toArrow()) == rows_of(as_spark(place.snapshot(at)))
    latest = load(spark, {**options, "columns": "s, n"})
    assert latest.columns == ["s", "n"]
    by_schema = spark.read.format("tidemill").options(**options).schema("n long, s string").load()
    for wheres in (
        "n >= 100 and n < 130", "s = 'a1' and n > 500", "s is null", "not (s = 'a1')", "n in (1, 2, 9)",
        "f > 100 and b", "d >= date'1970-03-01' and t < timestamp'1970-01-01 00:05:00Z'",
        "s <=> null or n = 4", "not (n in (1, 2, 3))", "s like 'a%' and n <> 5",
    ):  # fmt: skip
        whole = load(spark, options).where(wheres)
        table = place.snapshot(2)
        expected = spark.createDataFrame(as_spark(table)).where(wheres)
        assert rows_of(whole.toArrow()) == rows_of(expected.toArrow()), wheres
    assert rows_of(by_schema.toArrow()) == rows_of(latest.select("n", "s").toArrow())
    with_diff = load(spark, {**options, "multiplicity": "true", "columns": "b"})
    total = with_diff.groupBy("b").sum("_diff").toArrow()
    assert rows_of(total) == rows_of(load(spark, options).groupBy("b").count().toArrow().rename_columns(total.column_names))  # fmt: skip


@pytest.mark.server
@pytest.mark.rule("P1", "K1")
def test_appends_merges_and_garbage_meanwhile_change_nothing(
    spark: SparkSession, place: Place
) -> None:
    expected = rows_of(as_spark(place.snapshot(2)))
    stop, churned = threading.Event(), threading.Semaphore(0)

    async def churn_on() -> None:
        while not stop.is_set():
            await place.churn()
            churned.release()
            await asyncio.sleep(0.01)

    with reading(spark_with(spark), **place.options(rowsPerPartition="100", asOf="2")) as frame:
        under_way = place.begin(churn_on())
        try:
            for _ in range(3):
                assert churned.acquire(timeout=60)  # each look comes after one more round
                assert rows_of(frame.select("*").toArrow()) == expected
        finally:
            stop.set()
        under_way.result(60)
        holders = place.run(place.store.status("c")).holders
        assert "spark" in {holder.owner for holder in holders}
    # It is given up by name, and history with it.
    assert place.run(place.store.status("c")).holders == ()
    with pytest.raises(Exception, match="no longer distinguishable"):
        load(spark, place.options(asOf="2")).count()


def spark_with(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(TidemillSource)
    return spark


@pytest.mark.rule("P1")
def test_a_frame_keeps_the_instant_at_which_it_was_loaded(place: Place) -> None:
    loaded = TidemillSource(place.options())
    schema = loaded.schema()
    expected = rows_of(as_spark(place.snapshot(2)))
    for _ in range(2):  # as often as a query names it
        place.run(place.churn())
        scan = loaded.reader(schema)
        assert scanned(scan, list(scan.partitions())) == expected
    # The companion: another one that is loaded now has what was written since.
    reader, pieces = in_process(place.options())
    assert scanned(reader, pieces) != expected
    # All that is held has a lease, and ends if no query comes.
    assert all(h.lease_end_ms for h in place.run(place.store.status("c")).holders)


@pytest.mark.rule("K12", "P8")
def test_a_scan_goes_on_after_its_lease_with_the_same_rows_or_ends_with_an_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = place.options(asOf="2", rowsPerPartition="100", lease="1")
    reader, pieces = in_process(options)
    expected = scanned(reader, pieces)
    assert expected == rows_of(as_spark(place.snapshot(2)))
    assert len(pieces) > 1

    def lose() -> None:
        for holder in place.run(place.store.status("c")).holders:
            with suppress(UnknownCapability):  # a lease of a second may be over by itself
                place.run(place.store.expire_holder("c", holder.key))
        place.run(place.store.compact("c"))
        place.run(place.store.collect_garbage("c", 0))

    lose()
    objects = {file.name for file in place.folder.rglob("part-*")}
    named = {key.split("/")[1] for piece in pieces for key in piece.range().version.objects()}
    assert named - objects  # what the version names is not there any more
    with pytest.MonkeyPatch.context() as patch:
        # The companion: the objects of the lost version alone do not give the answer.
        patch.setattr(scanning_module.Piece, "range_in", lambda piece, version: piece.range())
        with pytest.raises((Corrupt, PartGone, UsageError)):
            scanned(reader, pieces)
    assert scanned(reader, pieces) == expected
    # In the middle of a task as well: it has renewed, and then loses what it reads.
    reader, pieces = in_process(options)
    locate = scanning_module.LocatedObjects

    def losing(find: Any) -> Any:
        monkeypatch.setattr(scanning_module, "LocatedObjects", locate)
        place.run(place.churn())
        lose()
        return locate(find)

    monkeypatch.setattr(scanning_module, "LocatedObjects", losing)
    assert scanned(reader, pieces) == expected
    # Once history at the instant is gone there is an error, and no row before it.
    reader, pieces = in_process(options)
    for _ in range(4):
        place.run(place.churn())
    lose()
    for piece in pieces:
        with pytest.raises(BeforeSince, match="the scan of c as of 2 has ended"):
            next(reader.read(piece))


def test_an_object_that_is_missing_or_damaged_is_an_error_and_never_fewer_rows(
    place: Place,
) -> None:
    reader, pieces = in_process(place.options(asOf="2", rowsPerPartition="100"))
    (file, *_) = sorted(place.folder.rglob("part-*"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Corrupt, match="bytes that were written"):
        scanned(reader, pieces)
    file.unlink()
    with pytest.raises(Corrupt, match="is missing"):
        scanned(reader, pieces)
    file.parent.rename(file.parent.with_name("elsewhere"))
    with pytest.raises(UsageError, match="does not see"):
        scanned(reader, pieces)


def test_options_say_what_is_wrong(place: Place) -> None:
    for options, says in (
        ({"asof": "2", "colection": "c"}, "there is no option colection"),
        ({"address": "x"}, "name what to read"),
        (place.options(columns="n, m"), "there are no columns m"),
        (place.options(multiplicity="yes"), "true or false"),
        (place.options(lease="0"), "above 0"),
        (place.options(changes="true"), "changes are a stream"),
    ):
        with pytest.raises(UsageError, match=says):
            in_process(options)
    with pytest.raises(UsageError, match="no column x"):
        in_process(place.options(), TidemillSource(place.options()).schema().add("x", "long"))
    with pytest.raises(UsageError, match="cast it then"):
        in_process(place.options(), StructType().add("n", IntegerType()))
    with pytest.raises(UsageError, match=r"mode\('append'\)"):
        TidemillSource(place.options()).writer(TidemillSource(place.options()).schema(), True)
    source = TidemillSource(place.options())
    with pytest.raises(UsageError, match="idempotencyKey"):
        source.streamWriter(source.schema(), False)


@pytest.mark.server
async def test_objects_of_a_bucket_are_read_by_signed_addresses_without_keys(
    object_store: str,
) -> None:
    prefix = f"spark-{token_hex(8)}"
    bucket = Bucket("tidemill", object_store, "us-east-1", "test", "test-secret", prefix)
    blob = bucket_blob(bucket)
    await blob.put("a/x", b"whole")
    url = await blob.url("a/x", 60)
    assert await asyncio.to_thread(fetched, url) == b"whole"
    assert "test-secret" not in url
    bare = url.partition("?")[0]
    with pytest.raises(Unavailable, match="refused an object"):
        await asyncio.to_thread(fetched, bare)
    assert await asyncio.to_thread(fetched, await blob.url("a/y", 60)) is None
    objects = LocatedObjects(partial(places, {"a/x": url}))
    assert await objects.get_range("a/x", 1, 3) == b"ho"
    for refused in (objects.put("a/z", b""), objects.delete("a/x"), objects.list("a/")):
        with pytest.raises(UsageError, match="only read"):
            await refused
    with pytest.raises(Unavailable, match="gave no object"):
        await asyncio.to_thread(fetched, "http://127.0.0.1:1/a/x")


async def places(known: dict[str, str], keys: Sequence[str]) -> list[str]:
    return [known[key] for key in keys]
