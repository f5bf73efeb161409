"""The objects of a job in a cluster, as pure functions: a driver pod, a template of executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import Job, JobKind
from tidemill.spark.local_settings import BATCH_BYTES_MAX
from tidemill.spark.pod_settings import PodSettings

Json: TypeAlias = dict[str, Any]
"""A document of the API."""

JOB_LABEL = "tidemill.dev/job"
KIND_LABEL = "tidemill.dev/job-kind"
DIGEST_LABEL = "tidemill.dev/job-digest"
MINE = "app.kubernetes.io/managed-by=tidemill-launcher"
"""The labels that every driver of ours has, as a selector."""

HOME = "/var/lib/tidemill"
SECRETS = "/etc/tidemill-secrets/blob"
SECRET_FILE = f"{SECRETS}/AWS_SECRET_ACCESS_KEY"
DRIVER_PORT, BLOCKS_PORT = 7078, 7079
MODULE = "tidemill.spark.pod_job"
UID = 10001
TEMPLATE_FILE = "/tmp/executor.json"
"""File of the executors' template that a driver leaves for Spark; JSON is YAML."""


class PodJob(msgspec.Struct, frozen=True):
    """Command line of a driver; `$(NAME)` in it is filled in by the kubelet.

    The specification is the object `spec`, whose blake2b-256 is `digest`: a writer of the bucket
    cannot change the work of a driver. The result becomes the object `result`. `conf` are the
    settings of the session, `template` the pod of an executor, both empty if Spark has them
    already. `jars` is a folder of the image.
    """

    module: str
    spec: str
    digest: str
    result: str
    blob: BlobPlace
    conf: dict[str, str]
    template: Json
    jars: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One driver of a job: the `number`-th, with `growth` times the memory."""

    job: Job
    number: int
    growth: float = 1.0

    @property
    def pod(self) -> str:
        """The name of the driver's pod: whoever launches the same again finds the same pod."""
        return f"{self.job.name}-{self.job.digest}-{self.number}"

    @property
    def folder(self) -> str:
        """Folder of the job's objects in Blob; folders of collections have other names."""
        return folder_of(self.job.name)

    @property
    def spec_key(self) -> str:
        """The object with the specification."""
        return f"{self.folder}/{self.job.digest}.spec"

    @property
    def result_key(self) -> str:
        """The object with the result of this driver."""
        return f"{self.folder}/{self.pod}.result"


def folder_of(job: str) -> str:
    """The Blob folder of a job."""
    return f"job-{job}"


def driver_metadata(
    attempt: Attempt, namespace: str, settings: PodSettings, owner: Json | None
) -> Json:
    """The metadata of whatever object stands for a driver; it goes when its owner goes."""
    metadata: Json = {
        "name": attempt.pod, "namespace": namespace,
        "labels": labels_of(attempt, "driver", settings),
        "annotations": dict(settings.annotations),
    }  # fmt: skip
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return metadata


