"""Jobs as SparkApplication objects, and their states as the Spark operator tells them.

Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, TypeAlias

import msgspec

from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import FailureKind
from tidemill.spark.pod_settings import PodSettings
from tidemill.spark.pod_specs import (
    ENVIRONMENT,
    HOME,
    Attempt,
    PodJob,
    container_of,
    deadline_of,
    driver_metadata,
    instances_of,
    labels_of,
    pod_spec,
    scaled,
    seen_from_pods,
    session_conf,
)
from tidemill.spark.pod_states import (
    VANISHED,
    Failure,
    PodState,
    Running,
    Succeeded,
    Waiting,
    failure_of_exit,
    moment_ms,
)

Json: TypeAlias = dict[str, Any]
"""A document of the API."""

API_VERSION = "sparkoperator.k8s.io/v1beta2"
MAIN_FILE = "local:///opt/tidemill/job.py"
"""In the image: runs `tidemill.spark.pod_job`."""

DRIVER, EXECUTOR = "spark-kubernetes-driver", "spark-kubernetes-executor"
"""Names of the operator for the containers of templates that are Spark's."""

_ENDED = frozenset(("COMPLETED", "FAILED", "SUCCEEDING", "FAILING", "SUBMISSION_FAILED"))
"""States in which the driver works no more; none of them is left without a restart policy."""

_HELD = frozenset(("SUSPENDING", "SUSPENDED", "RESUMING"))
"""States in which a queue, or a person, holds the application back."""

_EXIT = re.compile(r"ExitCode: (\d+), Reason: (\S*)")
"""The operator's text about the container of a driver."""


