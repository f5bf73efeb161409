"""The operator against an API server over HTTP, and against a running Tidemill."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from tidemill.errors import Fenced
from tidemill.kubernetes.api import KubernetesApi
from tidemill.rpc.client import AsyncClient
from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.runtime.rng import new_rng
from tidemill.testkit.catalog_memory import MemoryCatalog
from tidemill.testkit.kubernetes_api import ApiServer, Fault, api_server
from tidemill.testkit.up import up_process
from tidemill_operator.driver import Operator
from tidemill_operator.election import Election
from tidemill_operator.objects import ABANDON, FINALIZER, PLURALS
from tidemill_operator.settings import OperatorSettings
from tidemill_operator.tidemill_side import Tidemill
from tidemill_operator.watching import Mirror

COLUMNS = [{"name": "n", "type": "int"}]
SOURCE = {"metadata": {"name": "flights"}, "spec": {"http": {}, "columns": COLUMNS}}
VIEW = {
    "metadata": {"name": "late"},
    "spec": {"program": "late(n) := flight(n);", "inputs": {"flight": "flights"}},
}
ARRANGEMENT = {"metadata": {"name": "by-n"}, "spec": {"collection": "flights", "key": ["n"]}}
WAIT_S = 240.0


def connected(api: ApiServer) -> KubernetesApi:
    configuration = Configuration()
    configuration.host = api.address
    return KubernetesApi(configuration, "tidemill-operator")


@asynccontextmanager
async def operating(
    api: ApiServer, tidemill: Tidemill, allowed: Callable[[], bool] = lambda: True
) -> AsyncIterator[Operator]:
    """An operator that works on the objects of all namespaces."""
    kubernetes = connected(api)
    settings = OperatorSettings(resync_s=0.2, status_interval_s=0.0)
    mirrors: list[Mirror] = []
    operator = Operator(
        kubernetes, lambda _: tidemill, lambda: [o for m in mirrors for o in m.objects.values()],
        allowed, SystemClock(), settings,
    )  # fmt: skip
    mirrors += [
        Mirror(kubernetes, kind, "", SystemClock(), new_rng(7), 300, operator.wake)
        for kind in PLURALS
    ]
    tasks = [asyncio.create_task(mirror.follow_forever()) for mirror in mirrors]
    tasks.append(asyncio.create_task(operator.reconcile_forever()))
    try:
        yield operator
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await kubernetes.close()


async def until(holds: Callable[[], Any], what: str) -> None:
    """Wait until something holds; fails with `what` if it never does."""
    for _ in range(int(WAIT_S / 0.02)):
        if holds():
            return
        await asyncio.sleep(0.02)
    pytest.fail(what)


def condition(document: dict[str, Any], kind: str) -> tuple[str, str]:
    found = [c for c in document.get("status", {}).get("conditions", ()) if c["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


async def test_a_view_before_its_source_comes_to_be_when_the_source_does() -> None:
    catalog = MemoryCatalog()
    async with api_server() as api, operating(api, catalog):
        await api.put("views", VIEW)
        view = lambda: api.get("views", "default", "late")  # noqa: E731
        await until(
            lambda: condition(view(), "Ready") == ("False", "UnknownCollection"), "no reason"
        )
        await api.put("sources", SOURCE)
        await until(lambda: condition(view(), "Ready") == ("True", "Running"), "not ready")
        assert view()["metadata"]["finalizers"] == [FINALIZER]
        assert (view()["status"]["upper"], view()["status"]["lag"]) == ("1000", "250ms")
        told = lambda: {  # noqa: E731
            (e["involvedObject"]["name"], e["type"], e["reason"]) for e in api.listed("events")
        }
        expected = {("late", "Warning", "UnknownCollection"), ("late", "Normal", "Running")}
        await until(lambda: expected <= told(), "no events")
    assert catalog.log == ["apply Source/flights", "apply View/late"]


async def test_a_source_that_a_view_uses_is_not_deleted_and_an_event_says_why() -> None:
    catalog = MemoryCatalog()
    async with api_server() as api, operating(api, catalog):
        await api.put("sources", SOURCE)
        await api.put("views", VIEW)
        await until(lambda: len(catalog.resources) == 2, "not applied")
        await until(
            lambda: api.get("sources", "default", "flights")["metadata"].get("finalizers"), "?"
        )
        await api.delete("sources", "flights")
        refused = lambda: [e for e in api.listed("events") if e["reason"] == "DeletionRefused"]  # noqa: E731
        await until(refused, "no event")
        assert "Source/flights is used by View/late" in refused()[0]["message"]
        assert condition(api.get("sources", "default", "flights"), "DeletionBlocked") == (
            "True",
            "InUse",
        )
        assert ("Source", "flights") in catalog.resources
        await api.delete("views", "late")
        await until(lambda: not api.names("sources") + api.names("views"), "objects stay")
    assert catalog.log[-2:] == ["delete View/late", "delete Source/flights"]


async def test_changes_missed_while_the_history_was_forgotten_are_seen() -> None:
    catalog = MemoryCatalog()
    async with api_server() as api, operating(api, catalog):
        await api.put("sources", SOURCE)
        await until(lambda: len(catalog.resources) == 1, "not applied")
        before = api.requests.count("GET /apis/tidemill.dev/v1alpha1/views")
        await api.forget_history()
        await api.put("views", VIEW)
        await until(lambda: len(catalog.resources) == 2, "the view was not seen")
        assert api.requests.count("GET /apis/tidemill.dev/v1alpha1/views") > before


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (404, "NotFound", "the server could not find the requested resource"),
        (403, "Forbidden", "arrangements.tidemill.dev is forbidden"),
    ],
)
async def test_a_kind_that_cannot_be_seen_holds_no_other_up(
    status: int, reason: str, message: str
) -> None:
    """The kind is missing under older definitions, or in a Role; its objects are seen once it is
    there.
    """
    catalog, absent = MemoryCatalog(), "GET /apis/tidemill.dev/v1alpha1/arrangements"
    async with api_server() as api:
        api.faults += [Fault(absent, status, reason, message)] * 1_000
        async with operating(api, catalog):
            await api.put("sources", SOURCE)
            await api.put("arrangements", ARRANGEMENT)
            await until(lambda: ("Source", "flights") in catalog.resources, "not applied")
            assert api.happened
            api.faults.clear()
            await until(lambda: len(catalog.resources) == 2, "the arrangement was not seen")


async def test_older_definitions_take_what_they_have_of_a_status() -> None:
    catalog = MemoryCatalog()
    async with api_server() as api, operating(api, catalog):
        api.undeclared = frozenset({"batches", "bytes"})
        await api.put("sources", SOURCE)
        source = lambda: api.get("sources", "default", "flights")  # noqa: E731
        await until(lambda: condition(source(), "Ready") == ("True", "Running"), "nothing is said")
        assert source()["status"]["lag"] == "250ms"
        assert not {"batches", "bytes"} & source()["status"].keys()
        api.undeclared = frozenset()
        await until(lambda: "bytes" in source()["status"], "not all is said later")


async def test_an_operator_without_its_lease_changes_nothing() -> None:
    catalog = MemoryCatalog()
    async with api_server() as api, operating(api, catalog, lambda: False) as operator:
        await api.put("sources", SOURCE)
        await until(lambda: operator.objects(), "not seen")
        with pytest.raises(Fenced):
            await operator.reconcile()
        assert catalog.log == []
        assert "finalizers" not in api.get("sources", "default", "flights")["metadata"]


async def test_the_status_of_an_object_made_anew_is_not_the_old_one() -> None:
    """A write that was meant for a deleted object must not reach its successor."""
    async with api_server() as api:
        kubernetes = connected(api)
        old = await api.put("sources", SOURCE)
        await api.delete("sources", "flights")
        await api.put("sources", SOURCE)
        body = {
            "apiVersion": "tidemill.dev/v1alpha1", "kind": "Source",
            "metadata": {"name": "flights", "namespace": "default", "uid": old["metadata"]["uid"]},
            "status": {"since": "0"},
        }  # fmt: skip
        path = "/apis/tidemill.dev/v1alpha1/namespaces/default/sources/flights"
        with pytest.raises(Fenced):
            await kubernetes.apply(path, body, "status")
        await kubernetes.close()
        assert "status" not in api.get("sources", "default", "flights")


async def test_finalizers_of_others_stay() -> None:
    catalog = MemoryCatalog()
    theirs = {
        "metadata": {"name": "flights", "finalizers": ["backup/wait"]},
        "spec": SOURCE["spec"],
    }
    async with api_server() as api, operating(api, catalog):
        await api.put("sources", theirs)
        source = lambda: api.get("sources", "default", "flights")  # noqa: E731
        await until(lambda: len(source()["metadata"]["finalizers"]) == 2, "not held")
        await until(lambda: len(catalog.resources) == 1, "not applied")
        await api.delete("sources", "flights")
        await until(lambda: source()["metadata"]["finalizers"] == ["backup/wait"], "still held")
        assert catalog.resources == {}


async def test_an_abandoned_object_goes_and_its_resource_stays() -> None:
    catalog = MemoryCatalog()
    async with api_server() as api, operating(api, catalog):
        marked = {
            "metadata": {"name": "flights", "annotations": {ABANDON: "true"}},
            "spec": SOURCE["spec"],
        }
        await api.put("sources", marked)
        await until(lambda: len(catalog.resources) == 1, "not applied")
        await api.delete("sources", "flights")
        await until(lambda: not api.names("sources"), "the object stays")
        assert list(catalog.resources) == [("Source", "flights")]


def elections(api: KubernetesApi, clock: ManualClock) -> tuple[Election, Election]:
    one, two = (Election(api, "default", "lease", name, 15, clock) for name in ("one", "two"))
    return one, two


async def test_one_leads_until_it_is_silent_for_the_whole_lease() -> None:
    async with api_server() as api:
        kubernetes, clock = connected(api), ManualClock(1_700_000_000_000)
        one, two = elections(kubernetes, clock)
        assert await one.try_once()
        assert not await two.try_once()
        clock.move(10)
        assert not one.leading  # it stops before anybody else may begin
        assert not await two.try_once()
        clock.move(5)
        assert await two.try_once()
        assert two.leading
        assert not await one.try_once()
        lease = api.get("leases", "default", "lease")["spec"]
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("two", 1)
        await kubernetes.close()


async def test_a_renewed_lease_is_never_taken() -> None:
    async with api_server() as api:
        kubernetes, clock = connected(api), ManualClock(1_700_000_000_000)
        one, two = elections(kubernetes, clock)
        for _ in range(20):
            assert await one.try_once()
            assert not await two.try_once()
            assert one.leading
            clock.move(3)
        await one.give_up()
        assert await two.try_once()
        await kubernetes.close()


async def test_of_two_that_take_a_free_lease_at_once_one_wins() -> None:
    async with api_server() as api:
        kubernetes, clock = connected(api), ManualClock(1_700_000_000_000)
        won = await asyncio.gather(*(each.try_once() for each in elections(kubernetes, clock)))
        assert sorted(won) == [False, True]
        clock.move(60)
        first, second = elections(kubernetes, clock)
        assert [await first.try_once(), await second.try_once()].count(True) <= 1
        clock.move(60)
        again = await asyncio.gather(first.try_once(), second.try_once())
        assert sorted(again) == [False, True]
        await kubernetes.close()


async def test_who_loses_the_lease_ends() -> None:
    async with api_server() as api:
        kubernetes, clock = connected(api), ManualClock(1_700_000_000_000)
        one, two = elections(kubernetes, clock)

        async def began() -> None: ...

        holding = asyncio.create_task(one.hold_forever(3.0, began))
        await until(lambda: one.leading, "does not lead")
        lease = api.get("leases", "default", "lease")
        lease["spec"] |= {"holderIdentity": "two", "renewTime": "later"}
        await api.put("leases", lease)
        await until(lambda: clock.sleepers, "does not wait")
        clock.move(3)
        with pytest.raises(Fenced):
            await asyncio.wait_for(holding, WAIT_S)
        assert two.held_until_s == 0.0
        await kubernetes.close()


@asynccontextmanager
async def operator_process(api: ApiServer, tidemill: str, folder: Path) -> AsyncIterator[Path]:
    """The command itself, found by a kubeconfig; ended by SIGTERM."""
    cluster = {"name": "c", "cluster": {"server": api.address}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster],
        "contexts": [context], "users": [{"name": "u", "user": {}}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(json.dumps(config))
    log = folder / "operator.log"
    variables = {
        "KUBECONFIG": str(folder / "kubeconfig"), "HOSTNAME": "pod-1",
        "TIDEMILL_OPERATOR_TIDEMILL": tidemill, "TIDEMILL_OPERATOR_HTTP_PORT": "0",
        "TIDEMILL_OPERATOR_RESYNC_S": "0.3", "TIDEMILL_OPERATOR_STATUS_INTERVAL_S": "0",
    }  # fmt: skip
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemill.client", "operator",
            env={**os.environ, **variables}, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield log
        process.terminate()
        assert await asyncio.wait_for(process.wait(), WAIT_S) == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.server
async def test_objects_become_views_of_a_running_tidemill(tmp_path: Path) -> None:
    with up_process(tmp_path) as server:
        with server.client():
            pass
        address = server.address("grpc")
        async with AsyncClient(address) as client, api_server() as api:
            async with operator_process(api, address, tmp_path):
                await api.put("views", VIEW)
                await api.put("sources", SOURCE)
                view = lambda: api.get("views", "default", "late")  # noqa: E731
                await until(lambda: condition(view(), "Ready") == ("True", "Running"), "not ready")
                await until(lambda: "upper" in view()["status"], "no frontier")
                first = view()["status"]["upper"]
                await until(lambda: view()["status"]["upper"] > first, "the frontier stands still")
                assert view()["status"]["holders"] >= 1
                await api.delete("sources", "flights")
                refused = lambda: [  # noqa: E731
                    e["message"] for e in api.listed("events") if e["reason"] == "DeletionRefused"
                ]
                await until(refused, "no event")
                assert "used by View/late" in refused()[0]
                await api.delete("views", "late")
                await until(lambda: not api.names("sources"), "the source stays")
                lease = api.get("leases", "default", "tidemill-operator")["spec"]
                assert lease["holderIdentity"] == "pod-1"
            released = api.get("leases", "default", "tidemill-operator")["spec"]
            assert released["holderIdentity"] == ""
            assert await client.get() == []
