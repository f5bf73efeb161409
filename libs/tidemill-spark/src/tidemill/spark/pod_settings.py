"""What pods of jobs may use, and what is tried again: settings of a service that launches them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a job is begun again, by what went wrong; refusals never are."""

    image: int = 1
    """After the image could not be had for as long as it is waited for."""

    scheduling: int = 3
    """After there was no room for so long."""

    infrastructure: int = 5
    """After the driver was evicted, vanished, or did not begin."""

    memory: int = 2
    """After driver or executors ran out of memory; each time with half as much again."""

    driver: int = 1
    """After the job itself failed, or took too long."""

    pause_s: float = 2.0
    """Pause before the first of them, doubled each time."""

    pause_s_max: float = 60.0
    """The longest pause."""


class PodSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs as driver pods that bring executor pods with them."""

    namespace: str = ""
    """Where pods are made; empty is the namespace of this pod."""

    image: str = "localhost/tidemill:0.1.0"
    """Image of driver and executors: that of Tidemill."""

    image_pull_policy: str = "IfNotPresent"
    """When a node fetches it: Always, IfNotPresent or Never."""

    image_pull_secrets: tuple[str, ...] = ()
    """Secrets for a registry that asks who you are."""

    service_account: str = "tidemill-spark"
    """As whom a driver calls the API server, to make its executors."""

    executor_service_account: str = ""
    """As whom executors run, for a cloud identity; they call no API server. Empty is `default`."""

    owner: str = ""
    """Pod that owns the drivers, so that they go when it goes; in the same namespace. Empty is none."""

    blob_secret: str = ""
    """Secret with AWS_SECRET_ACCESS_KEY for the bucket; empty takes what the service accounts may do."""

    secrets: Mapping[str, str] = {}
    """Further Secrets by the folder where their files are mounted: what sources name as passwordFile, caFile, keyFile."""

    executors: int = 2
    """Executor pods of a job."""

    executor_cores: int = 1
    """Tasks that one executor runs at a time."""

    executor_cpu: str = "500m"
    """Processor that one executor asks for."""

    executor_memory_mb: int = 1024
    """Heap of an executor's JVM."""

    executor_overhead_mb: int = 768
    """What it may use beside its heap: the Python workers."""

    driver_cpu: str = "500m"
    """Processor that a driver asks for."""

    driver_memory_mb: int = 768
    """Heap of the driver's JVM."""

    driver_overhead_mb: int = 640
    """What it may use beside its heap: its Python process."""

    disk_mb: int = 10_240
    """What a driver or an executor may write to the disk of its node: spilled rows, logs."""

    jars: str = "/opt/tidemill/jars"
    """Folder of the image with the jars of the Kafka connector."""

    image_wait_s: float = 300.0
    """How long it is waited for an image."""

    scheduling_wait_s: float = 300.0
    """How long it is waited for room."""

    start_wait_s: float = 120.0
    """How long a driver that has a node and its image may take to begin."""

    deadline_s: float = 21_600.0
    """How long a job may take, once it has begun."""

    ttl_s: float = 600.0
    """How long a driver that has ended is kept, for its log."""

    watch_s: int = 300
    """A watch is ended by the server after this time and begun again, so that none hangs unseen."""

    retries: Retries = Retries()
    labels: Mapping[str, str] = {}
    """Further labels of drivers and executors."""

    annotations: Mapping[str, str] = {}
    """Further annotations of drivers and executors."""

    node_selector: Mapping[str, str] = {}
    """Where they may run."""

    tolerations: tuple[Mapping[str, str], ...] = ()
    """Taints that they tolerate."""

    priority_class: str = ""
    """Their priority class."""

    spark: Mapping[str, str] = {}
    """Further settings of Spark itself; they win over ours."""
