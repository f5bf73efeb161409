"""State of a driver from the document of its pod, and the decision that follows: pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from tidemill.spark.launcher import FailureKind
from tidemill.spark.pod_settings import PodSettings, Retries
from tidemill.time.instants import ms_since_epoch

Json: TypeAlias = Mapping[str, Any]

EXIT_MEMORY = 52
"""A driver ends with it when its memory or its executors' was not enough; Spark's own number for
that.
"""

EXIT_REFUSED = 2
"""A driver ends with it when it cannot do what it was told, now or ever."""

GROWTH = 1.5
"""After it ran out of memory a job gets so many times what it had."""

_PUT_OUT = frozenset(
    ("Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated",
     "UnexpectedAdmissionError", "NodeAffinity")
)  # fmt: skip
"""Reasons of a pod that failed which are the node's and not the job's; OutOf… are as well."""

_NO_IMAGE = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "ErrImageNeverPull",
     "RegistryUnavailable", "SignatureValidationFailed")
)  # fmt: skip
_NEVER = frozenset(("InvalidImageName", "CreateContainerConfigError"))
"""Reasons of a container that waits which waiting does not change."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """It has not begun; it is given up at `until_ms`, as a failure of this kind."""

    until_ms: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Running:
    """It works."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """It ended well."""


@dataclass(frozen=True, slots=True)
class Failure:
    """It ended badly."""

    kind: FailureKind
    reason: str
    exit_status: int | None = None
    worked_ms: int = 0
    """For so long it had worked."""


PodState: TypeAlias = "Waiting | Running | Succeeded | Failure"

VANISHED = Failure(FailureKind.VANISHED, "the pod of the driver is gone")


def state_of(pod: Json | None, settings: PodSettings) -> PodState:
    """State of a driver's pod; None is a pod that was made and is gone."""
    if pod is None:
        return VANISHED
    status = pod.get("status") or {}
    container = _container(status)
    ended = (container.get("state") or {}).get("terminated")
    phase = status.get("phase", "Pending")
    if phase == "Succeeded":
        return Succeeded()
    if phase == "Failed":
        return _failure(status, ended)
    if pod["metadata"].get("deletionTimestamp"):
        # It may take a while to go; whoever deleted it wants it to end.
        return Failure(FailureKind.VANISHED, "the pod of the driver is being deleted")
    if ended is not None:
        return Succeeded() if ended.get("exitCode") == 0 else _failure(status, ended)
    if (container.get("state") or {}).get("running"):
        return Running()
    return _waiting(pod, status, container, settings)


def _waiting(pod: Json, status: Json, container: Json, settings: PodSettings) -> PodState:
    made_ms = moment_ms(pod["metadata"]["creationTimestamp"])
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") != "True":
        says = scheduled.get("message") or "no node has been found for the driver"
        return Waiting(
            made_ms + int(settings.scheduling_wait_s * 1000),
            Failure(FailureKind.SCHEDULING, says),
        )
    placed_ms = moment_ms(scheduled.get("lastTransitionTime")) or made_ms
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason, says = waiting.get("reason", ""), waiting.get("message", "")
    told = f"{reason}: {says}" if says else reason
    if reason in _NEVER:
        kind = FailureKind.IMAGE if reason == "InvalidImageName" else FailureKind.REFUSED
        return Failure(kind, told)
    if reason in _NO_IMAGE:
        failure = Failure(FailureKind.IMAGE, told)
        return Waiting(placed_ms + int(settings.image_wait_s * 1000), failure)
    wait_s = settings.image_wait_s + settings.start_wait_s
    return Waiting(
        placed_ms + int(wait_s * 1000),
        Failure(FailureKind.START, told or "the driver does not begin"),
    )


def _failure(status: Json, ended: Json | None) -> Failure:
    """Why a pod failed: the node's reasons first, then those of its container."""
    reason, message = status.get("reason", ""), status.get("message", "")
    says = f"{reason}: {message}" if message else reason
    if reason == "DeadlineExceeded":
        return Failure(FailureKind.DEADLINE, says)
    disrupted = _condition(status, "DisruptionTarget")
    if reason in _PUT_OUT or reason.startswith("OutOf"):
        return Failure(FailureKind.EVICTED, says)
    if ended is None:
        return Failure(FailureKind.EVICTED, says or "the pod failed without a container that ended")
    code = ended.get("exitCode")
    said = _last_lines(ended.get("message", "")) or ended.get("reason", "") or "it said nothing"
    failure = failure_of_exit(code, ended.get("reason", ""), said)
    if failure.kind is not FailureKind.MEMORY and disrupted.get("status") == "True":
        return Failure(FailureKind.EVICTED, disrupted.get("message") or said, code)
    return failure


