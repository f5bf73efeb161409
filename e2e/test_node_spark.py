"""Bulk jobs as pods on a real node: a backlog written by executors, whose driver is killed halfway.

Has a release and a namespace of its own, beside the servers of test_node.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from e2e.cluster import MANIFESTS, SERVERS, Cluster, said, until
from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = RELEASE = "bulk"
WORK = "bulk-spark"
"""The namespace that the chart makes for drivers and executors."""
HOST = "bulk-tidemill.bulk.svc.cluster.local"
KAFKA = "kafka.servers.svc.cluster.local:9092"
TOPIC = "bulk-flights"
RECORDS, PARTITIONS = 60_000, 3
BROKEN_EVERY = 1_000
JOBS = "app.kubernetes.io/component=spark-driver"
EXECUTORS = "spark-role=executor"
JOB_S = 600.0


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
    if TOPIC in await admin.list_topics():
        await admin.delete_topics([TOPIC])
        while TOPIC in await admin.list_topics():
            await asyncio.sleep(0.2)
    await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
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
    declared = {"apiVersion": "tidemill.dev/v1alpha1", "kind": "Source", "spec": spec}
    return ResourceDocument(json.dumps({**declared, "metadata": {"name": name}}), name)


def view(name: str, reads: str) -> ResourceDocument:
    """Planes that were late, and how late at most."""
    program = (
        "late(plane: p, delay: d) := flight(plane: p, delay: d) if d > 45;"
        "worst(plane: p) @max(d) := late(plane: p, delay: d);"
    )
    spec = {"retain": "all", "program": program, "inputs": {"flight": reads}}
    declared = {"apiVersion": "tidemill.dev/v1alpha1", "kind": "View", "spec": spec}
    return ResourceDocument(json.dumps({**declared, "metadata": {"name": name}}), name)


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    """A release of its own, in a namespace that enforces the restricted standard."""
    for manifests in ("namespaces.yaml", "servers"):
        said("kubectl", "apply", "-f", str(MANIFESTS / manifests))
    cluster.settled(SERVERS)
    asyncio.run(fill())
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}  # type: ignore[index]  # a mapping among texts
    said("kubectl", "apply", "-f", "-", text=json.dumps(namespace))
    (secret,) = cluster.objects(
        "secrets", "--field-selector=metadata.name=objects", namespace=SERVERS
    )
    copy = {**secret, "metadata": {"name": "objects"}}
    cluster.kubectl("apply", "-f", "-", namespace=NAMESPACE, text=json.dumps(copy))
    tag = os.environ.get("IMAGE_TAG", "")
    said(
        "helm", "-n", NAMESPACE, "upgrade", "--install", RELEASE, str(ROOT / "charts/tidemill"),
        "-f", str(ROOT / "e2e/manifests/bulk.yaml"), "--set", f"image.tag={tag}",
    )  # fmt: skip
    cluster.kubectl("apply", "-f", "-", namespace=WORK, text=json.dumps(copy))
    cluster.kubectl(
        "rollout", "status", "statefulset/bulk-tidemill", "--timeout=300s", namespace=NAMESPACE
    )
    made = Client(f"{HOST}:7474", timeout_s=30.0)
    until(lambda: made.get() is not None, "the release does not answer")
    yield made
    made.close()
    said("helm", "-n", NAMESPACE, "uninstall", RELEASE)
    said("kubectl", "delete", "namespace", NAMESPACE, WORK, "--wait=false")


def pods(cluster: Cluster, label: str) -> list[dict[str, Any]]:
    return cluster.objects("pods", "-l", label, namespace=WORK)


def working(cluster: Cluster, label: str) -> list[str]:
    """Names of the pods with a label that run."""
    return [
        pod["metadata"]["name"]
        for pod in pods(cluster, label)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def content(client: Client, collection: str) -> Counter[tuple[Any, ...]]:
    """The newest definite rows of a collection, each as often as it is there."""
    table = client.query(collection).table
    columns = (table[name].to_pylist() for name in table.column_names)
    return Counter(zip(*columns, strict=True))


def test_a_backlog_is_written_by_executors_although_the_driver_is_killed(
    cluster: Cluster, client: Client
) -> None:
    began = time.monotonic()
    client.apply(source("by-spark", "spark"))

    def halfway() -> tuple[str, list[str]] | None:
        """A driver that has told its executors what to do."""
        drivers, executors = working(cluster, JOBS), working(cluster, EXECUTORS)
        if not drivers or not executors:
            return None
        log = cluster.kubectl("logs", drivers[0], namespace=WORK)
        return (drivers[0], executors) if f"reclocking {RECORDS}" in log else None

    driver, executors = until(halfway, "no driver at work with an executor", JOB_S)
    cluster.note("Spark: executors are at work after", f"{time.monotonic() - began:.0f} s")
    cluster.kubectl("delete", "pod", driver, "--grace-period=0", "--force", namespace=WORK)
    killed = time.monotonic()

    def executors_gone() -> bool:
        left = {pod["metadata"]["name"] for pod in pods(cluster, EXECUTORS)}
        return not left & set(executors)

    until(executors_gone, "executors outlive their driver")
    cluster.note("Spark: executors gone after their driver", f"{time.monotonic() - killed:.0f} s")

    def next_driver() -> list[str]:
        names = (pod["metadata"]["name"] for pod in pods(cluster, JOBS))
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
    with urlopen(f"http://{HOST}:7475/metrics", timeout=10) as reply:
        metrics = reply.read().decode()
    lines = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in metrics.splitlines()}
    assert float(lines['tidemill_spark_jobs{kind="backfill",state="succeeded"}']) == 1
    assert float(lines['tidemill_spark_retries_total{failure="Vanished"}']) == 1


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
    cluster.kubectl("delete", "pod", executor, "--grace-period=0", "--force", namespace=WORK)
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
    with urlopen(f"http://{HOST}:7475/metrics", timeout=10) as reply:
        metrics = reply.read().decode()
    assert 'tidemill_spark_jobs{kind="hydration",state="succeeded"} 1.0' in metrics


def test_a_driver_that_has_ended_is_cleared_away(cluster: Cluster, client: Client) -> None:
    until(lambda: not pods(cluster, JOBS), "ended drivers stay", 120.0)
