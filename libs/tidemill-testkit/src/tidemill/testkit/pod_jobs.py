"""Inputs of tests of jobs in pods: a job, short and full settings, and the place of its data."""

from __future__ import annotations

from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import Job, JobKind
from tidemill.spark.pod_settings import PodSettings

JOB = Job(JobKind.COMPACTION, "flights/raw", "jobs.merge", b"spec")
PLACE = BlobPlace("s3://bucket/prefix?endpoint=http://objects:7070", "key", "the-secret-itself")
FULL = PodSettings(
    namespace="jobs", image_pull_secrets=("registry",), executor_service_account="readers",
    blob_secret="bucket", labels={"team": "a"}, annotations={"note": "b"},
    node_selector={"disk": "fast"}, tolerations=({"key": "spark", "operator": "Exists"},),
    priority_class="low", spark={"spark.network.timeout": "60s"},
    secrets={"/etc/kafka": "kafka-reader", "/etc/other": "other"},
)  # fmt: skip
PLAIN = PodSettings(namespace="jobs")
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "tidemill-0", "uid": "u"}
API_VERSION = "1.33"
"""The version of the Kubernetes API whose schemas documents are checked against."""
MADE = "2026-01-01T00:00:00Z"
MADE_MS = 1_767_225_600_000
