"""A view on executors in pods while a stream goes on: killed executor, driver and compute.

One story, told in the order of this file, in a release of its own. Answers are compared with DuckDB
over the rows of the source at the same instant.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import duckdb
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from e2e.bulk import (
    JOB_S,
    KAFKA,
    NAMESPACE,
    POD,
    content,
    kill,
    metrics,
    new_topic,
    release,
    resource,
    working,
)
from e2e.cluster import CHART, Cluster, until
from tidemill.client import Client
from tidemill.errors import TidemillError

TOPIC = "bulk-stream"
SESSION = "tidemill.dev/job-kind=session"
DRIVER, EXECUTOR = (
    f"{SESSION},app.kubernetes.io/component=spark-driver",
    f"{SESSION},spark-role=executor",
)
EVERY_S, FEW, BURST = 0.5, 20, 400_000
PARTITIONS = 2
MOST = 4
"""Executors that may come."""
PROGRAM = """
late(number: n, plane: p, delay: d) := flight(number: n, plane: p, delay: d) if d > 45;
worst(plane: p) @max(d) := late(plane: p, delay: d);
often(delay: d) @count(n) := late(number: n, delay: d);
"""
SEVERAL = range(2, MOST + 1)
BY_DUCKDB = {
    "live/late": "select number, plane, delay from flights where delay > 45",
    "live/worst": "select plane, max(delay) from flights where delay > 45 group by plane",
    "live/often": "select delay, count(*) from flights where delay > 45 group by delay",
}
ROWS = "select number, 'N' || number % 700 as plane, number * 37 % 90 as delay"


class Stream:
    """Rows into Kafka twice a second, and more when a burst is asked for, until it is stopped."""

    def __init__(self) -> None:
        self.sent = self.due = 0
        """Rows that are in Kafka, and those that are to be there after the burst."""
        self._bursts = SimpleQueue[int]()
        self._goes_on = True
        self._thread = Thread(target=lambda: asyncio.run(self._send()))
        self._thread.start()

    def burst(self, rows: int) -> None:
        """Send so many rows at once, soon."""
        self.due = self.sent + rows
        self._bursts.put(rows)

    def stop(self) -> None:
        """Send no more; what was sent is in Kafka."""
        self._goes_on = False
        self._thread.join()

    async def _send(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=KAFKA, enable_idempotence=True, linger_ms=20)
        await producer.start()
        while self._goes_on:
            rows = FEW + (0 if self._bursts.empty() else self._bursts.get())
            await self._send_at_once(producer, range(self.sent, self.sent + rows))
            await asyncio.sleep(EVERY_S)
        await producer.stop()

    async def _send_at_once(self, producer: AIOKafkaProducer, numbers: range) -> None:
        """Send rows in batches, faster than windows take them in."""
        values = [
            b'{"number":%d,"plane":"N%d","delay":%d}' % (n, n % 700, n * 37 % 90) for n in numbers
        ]
        at = partition = 0
        while at < len(values):
            batch = producer.create_batch()
            while at < len(values) and batch.append(key=None, value=values[at], timestamp=None):
                at += 1
            partition = (partition + 1) % PARTITIONS
            await producer.send_batch(batch, TOPIC, partition=partition)
        await producer.flush()
        self.sent += len(values)


async def make_topic() -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=KAFKA)
    await admin.start()
    await new_topic(admin, TOPIC, PARTITIONS)
    await admin.close()


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with release(cluster, "--set", f"spark.executors={MOST}") as made:
        yield made


@pytest.fixture(scope="module")
def stream(client: Client) -> Iterator[Stream]:
    """A stream that goes on, and the view of it."""
    asyncio.run(make_topic())
    columns = {"number": "int", "plane": "text", "delay": "int"}
    source = {
        "kafka": {"topic": TOPIC}, "timestampInterval": "500ms", "retain": "all",
        "columns": [{"name": name, "type": kind} for name, kind in columns.items()],
    }  # fmt: skip
    view = {
        "retain": "all", "program": PROGRAM, "inputs": {"flight": "stream"}, "engine": "spark",
    }  # fmt: skip
    client.apply(resource("Source", "stream", source), resource("View", "live", view))
    made = Stream()
    yield made
    made.stop()


def by_duckdb(rows: Any, query: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("flights", rows)
        return Counter(connection.execute(query).fetchall())


def agrees(client: Client) -> bool:
    """Whether view and DuckDB say the same of one instant, the newest of the view; it has rows."""
    answer = client.query("live/often")
    rows = client.query("stream", answer.as_of).table
    for collection, query in BY_DUCKDB.items():
        table = client.query(collection, answer.as_of).table
        columns = (table[name].to_pylist() for name in table.column_names)
        assert Counter(zip(*columns, strict=True)) == by_duckdb(rows, query), collection
    return bool(rows.num_rows)


def windows(client: Client) -> int:
    """Windows that drivers of this compute process have evaluated; 0 in one process."""
    try:
        details = client.describe("View", "live").details
    except TidemillError:
        return 0
    return int(str(details.get("windows", 0))) if details.get("engine") == "spark" else 0


def more_windows(client: Client, more: int = 2) -> None:
    """Return once two windows more are done: the first may have been under way."""
    before = windows(client)
    until(lambda: windows(client) >= before + more, "no more windows", JOB_S)


def replaced(cluster: Cluster, client: Client, label: str, victims: list[str]) -> str:
    """When another pod has come for those just killed, and when it has done windows."""
    began = time.monotonic()
    until(lambda: set(working(cluster, label)) - set(victims), f"no other {label}", JOB_S)
    came = time.monotonic() - began
    more_windows(client, 1)  # nobody but the other pod can have done it
    first = time.monotonic() - began
    more_windows(client, 1)
    second = time.monotonic() - began
    return f"another after {came:.0f} s, the next window after {first:.0f} s, one more {second:.0f}"


def taken_in(client: Client, sent: int) -> float:
    """Seconds until the view knows so many rows."""
    began = time.monotonic()
    until(lambda: knows(client, sent), f"{sent} rows are not taken in", JOB_S)
    return time.monotonic() - began


def knows(client: Client, sent: int) -> bool:
    """Whether the view knows so many rows."""
    wanted = by_duckdb_sent(sent, "live/late").total()
    return client.query("live/late").table.num_rows >= wanted


def by_duckdb_sent(sent: int, collection: str) -> Counter[tuple[Any, ...]]:
    rows = f"({ROWS} from (select unnest(range({sent})) as number))"
    return by_duckdb_of(BY_DUCKDB[collection].replace("from flights", f"from {rows} flights"))


def by_duckdb_of(query: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return Counter(connection.execute(query).fetchall())


def scaled_to(cluster: Cluster, *executors: int) -> float:
    """Seconds until so many executors run, by one of some numbers."""
    began = time.monotonic()
    what = f"not {executors} executors"
    until(lambda: len(working(cluster, EXECUTOR)) in executors, what, JOB_S)
    return time.monotonic() - began


def several_come(cluster: Cluster, client: Client, stream: Stream) -> float:
    """Seconds until more than one executor runs; more rows are sent if one takes in all of them."""
    began = time.monotonic()

    def several_run() -> bool:
        if stream.sent >= stream.due and knows(client, stream.sent):
            stream.burst(BURST)
        return len(working(cluster, EXECUTOR)) in SEVERAL

    until(several_run, "not several executors", JOB_S)
    return time.monotonic() - began


def test_executors_keep_a_view(cluster: Cluster, client: Client, stream: Stream) -> None:
    began = time.monotonic()
    more_windows(client)
    cluster.note("view on Spark: two windows after", f"{time.monotonic() - began:.0f} s")
    until(lambda: working(cluster, EXECUTOR), "no executor runs")
    assert agrees(client)


def test_a_killed_executor_costs_time_and_no_row_and_several_come_for_many_changes(
    cluster: Cluster, client: Client, stream: Stream
) -> None:
    """The stream goes on. A heartbeat tells how many executors there are, of one, several and one.

    Changes that come while there is no executor are one large window.
    """
    cluster.note("view on Spark: one executor is left after", f"{scaled_to(cluster, 1):.0f} s")
    victims = working(cluster, EXECUTOR)
    kill(cluster, *victims)
    stream.burst(BURST)
    told = replaced(cluster, client, EXECUTOR, victims)
    cluster.note("view on Spark: executor killed", told)
    assert not set(victims) & set(working(cluster, EXECUTOR))
    came = several_come(cluster, client, stream)
    cluster.note("view on Spark: several came after", f"{came:.0f} s")
    until(lambda: metrics()["tidemill_spark_executors"] in SEVERAL, "no second one is told of")
    seconds = taken_in(client, stream.sent)
    cluster.note("view on Spark: all these rows are taken in", f"{seconds:.0f} s later")
    assert agrees(client)
    cluster.note("view on Spark: one is left after", f"{scaled_to(cluster, 1):.0f} s")
    until(lambda: metrics()["tidemill_spark_executors"] == 1, "one executor is not told of")


def test_a_killed_driver_costs_time_and_no_row(
    cluster: Cluster, client: Client, stream: Stream
) -> None:
    (victim,) = working(cluster, DRIVER)
    kill(cluster, victim)
    cluster.note("view on Spark: driver killed", replaced(cluster, client, DRIVER, [victim]))
    assert agrees(client)
    assert victim not in working(cluster, DRIVER)


def test_a_killed_compute_costs_time_and_no_row(
    cluster: Cluster, client: Client, stream: Stream
) -> None:
    """It knows no driver when it is there again, and counts its windows anew."""
    kill(cluster, POD, namespace=NAMESPACE)
    began = time.monotonic()
    until(lambda: windows(client) == 0, "compute is not killed")
    more_windows(client)
    cluster.note(
        "view on Spark: compute killed", f"two windows in {time.monotonic() - began:.0f} s"
    )
    assert agrees(client)
    until(lambda: len(working(cluster, DRIVER)) == 1, "the driver of the killed process stays")


def test_everything_sent_is_in_the_answers_and_the_dashboard_has_figures(
    cluster: Cluster, client: Client, stream: Stream
) -> None:
    stream.stop()
    taken_in(client, stream.sent)
    for collection in BY_DUCKDB:
        assert content(client, collection) == by_duckdb_sent(stream.sent, collection), collection
    cluster.note("view on Spark: rows sent", f"{stream.sent:,}")
    found = metrics()
    for name in ("windows", "stages", "ranges_touched", "exchanged_bytes"):
        told = found[f'tidemill_view_{name}_total{{view="live"}}']
        assert told > 0, name
        cluster.note(f"view on Spark: {name} since compute was killed", f"{told:.0f}")
    board = (CHART / "monitoring/dashboards/tidemill-spark.json").read_text()
    known = {name.partition("{")[0] for name in found}
    assert set(re.findall(r"\btidemill_(?:view|spark)_\w+", board)) <= known
