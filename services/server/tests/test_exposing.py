"""A server that asks nobody who they are listens on loopback, or says loudly that it does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tidemill.errors import UsageError
from tidemill.host.exposing import SAID, exposed, refuse_exposure, services_warning
from tidemill.host.process import checked
from tidemill.testkit.up import up_process
from tidemill_server.settings import ServerSettings

ANY = "0.0.0.0"
TLS = {"certificate": "a.crt", "key": "a.key"}


@pytest.mark.parametrize(
    ("settings", "port"),
    [
        ({"grpc": f"{ANY}:7474"}, "grpc"),
        ({"grpc": "[::]:7474"}, "grpc"),
        ({"grpc": ":7474"}, "grpc"),
        ({"grpc": f"{ANY}:7474", "tls": TLS}, "grpc"),
        ({"http_host": ANY}, "http"),
        ({"http_host": ANY, "role": ["ingest,query"]}, "http"),
        ({"role": ["ingest"], "services": {"address": f"{ANY}:7473"}}, "services"),
        (
            {"role": ["query"], "token_file": "u", "tls": TLS, "services": {"address": f"{ANY}:1"}},
            "services",
        ),
    ],
)
def test_a4_without_tokens_a_server_binds_to_loopback_alone(
    settings: dict[str, object], port: str
) -> None:
    with pytest.raises(UsageError, match=f"{port} at .*insecure: true") as refused:
        checked(msgspec.convert(settings, ServerSettings))
    assert refused.value.details["reason"] == "insecure"
    said = msgspec.convert({**settings, "insecure": True}, ServerSettings)
    checked(said)
    assert [each.port for each in exposed(said)] == [port]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"grpc": "localhost:7474", "http_host": "::1"},
        {"grpc": f"{ANY}:7474", "http_host": ANY, "token_file": "u", "tls": TLS},
        {"grpc": f"{ANY}:7474", "tls": {**TLS, "authority": "ca"}},
        {"grpc": f"{ANY}:7474", "http_host": ANY, "role": ["compute"]},
    ],
)
def test_a4_what_asks_who_calls_may_be_anywhere(settings: dict[str, object]) -> None:
    chosen = msgspec.convert(settings, ServerSettings)
    checked(chosen)
    assert exposed(chosen) == ()


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"grpc": "127.0.0.1:99999"}, "with a port up to 65535"),
        ({"grpc": "localhost:-1"}, "write HOST:PORT"),
        ({"grpc": "localhost"}, "write HOST:PORT"),
        ({"grpc": "http://localhost:7474"}, "write HOST:PORT"),
        ({"http_port": 99_999}, "http_port 99999 is no port"),
        ({"http_port": -1}, "http_port -1 is no port"),
    ],
)
def test_what_is_no_address_is_refused_and_never_another_port(
    chosen: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        refuse_exposure(ServerSettings(**chosen))
    assert refuse_exposure(ServerSettings(grpc="[::1]:0", http_port=0)) == ()


def test_a4_an_authority_of_clients_and_services_needs_names_of_services(tmp_path: Path) -> None:
    for name in ("one", "same"):
        (tmp_path / name).write_text("an authority")
    services = {"tls": {**TLS, "authority": str(tmp_path / "one")}}
    settings = {"role": ["query"], "services": services}
    assert "names is empty" in str(services_warning(msgspec.convert(settings, ServerSettings)))
    settings["tls"] = {**TLS, "authority": str(tmp_path / "same")}
    with pytest.raises(UsageError, match="every client would be a service"):
        checked(msgspec.convert(settings, ServerSettings))
    settings["services"] = {**services, "names": ["tidemill-*"]}
    chosen = msgspec.convert(settings, ServerSettings)
    checked(chosen)
    assert services_warning(chosen) is None


@pytest.mark.parametrize("insecure", [True, False])
def test_a4_an_open_server_says_so_wherever_it_is_asked(tmp_path: Path, insecure: bool) -> None:
    """On an address of this machine: that http_host is no loopback address is its name alone."""
    host = "0.0.0.0"
    arguments = ["--config", str(tmp_path / "open.yaml"), *(["--insecure"] if insecure else [])]
    (tmp_path / "open.yaml").write_text(f"http_host: {host}\n")
    with up_process(tmp_path, *arguments) as server:
        if not insecure:
            assert server.ended() == 1
            assert "insecure: true" in server.log.read_text()
            return
        port = server.address("http").rpartition(":")[2]
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert b"warning: insecure: http at" in answer.read()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert b'tidemill_insecure{port="http"} 1.0' in answer.read()
        assert "insecure: http at" in server.log.read_text()
        with grpc.insecure_channel(server.address("grpc")) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            said = stub.Check(health_pb2.HealthCheckRequest(service=SAID), timeout=30)
            assert said.status == health_pb2.HealthCheckResponse.SERVING
