"""Jobs in a cluster: driver pods or SparkApplications, made and followed by the API server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

from tidemill.errors import (
    AlreadyUsed,
    Fenced,
    TidemillError,
    Unavailable,
    UnknownCollection,
    UsageError,
)
from tidemill.kubernetes.api import Expired, KubernetesApi, own_namespace
from tidemill.kubernetes.events import About, tell
from tidemill.shard.offloading import first_of
from tidemill.shard.ports import Blob
from tidemill.shard.stores import BlobPlace
from tidemill.spark.launcher import (
    FailureKind,
    Job,
    JobDone,
    JobFailed,
    JobKind,
    JobListener,
    JobSaid,
)
from tidemill.spark.pod_settings import PodSettings
from tidemill.spark.pod_specs import DIGEST_LABEL, JOB_LABEL, MINE, Attempt, driver_pod
from tidemill.spark.pod_states import (
    Failure,
    PodState,
    Running,
    Succeeded,
    Waiting,
    counted,
    decide,
    ended_ms,
    state_of,
)
from tidemill.spark.spark_application import (
    API_VERSION,
    application_ended_ms,
    application_state,
    spark_application,
)

COMPONENT = "tidemill-launcher"
PAUSE_S = 1.0
"""Pause before a watch that failed is begun again."""

GONE_LOOKS = 30
"""So often, with pauses, a deleted driver is looked for; one on a lost node is never seen to go."""

MAKE_TRIES = 5
"""So often a driver is made whose name is taken by one that is gone by the next look."""

LOOK_S = 5.0
"""A driver that does not get on is looked at so often, whatever a watch says."""

Json: TypeAlias = dict[str, Any]
"""A document of the API."""


class Clock(Protocol):
    """Time of this machine: for deadlines and pauses."""

    def now_ms(self) -> int:
        """Milliseconds of wall time."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


@dataclass(frozen=True, slots=True)
class DriverKind:
    """A kind of object that stands for one driver, and has its name: how it is made and what it
    says.
    """

    api_version: str
    kind: str
    folder: str
    document: Callable[[Attempt, str, PodSettings, BlobPlace, Json | None], Json]
    state_of: Callable[[Json | None, PodSettings], PodState]
    ended_ms: Callable[[Json], int | None]

    def path(self, namespace: str) -> str:
        """Path of the API for its objects."""
        return f"/{self.folder}/{self.api_version}/namespaces/{namespace}/{self.kind.lower()}s"


PODS = DriverKind("v1", "Pod", "api", driver_pod, state_of, ended_ms)
APPLICATIONS = DriverKind(
    API_VERSION, "SparkApplication", "apis",
    spark_application, application_state, application_ended_ms,
)  # fmt: skip
"""Somebody else, the Spark operator, makes the pod of the driver."""


