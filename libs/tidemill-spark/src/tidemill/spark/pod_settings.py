"""Resources of the pods of jobs, and retries: settings of a service that launches them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Retries of a job by cause; a refused job is not retried."""

    image: int = 1
    """Retries after `image_wait_s` without the image."""

    scheduling: int = 3
    """Retries after `scheduling_wait_s` without room."""

    infrastructure: int = 5
    """Retries after the driver was evicted, vanished, or did not begin."""

    memory: int = 2
    """Retries after driver or executors ran out of memory, each with half as much memory again."""

    driver: int = 1
    """Retries after the job failed, or took too long."""

    pause_s: float = 2.0
    """Pause before the first retry, doubled each time; none after a driver that was evicted or
    vanished."""

    pause_s_max: float = 60.0
    """Longest pause before a retry."""


class PodSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs as driver pods that bring executor pods with them."""

    namespace: str = ""
    """Namespace of the pods; empty is that of this pod."""

    image: str = "localhost/tidemill:0.1.0"
    """Image of driver and executors: that of Tidemill."""

    image_pull_policy: str = "IfNotPresent"
    """When a node fetches the image: Always, IfNotPresent or Never."""

    image_pull_secrets: tuple[str, ...] = ()
    """Secrets for a registry that asks for a login."""

    service_account: str = "tidemill-spark"
    """Service account by which a driver calls the API server to make its executors."""

    executor_service_account: str = ""
    """Service account of executors, for a cloud identity; they call no API server. Empty is
    `default`."""

    owner: str = ""
    """Pod of the same namespace that owns the drivers: Kubernetes deletes them with it. Empty is
    none."""

    blob_secret: str = ""
    """Secret with AWS_SECRET_ACCESS_KEY for the bucket; empty takes the identity of the service
    accounts."""

    secrets: Mapping[str, str] = {}
    """Further Secrets by the folder where their files are mounted.

    Sources name these files as passwordFile, caFile, keyFile.
    """

    executors: int = 2
    """Executor pods of a job."""

    executor_cores: int = 1
    """Tasks that one executor runs at a time."""

    executor_cpu: str = "500m"
    """Processor of an executor."""

    executor_memory_mb: int = 1024
    """Heap of an executor's JVM."""

    executor_overhead_mb: int = 768
    """Memory of an executor beside its heap: the Python workers."""

    driver_cpu: str = "500m"
    """Processor of a driver."""

    driver_memory_mb: int = 768
    """Heap of the driver's JVM."""

    driver_overhead_mb: int = 640
    """Memory of a driver beside its heap: its Python process."""

    disk_mb: int = 10_240
    """Disk of a driver or an executor on its node: spilled rows, logs."""

    jars: str = "/opt/tidemill/jars"
    """Folder of the image with the jars of the Kafka connector."""

    image_wait_s: float = 300.0
    """Longest wait for the image."""

    scheduling_wait_s: float = 300.0
    """Longest wait for room on a node."""

    start_wait_s: float = 120.0
    """Longest start of a driver that has a node and its image."""

    deadline_s: float = 21_600.0
    """Longest run of a job that has begun. A driver that stays for views has none: instead it is
    ended with a window that has no answer for so long."""

    ttl_s: float = 600.0
    """Time for which a driver that has ended is kept, for its log."""

    watch_s: int = 300
    """Time after which the API server ends a watch, which then begins again: none hangs unseen."""

    retries: Retries = Retries()
    labels: Mapping[str, str] = {}
    """Further labels of drivers and executors."""

    annotations: Mapping[str, str] = {}
    """Further annotations of drivers and executors."""

    node_selector: Mapping[str, str] = {}
    """Labels of the nodes that may run drivers and executors."""

    tolerations: tuple[Mapping[str, str], ...] = ()
    """Taints that drivers and executors tolerate."""

    priority_class: str = ""
    """Priority class of drivers and executors."""

    spark: Mapping[str, str] = {}
    """Further settings of Spark itself, which win over Tidemill's."""
