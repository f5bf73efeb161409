"""The pods of a job as documents, what their status says, and what is tried again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import kubernetes_validate
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.spark.launcher import NAME_CHARS_MAX, FailureKind, Job, JobKind
from tidemill.spark.pod_settings import PodSettings, Retries
from tidemill.spark.pod_specs import (
    JOB_LABEL,
    Attempt,
    PodJob,
    driver_pod,
    executor_template,
    spark_conf,
)
from tidemill.spark.pod_states import (
    STEADY_MS,
    Failure,
    Running,
    Succeeded,
    Waiting,
    counted,
    decide,
    state_of,
)
from tidemill.spark.spark_application import spark_application
from tidemill.testkit.pod_jobs import API_VERSION, FULL, JOB, MADE, MADE_MS, OWNER, PLACE, PLAIN

PLACED = "2026-01-01T00:01:00Z"


def both(settings: PodSettings) -> list[dict[str, Any]]:
    """A driver, and an executor as Spark completes it."""
    attempt = Attempt(JOB, 1)
    executor = executor_template(attempt, settings)
    executor["metadata"]["name"] = "executor"
    executor["spec"]["containers"][0] |= {"image": settings.image, "args": ["executor"]}
    return [driver_pod(attempt, "jobs", settings, PLACE, OWNER), executor]


@pytest.mark.parametrize("settings", [PLAIN, FULL])
def test_pods_are_what_the_api_takes(settings: PodSettings) -> None:
    for pod in both(settings):
        kubernetes_validate.validate(pod, API_VERSION, strict=True)


@pytest.mark.parametrize("settings", [PLAIN, FULL])
def test_k7_pods_of_jobs_may_fill_neither_the_disk_nor_the_memory_of_their_node(
    settings: PodSettings,
) -> None:
    """Of executors Spark adds requests and limits of memory to those of the template."""
    driver, executor = (pod["spec"]["containers"][0]["resources"] for pod in both(settings))
    disk = {"ephemeral-storage": f"{settings.disk_mb}Mi"}
    assert executor == {"requests": {"ephemeral-storage": "256Mi"}, "limits": disk}
    assert driver["limits"].items() >= disk.items()
    assert driver["requests"]["memory"] == driver["limits"]["memory"]
    assert set(driver["requests"]) == {"ephemeral-storage", "cpu", "memory"}
    for pod in both(settings):
        volumes = [v["emptyDir"] for v in pod["spec"]["volumes"] if "emptyDir" in v]
        assert volumes
        assert all(each["sizeLimit"] == disk["ephemeral-storage"] for each in volumes)


@pytest.mark.parametrize("settings", [PLAIN, FULL])
def test_pods_fit_the_restricted_standard_and_write_nothing_into_their_image(
    settings: PodSettings,
) -> None:
    for pod in both(settings):
        spec, container = pod["spec"], pod["spec"]["containers"][0]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
    driver, executor = both(settings)
    assert driver["spec"]["automountServiceAccountToken"] is True
    assert executor["spec"]["automountServiceAccountToken"] is False


def test_no_secret_is_in_a_pod() -> None:
    told = msgspec.json.encode([both(PLAIN), both(FULL)])
    assert b"the-secret-itself" not in told
    driver, _ = both(FULL)
    job = msgspec.json.decode(driver["spec"]["containers"][0]["args"][0], type=PodJob)
    mount, *_ = [
        each for each in driver["spec"]["containers"][0]["volumeMounts"] if "readOnly" in each
    ]
    assert job.blob.secret_key_file.startswith(mount["mountPath"])
    assert (job.blob.access_key, job.blob.secret_key) == ("key", "")


def test_secrets_of_sources_are_files_of_drivers_and_executors_alike() -> None:
    for pod in both(FULL):
        spec = pod["spec"]
        mounted = {each["name"]: each for each in spec["containers"][0]["volumeMounts"]}
        of = {each["name"]: each.get("secret", {}).get("secretName") for each in spec["volumes"]}
        found = {mount["mountPath"]: of[name] for name, mount in mounted.items()}
        assert found.items() >= FULL.secrets.items()
        assert all(mounted[name]["readOnly"] for name, secret in of.items() if secret)


def test_a_driver_that_stays_has_executors_only_while_there_is_work() -> None:
    stays = Attempt(Job(JobKind.SESSION, "compute-0", "jobs.session", b""), 1)
    ends = Attempt(JOB, 1)
    conf = spark_conf(stays, "jobs", PodSettings(executors=7))
    allocation = "spark.dynamicAllocation"
    assert conf[f"{allocation}.enabled"] == conf[f"{allocation}.shuffleTracking.enabled"] == "true"
    assert conf[f"{allocation}.shuffleTracking.timeout"] == "60s"  # no later window reads them
    assert (conf[f"{allocation}.minExecutors"], conf[f"{allocation}.maxExecutors"]) == ("1", "7")
    assert not [each for each in spark_conf(ends, "jobs", PodSettings()) if allocation in each]


def test_a_driver_that_stays_begins_without_waiting_for_executors() -> None:
    """Spark begins with the most of three numbers, and waits until four in five are there."""
    stays = Attempt(Job(JobKind.SESSION, "compute-0", "jobs.session", b""), 1)
    conf = spark_conf(stays, "jobs", PodSettings(executors=7))
    allocation = "spark.dynamicAllocation"
    names = (f"{allocation}.minExecutors", f"{allocation}.initialExecutors")
    assert [conf[name] for name in (*names, "spark.executor.instances")] == ["1"] * 3
    assert conf["spark.scheduler.minRegisteredResourcesRatio"] == "0"
    looks = "spark.kubernetes.executor.apiPollingInterval"
    assert (conf[looks], looks in spark_conf(Attempt(JOB, 1), "jobs", PodSettings())) == (
        "3s", False,
    )  # fmt: skip
    assert spark_conf(Attempt(JOB, 1), "jobs", PodSettings())["spark.executor.instances"] == "2"


def test_executors_go_with_their_driver_and_settings_of_spark_win() -> None:
    attempt = Attempt(JOB, 3)
    conf = spark_conf(attempt, "jobs", FULL)
    assert conf["spark.kubernetes.driver.pod.name"] == attempt.pod
    assert conf["spark.network.timeout"] == "60s"
    assert conf["spark.authenticate"] == "true"
    assert conf["spark.network.crypto.enabled"] == "true"
    grown = spark_conf(Attempt(JOB, 3, 1.5), "jobs", PLAIN)
    assert grown["spark.executor.memory"] == "1536m"


@given(st.text(max_size=80), st.binary(max_size=4), st.sampled_from(JobKind))
def test_names_of_jobs_fit_labels_and_pods(of: str, spec: bytes, kind: JobKind) -> None:
    job = Job(kind, of, "module", spec)
    assert len(job.name) <= NAME_CHARS_MAX
    pod = driver_pod(Attempt(job, 12), "jobs", PLAIN, PLACE, None)
    name = pod["metadata"]["name"]
    assert len(f"{name}-exec-999") <= 63
    assert name.replace("-", "a").isalnum()
    assert name == name.lower()
    assert name[0].isalpha()
    assert pod["metadata"]["labels"][JOB_LABEL] == job.name


@given(st.lists(st.text(max_size=60), min_size=2, max_size=2, unique=True))
def test_jobs_for_different_things_have_different_names(of: list[str]) -> None:
    one, two = (Job(JobKind.BACKFILL, each, "module", b"").name for each in of)
    assert one != two


# -- what a status says ----------------------------------------------------------------------------


def pod(status: dict[str, Any], **metadata: str) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": MADE, **metadata}, "status": status}


def placed(phase: str, state: dict[str, Any] | None = None, **more: str) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": PLACED}
    containers = [] if state is None else [{"name": "driver", "state": state}]
    return pod({"phase": phase, "conditions": [scheduled], "containerStatuses": containers, **more})


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    told = {"exitCode": code, "reason": reason, "message": message, "finishedAt": PLACED}
    return placed("Succeeded" if code == 0 else "Failed", {"terminated": told})


@pytest.mark.parametrize(
    ("document", "kind", "code"),
    [
        (None, FailureKind.VANISHED, None),
        (
            pod({"phase": "Running"}, deletionTimestamp=PLACED),
            FailureKind.VANISHED,
            None,
        ),
        (ended(137, "OOMKilled"), FailureKind.MEMORY, 137),
        (ended(52), FailureKind.MEMORY, 52),
        (ended(1, message="a\nb\nc\nValueError: d\n"), FailureKind.DRIVER, 1),
        (ended(137), FailureKind.DRIVER, 137),
        (ended(2, message="refused: no"), FailureKind.REFUSED, 2),
        (ended(128, "StartError"), FailureKind.START, 128),
        (placed("Failed", reason="Evicted", message="disk"), FailureKind.EVICTED, None),
        (placed("Failed", reason="OutOfcpu"), FailureKind.EVICTED, None),
        (placed("Failed", reason="Preempting"), FailureKind.EVICTED, None),
        (placed("Failed"), FailureKind.EVICTED, None),
        (placed("Failed", reason="DeadlineExceeded"), FailureKind.DEADLINE, None),
        (
            placed("Pending", {"waiting": {"reason": "InvalidImageName"}}),
            FailureKind.IMAGE,
            None,
        ),
        (
            placed("Pending", {"waiting": {"reason": "CreateContainerConfigError"}}),
            FailureKind.REFUSED,
            None,
        ),
    ],
)
def test_why_a_driver_failed(
    document: dict[str, Any] | None, kind: FailureKind, code: int | None
) -> None:
    state = state_of(document, PLAIN)
    assert isinstance(state, Failure)
    assert (state.kind, state.exit_status) == (kind, code)
    assert state.reason


def test_the_reason_is_the_end_of_the_log() -> None:
    state = state_of(ended(1, message="a\nb\n\nc\nValueError: d\n"), PLAIN)
    assert isinstance(state, Failure)
    assert state.reason == "b | c | ValueError: d"


def test_a_driver_that_ends_or_works_is_left_alone() -> None:
    assert state_of(ended(0, "Completed"), PLAIN) == Succeeded()
    assert state_of(placed("Running", {"running": {"startedAt": PLACED}}), PLAIN) == Running()
    # The container ended well; the phase comes a moment later.
    told = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    assert state_of(placed("Running", told), PLAIN) == Succeeded()


@pytest.mark.parametrize(
    ("document", "kind", "from_s", "wait_s"),
    [
        (pod({}), FailureKind.SCHEDULING, 0, 300),
        (
            placed("Pending", {"waiting": {"reason": "ErrImagePull"}}),
            FailureKind.IMAGE, 60, 300,
        ),
        (
            placed("Pending", {"waiting": {"reason": "ContainerCreating"}}),
            FailureKind.START, 60, 420,
        ),
    ],
)  # fmt: skip
def test_how_long_it_is_waited_for_a_driver(
    document: dict[str, Any], kind: FailureKind, from_s: int, wait_s: int
) -> None:
    state = state_of(document, PLAIN)
    assert isinstance(state, Waiting)
    assert state.failure.kind == kind
    assert state.until_ms == MADE_MS + (from_s + wait_s) * 1000


# -- what is tried again ---------------------------------------------------------------------------


def tried(kinds: list[FailureKind], settings: Retries) -> int:
    """Number of these failures that a job survives."""
    for count in range(1, len(kinds) + 1):
        if decide(tuple(kinds[:count]), settings) is None:
            return count - 1
    return len(kinds)


def test_each_kind_of_failure_has_retries_of_its_own() -> None:
    settings = Retries(image=1, scheduling=3, infrastructure=5, memory=2, driver=1)
    expected = {
        FailureKind.IMAGE: 1, FailureKind.SCHEDULING: 3, FailureKind.START: 5,
        FailureKind.EVICTED: 5, FailureKind.VANISHED: 5, FailureKind.MEMORY: 2,
        FailureKind.DEADLINE: 1, FailureKind.DRIVER: 1, FailureKind.REFUSED: 0,
    }  # fmt: skip
    assert {kind: tried([kind] * 9, settings) for kind in FailureKind} == expected
    mixed = [FailureKind.EVICTED, FailureKind.VANISHED, FailureKind.DRIVER, FailureKind.DEADLINE]
    assert tried(mixed, settings) == 3  # the job itself has failed twice


@given(st.lists(st.sampled_from(FailureKind), min_size=1, max_size=12))
def test_pauses_grow_up_to_a_limit_and_memory_only_after_it_ran_out(
    kinds: list[FailureKind],
) -> None:
    again = decide(tuple(kinds), Retries(50, 50, 50, 50, 50, pause_s=2, pause_s_max=60))
    if kinds[-1] is FailureKind.REFUSED:
        assert again is None
        return
    assert again is not None
    lost = kinds in ([FailureKind.EVICTED], [FailureKind.VANISHED])
    assert again.pause_s == (0 if lost else min(60, 2 ** len(kinds)))
    assert again.growth == pytest.approx(1.5 ** kinds.count(FailureKind.MEMORY))


def test_a_driver_that_stays_may_be_lost_any_number_of_times() -> None:
    """Each works well, and is lost; the pause after one does not grow, and nothing is given up."""
    lost = Failure(FailureKind.VANISHED, "gone", worked_ms=STEADY_MS)
    failures: tuple[Failure, ...] = ()
    for _ in range(20):
        failures = counted(failures, lost, stays=True)
        again = decide(tuple(each.kind for each in failures), Retries())
        assert again is not None
        assert again.pause_s == 0
    in_vain = Failure(FailureKind.VANISHED, "gone", worked_ms=STEADY_MS - 1)
    for failure, stays in ((in_vain, True), (lost, False)):
        failures = ()
        for _ in range(6):
            failures = counted(failures, failure, stays=stays)
        assert decide(tuple(each.kind for each in failures), Retries()) is None


def test_a_driver_that_stays_keeps_the_memory_that_it_needs() -> None:
    short, lost = (
        Failure(kind, "", worked_ms=STEADY_MS)
        for kind in (FailureKind.MEMORY, FailureKind.VANISHED)
    )
    failures = counted(counted((), short, stays=True), lost, stays=True)
    again = decide(tuple(each.kind for each in failures), Retries())
    assert again is not None
    assert again.growth == 1.5


@pytest.mark.parametrize("kind", [FailureKind.DRIVER, FailureKind.DEADLINE])
def test_a_driver_that_stays_and_fails_is_given_up_however_long_it_worked(
    kind: FailureKind,
) -> None:
    """Losses between two failures are forgotten, and the failures are not; pauses grow."""
    failed, lost = (Failure(each, "", worked_ms=STEADY_MS) for each in (kind, FailureKind.VANISHED))
    failures, pauses = tuple[Failure, ...](), list[float]()
    for newest in (failed, lost, lost, lost, failed):
        failures = counted(failures, newest, stays=True)
        again = decide(tuple(each.kind for each in failures), Retries())
        pauses += [] if again is None else [again.pause_s]
    assert pauses == [2, 4, 4, 4]
    assert again is None
    assert [each.kind for each in failures] == [kind, kind]


def test_a_driver_that_stays_has_no_end_by_the_clock() -> None:
    session = replace(JOB, kind=JobKind.SESSION)
    for job, limited in ((JOB, True), (session, False)):
        attempt = Attempt(job, 1)
        pod = driver_pod(attempt, "jobs", PLAIN, PLACE, OWNER)
        assert ("activeDeadlineSeconds" in pod["spec"]) == limited
        application = spark_application(attempt, "jobs", PLAIN, PLACE, OWNER)
        template = application["spec"]["driver"]["template"]["spec"]
        assert ("activeDeadlineSeconds" in template) == limited
