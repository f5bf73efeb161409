"""Jobs in pods, and as applications, against an API server over HTTP, whose node and answers go
wrong one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from kubernetes.aio.client.configuration import Configuration

from tidemill.errors import Unavailable
from tidemill.kubernetes.api import KubernetesApi
from tidemill.runtime.clock import SystemClock
from tidemill.shard.stores import BlobPlace
from tidemill.shard.stores_memory import MemoryBlob
from tidemill.spark.board import JobBoard
from tidemill.spark.launcher import FailureKind, Job, JobDone, JobFailed, JobKind
from tidemill.spark.pod_launcher import (
    APPLICATIONS,
    MAKE_TRIES,
    PODS,
    DriverKind,
    PodLauncher,
)
from tidemill.spark.pod_settings import PodSettings, Retries
from tidemill.spark.pod_specs import Attempt, PodJob, driver_pod
from tidemill.spark.pod_states import STEADY_MS
from tidemill.testkit.kubernetes_api import ApiServer, Fault, api_server
from tidemill.testkit.pod_node import (
    Fate,
    PodNode,
    SparkOperator,
    driver_vanishes,
    evict,
    fails,
    no_image,
    no_room,
    out_of_memory,
    runs_on,
    submission_fails,
    succeeds,
    vanishes,
)

JOB = Job(JobKind.BACKFILL, "flights", "jobs.backfill", b"what to do")
FOR_EVER_S = 1e9
QUICK = PodSettings(
    namespace="default",
    image_wait_s=FOR_EVER_S, scheduling_wait_s=FOR_EVER_S, start_wait_s=FOR_EVER_S,
    retries=Retries(pause_s=0.01, pause_s_max=0.02),
)  # fmt: skip
WAIT_S = 240.0
POD_PATH = "/api/v1/namespaces/default/pods"
APPLICATION_PATH = "/apis/sparkoperator.k8s.io/v1beta2/namespaces/default/sparkapplications"


@dataclass
class Site:
    """A cluster, and a launcher in it."""

    api: ApiServer
    blob: MemoryBlob
    node: PodNode
    launcher: PodLauncher
    board: JobBoard = field(default_factory=JobBoard)

    def told(self) -> list[tuple[str, str]]:
        """Reasons and messages of all events, in order."""
        return [(each["reason"], each["message"]) for each in self.api.listed("events")]

    def memory(self) -> list[int]:
        """Memory that each driver was allowed, in MiB."""
        limits = [
            pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in self.node.pods
        ]
        return [int(each.removesuffix("Mi")) for each in limits]


Fates = Callable[[MemoryBlob], Sequence[Fate]]


@asynccontextmanager
async def site(
    fates: Fates,
    settings: PodSettings = QUICK,
    drivers: DriverKind = PODS,
    clock: SystemClock | None = None,
) -> AsyncIterator[Site]:
    async with api_server() as api:
        configuration = Configuration()
        configuration.host = api.address
        blob, board = MemoryBlob(), JobBoard()
        launcher = PodLauncher(
            KubernetesApi(configuration, "tests"), blob, BlobPlace("s3://bucket"), settings,
            clock or SystemClock(), board.record, drivers,
        )  # fmt: skip
        try:
            node = PodNode if drivers is PODS else SparkOperator
            yield Site(api, blob, node(api, fates(blob)), launcher, board)
        finally:
            await launcher.close()


def worked(blob: MemoryBlob) -> Fate:
    """A driver that does as it is told: the result is the specification backwards."""

    async def work(pod: dict[str, Any]) -> None:
        of = pod["spec"]
        (argument,) = of["arguments"] if "arguments" in of else of["containers"][0]["args"]
        told = msgspec.json.decode(argument, type=PodJob)
        spec = await blob.get(told.spec)
        assert spec is not None
        await blob.put(told.result, spec[::-1])

    return succeeds(work)


async def until(holds: Callable[[], Any], what: str) -> None:
    for _ in range(int(WAIT_S / 0.02)):
        if holds():
            return
        await asyncio.sleep(0.02)
    pytest.fail(what)


async def test_a_job_gives_its_result_and_leaves_no_objects() -> None:
    async with site(lambda blob: [worked(blob)]) as here:
        assert await here.launcher.launch(JOB) == JobDone(b"od ot tahw")
        assert await here.blob.list("") == []
        reasons = [reason for reason, _ in here.told()]
        assert [each for each in reasons if each != "Started"] == ["Launched", "Succeeded"]
        assert here.board.jobs()[JobKind.BACKFILL, "succeeded"] == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (vanishes, FailureKind.VANISHED),
        (evict, FailureKind.EVICTED),
        (out_of_memory, FailureKind.MEMORY),
        (fails(52), FailureKind.MEMORY),
        (fails(1), FailureKind.DRIVER),
    ],
)
async def test_a_driver_that_ended_badly_is_followed_by_another(
    fault: Fate, kind: FailureKind
) -> None:
    async with site(lambda blob: [fault, worked(blob)]) as here:
        assert await here.launcher.launch(JOB) == JobDone(b"od ot tahw")
        await here.node.settle()
        assert here.node.met == [fault.__name__, "succeed"]
        assert str(kind) in [reason for reason, _ in here.told()]
        assert here.board.retries == {kind: 1}
        grown = here.memory()[1] > here.memory()[0]
        assert grown == (kind == FailureKind.MEMORY)


@pytest.mark.parametrize(
    ("fault", "kind", "waits"),
    [
        (no_image, FailureKind.IMAGE, {"image_wait_s": 0.0}),
        (no_room, FailureKind.SCHEDULING, {"scheduling_wait_s": 0.0}),
    ],
)
async def test_a_driver_that_does_not_begin_is_deleted_and_told_of(
    fault: Fate, kind: FailureKind, waits: dict[str, float]
) -> None:
    settings = msgspec.structs.replace(QUICK, **waits, start_wait_s=FOR_EVER_S)
    if kind is FailureKind.SCHEDULING:
        # A pod whose fate has not been met has no node either: it is to wait for that.
        settings = msgspec.structs.replace(settings, retries=Retries(scheduling=1, pause_s=0.01))
    async with site(lambda blob: [fault] * 4, settings) as here:
        outcome = await here.launcher.launch(JOB)
        assert isinstance(outcome, JobFailed)
        assert (outcome.kind, outcome.attempts) == (kind, 2)
        assert here.api.names("pods") == []
        assert str(kind) in [reason for reason, _ in here.told()]
        assert here.board.jobs()[JobKind.BACKFILL, "failed"] == 1


async def test_the_same_failure_again_and_again_ends_the_job_with_its_reason() -> None:
    async with site(lambda blob: [fails(1, "line\nValueError: not this")] * 5) as here:
        outcome = await here.launcher.launch(JOB)
        assert isinstance(outcome, JobFailed)
        assert (outcome.kind, outcome.exit_status) == (FailureKind.DRIVER, 1)
        assert outcome.attempts == len(here.node.pods) == 2
        assert "ValueError: not this" in str(outcome)
        assert outcome.log.endswith(here.node.pods[-1]["metadata"]["name"])


class Standing(SystemClock):
    """A clock whose wall time begins with 0 and stands still until it is moved."""

    ms = 0

    def now_ms(self) -> int:
        return self.ms


SESSION = Job(JobKind.SESSION, "compute-0", "jobs.session", b"windows")
ONCE = msgspec.structs.replace(
    QUICK, retries=Retries(infrastructure=1, driver=1, pause_s=0.01, pause_s_max=0.02)
)


def steady(clock: Standing, code: int) -> Fate:
    """It is seen to work, and after a minute of that it fails; with 0 it is gone."""

    async def work(node: PodNode, name: str) -> None:
        await node.say_running(name)

        def seen() -> bool:
            told = node.api.listed("events")
            return (name, "Started") in [(e["involvedObject"]["name"], e["reason"]) for e in told]

        await until(seen, f"{name} is not seen to work")
        clock.ms += STEADY_MS
        if code:
            await node.say_ended(name, code, "Error", "ValueError: no")
        else:
            await node.api.delete("pods", name)

    return work


async def test_a_driver_that_stays_and_fails_each_time_is_given_up() -> None:
    """Its minutes of work do not help the job: whoever asks is told of the last failure."""
    clock = Standing()
    fails_late = steady(clock, 1)
    async with site(lambda blob: [fails_late] * 2 + [worked(blob)], ONCE, clock=clock) as here:
        outcome = await here.launcher.launch(SESSION)
        assert isinstance(outcome, JobFailed)
        assert (outcome.kind, outcome.attempts) == (FailureKind.DRIVER, 2)


async def test_a_driver_that_stays_and_is_lost_after_a_minute_is_begun_again() -> None:
    """The clock may say 0 when it begins."""
    clock = Standing()

    def fates(blob: MemoryBlob) -> list[Fate]:
        return [vanishes, steady(clock, 0), steady(clock, 0), worked(blob)]

    async with site(fates, ONCE, clock=clock) as here:
        assert isinstance(await here.launcher.launch(SESSION), JobDone)


async def test_the_time_to_tell_of_a_failure_is_no_work_of_a_driver() -> None:
    clock = Standing()
    async with site(lambda blob: [vanishes] * 2 + [worked(blob)], ONCE, clock=clock) as here:
        make = here.api.created

        def slow(plural: str, document: dict[str, Any]) -> None:
            if document.get("reason") == FailureKind.VANISHED:
                clock.ms += STEADY_MS
            make(plural, document)

        here.api.created = slow
        outcome = await here.launcher.launch(SESSION)
        assert clock.ms == 2 * STEADY_MS
        assert isinstance(outcome, JobFailed)
        assert outcome.attempts == 2


async def test_what_is_refused_is_not_tried_again() -> None:
    async with site(lambda blob: [fails(2, "refused: no such column")]) as here:
        outcome = await here.launcher.launch(JOB)
        assert isinstance(outcome, JobFailed)
        assert (outcome.kind, outcome.attempts) == (FailureKind.REFUSED, 1)
    async with site(lambda blob: []) as here:
        here.api.faults.append(Fault(f"POST {POD_PATH}", 403, "Forbidden", "pods is forbidden"))
        outcome = await here.launcher.launch(JOB)
        assert isinstance(outcome, JobFailed)
        assert (outcome.kind, outcome.reason.endswith("pods is forbidden")) == ("Refused", True)
        assert len(here.api.happened) == 1


async def test_a_quota_is_waited_for() -> None:
    async with site(lambda blob: [worked(blob)]) as here:
        here.api.faults.append(Fault(f"POST {POD_PATH}", 403, "Forbidden", "exceeded quota: small"))
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        assert here.board.retries == {FailureKind.SCHEDULING: 1}
        assert len(here.api.happened) == 1


async def test_an_answer_that_was_lost_makes_no_second_driver() -> None:
    async with site(lambda blob: [worked(blob)]) as here:
        here.api.faults.append(Fault(f"POST {POD_PATH}", 500, "InternalError", after=True))
        with pytest.raises(Unavailable):
            await here.launcher.launch(JOB)
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        assert len(here.node.pods) == len(here.api.happened) == 1
        assert "Adopted" in [reason for reason, _ in here.told()]


async def test_a_driver_that_somebody_made_meanwhile_is_taken_over() -> None:
    """409: between the look and the creation another launcher was there."""
    async with site(lambda blob: [worked(blob)]) as here:
        here.api.faults.append(
            Fault(f"POST {POD_PATH}", 409, "AlreadyExists", "it already exists", after=True)
        )
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        assert len(here.node.pods) == len(here.api.happened) == 1


async def test_a_driver_that_is_there_when_it_is_made_and_gone_at_the_look_is_made_again() -> None:
    """409, and then 404: who made it meanwhile, or tends what has ended, has deleted it since."""
    async with site(lambda blob: [worked(blob)]) as here:
        here.api.faults.append(Fault(f"POST {POD_PATH}", 409, "AlreadyExists", "it already exists"))
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        assert len(here.node.pods) == len(here.api.happened) == 1
        asked = [each for each in here.api.requests if each.startswith(f"GET {POD_PATH}/")]
        assert asked  # it was looked for in vain


async def test_a_driver_that_is_there_again_and_again_and_never_seen_is_given_up() -> None:
    async with site(lambda blob: []) as here:
        here.api.faults += [
            Fault(f"POST {POD_PATH}", 409, "AlreadyExists", "it already exists")
        ] * MAKE_TRIES
        with pytest.raises(Unavailable, match="gone at a look"):
            await here.launcher.launch(JOB)
        assert len(here.api.happened) == MAKE_TRIES


def a_pod(job: Job, number: int) -> dict[str, Any]:
    return driver_pod(Attempt(job, number), "default", QUICK, BlobPlace("s3://bucket"), None)


async def test_of_two_drivers_of_one_job_one_is_taken_over_and_the_other_ended() -> None:
    """Another launcher began the second one; or the second one failed, and the first one works."""
    for second_fails in (False, True):
        async with site(lambda blob: []) as here:
            for number in (1, 2):
                await here.api.put("pods", a_pod(JOB, number))
                await here.node.say_running(Attempt(JOB, number).pod)
            if second_fails:
                await here.node.say_ended(Attempt(JOB, 2).pod, 1, "Error")
            stays, goes = (1, 0) if second_fails else (2, 1)
            launched = asyncio.create_task(here.launcher.launch(JOB))
            await until(lambda: here.board.jobs()[JobKind.BACKFILL, "running"], "none is taken")
            assert Attempt(JOB, goes).pod not in here.api.names("pods")
            await here.blob.put(Attempt(JOB, stays).result_key, b"found")
            await here.node.say_ended(Attempt(JOB, stays).pod, 0, "Completed")
            assert await asyncio.wait_for(launched, WAIT_S) == JobDone(b"found")
            made = [each for each in here.api.requests if each == f"POST {POD_PATH}"]
            assert not made


async def test_a_driver_that_goes_slowly_is_gone_before_the_next_one_is_made() -> None:
    """A deleted pod works on for the seconds that it is given."""
    older = Job(JOB.kind, JOB.of, JOB.module, b"something else")
    async with site(lambda blob: [worked(blob)]) as here:
        slow = a_pod(older, 1)
        slow["metadata"]["finalizers"] = ["tests/slow"]
        await here.api.put("pods", slow)
        name = slow["metadata"]["name"]
        await here.node.say_running(name)
        launched = asyncio.create_task(here.launcher.launch(JOB))
        lists = lambda: sum(  # noqa: E731
            each == f"GET {POD_PATH}" for each in here.api.requests
        )
        await until(lambda: lists() > 2, "it is not waited for")
        assert here.api.names("pods") == [name]  # it is there, and no other
        await here.api.put("pods", {"metadata": {"name": name, "finalizers": []}})
        assert isinstance(await asyncio.wait_for(launched, WAIT_S), JobDone)


async def test_a_driver_that_never_goes_is_not_waited_for_for_ever() -> None:
    """Its node is lost: nobody sees it go."""

    class Hasty(SystemClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(0.0)

    older = Job(JOB.kind, JOB.of, JOB.module, b"something else")
    async with site(lambda blob: [worked(blob)], clock=Hasty()) as here:
        slow = a_pod(older, 1)
        slow["metadata"]["finalizers"] = ["tests/slow"]
        await here.api.put("pods", slow)
        await here.node.say_running(slow["metadata"]["name"])
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        assert slow["metadata"]["name"] in here.api.names("pods")


async def test_a_driver_for_another_specification_is_ended_first() -> None:
    # The launcher of the first one begins it again at once, before the new one or after it.
    async with site(lambda blob: [runs_on, worked(blob), worked(blob)]) as here:
        older = asyncio.create_task(here.launcher.launch(JOB))
        await until(lambda: here.node.met, "the first driver does not run")
        newer = Job(JOB.kind, JOB.of, JOB.module, b"something else")
        assert await here.launcher.launch(newer) == JobDone(b"esle gnihtemos")
        requests = [each for each in here.api.requests if POD_PATH in each]
        first, second = (pod["metadata"]["name"] for pod in here.node.pods[:2])
        deleted = requests.index(f"DELETE {POD_PATH}/{first}")
        made = [at for at, each in enumerate(requests) if each == f"POST {POD_PATH}"]
        assert deleted < made[1]
        assert first != second
        older.cancel()
        await asyncio.gather(older, return_exceptions=True)


@pytest.mark.parametrize("how", ["cut", "forgotten", "away"])
async def test_the_end_of_a_driver_is_seen_although_a_watch_broke(how: str) -> None:
    async with site(lambda blob: [runs_on]) as here:
        launched = asyncio.create_task(here.launcher.launch(JOB))
        await until(lambda: here.board.jobs()[JobKind.BACKFILL, "running"], "it does not run")
        name = here.node.pods[0]["metadata"]["name"]
        lists = lambda: sum(  # noqa: E731
            each == f"GET {POD_PATH}" for each in here.api.requests
        )
        before = lists()
        if how == "away":
            here.api.faults += [Fault(f"GET {POD_PATH}?", 503, "ServiceUnavailable")] * 2
        await here.blob.put(f"job-{JOB.name}/{name}.result", b"found")
        if how == "forgotten":
            await here.api.forget_history()
        else:
            await here.api.cut_watches()
        await until(lambda: lists() > before, "nothing was asked after the watch broke")
        await here.node.say_ended(name, 0, "Completed")
        assert await asyncio.wait_for(launched, WAIT_S) == JobDone(b"found")
        assert len(here.api.happened) == (2 if how == "away" else 0)


async def test_a_job_that_is_given_up_takes_its_driver_with_it() -> None:
    async with site(lambda blob: [runs_on]) as here:
        launched = asyncio.create_task(here.launcher.launch(JOB))
        await until(lambda: here.node.met, "it does not run")
        launched.cancel()
        with pytest.raises(asyncio.CancelledError):
            await launched
        assert here.api.names("pods") == []
        assert await here.blob.list("") == []


async def test_drivers_that_have_ended_go_after_a_while_and_others_stay() -> None:
    settings = msgspec.structs.replace(QUICK, ttl_s=3600.0)
    async with site(lambda blob: [fails(1), worked(blob), runs_on], settings) as here:
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        other = asyncio.create_task(
            here.launcher.launch(Job(JobKind.BACKFILL, "weather", "jobs.backfill", b""))
        )
        await until(lambda: len(here.node.met) == 3, "the third does not run")
        assert await here.launcher.tend() == 2  # they ended on the first day of the year
        assert here.api.names("pods") == [here.node.pods[2]["metadata"]["name"]]
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)


async def test_a_driver_belongs_to_the_pod_that_launched_it() -> None:
    settings = msgspec.structs.replace(QUICK, owner="tidemill-0")
    async with site(lambda blob: [worked(blob), worked(blob)], settings) as here:
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        await here.api.put("pods", {"metadata": {"name": "tidemill-0"}, "spec": {}})
        other = Job(JobKind.BACKFILL, "weather", "jobs.backfill", b"else")
        assert isinstance(await here.launcher.launch(other), JobDone)
        owners = [pod["metadata"].get("ownerReferences") for pod in here.node.pods]
        assert owners[0] is None
        assert [each["name"] for each in owners[1]] == ["tidemill-0"]


# -- as applications of a Spark operator -----------------------------------------------------------


async def test_an_application_gives_its_result_and_no_pod_is_made_here() -> None:
    settings = msgspec.structs.replace(QUICK, owner="tidemill-0")
    async with site(lambda blob: [worked(blob)], settings, APPLICATIONS) as here:
        await here.api.put("pods", {"metadata": {"name": "tidemill-0"}, "spec": {}})
        assert await here.launcher.launch(JOB) == JobDone(b"od ot tahw")
        assert await here.blob.list("") == []
        assert here.node.met == ["succeed"]
        assert here.api.names("pods") == ["tidemill-0"]
        (made,) = here.node.pods
        assert made["kind"] == "SparkApplication"
        assert [each["name"] for each in made["metadata"]["ownerReferences"]] == ["tidemill-0"]
        about = {each["involvedObject"]["kind"] for each in here.api.listed("events")}
        assert about == {"SparkApplication"}
        assert [each for each, _ in here.told() if each != "Started"] == ["Launched", "Succeeded"]


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (fails(1), FailureKind.DRIVER, "ExitCode: 1"),
        (out_of_memory, FailureKind.MEMORY, "OOMKilled"),
        (vanishes, FailureKind.VANISHED, "gone"),
        (driver_vanishes, FailureKind.VANISHED, "driver pod not found"),
        (submission_fails, FailureKind.START, "connection refused"),
    ],
)
async def test_an_application_that_ended_badly_is_followed_by_another(
    fault: Fate, kind: FailureKind, told: str
) -> None:
    async with site(lambda blob: [fault, worked(blob)], QUICK, APPLICATIONS) as here:
        assert await here.launcher.launch(JOB) == JobDone(b"od ot tahw")
        await here.node.settle()
        assert here.node.met == [fault.__name__, "succeed"]
        (said,) = [message for reason, message in here.told() if reason == str(kind)]
        assert told in said
        assert here.board.retries == {kind: 1}
        first, second = (each["spec"]["executor"]["memory"] for each in here.node.pods)
        assert (first != second) == (kind == FailureKind.MEMORY)


async def test_an_application_that_cannot_be_submitted_again_and_again_ends_the_job() -> None:
    settings = msgspec.structs.replace(QUICK, retries=Retries(infrastructure=1, pause_s=0.01))
    async with site(lambda blob: [submission_fails] * 5, settings, APPLICATIONS) as here:
        outcome = await here.launcher.launch(JOB)
        assert isinstance(outcome, JobFailed)
        assert (outcome.kind, outcome.attempts) == (FailureKind.START, 2)
        await here.node.settle()
        assert here.node.met == ["submission_fails"] * 2


async def test_an_application_that_no_operator_takes_up_is_deleted() -> None:
    settings = msgspec.structs.replace(
        QUICK, start_wait_s=0.0, retries=Retries(infrastructure=1, pause_s=0.01)
    )
    async with site(lambda blob: [], settings, APPLICATIONS) as here:
        outcome = await here.launcher.launch(JOB)
        assert isinstance(outcome, JobFailed)
        assert (outcome.kind, outcome.attempts) == (FailureKind.START, 2)
        assert len(here.node.pods) == 2
        assert here.api.names("sparkapplications") == []


async def test_a_cluster_without_the_operator_is_said_to_have_none() -> None:
    async with site(lambda blob: [], QUICK, APPLICATIONS) as here:
        here.api.faults.append(Fault(f"GET {APPLICATION_PATH}", 404, "NotFound", "page not found"))
        outcome = await here.launcher.launch(JOB)
        assert isinstance(outcome, JobFailed)
        assert outcome.kind is FailureKind.REFUSED
        assert "knows no SparkApplication" in outcome.reason
        assert len(here.api.happened) == 1


async def test_a_quota_of_the_operator_is_waited_for() -> None:
    told = 'failed to validate resource quota "default/small"'
    async with site(lambda blob: [worked(blob)], QUICK, APPLICATIONS) as here:
        here.api.faults.append(Fault(f"POST {APPLICATION_PATH}", 403, "Forbidden", told))
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        assert here.board.retries == {FailureKind.SCHEDULING: 1}
        assert len(here.api.happened) == 1


async def test_an_application_goes_when_the_job_is_given_up_or_has_long_ended() -> None:
    async with site(lambda blob: [fails(1), worked(blob), runs_on], QUICK, APPLICATIONS) as here:
        assert isinstance(await here.launcher.launch(JOB), JobDone)
        other = Job(JobKind.BACKFILL, "weather", "jobs.backfill", b"")
        launched = asyncio.create_task(here.launcher.launch(other))
        await until(lambda: len(here.node.met) == 3, "the third does not run")
        assert await here.launcher.tend() == 2
        assert here.api.names("sparkapplications") == [here.node.pods[2]["metadata"]["name"]]
        launched.cancel()
        await asyncio.gather(launched, return_exceptions=True)
        assert here.api.names("sparkapplications") == []
