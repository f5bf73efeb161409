"""No capability is in any log, whatever becomes of it; and the HTTP port has TLS where that is
asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from tidemill.client import connect
from tidemill.errors import Indeterminate, TidemillError, Unavailable
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import CollectionShape, HeldCapability
from tidemill.runtime.clock import SystemClock
from tidemill.shard import Collections
from tidemill.shard.stores import BlobPlace, open_blob, open_consensus
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.fleet import Fleet, fleet, until
from tidemill.testkit.up import UpProcess, up_process
from tidemill.time import frontier

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: flights}
spec:
  file: {path: rows.jsonl, format: jsonl}
  columns: [{name: plane, type: text}]
  timestampInterval: 100ms
  retain: all
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: planes}
spec: {retain: all, program: "seen(p) := s(p);", inputs: {s: flights}}
"""
PUSHED = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: NAME}
spec: {http: {}, format: {json: {}}, columns: [{name: n, type: int}], timestampInterval: 50ms}
"""


async def list_held(system: Fleet) -> set[str]:
    """The ids of all capabilities that the stores know of now."""
    store = Collections(
        open_consensus(system.consensus),
        open_blob(BlobPlace(f"file:{system.folder / 'blob'}"), partial(token_hex, 8)),
        SystemClock(), partial(token_hex, 16),
    )  # fmt: skip
    found: set[str] = set()
    for collection in await store.ids():
        state = await store.state(collection)
        found |= {str(name) for name in (*state.reads, *state.writes)}
    await store.close()
    return found


async def commands(address: str, name: str) -> set[str]:
    """Every command on capabilities, right and wrong; the ids that were handed out."""
    shape = CollectionShape(pa.schema([("n", pa.int64())]), user_writable=True)
    columns = {"n": pa.array([1], pa.int64()), "_time": pa.array([3], pa.uint64())}
    rows = pa.table({**columns, "_diff": pa.array([1], pa.int64())})
    async with AsyncClient(address) as client:
        calls = client.storage
        pair = await calls.create(name, shape, owner="me")
        assert pair.write is not None
        ids = {pair.read.id, pair.write.id}
        await calls.update_and_downgrade(pair.write, rows, frontier(5))
        more = await calls.acquire(name, owner="another")
        clone = await calls.clone(more.read)
        moved = await calls.transfer(clone, "a third")
        ids |= {more.read.id, clone.id, moved.id}
        moved = await calls.downgrade(moved, frontier(4))
        async for _ in calls.subscribe_at(pair.read, 3, up_to=4):
            pass
        await calls.drop(moved)
        invented = replace(pair.read, id=token_hex(16))
        for wrong in (clone, moved, invented):
            ids.add(wrong.id)
            await present_wrong(calls, wrong)
    return ids


async def present_wrong(calls: object, wrong: HeldCapability) -> None:
    """Present what is not held any more, or never was."""
    for name in ("clone", "drop"):
        with pytest.raises(TidemillError):
            await getattr(calls, name)(wrong)


@pytest.mark.server
def test_no_log_of_any_role_has_a_capability_in_it_at_any_level(
    tmp_path: Path, redis_url: str
) -> None:
    with fleet(tmp_path) as system:
        system.arguments = ("--log-level", "debug")
        consensus = f"{redis_url}?prefix=secrets-{token_hex(4)}"
        system.options = {"store": {"consensus": consensus, "blob": f"file:{tmp_path / 'blob'}"}}
        (tmp_path / "rows.jsonl").write_text(json.dumps({"plane": "N1"}) + "\n")
        (tmp_path / "resources.yaml").write_text(RESOURCES)
        for name, roles in (("a", "query,ingest,compaction"), ("b", "remap,reclock"), ("c", "compute"), ("d", "compute")):  # fmt: skip
            system.start(name, roles)
        system.asked("a", lambda client: client.apply(tmp_path / "resources.yaml") or None)
        ids = asyncio.run(commands(system.address("a"), "mine"))
        system.asked("a", lambda client: client.query("planes/seen").table.num_rows or None)
        ids |= asyncio.run(list_held(system))
        # Work moves, and holds are taken and found again.
        owner = system.owned("compute", "View/planes")
        system.members[owner.name].killed()
        system.owned("compute", "View/planes", than=owner.epoch)
        with (tmp_path / "rows.jsonl").open("a") as rows:
            rows.write(json.dumps({"plane": "N2"}) + "\n")
        told = system.asked("a", lambda c: shown(c) if c.query("planes/seen").table.num_rows == 2 else None)  # fmt: skip
        ids |= asyncio.run(list_held(system))
        logs = {member.name: member.log for member in system.members.values()}
        metrics = scraped(system, "a")
        assert len(ids) > 10
        assert "debug" in "".join(logs.values())
        for where, text in {**logs, "what users are shown": told, "metrics": metrics}.items():
            found = [name for name in ids if name in text or name[:16] in text]
            assert not found, f"{len(found)} capabilities are in {where}"


def shown(client: object) -> str:
    """All output of the command about resources and collections."""
    asked = [getattr(client, name)() for name in ("get", "collections")]
    return repr(asked)


def scraped(system: Fleet, name: str) -> str:
    with urlopen(f"{system.address(name, 'http')}/metrics", timeout=120) as answer:
        return str(answer.read().decode())


def secured(folder: Path) -> tuple[Certificates, list[str]]:
    """An authority, and the settings of a server with users that listens with TLS on both ports."""
    made = Certificates.of(folder, "ours")
    tls = made.issued("server")
    digests = {who: hashlib.sha256(f"{who}-token".encode()).hexdigest() for who in ("ann", "bob")}
    users = [
        {"name": who, "sha256": digest, "grants": [{"role": role, "collections": ["*"]}]}
        for (who, digest), role in zip(digests.items(), ("admin", "reader"), strict=True)
    ]
    (folder / "users.yaml").write_text(json.dumps({"users": users}))
    (folder / "ann.token").write_text("ann-token\n")
    pair = {"certificate": str(tls.certificate), "key": str(tls.key)}
    settings = {"tls": pair, "http_tls": pair, "token_file": str(folder / "users.yaml")}
    (folder / "settings.yaml").write_text(json.dumps(settings))
    return made, ["--config", str(folder / "settings.yaml")]


def posted(server: UpProcess, trust: ssl.SSLContext, token: str | None) -> int:
    """The status of pushing two rows."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    url = f"{server.address('http')}/v1/sources/pushed/rows"
    request = Request(url, b'{"n": 1}\n{"n": 2}\n', headers)
    try:
        with urlopen(request, timeout=120, context=trust) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def test_the_http_port_has_tls_and_asks_for_tokens_as_the_other_one_does(tmp_path: Path) -> None:
    made, arguments = secured(tmp_path)
    trust = ssl.create_default_context(cafile=str(made.authority))
    with up_process(tmp_path, *arguments) as server:
        assert server.address("http").startswith("https://")
        with urlopen(f"{server.address('http')}/metrics", timeout=120, context=trust) as answer:
            assert b"tidemill_claims_held" in answer.read()
        with connect(
            server.address("grpc"),
            tls_ca=str(made.authority),
            token_file=str(tmp_path / "ann.token"),
        ) as client:
            (tmp_path / "pushed.yaml").write_text(PUSHED.replace("NAME", "pushed"))

            def applied() -> bool | None:
                try:
                    return bool(client.apply(tmp_path / "pushed.yaml"))
                except (Unavailable, Indeterminate):
                    return None

            until(applied)
            assert [posted(server, trust, token) for token in (None, "no-token", "\xff\xfe", "bob-token")] == [401, 401, 401, 403]  # fmt: skip
            assert posted(server, trust, "ann-token") == 200

            def rows() -> list[int] | None:
                try:
                    return sorted(client.query("pushed").table["n"].to_pylist()) or None
                except TidemillError:
                    return None

            assert until(rows) == [1, 2]
        # A caller that does not trust the authority, or speaks in the clear, learns nothing.
        for url, context in (
            (server.address("http"), ssl.create_default_context()),
            (server.address("http").replace("https:", "http:"), None),
        ):
            with pytest.raises((URLError, ConnectionError)):
                urlopen(f"{url}/metrics", timeout=120, context=context)
        assert "ann-token" not in server.log.read_text()
