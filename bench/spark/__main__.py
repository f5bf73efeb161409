"""The cost of a scan by Spark: python -m bench.spark [--rows N] [--runs N].

The answer is compared first. Seconds are those of a processor, in a warm session. They count this
process and all that it began: planning, Python workers, the JVM and the server. Each scan is paired
with one of a source that reads nothing, which is what Spark takes for such rows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, functions

from bench.spark.floor import Floor, rows_of
from tidemill.client.spark import TidemillSource
from tidemill.rpc.server import Server, serve
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections, Description, DirectoryBlob, SqliteConsensus
from tidemill.spark.local_settings import LocalSettings
from tidemill.spark.session import local_session
from tidemill.time import frontier
from tidemill_query.storage import StorageDriver

SCHEMA = pa.schema(
    [("k", pa.int64()), ("a", pa.int64()), ("carrier", pa.string()), ("f", pa.float64())]
)
SCANS = {"all four columns": "k, a, carrier, f", "two columns": "k, a", "one column": "a"}


def updates_of(size: int) -> pa.Table:
    """Rows with keys of their own, each once, all at time 0."""
    times, diffs = np.zeros(size, np.uint64), np.ones(size, np.int64)
    return rows_of(size, SCHEMA).append_column("_time", [times]).append_column("_diff", [diffs])


@contextmanager
def served(folder: Path, rows: pa.Table) -> Iterator[str]:
    """The address of a server over one collection with these rows."""
    numbers, loop = count(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    store = Collections(
        SqliteConsensus(folder / "log"),
        DirectoryBlob(folder / "objects", lambda: f"u{next(numbers)}"),
        SystemClock(),
        lambda: f"{next(numbers):032d}",
    )

    async def begin() -> Server:
        await store.bind("c", Description(SCHEMA, key=("k",), retain_ms=1_000))
        await store.compare_and_append("c", frontier(0), frontier(1), rows, writer="w")
        return await serve("127.0.0.1:0", storage=StorageDriver(store, SystemClock()))

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def seconds_of_processors() -> float:
    """User and system time of this process and of all that descend from it, ended ones too."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def summed(frame: DataFrame) -> list[object]:
    """The number of rows, and a sum over each column."""
    sums = [
        functions.sum(functions.length(name) if name == "carrier" else name)
        for name in frame.columns
    ]
    row = frame.agg(functions.count("*"), *sums).first()
    assert row is not None
    return list(row)


def expected(rows: pa.Table, columns: list[str]) -> list[object]:
    """The same of the rows that were written."""
    lengths = {"carrier": pc.utf8_length(rows["carrier"])}
    return [rows.num_rows, *(pc.sum(lengths.get(name, rows[name])).as_py() for name in columns)]


def measured(spark: SparkSession, address: str, rows: pa.Table, runs: int) -> None:
    """Say what each scan costs. Raises: AssertionError for a wrong answer."""
    options = {"address": address, "collection": "c", "asOf": "0"}
    for title, columns in SCANS.items():
        source = spark.read.format("tidemill").options(**options).option("columns", columns)
        names = columns.split(", ")
        assert summed(source.load()) == expected(rows, names), title
        partitions = source.load().rdd.getNumPartitions()
        same = {"rows": rows.num_rows, "partitions": partitions, "columns": columns}
        floor = spark.read.format("floor").options(**same)
        found, least = list[float](), list[float]()
        for _ in range(runs):
            for taken, each in ((found, source), (least, floor)):
                before = seconds_of_processors()
                summed(each.load())
                taken.append(seconds_of_processors() - before)
        rate, most = (rows.num_rows / median(each) / 1e6 for each in (found, least))
        times = median(one / other for one, other in zip(found, least, strict=True))
        print(
            f"{title}: {rate:.1f} M rows for a second of a processor, {partitions} partitions, "
            f"{', '.join(f'{each:.2f}' for each in found)} s; a source that reads nothing "
            f"{most:.1f} M rows, so that ours takes {times:.2f} times as long",
            flush=True,
        )


def main() -> None:
    """Compare, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    chosen = parser.parse_args()
    rows = updates_of(chosen.rows)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), rows) as address:
        spark = local_session("bench", LocalSettings(scratch=folder))
        spark.dataSource.register(TidemillSource)
        spark.dataSource.register(Floor)
        measured(spark, address, rows, chosen.runs)
        spark.stop()


if __name__ == "__main__":
    main()
