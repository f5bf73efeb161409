"""Pods of jobs on a real API server without nodes: what it takes, and what the rights of the chart allow."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import msgspec
import pytest
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_kube_config
from ruamel.yaml import YAML

from tidemill.kubernetes.api import KubernetesApi
from tidemill.runtime.clock import SystemClock
from tidemill.shard.stores import BlobPlace
from tidemill.shard.stores_memory import MemoryBlob
from tidemill.spark.launcher import FailureKind, Job, JobFailed, JobKind
from tidemill.spark.pod_launcher import PodLauncher
from tidemill.spark.pod_settings import PodSettings, Retries
from tidemill.spark.pod_specs import Attempt, driver_pod, executor_template
from tidemill.testkit.servers import kubernetes_server
from tidemill.time import UsageError

CHART = str(Path(__file__).resolve().parents[1] / "charts/tidemill")
NAMESPACE, JOBS = "tidemill", "jobs"
VALUES = {
    "crds": {"install": False}, "operator": {"enabled": False}, "insecure": True,
    "stores": {"blob": "s3://bucket/prefix", "blobSecret": "bucket"},
    "spark": {"enabled": True, "namespace": JOBS},
}  # fmt: skip
SETTINGS = PodSettings(
    namespace=JOBS, service_account="tidemill-spark", blob_secret="bucket",
    scheduling_wait_s=0.0, retries=Retries(scheduling=1, pause_s=0.01),
)  # fmt: skip
PLACE = BlobPlace("s3://bucket/prefix", "key", "secret")
JOB = Job(JobKind.BACKFILL, "flights", "jobs.backfill", b"spec")
PODS = f"/api/v1/namespaces/{JOBS}/pods"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with kubernetes_server("jobs") as server:
        yield server.address


async def connected(kubeconfig: str) -> KubernetesApi:
    configuration = Configuration()
    await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return KubernetesApi(configuration, "tests")


@pytest.fixture
async def api(cluster: str) -> AsyncIterator[KubernetesApi]:
    """The administrator's API, with the chart installed and a namespace that enforces the standard."""
    api = await connected(cluster)
    with helm.Config(kubeconfig_path=cluster, namespace=NAMESPACE) as config:
        if not config.list():
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            body = {"kind": "Namespace", "metadata": {"name": JOBS, "labels": labels}}
            await api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", **body})
            config.install(CHART, "tidemill", VALUES, create_namespace=True)
    yield api
    await api.close()


async def account(api: KubernetesApi, cluster: str, namespace: str, name: str, folder: Path) -> str:
    """A kubeconfig with a token of a service account, and nothing else."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await api.call("POST", path, request))["status"]["token"]
    config = YAML(typ="safe").load(Path(cluster))
    config["users"][0]["user"] = {"token": token}
    file = folder / f"{name}.kubeconfig"
    file.write_text(json.dumps(config))
    return str(file)


def pods() -> list[dict[str, Any]]:
    """A driver, and an executor as Spark completes it."""
    settings = msgspec.structs.replace(SETTINGS, node_selector={"disk": "fast"})
    attempt = Attempt(JOB, 1)
    executor = executor_template(attempt, settings)
    executor["metadata"]["name"] = "executor"
    executor["spec"]["serviceAccountName"] = SETTINGS.service_account
    executor["spec"]["containers"][0] |= {"image": settings.image, "args": ["executor"]}
    return [driver_pod(attempt, JOBS, settings, PLACE, None), executor]


async def test_a_namespace_with_the_restricted_standard_takes_driver_and_executor(
    api: KubernetesApi,
) -> None:
    query = {"fieldValidation": "Strict", "dryRun": "All"}
    for pod in pods():
        made = await api.call("POST", PODS, pod, query)
        assert made["spec"]["containers"][0]["image"] == SETTINGS.image
        del pod["spec"]["securityContext"]["seccompProfile"]
        with pytest.raises(UsageError, match="violates PodSecurity"):
            await api.call("POST", PODS, pod, query)


async def test_a_launcher_does_its_work_with_the_rights_of_the_chart(
    api: KubernetesApi, cluster: str, tmp_path: Path
) -> None:
    """Without a node no driver is ever scheduled: it is made, followed, told of, deleted, made anew."""
    limited = await connected(await account(api, cluster, NAMESPACE, "tidemill", tmp_path))
    for path in (f"/api/v1/namespaces/{JOBS}/secrets", f"/api/v1/namespaces/{NAMESPACE}/pods"):
        with pytest.raises(UsageError, match="forbidden"):
            await limited.call("GET", path)
    launcher = PodLauncher(limited, MemoryBlob(), PLACE, SETTINGS, SystemClock())
    outcome = await launcher.launch(JOB)
    assert isinstance(outcome, JobFailed)
    assert (outcome.kind, outcome.attempts) == (FailureKind.SCHEDULING, 2)
    assert await launcher.tend() == 0
    await launcher.close()
    left, _ = await api.list(PODS)
    assert [pod for pod in left if "deletionTimestamp" not in pod["metadata"]] == []
    events, _ = await api.list(f"/api/v1/namespaces/{JOBS}/events")
    assert {each["reason"] for each in events} == {"Launched", "Unschedulable"}


async def test_a_driver_may_make_executors_and_read_no_secret(
    api: KubernetesApi, cluster: str, tmp_path: Path
) -> None:
    driver = await connected(await account(api, cluster, JOBS, "tidemill-spark", tmp_path))
    _, executor = pods()
    query = {"dryRun": "All"}
    await driver.call("POST", PODS, executor, query)
    await driver.call("DELETE", PODS, {"apiVersion": "v1", "kind": "DeleteOptions"}, query)
    for what in ("configmaps", "services", "persistentvolumeclaims"):
        await driver.call("GET", f"/api/v1/namespaces/{JOBS}/{what}")
    for what in ("secrets", "events"):
        with pytest.raises(UsageError, match="forbidden"):
            await driver.call("GET", f"/api/v1/namespaces/{JOBS}/{what}")
    await driver.close()
