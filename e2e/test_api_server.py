"""The chart, the custom resources and the operator on a real API server of Kubernetes.

No pod runs, since the server has no node: Tidemill and the operator are processes beside it. The
operator has exactly the rights of the chart's service account.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_kube_config
from ruamel.yaml import YAML

from tidemill.errors import TidemillError, UnknownCollection, UsageError
from tidemill.kubernetes.api import KubernetesApi
from tidemill.rpc.client import AsyncClient
from tidemill.runtime.resources import KINDS
from tidemill.testkit.servers import kubernetes_server
from tidemill.testkit.up import up_process

CHART = str(Path(__file__).resolve().parents[1] / "charts/tidemill")
NAMESPACE = "tidemill"
VALUES = {"insecure": True}
GROUP = "/apis/tidemill.dev/v1alpha1"
KUBECTL = Path(__file__).resolve().parents[1] / ".cache/kubernetes/bin/kubectl"
WAIT_S = 90.0
COLUMNS = [{"name": "n", "type": "int"}]
SPECS: dict[str, dict[str, Any]] = {
    "Source": {"http": {}, "columns": COLUMNS, "timestampInterval": "100ms"},
    "View": {"program": "late(n) := flight(n);", "inputs": {"flight": "flights"}},
}
PLURALS = {"Source": "sources", "View": "views", "Hold": "holds"}


def declared(kind: str, name: str, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "tidemill.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE}, "spec": SPECS[kind] if spec is None else spec,
    }  # fmt: skip


def path_of(kind: str, name: str = "") -> str:
    return f"{GROUP}/namespaces/{NAMESPACE}/{PLURALS[kind]}" + (f"/{name}" if name else "")


async def connect(kubeconfig: str) -> KubernetesApi:
    configuration = Configuration()
    await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return KubernetesApi(configuration, "tidemill-operator")


async def make(api: KubernetesApi, document: dict[str, Any]) -> dict[str, Any]:
    """Create as kubectl does: unknown fields are refused."""
    query = {"fieldValidation": "Strict"}
    return await api.call("POST", path_of(document["kind"]), document, query)


async def change(api: KubernetesApi, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    document = await api.call("GET", path_of(kind, name))
    return await api.call("PUT", path_of(kind, name), {**document, "spec": spec})


async def until(ask: Callable[[], Any], what: str) -> Any:
    """The first answer of `ask` that is not None."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WAIT_S
    while loop.time() < deadline:
        try:
            found = await ask()
        except TidemillError:
            found = None
        if found:
            return found
        await asyncio.sleep(0.1)
    pytest.fail(what)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with kubernetes_server() as server:
        yield server.address


@pytest.fixture
async def api(cluster: str) -> AsyncIterator[KubernetesApi]:
    """The administrator's API, with the chart installed."""
    api = await connect(cluster)
    with helm.Config(kubeconfig_path=cluster, namespace=NAMESPACE) as config:
        if not config.list():
            config.install(CHART, "tidemill", VALUES, create_namespace=True)

    async def has_definitions() -> bool:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        found, _ = await api.list(path)
        ready = [
            c for d in found for c in d.get("status", {}).get("conditions", ())
            if (c["type"], c["status"]) == ("Established", "True")
        ]  # fmt: skip
        return len(ready) == len(KINDS)

    await until(has_definitions, "the definitions are not established")
    await until(lambda: api.list(path_of("Hold")), "the definitions are not served")
    yield api
    await api.close()


async def test_the_server_enforces_the_rules(api: KubernetesApi) -> None:
    hold = {"collection": "flights", "frontier": 5}
    await make(api, declared("Hold", "one", hold))
    wrong: list[tuple[dict[str, Any], str]] = [
        (declared("Source", "two", {**SPECS["Source"], "kafka": {"topic": "t"}}), "exactly one of"),
        (declared("Source", "two", {**SPECS["Source"], "colums": []}), "colums"),
        (declared("Source", "two", {**SPECS["Source"], "columns": COLUMNS * 2}), "Duplicate"),
        (declared("Source", "two", {**SPECS["Source"], "timestampInterval": "49ms"}), "50ms"),
        (declared("View", "a.b"), "a name has 1 to 63"),
        (
            declared("View", "two", {**SPECS["View"], "inputs": {"not": "flights"}}),
            "a predicate is",
        ),
        (declared("Hold", "two", {"collection": "flights", "frontier": "soon"}), "an instant is"),
    ]
    for document, says in wrong:
        with pytest.raises(UsageError, match=says):
            await make(api, document)
    for spec, says in (
        ({**hold, "frontier": 4}, "forward"),
        ({**hold, "collection": "x"}, "cannot change"),
    ):
        with pytest.raises(UsageError, match=says):
            await change(api, "Hold", "one", spec)
    await change(api, "Hold", "one", {**hold, "frontier": 6})
    await api.call("DELETE", path_of("Hold", "one"))


