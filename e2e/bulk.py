"""A release whose bulk jobs are pods, in a namespace of its own beside the servers of the tests."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from e2e.cluster import CHART, MANIFESTS, SERVERS, Cluster, said, until
from tidemill.client import Client
from tidemill.rpc.messages import ResourceDocument

NAMESPACE = RELEASE = "bulk"
WORK = "bulk-spark"
"""The namespace that the chart makes for drivers and executors."""
POD = "bulk-tidemill-0"
"""The pod of every service."""
HOST = "bulk-tidemill.bulk.svc.cluster.local"
KAFKA = "kafka.servers.svc.cluster.local:9092"
REDIS = "redis://redis.servers.svc.cluster.local:6379/1"
DRIVERS = "app.kubernetes.io/component=spark-driver"
EXECUTORS = "spark-role=executor"
JOB_S = 600.0


@contextmanager
def release(cluster: Cluster, *values: str) -> Iterator[Client]:
    """A client of the release, which knows no collection yet; it enforces the restricted standard.

    Its namespaces are on their way out afterwards.
    """
    for manifests in ("namespaces.yaml", "servers"):
        said("kubectl", "apply", "-f", str(MANIFESTS / manifests))
    cluster.settled(SERVERS)
    flush = "REDISCLI_AUTH=of-the-tests redis-cli -n 1 flushdb"
    cluster.kubectl("exec", "deployment/redis", "--", "sh", "-c", flush, namespace=SERVERS)
    for name in (NAMESPACE, WORK):  # of a run before
        said("kubectl", "delete", "namespace", name, "--ignore-not-found", "--timeout=240s")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    namespace["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "restricted"}  # type: ignore[index]  # a mapping among texts
    said("kubectl", "apply", "-f", "-", text=json.dumps(namespace))
    copy_secret(cluster, "objects", NAMESPACE)
    copy_secret(cluster, "redis", NAMESPACE)
    tag = os.environ.get("IMAGE_TAG", "")
    said(
        "helm", "-n", NAMESPACE, "upgrade", "--install", RELEASE, str(CHART),
        "-f", str(MANIFESTS / "bulk.yaml"), "--set", f"image.tag={tag}", *values,
    )  # fmt: skip
    copy_secret(cluster, "objects", WORK)
    cluster.kubectl(
        "rollout", "status", "statefulset/bulk-tidemill", "--timeout=300s", namespace=NAMESPACE
    )
    made = Client(f"{HOST}:7474", timeout_s=30.0)
    try:
        until(lambda: made.get() is not None, "the release does not answer")
        yield made
    finally:
        made.close()
        said("helm", "-n", NAMESPACE, "uninstall", RELEASE)
        said("kubectl", "delete", "namespace", NAMESPACE, WORK, "--wait=false")


def copy_secret(cluster: Cluster, name: str, namespace: str) -> None:
    """A Secret of the servers in another namespace."""
    (secret,) = cluster.objects(
        "secrets", f"--field-selector=metadata.name={name}", namespace=SERVERS
    )
    copy = {**secret, "metadata": {"name": name}}
    cluster.kubectl("apply", "-f", "-", namespace=namespace, text=json.dumps(copy))


async def new_topic(admin: AIOKafkaAdminClient, topic: str, partitions: int) -> None:
    """An empty topic in the place of one of this name."""
    if topic in await admin.list_topics():
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():
            await asyncio.sleep(0.2)
    await admin.create_topics([NewTopic(topic, partitions, 1)])


def resource(kind: str, name: str, spec: dict[str, Any]) -> ResourceDocument:
    """A document for `apply`."""
    declared = {"apiVersion": "tidemill.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return ResourceDocument(json.dumps({**declared, "spec": spec}), name)


def pods(cluster: Cluster, label: str) -> list[dict[str, Any]]:
    """The pods of jobs with a label, whatever their state."""
    return cluster.objects("pods", "-l", label, namespace=WORK)


def working(cluster: Cluster, label: str) -> list[str]:
    """Names of the pods with a label that run."""
    return [
        pod["metadata"]["name"]
        for pod in pods(cluster, label)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def kill(cluster: Cluster, *names: str, namespace: str = WORK) -> None:
    """End pods without a word to them."""
    cluster.kubectl(
        "delete", "pod", *names, "--grace-period=0", "--force", "--wait=false",
        namespace=namespace,
    )  # fmt: skip


def content(client: Client, collection: str) -> Counter[tuple[Any, ...]]:
    """The newest definite rows of a collection, each as often as it is there."""
    table = client.query(collection).table
    columns = (table[name].to_pylist() for name in table.column_names)
    return Counter(zip(*columns, strict=True))


def metrics() -> dict[str, float]:
    """Every sample of the release, by name and labels as they are told."""
    with urlopen(f"http://{HOST}:7475/metrics", timeout=10) as reply:
        lines: Sequence[str] = reply.read().decode().splitlines()
    told = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in told}
