"""Two namespaces on a real API server that cannot reach each other: one operator, a user for each.

The operator has the rights of the chart's service account; Tidemill asks for tokens, over TLS.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import helm_python as helm
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_kube_config
from ruamel.yaml import YAML

from tidemill.errors import TidemillError, UsageError
from tidemill.kubernetes.api import KubernetesApi
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.servers import kubernetes_server
from tidemill.testkit.up import up_process

CHART = str(Path(__file__).resolve().parents[1] / "charts/tidemill")
HOME, TENANTS = "tidemill", ("air", "rail")
WAIT_S = 90.0
VALUES = {
    "tls": {"secret": "front"},
    "tokens": {"secret": "users", "testSecret": "reader"},
    "operator": {
        "namespaces": list(TENANTS), "users": {name: f"{name}-token" for name in TENANTS},
    },
}  # fmt: skip
GRANTS = {
    "air": ["{role: admin, collections: ['air-*']}"],
    "rail": [
        "{role: admin, collections: ['rail-*']}",
        "{role: reader, collections: [air-shared]}",
    ],
}
PLURALS = {"Table": "tables", "View": "views"}


def path_of(kind: str, namespace: str, name: str = "") -> str:
    path = f"/apis/tidemill.dev/v1alpha1/namespaces/{namespace}/{PLURALS[kind]}"
    return f"{path}/{name}" if name else path


def users(folder: Path) -> Path:
    """The file of users, and a file with the token of each."""
    lines = ["users:"]
    for name, grants in GRANTS.items():
        token = f"token-of-{name}-that-is-as-long-as-tokens-are"
        (folder / f"{name}.token").write_text(token)
        lines += [f"- name: {name}", f"  sha256: {hashlib.sha256(token.encode()).hexdigest()}"]
        lines += [f"  grants: [{', '.join(grants)}]"]
    (folder / "users.yaml").write_text("\n".join(lines) + "\n")
    return folder / "users.yaml"


async def connect(kubeconfig: str) -> KubernetesApi:
    configuration = Configuration()
    await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    return KubernetesApi(configuration, "tests")


async def make(api: KubernetesApi, kind: str, namespace: str, name: str, reads: str = "") -> None:
    spec: dict[str, Any] = {"columns": [{"name": "n", "type": "int"}]}
    if kind == "View":
        spec = {"program": "late(n) := f(n);", "inputs": {"f": reads}}
    document = {
        "apiVersion": "tidemill.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    }  # fmt: skip
    await api.call("POST", path_of(kind, namespace), document)


async def grant(api: KubernetesApi, name: str, to: str) -> None:
    """The owner lets another namespace read its table."""
    document = await api.call("GET", path_of("Table", "air", name))
    document["metadata"]["annotations"] = {"tidemill.dev/read-by": to}
    await api.call("PUT", path_of("Table", "air", name), document)


@asynccontextmanager
async def operating(
    api: KubernetesApi, cluster: str, address: str, authority: Path, folder: Path
) -> AsyncIterator[None]:
    """The operator, with a token of its account and nothing else."""
    path = f"/api/v1/namespaces/{HOME}/serviceaccounts/tidemill-operator/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    config = YAML(typ="safe").load(Path(cluster))
    config["users"][0]["user"] = {
        "token": (await api.call("POST", path, request))["status"]["token"]
    }
    (folder / "operator.kubeconfig").write_text(json.dumps(config))
    tokens = {name: str(folder / f"{name}.token") for name in TENANTS}
    variables = {
        "KUBECONFIG": str(folder / "operator.kubeconfig"), "HOSTNAME": "one",
        "TIDEMILL_OPERATOR_TIDEMILL": address, "TIDEMILL_OPERATOR_TLS_CA": str(authority),
        "TIDEMILL_OPERATOR_USERS": json.dumps(tokens), "TIDEMILL_OPERATOR_HTTP_PORT": "0",
        "TIDEMILL_OPERATOR_LEASE_NAMESPACE": HOME, "TIDEMILL_OPERATOR_RESYNC_S": "0.5",
        "TIDEMILL_OPERATOR_NAMESPACES": json.dumps(TENANTS),
        "TIDEMILL_OPERATOR_STATUS_INTERVAL_S": "0",
    }  # fmt: skip
    with (folder / "operator.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemill.client", "operator",
            env={**os.environ, **variables}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def test_k3_two_namespaces_cannot_reach_each_other(tmp_path: Path) -> None:
    certificates = Certificates.of(tmp_path)
    pair = certificates.issued("server")
    settings = {
        "token_file": str(users(tmp_path)),
        "tls": {"certificate": str(pair.certificate), "key": str(pair.key)},
    }
    (tmp_path / "settings.yaml").write_text(json.dumps(settings))
    with (
        kubernetes_server("namespaces") as server,
        up_process(tmp_path, "--config", str(tmp_path / "settings.yaml")) as tidemill,
    ):
        api = await connect(server.address)
        for name in TENANTS:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await api.call("POST", "/api/v1/namespaces", body)
        with helm.Config(kubeconfig_path=server.address, namespace=HOME) as config:
            config.install(CHART, "tidemill", VALUES, create_namespace=True)

        async def becomes(kind: str, namespace: str, name: str, *wanted: str) -> None:
            loop = asyncio.get_running_loop()
            deadline, found = loop.time() + WAIT_S, ()
            while loop.time() < deadline and found != wanted:
                await asyncio.sleep(0.1)
                try:
                    document = await api.call("GET", path_of(kind, namespace, name))
                except TidemillError:
                    continue
                for each in document.get("status", {}).get("conditions", ()):
                    if each["type"] == "Ready":
                        found = (each["status"], each["reason"])
            assert found == wanted, (name, (tmp_path / "operator.log").read_text()[-2000:])

        address = f"localhost:{tidemill.address('grpc').rpartition(':')[2]}"
        async with operating(api, server.address, address, certificates.authority, tmp_path):
            for _ in range(300):
                try:
                    await make(api, "Table", "air", "air-flights")
                    break
                except UsageError:  # the definitions are not served yet
                    await asyncio.sleep(0.1)
            await make(api, "Table", "air", "air-shared")
            await make(api, "Table", "rail", "rail-own")
            for namespace, name in (
                ("air", "air-flights"),
                ("air", "air-shared"),
                ("rail", "rail-own"),
            ):
                await becomes("Table", namespace, name, "True", "Running")
            # A view does not read a collection without a grant of its owner, nor take another's
            # name.
            await make(api, "View", "rail", "rail-sneak", reads="air-flights")
            await make(api, "View", "rail", "rail-seen", reads="air-shared")
            await make(api, "Table", "rail", "air-more")
            await becomes("View", "rail", "rail-sneak", "False", "NotGranted")
            await becomes("View", "rail", "rail-seen", "False", "NotGranted")
            await becomes("Table", "rail", "air-more", "False", "Denied")
            # The owner's grant is one half, the grants of the user are the other.
            await grant(api, "air-flights", "rail")
            await grant(api, "air-shared", "rail")
            await becomes("View", "rail", "rail-sneak", "False", "Denied")
            await becomes("View", "rail", "rail-seen", "True", "Running")
            # The name is free for whoever may have it.
            await make(api, "Table", "air", "air-more")
            await becomes("Table", "air", "air-more", "True", "Running")
        await api.close()
