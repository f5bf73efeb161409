"""A job as a SparkApplication: the document, and what its status says."""

from __future__ import annotations

from typing import Any, Literal

import kubernetes_validate
import msgspec
import pytest

from tidemill.spark.launcher import FailureKind
from tidemill.spark.pod_settings import PodSettings
from tidemill.spark.pod_specs import Attempt, PodJob, driver_pod, executor_template, spark_conf
from tidemill.spark.pod_states import Failure, Running, Succeeded, Waiting
from tidemill.spark.spark_application import (
    application_ended_ms,
    application_state,
    spark_application,
)
from tidemill.testkit.pod_jobs import API_VERSION, FULL, JOB, MADE, MADE_MS, OWNER, PLACE, PLAIN

SENT = "2026-01-01T00:01:00Z"


class Closed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Part of an object: a field that the operator does not have is an error, as with a strict API
    server.
    """


class Template(Closed):
    """Checked as the template of a pod of its own."""

    spec: dict[str, Any]


class Part(Closed):
    """Fields that driver and executor share."""

    labels: dict[str, str]
    annotations: dict[str, str]
    template: Template
    core_request: str
    memory: str
    memory_overhead: str
    service_account: str | msgspec.UnsetType = msgspec.UNSET


class Executor(Part, kw_only=True):
    instances: int
    cores: int


class Restarts(Closed):
    type: Literal["Never", "Always", "OnFailure"]


class Spec(Closed, kw_only=True):
    type: Literal["Java", "Python", "Scala", "R"]
    mode: Literal["cluster", "client"]
    spark_version: str
    python_version: Literal["2", "3"]
    image: str
    image_pull_policy: str
    image_pull_secrets: list[str] | msgspec.UnsetType = msgspec.UNSET
    main_application_file: str
    arguments: list[str]
    spark_conf: dict[str, str]
    restart_policy: Restarts
    time_to_live_seconds: int
    driver: Part
    executor: Executor


class Application(Closed):
    """The fields of the operator's v1beta2 schema that our documents use."""

    api_version: Literal["sparkoperator.k8s.io/v1beta2"]
    kind: Literal["SparkApplication"]
    metadata: dict[str, Any]
    spec: Spec


def application(settings: PodSettings, growth: float = 1.0) -> dict[str, Any]:
    return spark_application(Attempt(JOB, 1, growth), "jobs", settings, PLACE, OWNER)


def checked(settings: PodSettings, growth: float = 1.0) -> Application:
    return msgspec.convert(application(settings, growth), Application, strict=True)


