"""Bulk jobs as pods on a node: a backlog written by executors, whose driver is killed halfway."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from e2e.bulk import (
    DRIVERS,
    EXECUTORS,
    JOB_S,
    KAFKA,
    WORK,
    content,
    kill,
    metrics,
    new_topic,
    pods,
    release,
    resource,
    working,
)
from e2e.cluster import Cluster, until
from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument

TOPIC = "bulk-flights"
RECORDS, PARTITIONS = 60_000, 3
BROKEN_EVERY = 1_000


def record(number: int) -> bytes:
    """One in a thousand cannot be decoded, and rows repeat."""
    if number % BROKEN_EVERY == 7:
        return b"no json"
    return json.dumps({"plane": f"N{number % 700}", "delay": number % 90}).encode()


def expected_rows() -> Counter[tuple[str, int]]:
    good = (n for n in range(RECORDS) if n % BROKEN_EVERY != 7)
    return Counter((f"N{n % 700}", n % 90) for n in good)


async def fill() -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=KAFKA)
    await admin.start()
    await new_topic(admin, TOPIC, PARTITIONS)
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=KAFKA, enable_idempotence=True, linger_ms=20)
    await producer.start()
    for number in range(RECORDS):
        await producer.send(TOPIC, record(number), partition=number % PARTITIONS)
    await producer.stop()


def source(name: str, engine: str) -> ResourceDocument:
    spec = {
        "kafka": {"topic": TOPIC}, "timestampInterval": "1s", "engine": engine,
        "columns": [{"name": "plane", "type": "text"}, {"name": "delay", "type": "int"}],
    }  # fmt: skip
    return resource("Source", name, spec)


def view(name: str, reads: str) -> ResourceDocument:
    """Planes that were late, and how late at most."""
    program = (
        "late(plane: p, delay: d) := flight(plane: p, delay: d) if d > 45;"
        "worst(plane: p) @max(d) := late(plane: p, delay: d);"
    )
    spec = {"retain": "all", "program": program, "inputs": {"flight": reads}}
    return resource("View", name, spec)


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    """A release of its own, and a topic with a backlog."""
    with release(cluster) as made:
        asyncio.run(fill())
        yield made


def test_a_backlog_is_written_by_executors_although_the_driver_is_killed(
    cluster: Cluster, client: Client
) -> None:
    began = time.monotonic()
    client.apply(source("by-spark", "spark"))

    def halfway() -> tuple[str, list[str]] | None:
        """A driver that has told its executors what to do."""
        drivers, executors = working(cluster, DRIVERS), working(cluster, EXECUTORS)
        if not drivers or not executors:
            return None
        log = cluster.kubectl("logs", drivers[0], namespace=WORK)
        return (drivers[0], executors) if f"reclocking {RECORDS}" in log else None

    driver, executors = until(halfway, "no driver at work with an executor", JOB_S)
    cluster.note("Spark: executors are at work after", f"{time.monotonic() - began:.0f} s")
    kill(cluster, driver)
    killed = time.monotonic()

    def executors_gone() -> bool:
        left = {pod["metadata"]["name"] for pod in pods(cluster, EXECUTORS)}
        return not left & set(executors)

    until(executors_gone, "executors outlive their driver")
    cluster.note("Spark: executors gone after their driver", f"{time.monotonic() - killed:.0f} s")

    def next_driver() -> list[str]:
        names = (pod["metadata"]["name"] for pod in pods(cluster, DRIVERS))
        return [name for name in names if name != driver]

    until(next_driver, "no second driver", JOB_S)

    def all_rows() -> bool:
        return content(client, "by-spark").total() == expected_rows().total()

    until(all_rows, "the rows do not come", JOB_S)
    cluster.note("Spark: backlog written after the kill in", f"{time.monotonic() - killed:.0f} s")
    assert content(client, "by-spark") == expected_rows()


def test_events_and_metrics_say_what_happened(cluster: Cluster, client: Client) -> None:
    told = [each["reason"] for each in cluster.objects("events", namespace=WORK)]
    assert {"Launched", "Started", "Vanished", "Succeeded"} <= set(told)
    found = metrics()
    assert found['tidemill_spark_jobs{kind="backfill",state="succeeded"}'] == 1
    assert found['tidemill_spark_retries_total{failure="Vanished"}'] == 1


def test_the_answers_are_those_of_the_live_path(cluster: Cluster, client: Client) -> None:
    client.apply(source("live", "local"))

    def all_rows() -> bool:
        return content(client, "live").total() == expected_rows().total()

    until(all_rows, "the rows do not come by the live path", JOB_S)
    assert content(client, "live") == content(client, "by-spark")
    letters = [content(client, f"{name}/deadletters") for name in ("live", "by-spark")]
    assert letters[0] == letters[1]
    assert letters[0].total() == RECORDS // BROKEN_EVERY


def test_the_history_of_a_view_is_evaluated_by_executors_although_one_is_killed(
    cluster: Cluster, client: Client
) -> None:
    began = time.monotonic()
    client.apply(view("delays", "by-spark"))
    executor, *_ = until(lambda: working(cluster, EXECUTORS), "no executor is at work", JOB_S)
    kill(cluster, executor)
    late = {(plane, delay) for plane, delay in expected_rows() if delay > 45}
    worst = Counter({plane: max(d for p, d in late if p == plane) for plane, _ in late}.items())

    def all_rows() -> bool:
        return content(client, "delays/late").total() == len(late)

    until(all_rows, "the view does not come", JOB_S)
    cluster.note(
        "Spark: history of a view, an executor killed", f"{time.monotonic() - began:.0f} s"
    )
    assert content(client, "delays/late") == Counter(late)
    assert content(client, "delays/worst") == worst
    assert metrics()['tidemill_spark_jobs{kind="hydration",state="succeeded"}'] == 1


def test_a_driver_that_has_ended_is_cleared_away(cluster: Cluster, client: Client) -> None:
    until(lambda: not pods(cluster, DRIVERS), "ended drivers stay", 120.0)
