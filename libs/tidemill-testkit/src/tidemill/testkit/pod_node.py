"""A node for tests: each driver pod that a launcher makes meets the next of some fates.

    async with api_server() as api:
        node = PodNode(api, [out_of_memory, succeeds(work)])

A fate is a function from (node, pod) that sets the pod's status as a kubelet would. `met` lists the
fates that pods have met, so that a test can say that its fault has happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from tidemill.testkit.kubernetes_api import ApiServer, Json

WHEN = "2026-01-01T00:00:00Z"
Fate: TypeAlias = Callable[["PodNode", str], Awaitable[None]]
Work: TypeAlias = Callable[[Json], Awaitable[None]]
"""The work of a driver, given its pod."""


class PodNode:
    """Runs what pods would, one fate for each new pod; pods beyond the fates wait for ever."""

    plural = "pods"

    def __init__(self, api: ApiServer, fates: Iterable[Fate]) -> None:
        self.api = api
        self.met: list[str] = []
        self.pods: list[Json] = []
        self._fates = iter(fates)
        self._tasks: set[asyncio.Task[None]] = set()
        api.created = self._created

    def _created(self, plural: str, document: Json) -> None:
        if plural != self.plural:
            return
        self.pods.append(document)
        fate = next(self._fates, None)
        if fate is not None:
            task = asyncio.create_task(self._meet(fate, document["metadata"]["name"]))
            self._tasks.add(task)

    async def _meet(self, fate: Fate, name: str) -> None:
        await fate(self, name)
        self.met.append(fate.__name__)

    async def settle(self) -> None:
        """Wait for all fates; raises what went wrong in one."""
        await asyncio.gather(*self._tasks)

    async def say_running(self, name: str) -> None:
        """Its container runs."""
        state = {"running": {"startedAt": WHEN}}
        await self.api.say("pods", name, {**_placed("Running"), **_container(state)})

    async def say_ended(self, name: str, code: int, reason: str, message: str = "") -> None:
        """Its container has ended."""
        told = {"exitCode": code, "reason": reason, "message": message, "finishedAt": WHEN}
        phase = "Succeeded" if code == 0 else "Failed"
        await self.api.say("pods", name, {**_placed(phase), **_container({"terminated": told})})


class SparkOperator(PodNode):
    """Tells of applications as the Spark operator does, and gives their drivers the fates."""

    plural = "sparkapplications"

    async def state(self, name: str, state: str, message: str = "", attempts: int = 1) -> None:
        """Set the state of an application, after so many runs of a driver."""
        told = {"state": state, "errorMessage": message} if message else {"state": state}
        status: Json = {
            "applicationState": told, "driverInfo": {"podName": name}, "submissionAttempts": 1,
            "lastSubmissionAttemptTime": WHEN,
        }  # fmt: skip
        if attempts:
            status["executionAttempts"] = attempts
        if state in ("FAILED", "COMPLETED", "FAILING", "SUCCEEDING"):
            status["terminationTime"] = WHEN
        await self.api.say(self.plural, name, status)

    async def say_running(self, name: str) -> None:
        """Its driver runs."""
        await self.state(name, "SUBMITTED")
        await self.state(name, "RUNNING")

    async def say_ended(self, name: str, code: int, reason: str, message: str = "") -> None:
        """Its driver has ended; what the container said is not passed on."""
        if code == 0:
            await self.state(name, "SUCCEEDING")
            await self.state(name, "COMPLETED")
            return
        told = f"driver container failed with ExitCode: {code}, Reason: {reason}"
        await self.state(name, "FAILING", told)
        await self.state(name, "FAILED", told)


def _placed(phase: str) -> Json:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": WHEN}
    return {"phase": phase, "conditions": [scheduled]}


def _container(state: Json) -> Json:
    return {"containerStatuses": [{"name": "driver", "state": state}]}


def succeeds(work: Work) -> Fate:
    """It runs, does its work and ends well."""

    async def succeed(node: PodNode, name: str) -> None:
        await node.say_running(name)
        await work(node.api.get(node.plural, "default", name))
        await node.say_ended(name, 0, "Completed")

    return succeed


def fails(code: int, message: str = "ValueError: no") -> Fate:
    """It runs and ends with an exit status."""

    async def fail(node: PodNode, name: str) -> None:
        await node.say_running(name)
        await node.say_ended(name, code, "Error", message)

    return fail


async def out_of_memory(node: PodNode, name: str) -> None:
    """The kernel ends it for its memory."""
    await node.say_running(name)
    await node.say_ended(name, 137, "OOMKilled")


async def vanishes(node: PodNode, name: str) -> None:
    """It runs, and then it is gone, as after a node was removed by force."""
    await node.say_running(name)
    await node.api.delete(node.plural, name)


async def driver_vanishes(node: PodNode, name: str) -> None:
    """The pod of its driver is gone, and the operator says so."""
    assert isinstance(node, SparkOperator)
    await node.say_running(name)
    await node.state(name, "FAILING", "driver pod not found")
    await node.state(name, "FAILED", "driver pod not found")


async def submission_fails(node: PodNode, name: str) -> None:
    """The operator cannot make its driver."""
    assert isinstance(node, SparkOperator)
    told = "failed to submit spark application: failed to run spark-submit: connection refused"
    await node.state(name, "SUBMISSION_FAILED", told, attempts=0)
    await node.state(name, "FAILED", told, attempts=0)


async def evict(node: PodNode, name: str) -> None:
    """The kubelet puts it out for want of disk."""
    await node.say_running(name)
    told = {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    await node.api.say("pods", name, {"phase": "Failed", **told})


async def no_image(node: PodNode, name: str) -> None:
    """Its image cannot be had."""
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    await node.api.say("pods", name, {**_placed("Pending"), **_container(waiting)})


async def no_room(node: PodNode, name: str) -> None:
    """No node has room for it."""
    told = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient memory.",
    }  # fmt: skip
    await node.api.say("pods", name, {"phase": "Pending", "conditions": [told]})


async def runs_on(node: PodNode, name: str) -> None:
    """It runs and does not end."""
    await node.say_running(name)