def driver_pod(
    attempt: Attempt, namespace: str, settings: PodSettings, blob: BlobPlace, owner: Json | None
) -> Json:
    """The pod of a driver, fit for the restricted Pod Security Standard.

    It calls the API server as its service account; `owner` is a reference to who launched it. Its
    memory is the heap and what is beside it, asked for and allowed alike.
    """
    memory = scaled(settings.driver_memory_mb + settings.driver_overhead_mb, attempt.growth)
    metadata = driver_metadata(attempt, namespace, settings, owner)
    told = PodJob(
        module=attempt.job.module,
        spec=attempt.spec_key,
        digest=attempt.job.spec_digest,
        result=attempt.result_key,
        blob=seen_from_pods(blob, settings),
        conf=spark_conf(attempt, namespace, settings),
        template=executor_template(attempt, settings),
        jars=settings.jars,
    )
    container: Json = {
        "name": "driver",
        "command": ["python3", "-m", MODULE],
        "args": [msgspec.json.encode(told).decode()],
        "workingDir": HOME,
        "env": [
            *({"name": name, "value": value} for name, value in ENVIRONMENT.items()),
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "ports": [
            {"name": "rpc", "containerPort": DRIVER_PORT},
            {"name": "blocks", "containerPort": BLOCKS_PORT},
        ],
        # The end of the log is all that an API server without a node keeps of it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **container_of(settings),
    }
    container["resources"]["requests"] |= {"cpu": settings.driver_cpu, "memory": f"{memory}Mi"}
    container["resources"]["limits"] |= {"memory": f"{memory}Mi"}
    spec: Json = {
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": True,
        **deadline_of(attempt, settings),
        "terminationGracePeriodSeconds": 5,
        **pod_spec(settings),
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def executor_template(attempt: Attempt, settings: PodSettings) -> Json:
    """The pod of an executor; Spark adds image, resources, arguments, and the driver as its
    owner.
    """
    spec: Json = {
        "automountServiceAccountToken": False,
        **pod_spec(settings),
        "containers": [{"name": "executor", **container_of(settings, image=False)}],
    }
    spec.pop("imagePullSecrets", None)
    metadata = {
        "labels": labels_of(attempt, "executor", settings),
        "annotations": dict(settings.annotations),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def spark_conf(attempt: Attempt, namespace: str, settings: PodSettings) -> dict[str, str]:
    """The settings of the session of a driver in a pod that we make, which brings its executors
    itself.
    """
    grown = attempt.growth
    conf = {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.submit.deployMode": "client",
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.memory": f"{scaled(settings.driver_memory_mb, grown)}m",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": settings.image,
        "spark.kubernetes.container.image.pullPolicy": settings.image_pull_policy,
        "spark.kubernetes.executor.request.cores": settings.executor_cpu,
        "spark.kubernetes.executor.podTemplateFile": TEMPLATE_FILE,
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.executor.instances": str(instances_of(attempt, settings)),
        "spark.executor.cores": str(settings.executor_cores),
        "spark.executor.memory": f"{scaled(settings.executor_memory_mb, grown)}m",
        "spark.executor.memoryOverhead": f"{scaled(settings.executor_overhead_mb, grown)}m",
    }
    if settings.image_pull_secrets:
        conf["spark.kubernetes.container.image.pullSecrets"] = ",".join(settings.image_pull_secrets)
    if settings.executor_service_account:
        conf["spark.kubernetes.authenticate.executor.serviceAccountName"] = (
            settings.executor_service_account
        )
    return conf | session_conf(attempt, settings)


def instances_of(attempt: Attempt, settings: PodSettings) -> int:
    """Executors that a driver begins with."""
    return 1 if attempt.job.kind is JobKind.SESSION else settings.executors


def session_conf(attempt: Attempt, settings: PodSettings) -> dict[str, str]:
    """Spark settings of every driver of ours; those of `settings` win."""
    return {
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCKS_PORT),
        # A driver plans and waits. Its start takes two thirds of the processor by one compiler.
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
        # Without a secret, any program that can reach the port of a driver could run code in it.
        "spark.authenticate": "true",
        # Nor may any program between the pods read or change what they say to each other.
        "spark.network.crypto.enabled": "true",
        # Makes the driver the owner of its executors: they go when it goes.
        "spark.kubernetes.driver.pod.name": attempt.pod,
        "spark.kubernetes.executor.podNamePrefix": attempt.pod,
        "spark.kubernetes.allocation.batch.delay": "500ms",
        # None is ever made, and a driver may neither list nor delete one.
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.local.dir": "/tmp/spark",
        "spark.sql.warehouse.dir": "/tmp/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(settings.executors * settings.executor_cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES_MAX),
        "spark.python.worker.reuse": "true",
        **{f"spark.executorEnv.{name}": value for name, value in ENVIRONMENT.items()},
        **(_staying(settings) if attempt.job.kind is JobKind.SESSION else {}),
        **settings.spark,
    }


def _staying(settings: PodSettings) -> dict[str, str]:
    """Settings of a driver that stays: executors come with work, all but one go when it is done.

    Executors tell what shuffles they hold: the cluster has no service for that. No later window
    reads them, so nobody stays for their sake. A driver begins with one executor and waits for
    none. Most of the start of a replacement was that of executors which no window wanted.
    """
    return {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        # A watch tells nothing of a pod that was removed by force. A look at all of them does, in
        # the cache of the API server.
        "spark.kubernetes.executor.apiPollingInterval": "3s",
        "spark.kubernetes.executor.missingPodDetectDelta": "10s",
        "spark.kubernetes.executor.enablePollingWithResourceVersion": "true",
        # Executors are lost now and then in the long life of a driver; only many at once end it.
        "spark.executor.failuresValidityInterval": "10m",
        "spark.dynamicAllocation.maxExecutors": str(settings.executors),
        "spark.dynamicAllocation.executorIdleTimeout": "60s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "60s",
        "spark.decommission.enabled": "true",
        "spark.scheduler.mode": "FAIR",
    }


def deadline_of(attempt: Attempt, settings: PodSettings) -> Json:
    """The longest run of the pod of a driver; one that stays ends when nobody asks it."""
    stays = attempt.job.kind is JobKind.SESSION
    return {} if stays else {"activeDeadlineSeconds": int(settings.deadline_s)}


def labels_of(attempt: Attempt, role: str, settings: PodSettings) -> dict[str, str]:
    """The labels of a pod of a job; those of Tidemill's own pods are others."""
    return {
        **settings.labels,
        "app.kubernetes.io/name": "tidemill-spark",
        "app.kubernetes.io/component": f"spark-{role}",
        "app.kubernetes.io/managed-by": "tidemill-launcher" if role == "driver" else "spark",
        JOB_LABEL: attempt.job.name,
        KIND_LABEL: str(attempt.job.kind),
        DIGEST_LABEL: attempt.job.digest,
    }


def seen_from_pods(blob: BlobPlace, settings: PodSettings) -> BlobPlace:
    """The same objects with the secret where pods have it: it travels in no command line."""
    file = SECRET_FILE if settings.blob_secret else ""
    return BlobPlace(blob.address, blob.access_key if file else "", secret_key_file=file)


def scaled(megabytes: int, growth: float) -> int:
    """So much memory, grown."""
    return int(megabytes * growth)


DISK_ASKED_MB = 256
"""Megabytes of node disk that a pod of a job requests; its limit is a setting."""

ENVIRONMENT: Mapping[str, str] = {
    "HOME": HOME,
    "PYTHONUNBUFFERED": "1",
}
"""Of drivers and executors."""


def container_of(settings: PodSettings, *, image: bool = True) -> Json:
    """Base of every container of a job: no privileges, and no disk of its image."""
    mounts: list[Json] = [
        {"name": "home", "mountPath": HOME},
        {"name": "temporary", "mountPath": "/tmp"},
    ]
    if settings.blob_secret:
        mounts.append({"name": "blob-secret", "mountPath": SECRETS, "readOnly": True})
    mounts += [
        {"name": f"secret-{number}", "mountPath": folder, "readOnly": True}
        for number, folder in enumerate(settings.secrets)
    ]
    what: Json = {
        "securityContext": {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
        # Of executors Spark adds processor and memory, with a limit of the latter.
        "resources": {
            "requests": {"ephemeral-storage": f"{min(settings.disk_mb, DISK_ASKED_MB)}Mi"},
            "limits": {"ephemeral-storage": f"{settings.disk_mb}Mi"},
        },
    }  # fmt: skip
    if image:
        what |= {"image": settings.image, "imagePullPolicy": settings.image_pull_policy}
    return what


def pod_spec(settings: PodSettings) -> Json:
    """Base of every pod of a job, fit for the restricted Pod Security Standard."""
    volumes: list[Json] = [
        {"name": "home", "emptyDir": {"sizeLimit": f"{settings.disk_mb}Mi"}},
        {"name": "temporary", "emptyDir": {"sizeLimit": f"{settings.disk_mb}Mi"}},
    ]
    if settings.blob_secret:
        # Of the Secret the pods get the one key that they need.
        items = [{"key": "AWS_SECRET_ACCESS_KEY", "path": "AWS_SECRET_ACCESS_KEY"}]
        secret = {"secretName": settings.blob_secret, "items": items, "defaultMode": 0o440}
        volumes.append({"name": "blob-secret", "secret": secret})
    volumes += [
        {"name": f"secret-{number}", "secret": {"secretName": name, "defaultMode": 0o440}}
        for number, name in enumerate(settings.secrets.values())
    ]
    spec: Json = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": UID, "runAsGroup": UID, "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": volumes,
    }  # fmt: skip
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = [dict(each) for each in settings.tolerations]
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    return spec