def failure_of_exit(code: int | None, reason: str, said: str) -> Failure:
    """Why a container failed, by its exit status and the kubelet's reason for it."""
    if reason == "OOMKilled" or code == EXIT_MEMORY:
        return Failure(FailureKind.MEMORY, said, code)
    if code == EXIT_REFUSED:
        return Failure(FailureKind.REFUSED, said, code)
    if reason in ("ContainerCannotRun", "StartError"):
        return Failure(FailureKind.START, said, code)
    return Failure(FailureKind.DRIVER, said, code)


def _last_lines(message: str, lines: int = 3) -> str:
    kept = [line.strip() for line in message.splitlines() if line.strip()]
    return " | ".join(kept[-lines:])


def _container(status: Json) -> Json:
    found: list[Json] = list(status.get("containerStatuses") or ())
    return found[0] if found else {}


def _condition(status: Json, kind: str) -> Json:
    found = [each for each in status.get("conditions") or () if each.get("type") == kind]
    return found[0] if found else {}


def ended_ms(pod: Json) -> int | None:
    """When a driver's pod ended, as far as it says; None while it has not."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    ended = (_container(status).get("state") or {}).get("terminated") or {}
    return moment_ms(ended.get("finishedAt")) or moment_ms(pod["metadata"]["creationTimestamp"])


def moment_ms(text: str | None) -> int:
    """An instant of the API in milliseconds; 0 for none."""
    return ms_since_epoch(datetime.fromisoformat(text)) if text else 0


@dataclass(frozen=True, slots=True)
class Again:
    """The job is begun anew after a pause, with `growth` times the memory."""

    pause_s: float
    growth: float


STEADY_MS = 60_000
"""A driver that stays begins well if it works for so long."""


def counted(failures: tuple[Failure, ...], newest: Failure, *, stays: bool) -> tuple[Failure, ...]:
    """Failures from which the decision after the newest follows.

    A driver that stays is lost now and then in its long life. After one that had begun well, what
    the cluster did before is forgotten; how the job itself failed, and its memory, never is.
    """
    if stays and newest.worked_ms >= STEADY_MS:
        failures = tuple(each for each in failures if each.kind in _LASTING)
    return (*failures, newest)


def decide(failures: tuple[FailureKind, ...], settings: Retries) -> Again | None:
    """Decision after these failures, the last one the newest; None gives up.

    Each kind has retries of its own; those of the infrastructure are counted together. The first
    driver that was put out or vanished is replaced at once: nothing is wrong with the next.
    """
    allowed = {
        FailureKind.IMAGE: settings.image,
        FailureKind.SCHEDULING: settings.scheduling,
        FailureKind.START: settings.infrastructure,
        FailureKind.EVICTED: settings.infrastructure,
        FailureKind.VANISHED: settings.infrastructure,
        FailureKind.MEMORY: settings.memory,
        FailureKind.DEADLINE: settings.driver,
        FailureKind.DRIVER: settings.driver,
        FailureKind.REFUSED: 0,
    }
    newest = failures[-1]
    alike = sum(_group(each) == _group(newest) for each in failures)
    if alike > allowed[newest]:
        return None
    pause_s = min(settings.pause_s * 2 ** (len(failures) - 1), settings.pause_s_max)
    if failures in _LOST:
        pause_s = 0.0
    return Again(pause_s, GROWTH ** sum(each == FailureKind.MEMORY for each in failures))


_LOST = ((FailureKind.EVICTED,), (FailureKind.VANISHED,))
_INFRASTRUCTURE = (FailureKind.START, FailureKind.EVICTED, FailureKind.VANISHED)
_OF_THE_JOB = (FailureKind.DRIVER, FailureKind.DEADLINE)
_LASTING = (*_OF_THE_JOB, FailureKind.MEMORY)


def _group(kind: FailureKind) -> tuple[FailureKind, ...]:
    for group in (_INFRASTRUCTURE, _OF_THE_JOB):
        if kind in group:
            return group
    return (kind,)
