"""Logins that are refused by ends which repeat what they were sent: nothing that comes out of a
server shows it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import signal
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from kubernetes.aio.client.configuration import Configuration

from tidemill.client import Client, connect
from tidemill.errors import TidemillError, Unauthenticated
from tidemill.kubernetes.api import KubernetesApi
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import ResourceDocument
from tidemill.rpc.reaching import Dialer
from tidemill.rpc.tls import TlsFiles
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.rng import new_rng
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.documents import FLIGHTS, document, planted, told_to
from tidemill.testkit.echoes import echoing, http_echo, kafka_echo, redis_echo
from tidemill.testkit.fleet import until
from tidemill.testkit.kubernetes_api import api_server
from tidemill.testkit.up import UpProcess, up_process
from tidemill_operator.driver import Operator
from tidemill_operator.objects import PLURALS
from tidemill_operator.settings import OperatorSettings
from tidemill_operator.watching import Mirror

PLANTED = "PLANTED-77e1b0"
NAMES = ("broker", "registry", "hook", "store", "split")
"""Secrets of resources; the last one has a line end in it, at which the client of HTTP raises what
nobody foresaw.
"""
TOKENS = {who: f"{PLANTED}-token-{who}-{'0123456789abcdef' * 2}" for who in ("ann", "bob", "eve")}
ENVIRONMENT = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "SASL_PASSWORD", "DATABASE_URL")
BASE = FLIGHTS + document("Source", "pushed", "{http: {}, columns: [{name: n, type: int}]}")


def shapes() -> list[str]:
    """Each secret as it is, and as it travels in a header, a URL and a file of hashes."""
    told = [f"{PLANTED}-{name}" for name in (*NAMES, *ENVIRONMENT)] + list(TOKENS.values())
    found = [*told, *(base64.b64encode(each.encode()).decode() for each in told)]
    found += [base64.b64encode(f"u:{each}".encode()).decode() for each in told]
    found += [quote(each, safe="") for each in told]
    return [*found, *(hashlib.sha256(token.encode()).hexdigest() for token in TOKENS.values())]


@dataclass(frozen=True)
class Ends:
    """Ports of what refuses: each in the clear, and one whose certificate nobody knows."""

    http: int
    redis: int
    kafka: int
    tls: int


@contextmanager
def ends(folder: Path) -> Iterator[Ends]:
    theirs = Certificates.of(folder, "theirs").issued("hook")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(theirs.certificate), str(theirs.key))
    with ExitStack() as stack:
        answers = (http_echo, redis_echo, kafka_echo)
        clear = [stack.enter_context(echoing(each)) for each in answers]
        yield Ends(*clear, stack.enter_context(echoing(http_echo, context)))


def source(spec: str) -> tuple[str, str]:
    return "Source", f"{{columns: [{{name: n, type: int}}], {spec}}}"


def action(sink: str) -> tuple[str, str]:
    return "Action", told_to(sink)


def uses(at: Ends) -> dict[str, tuple[str, str]]:
    """Resources by name, each of which sends its secret to an end that refuses and repeats it."""
    here, headers = "127.0.0.1", "secretHeaders: {Authorization: hook}"
    login = "username: u, secret: registry"
    return {
        "plain": source(f'kafka: {{topic: t, bootstrap: "{here}:{at.kafka}", '
                        "sasl: {mechanism: PLAIN, username: u, secret: broker}}"),
        "wrapped": source(f'kafka: {{topic: t, bootstrap: "{here}:{at.tls}", tls: {{}}, '
                          "sasl: {mechanism: PLAIN, username: u, secret: broker}}"),
        "avro": source('kafka: {topic: a}, format: {avro: {registry: {url: '
                       f'"http://{here}:{at.http}", {login}}}}}}}'),
        "garbled": source('kafka: {topic: g}, format: {avro: {registry: {url: '
                          f'"http://{here}:{at.http}/garbled", {login}}}}}}}'),
        "refused": action(f'{{http: {{url: "http://{here}:{at.http}/", {headers}}}}}'),
        "mangled": action(f'{{http: {{url: "http://{here}:{at.http}/garbled", {headers}}}}}'),
        "untrusted": action(f'{{http: {{url: "https://{here}:{at.tls}/", {headers}}}}}'),
        "broken": action(f'{{http: {{url: "http://{here}:{at.http}/", '
                         "secretHeaders: {X-Key: split}}}"),
        "redis": action(f'{{redis: {{url: "redis://{here}:{at.redis}/0", username: u, secret: store}}}}'),
        "rediss": action(f'{{redis: {{url: "rediss://{here}:{at.tls}/0", username: u, secret: store}}}}'),
    }  # fmt: skip


def secured(folder: Path) -> tuple[Path, list[str]]:
    """The authority of a server with users and TLS, whose secrets stand in files, and its
    arguments.
    """
    keys = folder / "keys"
    keys.mkdir()
    ours = Certificates.of(keys, "ours")
    pair = ours.issued("server")
    secrets = planted(keys, NAMES, PLANTED)
    (keys / "split").write_text(f"one\r\nX-Other: {PLANTED}-split\n")
    users = [
        {
            "name": who,
            "sha256": hashlib.sha256(TOKENS[who].encode()).hexdigest(),
            "grants": [{"role": role, "collections": ["*"]}],
        }
        for who, role in (("ann", "admin"), ("bob", "reader"))
    ]
    for who, token in TOKENS.items():
        (keys / f"{who}.token").write_text(token)
    (keys / "users.yaml").write_text(json.dumps({"users": users}))
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    settings = {
        "tls": tls, "http_tls": tls, "token_file": str(keys / "users.yaml"),
        "audit": {"interval_s": 0.1}, "retry_s_min": 0.05, "retry_s_max": 0.2,
        "places": {"egress": ["127.0.0.0/8"], "secrets": secrets,
                   "topics": {"read": ["*"], "write": ["*"]}},
    }  # fmt: skip
    (keys / "settings.yaml").write_text(json.dumps(settings))
    return ours.authority, ["--config", str(keys / "settings.yaml"), "--log-level", "debug"]


def called_by(server: UpProcess, authority: Path, who: str) -> Client:
    token = str(server.folder / "keys" / f"{who}.token")
    return connect(server.address("grpc"), tls_ca=str(authority), token_file=token)


def fetched(server: UpProcess, authority: Path, path: str, token: str = "") -> str:
    """Answers of the HTTP port: to a scrape, and to a push with a token."""
    trust = ssl.create_default_context(cafile=str(authority))
    request = Request(f"{server.address('http')}{path}")
    if token:
        request.data = b'{"n": 1}'
        request.headers |= {"Authorization": f"Bearer {token}", "Content-type": "application/json"}
    try:
        with urlopen(request, timeout=240, context=trust) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        with error:
            return f"{error.code} {error.headers} {error.read().decode()}"


def said_by_resources(ann: Client, names: list[str]) -> dict[str, str]:
    """The words of `get` and `describe` once each use has failed, and one is Broken."""

    def failed() -> dict[str, str] | None:
        found = {status.name: status for status in ann.get()}
        if any(found[name].ready for name in names if name not in ("avro", "garbled")):
            return None
        if not any(status.reason == "Broken" for status in found.values()):
            return None
        letters = [found[name] for name in ("avro", "garbled")]
        if any(not status.message for status in letters):
            return None
        described = {n: repr(ann.describe(found[n].kind, n)) for n in names}
        return {"get": repr(list(found.values())), **described}

    return until(failed)


async def read_cluster(server: UpProcess, authority: Path, declared: dict[str, tuple[str, str]]) -> str:  # fmt: skip
    """Statuses and events that the operator writes of the same resources, without what people
    declared.
    """
    token = server.folder / "keys" / "ann.token"
    dialer = Dialer(TlsFiles(authority=authority), token_file=token)
    async with api_server() as api, AsyncClient(server.address("grpc"), dialer=dialer) as ann:
        configuration = Configuration()
        configuration.host = api.address
        kubernetes = KubernetesApi(configuration, "tidemill-operator")
        mirrors: list[Mirror] = []
        operator = Operator(
            kubernetes, lambda _: ann, lambda: [o for m in mirrors for o in m.objects.values()],
            lambda: True, SystemClock(), OperatorSettings(resync_s=0.2, status_interval_s=0.0),
        )  # fmt: skip
        mirrors += [
            Mirror(kubernetes, kind, "", SystemClock(), new_rng(7), 300, operator.wake)
            for kind in PLURALS
        ]
        tasks = [asyncio.create_task(mirror.follow_forever()) for mirror in mirrors]
        tasks.append(asyncio.create_task(operator.reconcile_forever()))
        try:
            for name, (kind, spec) in declared.items():
                await api.put(PLURALS[kind], {"metadata": {"name": name}, "spec": _yaml(spec)})
            statuses: list[Any] = []
            async with asyncio.timeout(240):
                while len(statuses) < len(declared):
                    await asyncio.sleep(0.1)
                    objects = [each for plural in PLURALS.values() for each in api.listed(plural)]
                    statuses = [o["status"] for o in objects if o.get("status")]
            return repr((statuses, api.listed("events")))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await kubernetes.close()


def _yaml(spec: str) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(spec)


def refusals(server: UpProcess, authority: Path) -> dict[str, str]:
    """Answers to callers whose tokens are wrong, or whose role does not allow the call."""
    said = {}
    with called_by(server, authority, "eve") as eve, pytest.raises(Unauthenticated) as refused:
        eve.get()
    said["a wrong token"] = repr(refused.value)
    with called_by(server, authority, "bob") as bob, pytest.raises(TidemillError) as denied:
        bob.insert("flights", pa.table({"plane": ["N1"]}))
    said["no right"] = repr(denied.value)
    for who, token in TOKENS.items():
        said[f"http {who}"] = fetched(server, authority, "/v1/sources/pushed/rows", token)
    return said


@pytest.mark.parametrize("style", ["console", "json"])
def test_s12_s13_what_an_end_repeats_of_a_secret_comes_out_nowhere(
    tmp_path: Path, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, f"{PLANTED}-{name}")
    authority, arguments = secured(tmp_path)
    with ends(tmp_path) as at, up_process(tmp_path, *arguments, "--log-format", style) as server:
        declared = uses(at)
        text = BASE + "".join(document(kind, name, spec) for name, (kind, spec) in declared.items())
        with called_by(server, authority, "ann") as ann:
            until(lambda: ann.apply(ResourceDocument(text, "all.yaml")) or None)
            for name in ("avro", "garbled"):
                ann.push(name, [b"\x00\x00\x00\x00\x07x"])
            ann.insert("flights", pa.table({"plane": ["N1"]}))
            said = said_by_resources(ann, list(declared))
            said |= refusals(server, authority)
            said["cluster"] = asyncio.run(read_cluster(server, authority, declared))
            said |= {p: fetched(server, authority, p) for p in ("/metrics", "/healthz", "/readyz")}
            audit = lambda: repr(ann.query("tidemill/audit").table.to_pylist())  # noqa: E731
            until(lambda: "Unauthenticated" in audit() or None, audit)
            said["audit"] = audit()
        server.stop(signal.SIGTERM)
        said["log"] = server.log.read_text()
    # The companions: the secrets were sent and repeated, somebody was refused, and something broke.
    for what in ("401", "ResponseError", "certificate verify failed", "Broken"):
        assert what in said["get"], what
    for what in ("AuthenticationFailed", "Traceback", "ValueError"):
        assert what in said["log"], what
    assert "accepted" in said["http ann"]
    assert not [(where, s) for where, text in said.items() for s in shapes() if s in text]


@pytest.mark.parametrize("store", ["consensus", "blob"])
def test_s12_s13_a_store_that_repeats_the_login_is_named_without_it(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, f"{PLANTED}-{name}")
    (tmp_path / "login").write_text(f"{PLANTED}-store\n")
    with ends(tmp_path) as at:
        blob = f"s3://bucket/x?endpoint=http://127.0.0.1:{at.http}&region=us-east-1"
        kinds = {
            "consensus": {"consensus": f"redis://u@127.0.0.1:{at.redis}/0",
                          "password_file": str(tmp_path / "login"),
                          "blob": f"file:{tmp_path / 'blob'}"},
            "blob": {"blob": blob, "access_key": "u", "secret_key_file": str(tmp_path / "login")},
        }  # fmt: skip
        (tmp_path / "settings.yaml").write_text(json.dumps({"store": kinds[store]}))
        server = UpProcess(tmp_path, "--config", str(tmp_path / "settings.yaml"), "--log-level", "debug")  # fmt: skip
        server.start()
        says = {"consensus": "the Redis at 127.0.0.1", "blob": "bucket"}[store]
        try:
            until(lambda: says in server.log.read_text() or None, server.log.read_text)
        finally:
            if server.running:
                server.stop(signal.SIGKILL)
    log = server.log.read_text()
    assert {"consensus": "unknown command", "blob": "401"}[store] in log
    assert not [each for each in shapes() if each in log]