def spark_application(
    attempt: Attempt, namespace: str, settings: PodSettings, blob: BlobPlace, owner: Json | None
) -> Json:
    """The application for a driver: the pods of `driver_pod`, made by the operator's spark-submit.

    Its driver has the name of the application. The operator never runs it again: the launcher
    decides. `owner` is a reference to the launcher.
    """
    metadata = driver_metadata(attempt, namespace, settings, owner)
    # Spark reads its settings and the template of executors from what spark-submit leaves it.
    told = PodJob(
        module=attempt.job.module, spec=attempt.spec_key, digest=attempt.job.spec_digest,
        result=attempt.result_key,
        blob=seen_from_pods(blob, settings), conf={}, template={}, jars=settings.jars,
    )  # fmt: skip
    spec: Json = {
        "type": "Python",
        "mode": "cluster",
        "sparkVersion": version("pyspark"),
        "pythonVersion": "3",
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "mainApplicationFile": MAIN_FILE,
        "arguments": [msgspec.json.encode(told).decode()],
        "sparkConf": {
            "spark.driver.extraClassPath": f"{settings.jars}/*",
            **session_conf(attempt, settings),
        },
        "restartPolicy": {"type": "Never"},
        "timeToLiveSeconds": int(settings.ttl_s),
        "driver": _driver(attempt, settings),
        "executor": _executor(attempt, settings),
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = list(settings.image_pull_secrets)
    return {
        "apiVersion": API_VERSION, "kind": "SparkApplication", "metadata": metadata, "spec": spec,
    }  # fmt: skip


def _driver(attempt: Attempt, settings: PodSettings) -> Json:
    what = _part(attempt, "driver", DRIVER, settings)
    template = what["template"]["spec"]
    template |= {
        "automountServiceAccountToken": True,
        **deadline_of(attempt, settings),
        "terminationGracePeriodSeconds": 5,
    }
    (container,) = template["containers"]
    container |= {
        "workingDir": HOME,
        "env": [{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
    }
    return what | {
        "coreRequest": settings.driver_cpu,
        "memory": f"{scaled(settings.driver_memory_mb, attempt.growth)}m",
        "memoryOverhead": f"{scaled(settings.driver_overhead_mb, attempt.growth)}m",
        "serviceAccount": settings.service_account,
    }


def _executor(attempt: Attempt, settings: PodSettings) -> Json:
    what = _part(attempt, "executor", EXECUTOR, settings)
    what["template"]["spec"]["automountServiceAccountToken"] = False
    what |= {
        "instances": instances_of(attempt, settings),
        "cores": settings.executor_cores,
        "coreRequest": settings.executor_cpu,
        "memory": f"{scaled(settings.executor_memory_mb, attempt.growth)}m",
        "memoryOverhead": f"{scaled(settings.executor_overhead_mb, attempt.growth)}m",
    }
    if settings.executor_service_account:
        what["serviceAccount"] = settings.executor_service_account
    return what


def _part(attempt: Attempt, role: str, container: str, settings: PodSettings) -> Json:
    """The fields that driver and executor share; Spark adds images and their secrets by itself."""
    spec = pod_spec(settings)
    spec.pop("imagePullSecrets", None)
    spec["containers"] = [{"name": container, **container_of(settings, image=False)}]
    return {
        "labels": labels_of(attempt, role, settings),
        "annotations": dict(settings.annotations),
        "template": {"spec": spec},
    }


def application_state(application: Mapping[str, Any] | None, settings: PodSettings) -> PodState:
    """State of an application, as its operator tells it; None is one that was made and is gone.

    The operator tells less than a pod. It gives no reason for a driver that does not begin, and
    only the end of an evicted one.
    """
    if application is None:
        return VANISHED
    status = application.get("status") or {}
    said = status.get("applicationState") or {}
    state = said.get("state", "")
    if state in ("COMPLETED", "SUCCEEDING"):
        return Succeeded()
    if state in _ENDED:
        return _failure(status, said.get("errorMessage", ""))
    if application["metadata"].get("deletionTimestamp"):
        return Failure(FailureKind.VANISHED, "the application is being deleted")
    if state in ("RUNNING", "UNKNOWN"):
        # UNKNOWN: the node of the driver is out of reach, and may come back.
        return Running()
    made_ms = moment_ms(application["metadata"]["creationTimestamp"])
    if state in _HELD:
        held = Failure(FailureKind.SCHEDULING, "the application is suspended")
        return Waiting(made_ms + int(settings.scheduling_wait_s * 1000), held)
    if state == "":
        unheard = Failure(FailureKind.START, "no Spark operator has taken the application up")
        return Waiting(made_ms + int(settings.start_wait_s * 1000), unheard)
    # SUBMITTED, or to be submitted once more: the driver waits for room, its image and its start.
    from_ms = moment_ms(status.get("lastSubmissionAttemptTime")) or made_ms
    wait_s = settings.scheduling_wait_s + settings.image_wait_s + settings.start_wait_s
    silent = Failure(FailureKind.START, f"{state}: the driver does not begin")
    return Waiting(from_ms + int(wait_s * 1000), silent)


def _failure(status: Mapping[str, Any], message: str) -> Failure:
    """Why an application failed, as far as its operator knows."""
    if not status.get("executionAttempts"):
        crowded = "exceeded quota" in message
        kind = FailureKind.SCHEDULING if crowded else FailureKind.START
        return Failure(kind, message or "the application could not be submitted")
    if message == "driver pod not found":
        return Failure(FailureKind.VANISHED, message)
    found = _EXIT.search(message)
    if found is None:
        # The pod failed, and its container has no end: that is the node's doing.
        return Failure(FailureKind.EVICTED, message or "the driver failed without a word")
    return failure_of_exit(int(found[1]), found[2], message)


def application_ended_ms(application: Mapping[str, Any]) -> int | None:
    """When an application ended, as far as it says; None while it has not."""
    status = application.get("status") or {}
    if (status.get("applicationState") or {}).get("state") not in _ENDED:
        return None
    ended = moment_ms(status.get("terminationTime"))
    return ended or moment_ms(application["metadata"]["creationTimestamp"])