async def account(api: KubernetesApi, cluster: str, folder: Path) -> Path:
    """A kubeconfig with a token of the operator's service account, and nothing else."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/tidemill-operator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await api.call("POST", path, request))["status"]["token"]
    config = YAML(typ="safe").load(Path(cluster))
    config["users"][0]["user"] = {"token": token}
    (folder / "operator.kubeconfig").write_text(json.dumps(config))
    return folder / "operator.kubeconfig"


@asynccontextmanager
async def operating(
    kubeconfig: Path, tidemill: str, name: str, folder: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    variables = {
        "KUBECONFIG": str(kubeconfig), "HOSTNAME": name, "TIDEMILL_OPERATOR_TIDEMILL": tidemill,
        "TIDEMILL_OPERATOR_HTTP_PORT": "0", "TIDEMILL_OPERATOR_RESYNC_S": "0.5",
        "TIDEMILL_OPERATOR_STATUS_INTERVAL_S": "0", "TIDEMILL_OPERATOR_LEASE_NAMESPACE": NAMESPACE,
        "TIDEMILL_OPERATOR_NAMESPACES": json.dumps([NAMESPACE]), "TIDEMILL_OPERATOR_LEASE_S": "6",
        "TIDEMILL_OPERATOR_RENEW_S": "1",
    }  # fmt: skip
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemill.client", "operator",
            env={**os.environ, **variables}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def condition(document: dict[str, Any], kind: str) -> tuple[str, str]:
    found = [c for c in document.get("status", {}).get("conditions", ()) if c["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


async def table(api: KubernetesApi, kind: str) -> list[dict[str, Any]]:
    """The table of kubectl get, as the server makes it."""
    reply = await api._client.call_api(
        "GET", api._client.configuration.host + path_of(kind),
        {**await _authorise(api), "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    )  # fmt: skip
    found = json.loads(await reply.read())
    names = [column["name"] for column in found["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in found["rows"]]


async def _authorise(api: KubernetesApi) -> dict[str, str]:
    headers: dict[str, str] = {}
    await api._client.update_params_for_auth(headers, None, ["BearerToken"], "", "GET", None)
    return headers


async def test_objects_become_views_by_the_rights_of_the_chart(
    api: KubernetesApi, cluster: str, tmp_path: Path
) -> None:
    kubeconfig = await account(api, cluster, tmp_path)
    limited = await connect(str(kubeconfig))
    for method, path in (
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
        ("DELETE", path_of("View", "x")),
    ):
        with pytest.raises(UsageError, match="forbidden"):
            await limited.call(method, path)
    await limited.close()
    with up_process(tmp_path) as server:
        with server.client():
            pass
        address = server.address("grpc")
        async with (
            AsyncClient(address) as client,
            operating(kubeconfig, address, "first", tmp_path) as first,
        ):
            await make(api, declared("View", "late"))

            async def reason() -> bool:
                view = await api.call("GET", path_of("View", "late"))
                return condition(view, "Ready") == ("False", "UnknownCollection")

            await until(reason, "the view does not say what it lacks")
            await make(api, declared("Source", "flights"))

            async def ready() -> bool:
                (row,) = await table(api, "View")
                return bool(row["READY"] == "True" and row["UPPER"])

            await until(ready, (tmp_path / "first.log").read_text())
            (row,) = await table(api, "View")
            assert list(row)[:6] == ["Name", "READY", "SINCE", "UPPER", "LAG", "AGE"]
            before = row["UPPER"]

            async def has_moved() -> bool:
                (now,) = await table(api, "View")
                return bool(now["UPPER"] > before and str(now["LAG"]).endswith("s"))

            await until(has_moved, "the frontier stands still")
            await _refuse_deletion(api)
            async with operating(kubeconfig, address, "second", tmp_path) as second:
                await _hand_over(api, first, second)
                await api.call("DELETE", path_of("View", "late"))

                async def is_gone() -> bool:
                    return not (await api.list(path_of("Source")))[0]

                await until(is_gone, (tmp_path / "second.log").read_text())
            assert await client.get() == []


async def kubectl(cluster: str, *words: str) -> str:
    """The output of the program, in the namespace of the tests; a failure of it fails the test."""
    process = await asyncio.create_subprocess_exec(
        KUBECTL, "--kubeconfig", cluster, "--namespace", NAMESPACE, *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


async def test_kubectl_aborts_and_approves_new_versions_of_a_view(
    api: KubernetesApi, cluster: str, tmp_path: Path
) -> None:
    kubeconfig = await account(api, cluster, tmp_path)
    manual = {"inputs": {"flight": "arrivals"}, "retain": "all", "takeover": "manual"}

    def rules(least: int) -> str:
        return json.dumps({"spec": {"program": f"late(n) := flight(n) if n > {least};"}})

    async def says(text: str) -> None:
        async def is_shown() -> bool:
            return text in await kubectl(cluster, "get", "view", "delays", "-o", "yaml")

        await until(is_shown, f"{text}: {(tmp_path / 'one.log').read_text()}")

    with up_process(tmp_path) as server:
        with server.client():
            pass
        address = server.address("grpc")
        async with (
            AsyncClient(address) as client,
            operating(kubeconfig, address, "one", tmp_path),
        ):
            source = {**SPECS["Source"], "retain": "all"}
            await make(api, declared("Source", "arrivals", source))
            first = {**manual, "program": "late(n) := flight(n) if n > 30;"}
            await make(api, declared("View", "delays", first))

            async def push_rows() -> bool:
                await client.push("arrivals", [b'{"n": 15}', b'{"n": 25}', b'{"n": 45}'])
                return True

            async def late() -> list[int]:
                answer = await client.ask("delays/late", None, WAIT_S)
                return sorted(answer.table["c0"].to_pylist())

            async def is_late(*expected: int) -> bool:
                return await late() == [*expected]

            await until(push_rows, "no rows are taken")
            await until(lambda: is_late(45), (tmp_path / "one.log").read_text())

            await kubectl(cluster, "patch", "view", "delays", "--type=merge", "-p", rules(10))
            await says("new version 2 waits: 2 rows differ")
            await kubectl(cluster, "annotate", "view", "delays", "tidemill.dev/abort=2")
            await says("version 2 was aborted, and version 1 goes on")
            assert await late() == [45]

            await kubectl(cluster, "patch", "view", "delays", "--type=merge", "-p", rules(20))
            await says("new version 3 waits: 1 rows differ")
            # The annotation of the version before says nothing of this one.
            await kubectl(cluster, "annotate", "view", "delays", "tidemill.dev/approve=3")
            await until(lambda: is_late(25, 45), (tmp_path / "one.log").read_text())
            for name in ("view/delays", "source/arrivals"):
                await kubectl(cluster, "delete", name)
            assert await client.get() == []


async def _refuse_deletion(api: KubernetesApi) -> None:
    """A source that a view uses stays, and an event says why."""
    await api.call("DELETE", path_of("Source", "flights"))

    async def read_refusals() -> list[str]:
        events, _ = await api.list(f"/api/v1/namespaces/{NAMESPACE}/events")
        return [e["message"] for e in events if e["reason"] == "DeletionRefused"]

    messages = await until(read_refusals, "no event")
    assert "Source/flights is used by View/late" in messages[0]
    source = await api.call("GET", path_of("Source", "flights"))
    assert condition(source, "DeletionBlocked") == ("True", "InUse")


async def _hand_over(
    api: KubernetesApi, first: asyncio.subprocess.Process, second: asyncio.subprocess.Process
) -> None:
    """The second operator works after the first was killed, and not before."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/tidemill-operator"
    assert (await api.call("GET", path))["spec"]["holderIdentity"] == "first"
    first.kill()

    async def is_taken() -> bool:
        return bool((await api.call("GET", path))["spec"]["holderIdentity"] == "second")

    await until(is_taken, "nobody took the lease")
    assert second.returncode is None


async def test_releases_go_forth_and_back_and_leave_what_users_declared(
    api: KubernetesApi, cluster: str
) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}"

    async def replicas() -> int:
        found = await api.call("GET", f"{path}/deployments/tidemill-operator")
        return int(found["spec"]["replicas"])

    await make(api, declared("Hold", "kept", {"collection": "flights"}))
    with helm.Config(kubeconfig_path=cluster, namespace=NAMESPACE) as config:
        config.upgrade(CHART, "tidemill", {**VALUES, "operator": {"replicas": 2}})
        assert await replicas() == 2
        config.rollback("tidemill", version=1)
        assert await replicas() == 1
        config.uninstall("tidemill")
    for what in ("statefulsets/tidemill", "deployments/tidemill-operator"):
        with pytest.raises(UnknownCollection):
            await api.call("GET", f"{path}/{what}")
    assert (await api.call("GET", path_of("Hold", "kept")))["spec"] == {"collection": "flights"}
