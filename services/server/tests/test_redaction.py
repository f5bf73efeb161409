"""Secrets that were planted everywhere, whose every use fails: nothing that a server says shows
one.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.client import Client
from tidemill.errors import TidemillError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.documents import FLIGHTS, document, planted, told_to
from tidemill.testkit.up import UpProcess, up_process

PLANTED = "PLANTED-9d2c41"
NAMES = ("broker", "registry", "hook", "store", "broken")
AWAY = "127.0.0.1:1"
"""Nobody listens there."""


def source(name: str, spec: str) -> str:
    return document("Source", name, f"{{columns: [{{name: n, type: int}}], {spec}}}")


def action(name: str, sink: str) -> str:
    return document("Action", name, told_to(sink))


USES = {
    "Source/plain": source("plain", f'kafka: {{topic: t, bootstrap: "{AWAY}", '
                           "sasl: {mechanism: PLAIN, username: u, secret: broker}}"),
    "Source/scram": source("scram", f'kafka: {{topic: t, bootstrap: "{AWAY}", tls: {{authority: broken}}, '
                           "sasl: {mechanism: SCRAM-SHA-256, username: u, secret: broker}}"),
    "Source/avro": source("avro", f'kafka: {{topic: t}}, format: {{avro: {{registry: {{url: "http://{AWAY}", '
                          "username: u, secret: registry}}}"),
    "Action/hook": action("hook", f'{{http: {{url: "http://{AWAY}/hook?x={PLANTED}q", '
                          "secretHeaders: {Authorization: hook}}}"),
    "Action/asks": action("asks", f'{{http: {{url: "http://{AWAY}/hook", delivery: askable, '
                          f'ask: "http://{AWAY}/{{key}}", secretHeaders: {{X-Key: broken}}}}}}'),
    "Action/redis": action("redis", f'{{redis: {{url: "redis://{AWAY}/0", username: u, secret: store}}}}'),
}  # fmt: skip
"""The query of `hook` is no secret by its name: it is in the document, and nowhere else."""
REFUSED = (
    action("bad", f'{{http: {{url: "http://u:{PLANTED}@{AWAY}"}}}}'),
    action("bad", f'{{http: {{url: "http://{AWAY}/?token={PLANTED}"}}}}'),
    action("bad", f'{{redis: {{url: "redis://:{PLANTED}@{AWAY}"}}}}'),
)


def settings(folder: Path) -> list[str]:
    """The settings of a server with a secret in each file, one of which is no text."""
    (folder / "keys").mkdir()
    secrets = planted(folder / "keys", NAMES, PLANTED)
    (folder / "keys/broken").write_bytes(b"\xff" + PLANTED.encode())
    (folder / "keys/settings.yaml").write_text(json.dumps({"places": {"secrets": secrets}}))
    return ["--config", str(folder / "keys/settings.yaml")]


def shown(server: UpProcess) -> dict[str, str]:
    """All words of the server about its resources, once each use of a secret has failed."""

    def failed(client: Client) -> dict[str, str] | None:
        said = {f"{s.kind}/{s.name}": s for s in client.get()}
        waiting = [name for name in USES if name != "Source/avro" and said[name].ready]
        described = {name: repr(client.describe(*name.split("/"))) for name in said}
        return None if waiting else {"get": repr(list(said.values())), **described}

    return server.until(failed, 60.0)


@pytest.mark.parametrize("style", ["console", "json"])
def test_s12_s13_no_secret_is_in_anything_that_a_server_says(tmp_path: Path, style: str) -> None:
    arguments = [*settings(tmp_path), "--log-format", style, "--log-level", "debug"]
    with up_process(tmp_path, *arguments) as server:
        text = FLIGHTS + "".join(USES.values())
        server.until(lambda client: client.apply(ResourceDocument(text, "all.yaml")))
        errors = []
        with server.client() as client:
            for bad in REFUSED:
                with pytest.raises(TidemillError) as refused:
                    client.apply(ResourceDocument(bad, "bad.yaml"))
                errors.append(str(refused.value))
            client.push("avro", [b"\x00\x00\x00\x00\x07x"])
            client.insert("flights", pa.table({"plane": ["N1"]}))
        said = shown(server)
        said |= {path: server.fetched(path) for path in ("/metrics", "/healthz")}
        server.stop(signal.SIGTERM)
        said |= {"log": server.log.read_text(), "errors": "\n".join(errors)}
    # The companion: each use was made, and failed.
    for name in ("hook", "asks", "redis", "plain"):
        assert name in said["log"], said["log"][-2000:]
    said["get"] = said["get"].replace(f"?x={PLANTED}q", "")
    said["Action/hook"] = said["Action/hook"].replace(f"?x={PLANTED}q", "")
    assert len(said) > 10
    assert not [where for where, text in said.items() if PLANTED in text]
    kept = b"".join(p.read_bytes() for p in (tmp_path / "state").rglob("*") if p.is_file())
    for name in NAMES[:4]:
        assert f"{PLANTED}-{name}".encode() not in kept