@pytest.mark.parametrize("settings", [PLAIN, FULL])
def test_an_application_is_what_the_operator_takes(settings: PodSettings) -> None:
    spec = checked(settings).spec
    assert (spec.type, spec.mode, spec.restart_policy.type) == ("Python", "cluster", "Never")
    assert spec.time_to_live_seconds == settings.ttl_s
    for part, name in ((spec.driver, "spark-kubernetes-driver"), (spec.executor, "spark-kubernetes-executor")):  # fmt: skip
        (container,) = part.template.spec["containers"]
        assert container["name"] == name
        # Spark adds the image; a container without one is refused.
        whole = {**part.template.spec, "containers": [{**container, "image": "tidemill"}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
        kubernetes_validate.validate(pod, API_VERSION, strict=True)


def test_a_field_that_the_operator_does_not_have_is_found() -> None:
    wrong = application(PLAIN)
    wrong["spec"]["driver"]["cpu"] = "1"
    with pytest.raises(msgspec.ValidationError, match="cpu"):
        msgspec.convert(wrong, Application, strict=True)


@pytest.mark.parametrize("settings", [PLAIN, FULL])
def test_its_pods_are_those_that_we_would_make(settings: PodSettings) -> None:
    spec, attempt = checked(settings).spec, Attempt(JOB, 1)
    ours = driver_pod(attempt, "jobs", settings, PLACE, OWNER)
    pod, conf = ours["spec"], spark_conf(attempt, "jobs", settings)
    driver = spec.driver.template.spec
    left_to_spark = {"containers", "imagePullSecrets", "serviceAccountName"}
    assert {k: v for k, v in pod.items() if k not in left_to_spark} == {
        k: v for k, v in driver.items() if k != "containers"
    }
    (container,), (made,) = driver["containers"], pod["containers"]
    for same in ("securityContext", "volumeMounts", "workingDir"):
        assert container[same] == made[same]
    assert (spec.driver.service_account, spec.driver.labels) == (
        pod["serviceAccountName"],
        ours["metadata"]["labels"],
    )
    assert spec.driver.memory == conf["spark.driver.memory"]
    executors = executor_template(attempt, settings)
    template = spec.executor.template.spec
    assert {**template, "containers": 0} == {**executors["spec"], "containers": 0}
    assert spec.executor.labels == executors["metadata"]["labels"]
    for said, key in (
        (str(spec.executor.instances), "spark.executor.instances"),
        (str(spec.executor.cores), "spark.executor.cores"),
        (spec.executor.memory, "spark.executor.memory"),
        (spec.executor.memory_overhead, "spark.executor.memoryOverhead"),
        (spec.executor.core_request, "spark.kubernetes.executor.request.cores"),
        (spec.image, "spark.kubernetes.container.image"),
    ):
        assert said == conf[key]


def test_an_application_belongs_to_who_launched_it_and_holds_no_secret() -> None:
    whole = application(FULL)
    assert whole["metadata"]["ownerReferences"] == [OWNER]
    assert b"the-secret-itself" not in msgspec.json.encode([whole, application(PLAIN)])
    spec = checked(FULL).spec
    told = msgspec.json.decode(spec.arguments[0], type=PodJob)
    mount, *_ = [
        each for each in spec.driver.template.spec["containers"][0]["volumeMounts"]
        if "readOnly" in each
    ]  # fmt: skip
    assert told.blob.secret_key_file.startswith(mount["mountPath"])
    assert spec.image_pull_secrets == ["registry"]
    assert spec.executor.service_account == "readers"


def test_the_operator_is_left_what_it_does_itself() -> None:
    """Its webhook refuses these settings, or Spark does in cluster mode."""
    conf = checked(FULL).spec.spark_conf
    managed = ("spark.master", "spark.submit", "spark.driver.host", "spark.driver.bindAddress",
               "spark.kubernetes.container", "spark.kubernetes.authenticate", "spark.kubernetes.namespace")  # fmt: skip
    assert [key for key in conf if key.startswith(managed)] == []
    assert conf["spark.kubernetes.driver.pod.name"] == Attempt(JOB, 1).pod
    assert conf["spark.authenticate"] == "true"
    assert conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.network.timeout"] == "60s"


def test_memory_grows_for_driver_and_executors() -> None:
    plain, grown = checked(PLAIN).spec, checked(PLAIN, 1.5).spec
    for before, after in ((plain.driver, grown.driver), (plain.executor, grown.executor)):
        for part in ("memory", "memory_overhead"):
            was, now = (int(getattr(each, part).removesuffix("m")) for each in (before, after))
            assert now == int(was * 1.5)


# -- what a status says ----------------------------------------------------------------------------


def said(state: str, message: str = "", runs: int = 1, **metadata: str) -> dict[str, Any]:
    status = {
        "applicationState": {"state": state, "errorMessage": message},
        "executionAttempts": runs, "lastSubmissionAttemptTime": SENT, "terminationTime": SENT,
    }  # fmt: skip
    return {"metadata": {"creationTimestamp": MADE, **metadata}, "status": status}


def exited(code: int, reason: str) -> str:
    return f"driver container failed with ExitCode: {code}, Reason: {reason}"


@pytest.mark.parametrize(
    ("document", "kind", "code"),
    [
        (None, FailureKind.VANISHED, None),
        (said("RUNNING", deletionTimestamp=SENT), FailureKind.VANISHED, None),
        (said("FAILED", "driver pod not found"), FailureKind.VANISHED, None),
        (said("FAILING", exited(137, "OOMKilled")), FailureKind.MEMORY, 137),
        (said("FAILED", exited(52, "Error")), FailureKind.MEMORY, 52),
        (said("FAILED", exited(1, "Error")), FailureKind.DRIVER, 1),
        (said("FAILED", exited(2, "Error")), FailureKind.REFUSED, 2),
        (said("FAILED", exited(128, "StartError")), FailureKind.START, 128),
        (said("FAILED", "driver container status missing"), FailureKind.EVICTED, None),
        (said("FAILED"), FailureKind.EVICTED, None),
        (said("SUBMISSION_FAILED", "connection refused", 0), FailureKind.START, None),
        (said("FAILED", "connection refused", 0), FailureKind.START, None),
        (said("FAILED", "", 0), FailureKind.START, None),
        (said("FAILED", "pods is forbidden: exceeded quota: small", 0), FailureKind.SCHEDULING, None),
    ],
)  # fmt: skip
def test_why_an_application_failed(
    document: dict[str, Any] | None, kind: FailureKind, code: int | None
) -> None:
    state = application_state(document, PLAIN)
    assert isinstance(state, Failure)
    assert (state.kind, state.exit_status) == (kind, code)
    assert state.reason


@pytest.mark.parametrize("state", ["COMPLETED", "SUCCEEDING"])
def test_an_application_that_ended_well(state: str) -> None:
    assert application_state(said(state), PLAIN) == Succeeded()
    # It was deleted after its driver had done its work.
    assert application_state(said(state, deletionTimestamp=SENT), PLAIN) == Succeeded()


@pytest.mark.parametrize("state", ["RUNNING", "UNKNOWN"])
def test_an_application_that_works_is_left_alone(state: str) -> None:
    assert application_state(said(state), PLAIN) == Running()


@pytest.mark.parametrize(
    ("document", "kind", "from_s", "wait_s"),
    [
        ({"metadata": {"creationTimestamp": MADE}}, FailureKind.START, 0, 120),
        (said(""), FailureKind.START, 0, 120),
        (said("SUSPENDED"), FailureKind.SCHEDULING, 0, 300),
        (said("SUBMITTED"), FailureKind.START, 60, 720),
        (said("PENDING_RERUN"), FailureKind.START, 60, 720),
        (said("INVALIDATING"), FailureKind.START, 60, 720),
    ],
)
def test_how_long_it_is_waited_for_an_application(
    document: dict[str, Any], kind: FailureKind, from_s: int, wait_s: int
) -> None:
    state = application_state(document, PLAIN)
    assert isinstance(state, Waiting)
    assert state.failure.kind == kind
    assert state.until_ms == MADE_MS + (from_s + wait_s) * 1000


def test_when_an_application_ended() -> None:
    at_work = ("", "SUBMITTED", "RUNNING", "UNKNOWN", "SUSPENDED", "PENDING_RERUN")
    assert {application_ended_ms(said(state)) for state in at_work} == {None}
    for state in ("COMPLETED", "FAILED", "SUCCEEDING", "FAILING", "SUBMISSION_FAILED"):
        assert application_ended_ms(said(state)) == MADE_MS + 60_000
    without = said("SUBMISSION_FAILED")
    del without["status"]["terminationTime"]
    assert application_ended_ms(without) == MADE_MS