@dataclass(slots=True)
class _Seen:
    """The known state of one driver's object; None once it is gone."""

    uid: str
    pod: Json | None
    began_ms: int | None = None
    """When it was first seen to work."""
    worked_ms: int = 0
    """For so long it had worked when its last state was looked at."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, pod: Json | None) -> None:
        """Another of the same name is not this one."""
        same = pod is not None and pod["metadata"]["uid"] == self.uid
        self.pod = pod if same else None
        self.changed.set()


class PodLauncher:
    """Guarantees of SparkLauncher, by pods: one driver at a time for each job, and no spark-submit.

    A running driver of the very same specification is taken over. One for another specification of
    the same job is ended first. Ended drivers are deleted after `ttl_s`, by `tend_forever`.
    `drivers` makes the objects of a driver: its pod, or an application.
    """

    remote = True

    def __init__(
        self, api: KubernetesApi, blob: Blob, place: BlobPlace, settings: PodSettings,
        clock: Clock, told: JobListener = lambda said: None, drivers: DriverKind = PODS,
    ) -> None:  # fmt: skip
        self._api = api
        self._blob = blob
        self._place = place
        self._settings = settings
        self._clock = clock
        self._told = told
        self.namespace = settings.namespace or own_namespace()
        self.drivers = drivers
        self._path = drivers.path(self.namespace)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    # -- a job -------------------------------------------------------------------------------------

    async def launch(self, job: Job) -> JobDone | JobFailed:
        """Guarantees of SparkLauncher.

        Raises: Unavailable if the API server or Blob is away. A running driver then goes on, and
        the next launch of the same specification finds it.
        """
        self._told(JobSaid(job, "pending"))
        state = "failed"
        try:
            await self._blob.put(Attempt(job, 0).spec_key, job.spec)
            outcome = await self._attempts(job)
            state = "succeeded" if isinstance(outcome, JobDone) else "failed"
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(job))
            raise
        finally:
            self._told(JobSaid(job, state))
        await self._forget(job)
        return outcome

    async def _attempts(self, job: Job) -> JobDone | JobFailed:
        """Drivers of the job, one after the other, until one ends well or nothing is left to
        try.
        """
        try:
            number, pod = await self._find_begun(job)
        except UnknownCollection:
            reason = f"this cluster knows no {self.drivers.kind} of {self.drivers.api_version}"
            return JobFailed(FailureKind.REFUSED, reason, f"kubectl get --raw {self._path}")
        failures: tuple[Failure, ...] = ()
        stays, growth = job.kind is JobKind.SESSION, 1.0
        while True:
            attempt = Attempt(job, number, growth)
            outcome = await self._attempt(attempt, pod)
            if isinstance(outcome, JobDone):
                return outcome
            failures = counted(failures, outcome, stays=stays)
            again = decide(tuple(each.kind for each in failures), self._settings.retries)
            if again is None:
                log = f"kubectl -n {self.namespace} logs {attempt.pod}"
                return JobFailed(
                    outcome.kind, outcome.reason, log, outcome.exit_status, len(failures)
                )
            self._told(JobSaid(job, "retried", outcome.kind))
            await self._clock.sleep(again.pause_s)
            number, growth, pod = number + 1, again.growth, None

    async def _give_up(self, job: Job) -> None:
        """End the drivers of this specification: nobody waits for them any more."""
        labels = f"{JOB_LABEL}={job.name},{DIGEST_LABEL}={job.digest}"
        with suppress(TidemillError):
            for pod in (await self._api.list(self._path, {"labelSelector": labels}))[0]:
                if self.drivers.ended_ms(pod) is None:
                    await self._delete(pod["metadata"]["name"], pod["metadata"]["uid"])
        await self._forget(job)

    async def _find_begun(self, job: Job) -> tuple[int, Json | None]:
        """The number of the next driver, or the driver of this very job that is there already.

        IMPORTANT: all other drivers of the job are gone before the next one is made.
        """
        only = {"labelSelector": f"{JOB_LABEL}={job.name}"}
        found, _ = await self._api.list(self._path, only)
        mine = [pod for pod in found if pod["metadata"]["labels"].get(DIGEST_LABEL) == job.digest]
        number, taken, at_taken = 1, None, 0
        for at, pod in sorted(((_number(pod), pod) for pod in mine), key=itemgetter(0)):
            number = at + 1
            failed = isinstance(self.drivers.state_of(pod, self._settings), Failure)
            ended = self.drivers.ended_ms(pod) is not None
            # A driver that ended well and has no result any more: its launcher has taken it.
            if not (failed or (ended and await self._result(Attempt(job, at)) is None)):
                taken, at_taken = pod, at
        others = [pod for pod in found if pod is not taken and self.drivers.ended_ms(pod) is None]
        await self._end(others, only)
        return (number, None) if taken is None else (at_taken, taken)

    async def _end(self, drivers: Sequence[Json], only: dict[str, str]) -> None:
        """Delete drivers, and see them gone, unless that takes too long."""
        left = {pod["metadata"]["uid"] for pod in drivers}
        for pod in drivers:
            await self._delete(pod["metadata"]["name"], pod["metadata"]["uid"])
        for look in range(GONE_LOOKS if left else 0):
            if look:
                await self._clock.sleep(PAUSE_S)
            found, _ = await self._api.list(self._path, only)
            left &= {p["metadata"]["uid"] for p in found if self.drivers.ended_ms(p) is None}
            if not left:
                return

    async def _attempt(self, attempt: Attempt, pod: Json | None) -> JobDone | Failure:
        """One driver to its end."""
        reason = "Adopted"
        if pod is None:
            made = await self._make(attempt)
            if isinstance(made, Failure):
                return made
            pod, reason = made, "Launched"
        seen = _Seen(pod["metadata"]["uid"], pod)
        await self._tell(attempt, seen, reason, f"{attempt.job.kind} of {attempt.job.of}")
        ended = await self._follow(attempt, seen)
        if isinstance(ended, Succeeded):
            result = await self._result(attempt)
            if result is not None:
                await self._tell(attempt, seen, "Succeeded", "the result has been taken")
                return JobDone(result)
            ended = Failure(FailureKind.DRIVER, "the driver ended well and left no result")
        await self._tell(attempt, seen, str(ended.kind), ended.reason, warning=True)
        return replace(ended, worked_ms=seen.worked_ms)

    async def _make(self, attempt: Attempt) -> Json | Failure:
        """The new object of a driver; a failure if the API server refuses it."""
        body = self.drivers.document(
            attempt, self.namespace, self._settings, self._place, await self._owner()
        )
        for _ in range(MAKE_TRIES):
            try:
                return await self._api.call("POST", self._path, body)
            except AlreadyUsed:
                # Somebody made it since we looked, or we did and never heard. It may be gone.
                with suppress(UnknownCollection):
                    return await self._api.call("GET", f"{self._path}/{attempt.pod}")
            except UsageError as error:
                crowded = re.search("exceeded quota|resource quota", str(error))
                kind = FailureKind.SCHEDULING if crowded else FailureKind.REFUSED
                return Failure(kind, str(error))
        raise Unavailable(f"the driver {attempt.pod} is there when it is made, and gone at a look")

    async def _owner(self) -> Json | None:
        """A reference to the pod that drivers go with; none if it is not here."""
        name = self._settings.owner
        if not name:
            return None
        try:
            pod = await self._api.call("GET", f"{PODS.path(self.namespace)}/{name}")
        except UnknownCollection:
            return None
        return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}

    async def _follow(self, attempt: Attempt, seen: _Seen) -> Succeeded | Failure:
        """The end of the driver; a driver that does not begin in time is deleted."""
        following = asyncio.create_task(self._follow_forever(attempt.pod, seen))
        try:
            while True:
                seen.changed.clear()
                state = self.drivers.state_of(seen.pod, self._settings)
                now_ms = self._clock.now_ms()
                if seen.began_ms is not None:
                    seen.worked_ms = now_ms - seen.began_ms
                match state:
                    case Succeeded():
                        return state
                    case Failure():
                        if seen.pod is not None and self.drivers.ended_ms(seen.pod) is None:
                            await self._delete(attempt.pod, seen.uid)
                        return state
                    case Running() if seen.began_ms is None:
                        seen.began_ms = now_ms
                        self._told(JobSaid(attempt.job, "running"))
                        await self._tell(attempt, seen, "Started", "the driver works")
                    case Waiting() if now_ms >= state.until_ms:
                        await self._delete(attempt.pod, seen.uid)
                        return state.failure
                await first_of((seen.changed.wait(), self._clock.sleep(LOOK_S)))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    # -- one pod -----------------------------------------------------------------------------------

    async def _follow_forever(self, name: str, seen: _Seen) -> None:
        """Keep what is known of a pod true: list, watch, and list again whenever that is needed."""
        only = {"fieldSelector": f"metadata.name={name}"}
        version: str | None = None
        while True:
            try:
                if version is None:
                    found, version = await self._api.list(self._path, only)
                    seen.take(found[0] if found else None)
                version = await self._watch(version, only, seen)
            except Expired:
                version = None
            except TidemillError:
                version = None
                await self._clock.sleep(PAUSE_S)

    async def _watch(self, version: str, only: dict[str, str], seen: _Seen) -> str:
        """Follow until the server ends the watch; the version to go on from."""
        watch = self._api.watch(self._path, version, self._settings.watch_s, only)
        async for what, pod in watch:
            version = pod["metadata"]["resourceVersion"]
            if what != "BOOKMARK":
                seen.take(None if what == "DELETED" else pod)
        return version

    async def _delete(self, name: str, uid: str) -> None:
        """Delete this pod, and no other of its name; nothing if it is gone."""
        body: Json = {
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
            "gracePeriodSeconds": 5,
        }  # fmt: skip
        with suppress(UnknownCollection, Fenced, AlreadyUsed):
            await self._api.call("DELETE", f"{self._path}/{name}", body)

    async def _tell(
        self, attempt: Attempt, seen: _Seen, reason: str, message: str, *, warning: bool = False
    ) -> None:
        """An event at the driver's pod; that it cannot be told stops nothing."""
        about = About(
            self.drivers.api_version, self.drivers.kind, self.namespace, attempt.pod, seen.uid
        )
        with suppress(TidemillError):
            await tell(
                self._api, COMPONENT, about, self._clock.now_ms(), reason, message, warning=warning
            )

    # -- what is left ------------------------------------------------------------------------------

    async def _result(self, attempt: Attempt) -> bytes | None:
        return await self._blob.get(attempt.result_key)

    async def _forget(self, job: Job) -> None:
        """Delete the objects of this specification, and what others have left for longer than a job
        takes.
        """
        before_ms = self._clock.now_ms() - int(self._settings.deadline_s * 1000)
        with suppress(TidemillError):
            for entry in await self._blob.list(f"{Attempt(job, 0).folder}/"):
                if job.digest in entry.key or entry.modified_ms < before_ms:
                    await self._blob.delete(entry.key)

    async def tend_forever(self) -> None:
        """Delete the drivers that have ended, some time after they have, until cancelled."""
        while True:
            with suppress(Exception):  # what could not be cleared away now is later
                await self.tend()
            await self._clock.sleep(min(60.0, max(1.0, self._settings.ttl_s / 2)))

    async def tend(self) -> int:
        """Delete the drivers that ended longer ago than `ttl_s`; how many."""
        found, _ = await self._api.list(self._path, {"labelSelector": MINE})
        before_ms = self._clock.now_ms() - int(self._settings.ttl_s * 1000)
        deleted = 0
        for pod in found:
            ended = self.drivers.ended_ms(pod)
            if ended is not None and ended <= before_ms:
                await self._delete(pod["metadata"]["name"], pod["metadata"]["uid"])
                deleted += 1
        return deleted


def _number(driver: Json) -> int:
    """The number of a driver among those of its specification."""
    return int(driver["metadata"]["name"].rpartition("-")[2])
