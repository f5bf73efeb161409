"""Pods of jobs on a real API server without nodes: what it takes, and what the rights of the chart
allow.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import helm_python as helm
import msgspec
import pytest
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_kube_config
from ruamel.yaml import YAML

from tidemill.errors import UsageError
from tidemill.kubernetes.api import KubernetesApi
from tidemill.runtime.clock import SystemClock
from tidemill.shard.stores import BlobPlace
from tidemill.shard.stores_memory import MemoryBlob
from tidemill.spark.launcher import FailureKind, Job, JobFailed, JobKind
from tidemill.spark.pod_launcher import PodLauncher
from tidemill.spark.pod_settings import PodSettings, Retries
from tidemill.spark.pod_specs import Attempt, driver_pod, executor_template
from tidemill.testkit.servers import kubernetes_server

CHART = str(Path(__file__).resolve().parents[1] / "charts/tidemill")
NAMESPACE, JOBS = "tidemill", "jobs"
VALUES = {
    "crds": {"install": False}, "operator": {"enabled": False}, "insecure": True,
    "stores": {"blob": "s3://bucket/prefix", "blobSecret": "bucket"},
    "networkPolicy": {"to": {"blob": [{"ports": [{"port": 443}]}]}},
    "spark": {"enabled": True, "namespace": JOBS, "createNamespace": False},
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


async def connect(kubeconfig: str) -> KubernetesApi:
    configuration = Configuration()
    await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return KubernetesApi(configuration, "tests")


@pytest.fixture
async def api(cluster: str) -> AsyncIterator[KubernetesApi]:
    """The administrator's API, with the chart installed and a namespace that enforces the
    standard.
    """
    api = await connect(cluster)
    with helm.Config(kubeconfig_path=cluster, namespace=NAMESPACE) as config:
        if not config.list():
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            body = {"kind": "Namespace", "metadata": {"name": JOBS, "labels": labels}}
            await api.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", **body})
            # No controller makes it here.
            default = {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default"},
            }
            await api.call("POST", f"/api/v1/namespaces/{JOBS}/serviceaccounts", default)
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
    """Without a node no driver is ever scheduled: it is made, followed, told of, deleted, made
    anew.
    """
    limited = await connect(await account(api, cluster, NAMESPACE, "tidemill-whole", tmp_path))
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
    driver = await connect(await account(api, cluster, JOBS, "tidemill-spark", tmp_path))
    _, executor = pods()
    query = {"dryRun": "All"}
    await driver.call("POST", PODS, executor, query)
    await driver.call("DELETE", PODS, {"apiVersion": "v1", "kind": "DeleteOptions"}, query)
    await driver.call("GET", f"/api/v1/namespaces/{JOBS}/configmaps")
    for what in ("secrets", "events", "services", "persistentvolumeclaims"):
        for method in ("GET", "DELETE"):
            with pytest.raises(UsageError, match="forbidden"):
                await driver.call(method, f"/api/v1/namespaces/{JOBS}/{what}")
    await driver.close()


def attacks(pod: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pods that admission refuses: the expected message, and the changed pod."""
    inside = "spec", "containers", 0
    changes: list[tuple[str, tuple[str | int, ...], Any]] = [
        ("runs from the image", (*inside, "image"), "evil:1"),
        ("account", ("spec", "serviceAccountName"), "admin"),
        ("no Secret", ("spec", "volumes", 0), {"name": "home", "secret": {"secretName": "users"}}),
        ("no claim", ("spec", "volumes", 0),
         {"name": "home", "persistentVolumeClaim": {"claimName": "state"}}),
        ("no variable", (*inside, "env"),
         [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "users", "key": "k"}}}]),
        ("has the label", ("metadata", "labels", "app.kubernetes.io/name"), "tidemill"),
    ]  # fmt: skip
    for says, path, value in changes:
        changed = deepcopy(pod)
        place: Any = changed
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        yield says, changed


async def test_k2_admission_refuses_what_is_no_pod_of_a_job(
    api: KubernetesApi, cluster: str, tmp_path: Path
) -> None:
    """By the server's own evaluator: of who launches, of a driver, and of whoever takes its
    account.
    """
    made = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "admin"}}
    await api.call("POST", f"/api/v1/namespaces/{JOBS}/serviceaccounts", made)
    users = {
        "launcher": await connect(await account(api, cluster, NAMESPACE, "tidemill-whole", tmp_path)),
        "driver": await connect(await account(api, cluster, JOBS, "tidemill-spark", tmp_path)),
    }  # fmt: skip
    query = {"dryRun": "All"}
    for user, pod in zip(users.values(), pods(), strict=True):
        await until_refused(user, pod)
        await user.call("POST", PODS, pod, query)
        for says, wrong in attacks(pod):
            with pytest.raises(UsageError, match=says):
                await user.call("POST", PODS, wrong, query)
    # The administrator makes what it likes, but not as the driver.
    _, executor = pods()
    foreign = {**executor, "metadata": {"name": "foreign"}}
    await api.call("POST", PODS, foreign, query)
    as_driver = {**foreign, "spec": {**foreign["spec"], "serviceAccountName": "tidemill-spark"}}
    with pytest.raises(UsageError, match="has the label"):
        await api.call("POST", PODS, as_driver, query)
    # And a driver deletes nothing of somebody else's.
    await api.call("POST", PODS, foreign)
    driver = users["driver"]
    with pytest.raises(UsageError, match="only pods and settings of jobs"):
        await driver.call("DELETE", f"{PODS}/foreign")
    with pytest.raises(UsageError, match="only pods and settings of jobs"):
        await driver.call("DELETE", PODS)
    await api.call("DELETE", f"{PODS}/foreign")
    for user in users.values():
        await user.close()


async def until_refused(user: KubernetesApi, pod: dict[str, Any]) -> None:
    """The server takes up a policy some moments after it was made."""
    _, wrong = next(attacks(pod))
    for _ in range(300):
        try:
            await user.call("POST", PODS, wrong, {"dryRun": "All"})
        except UsageError:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the policy of admission is not in force")
