"""The audit is a collection like any other: changes and refusals with users, and no secret."""

from __future__ import annotations

import hashlib
import json
import signal
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest

from tidemill.catalog.audit_schema import AUDIT
from tidemill.client import Client, connect
from tidemill.errors import Denied, TidemillError, Unauthenticated, Unavailable, UsageError
from tidemill.host.auditing import Audit
from tidemill.host.settings import AuditSettings
from tidemill.rpc.audited import AuditedCall, host_of
from tidemill.rpc.identity import EVERYBODY, PROCESS, Grant, Principal, Role
from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.ids import random_id
from tidemill.shard import Collections
from tidemill.shard.stores_memory import MemoryBlob, MemoryConsensus
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.fleet import until
from tidemill.testkit.up import UpProcess, up_process

CALL = AuditedCall("ann", "10.0.0.7", "Insert", "flights", "done")


def over(clock: ManualClock) -> Collections:
    return Collections(MemoryConsensus(), MemoryBlob(), clock, random_id)


async def rows(collections: Collections) -> list[dict[str, Any]]:
    held, _ = await collections.acquire(AUDIT, owner="test")
    upper = (await collections.status(AUDIT)).upper
    found = await collections.snapshot(held, next(iter(upper)) - 1)
    await collections.drop(held)
    return list(found.to_pylist())


async def test_equal_calls_of_an_interval_are_one_row_and_a_flood_is_bounded() -> None:
    clock = ManualClock(1_000)
    collections = over(clock)
    audit = Audit(collections, clock, AuditSettings(entries_max=3), "one")
    for _ in range(500):
        audit.called(CALL)
    for number in range(1_000):
        audit.called(AuditedCall("", f"10.0.{number}.1", "Ask", "", "refused", "Unauthenticated"))
    await audit.flush()
    found = await rows(collections)
    assert sum(row["calls"] for row in found) == 1_500
    assert {row["calls"] for row in found if row["target"] == "flights"} == {500}
    assert len(found) <= 4
    assert any((row["who"], row["address"], row["action"]) == ("…", "…", "Ask") for row in found)


async def test_a4_refusals_push_out_nobody_who_changed_something() -> None:
    """Not of an interval, and not of what is kept: their number is the choice of who is refused."""
    clock = ManualClock(1_000)
    collections = over(clock)
    told = AuditSettings(entries_max=20, refusals_max=5, rows_max=12, refused_rows_max=6)
    audit = Audit(collections, clock, told, "one")
    for round_ in range(4):
        for number in range(50):
            where = f"POST /{round_}/{number}"
            audit.called(AuditedCall("", "10.0.0.9", "Http", where, "refused", "403"))
        audit.called(AuditedCall("ann", "", "Insert", f"t{round_}", "done"))
        await audit.flush()
        clock.move(1)
    found = await rows(collections)
    assert sum(row["calls"] for row in found if row["outcome"] == "refused") == 200
    assert len([row for row in found if row["outcome"] == "refused"]) == 4 * (5 + 1)
    await audit.sweep()
    kept = await rows(collections)
    assert {row["target"] for row in kept if row["who"] == "ann"} == {"t0", "t1", "t2", "t3"}
    assert len([row for row in kept if row["outcome"] == "refused"]) == 6


async def test_a_process_that_only_tells_writes_when_it_has_heard_something() -> None:
    clock = ManualClock(1_000)
    collections = over(clock)
    audit = Audit(collections, clock, AuditSettings(), "back", tends=False)
    await audit.flush()
    assert AUDIT not in await collections.ids()
    audit.called(CALL)
    await audit.flush()
    assert [row["process"] for row in await rows(collections)] == ["back"]


class Breaking(Collections):
    """Stores that break off the next appends, after they have written if `late`."""

    breaks = 0
    late = False

    async def compare_and_append(self, *arguments: Any, **named: Any) -> Any:
        if self.breaks and not self.late:
            self.breaks -= 1
            raise Unavailable("the store is away")
        outcome = await super().compare_and_append(*arguments, **named)
        if self.breaks:
            self.breaks -= 1
            raise Unavailable("the store is away")
        return outcome


@pytest.mark.parametrize("late", [False, True])
async def test_what_a_store_refuses_is_written_once_when_it_is_back(late: bool) -> None:
    clock = ManualClock(1_000)
    collections = Breaking(MemoryConsensus(), MemoryBlob(), clock, random_id)
    audit = Audit(collections, clock, AuditSettings(), "one")
    await audit.flush()
    collections.breaks, collections.late = 2, late
    audit.called(CALL)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await audit.flush()
        audit.called(CALL)
    assert collections.breaks == 0
    await audit.close()
    assert sorted(row["calls"] for row in await rows(collections)) == [1, 2]


async def test_processes_write_one_collection() -> None:
    clock = ManualClock(1_000)
    collections = over(clock)
    audits = [Audit(collections, clock, AuditSettings(), name) for name in ("one", "two")]
    for audit in audits:
        audit.called(CALL)
    for audit in audits:
        await audit.flush()
    assert sorted(row["process"] for row in await rows(collections)) == ["one", "two"]


async def test_rows_that_are_too_old_or_too_many_are_taken_away() -> None:
    clock = ManualClock(1_000)
    collections = over(clock)
    audit = Audit(collections, clock, AuditSettings(keep_s=60, rows_max=2), "one")
    for number in range(4):
        audit.called(AuditedCall("ann", "", "Insert", f"t{number}", "done"))
        await audit.flush()
        clock.move(1)
    await audit.sweep()
    assert sorted(row["target"] for row in await rows(collections)) == ["t2", "t3"]
    clock.move(59)
    audit.called(CALL)
    await audit.flush()
    await audit.sweep()
    assert {row["target"] for row in await rows(collections)} == {"t3", "flights"}


async def test_its_upper_follows_the_clock_while_nothing_happens() -> None:
    clock = ManualClock(1_000)
    collections = over(clock)
    audit = Audit(collections, clock, AuditSettings(idle_s=5), "one")
    for at in (1_000, 4_000, 11_000, 12_000):
        clock.move((at - clock.now_ms()) / 1000)
        await audit.flush()
    assert list((await collections.status(AUDIT)).upper) == [11_001]


def test_an_address_has_no_port() -> None:
    assert host_of("ipv4:10.0.0.7:5000") == "10.0.0.7"
    assert host_of("ipv6:%5B::1%5D:5000") == "::1"
    assert host_of("unix:") == "unix:"


# -- a server with users ---------------------------------------------------------------------------

TOKENS = {who: hashlib.sha256(who.encode()).hexdigest()[:43] for who in ("ann", "bob", "eve")}
SECRET_ROW = "a row that nobody else may see"
RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: pushed}
spec: {http: {}, format: {json: {}}, columns: [{name: t, type: text}]}
---
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: rows}
spec: {columns: [{name: t, type: text}]}
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: NAME}
spec:
  inputs: {audited: tidemill/audit}
  program: "refusals(who: w, target: t) := audited(_, w, _, _, t, \\"refused\\", _, _, _);"
"""

KEPT = """
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: kept}
spec: {takeover: manual, retain: all, program: 'kept(t) := rows(t);'}
"""


def secured(folder: Path) -> tuple[Certificates, list[str]]:
    made = Certificates.of(folder, "ours")
    tls = made.issued("server")
    grants = {"ann": ("admin", ["*"]), "bob": ("reader", ["*"])}
    users = [
        {
            "name": who,
            "sha256": hashlib.sha256(TOKENS[who].encode()).hexdigest(),
            "grants": [{"role": role, "collections": names}],
        }
        for who, (role, names) in grants.items()
    ]
    for who, token in TOKENS.items():
        (folder / f"{who}.token").write_text(token)
    (folder / "users.yaml").write_text(json.dumps({"users": users}))
    pair = {"certificate": str(tls.certificate), "key": str(tls.key)}
    settings = {"tls": pair, "http_tls": pair, "token_file": str(folder / "users.yaml")}
    (folder / "settings.yaml").write_text(json.dumps({**settings, "audit": {"interval_s": 0.1}}))
    return made, ["--config", str(folder / "settings.yaml")]


def client_of(server: UpProcess, made: Certificates, who: str) -> Client:
    token = str(server.folder / f"{who}.token")
    return connect(server.address("grpc"), tls_ca=str(made.authority), token_file=token)


def asked(server: UpProcess, made: Certificates, body: bytes, **headers: str) -> int:
    """The status of rows that are posted with these headers."""
    trust = ssl.create_default_context(cafile=str(made.authority))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "text/csv", **named}
    request = Request(f"{server.address('http')}/v1/sources/pushed/rows?token=x", body, sent)
    try:
        with urlopen(request, timeout=120, context=trust) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def posted(server: UpProcess, made: Certificates, token: bytes) -> int:
    trust = ssl.create_default_context(cafile=str(made.authority))
    url = f"{server.address('http')}/v1/sources/pushed/rows"
    sent = {"Authorization": b"Bearer " + token, "Content-Type": "application/json"}
    body = json.dumps({"t": SECRET_ROW}).encode()
    try:
        with urlopen(Request(url, body, sent), timeout=120, context=trust) as answer:  # type: ignore[arg-type]
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


def entries(client: Client) -> set[tuple[str, ...]]:
    try:
        table = client.query(AUDIT).table
    except TidemillError:
        return set()
    names = ("who", "address", "action", "target", "outcome", "reason")
    return {tuple(row[name] for name in names) for row in table.to_pylist()}


def refused_and_done(server: UpProcess, made: Certificates) -> None:
    """Everything that is told of, once."""
    with client_of(server, made, "ann") as ann:
        until(lambda: bool(ann.apply(ResourceDocument(RESOURCES, "r.yaml"))) or None)
        ann.apply(ResourceDocument(RESOURCES, "r.yaml"))
        ann.insert("rows", pa.table({"t": [SECRET_ROW]}))
        with pytest.raises(UsageError):
            ann.insert("rows", pa.table({SECRET_ROW: [SECRET_ROW]}))
        ann.delete("Table", "rows")
    with client_of(server, made, "bob") as bob:
        with pytest.raises(Denied):
            bob.insert("rows", pa.table({"t": [SECRET_ROW]}))
        with pytest.raises(Denied, match="bob is no reader of tidemill/audit"):
            bob.query(AUDIT)
        assert AUDIT not in {each.id for each in bob.collections()}
    with client_of(server, made, "eve") as eve, pytest.raises(Unauthenticated):
        eve.get()
    assert posted(server, made, TOKENS["ann"].encode()) == 200
    assert posted(server, made, TOKENS["bob"].encode()) == 403
    assert posted(server, made, b"\xff\xfe") == 401


WANTED = {
    ("ann", "Apply", "Source/pushed", "done"),
    ("ann", "Apply", "Table/rows", "done"),
    ("ann", "Insert", "rows", "done"),
    ("ann", "Insert", "rows", "failed"),
    ("ann", "Delete", "rows", "done"),
    ("bob", "Insert", "", "refused"),
    ("bob", "Snapshot", "tidemill/audit", "refused"),
    ("", "Get", "", "refused"),
    ("ann", "Push", "pushed", "done"),
    ("bob", "Push", "pushed", "refused"),
    ("", "Push", "", "refused"),
}


def test_a4_who_changed_what_and_who_was_refused_can_be_asked(tmp_path: Path) -> None:
    made, arguments = secured(tmp_path)
    with up_process(tmp_path, *arguments) as server:
        refused_and_done(server, made)
        with client_of(server, made, "ann") as ann:
            until(lambda: {(e[0], *e[2:5]) for e in entries(ann)} >= WANTED or None)
            assert {e[1] for e in entries(ann)} == {"127.0.0.1"}
            said = "".join(map(str, entries(ann))) + server.log.read_text()
            assert SECRET_ROW not in said
            assert all(token not in said for token in TOKENS.values())
            ann.apply(ResourceDocument(VIEW.replace("NAME", "watch"), "v.yaml"))

            def seen() -> bool | None:
                try:
                    table = ann.query("watch/refusals(w, t)").table
                except TidemillError:
                    return None
                return {"bob", ""} <= set(table["w"].to_pylist()) or None

            until(seen)
            ann.apply(ResourceDocument(VIEW.replace("NAME", "last"), "v.yaml"))
        assert server.stop(signal.SIGTERM) == 0
        # Nothing of what was done is lost on a clean stop, also within the last interval.
        server.start()
        with client_of(server, made, "ann") as ann:
            wanted = ("ann", "Apply", "View/last", "done")
            until(lambda: wanted in {(e[0], *e[2:5]) for e in entries(ann)} or None)


def test_a4_who_approved_a_version_and_who_gave_one_up_can_be_asked(tmp_path: Path) -> None:
    """A reader who tries is refused, and told of."""
    made, arguments = secured(tmp_path)
    with up_process(tmp_path, *arguments) as server, client_of(server, made, "ann") as ann:
        until(lambda: bool(ann.apply(ResourceDocument(RESOURCES + KEPT, "r.yaml"))) or None)
        until(lambda: ann.describe("View", "kept").ready or None)
        for number, decide in enumerate((ann.approve, ann.abort)):
            changed = KEPT.replace("rows(t)", f'rows(t) if t != "{number}"')
            ann.apply(ResourceDocument(changed, "v.yaml"))
            until(partial(decided, decide))
            until(lambda: "changing" not in ann.describe("View", "kept").details or None)
        with client_of(server, made, "bob") as bob, pytest.raises(Denied):
            bob.approve("kept")
        wanted = {
            ("ann", "Decide", "View/kept approve", "done"),
            ("ann", "Decide", "View/kept abort", "done"),
            ("bob", "Decide", "", "refused"),
        }
        until(lambda: {(e[0], *e[2:5]) for e in entries(ann)} >= wanted or None)


def decided(decide: Callable[[str], int]) -> int | None:
    """The number of the version, None while there is none that waits."""
    try:
        return decide("kept")
    except UsageError:
        return None


@pytest.mark.parametrize("who", [EVERYBODY, PROCESS])
def test_a4_nobody_writes_what_the_system_says_of_itself(who: Principal) -> None:
    assert who.has(Role.reader, AUDIT)
    for role in (Role.writer, Role.admin):
        for name in (AUDIT, "tidemill", "tidemill~2", "tidemill/other"):
            assert not who.has(role, name)
    reader = Principal("bob", (Grant(Role.reader), Grant(Role.writer)))
    assert not reader.has(Role.reader, AUDIT)
    assert Principal("amy", (Grant(Role.admin, ("tidemill",)),)).has(Role.reader, AUDIT)


def test_a4_requests_that_are_refused_for_what_they_look_like_are_told_of(tmp_path: Path) -> None:
    """By pages of others, of kinds that are not taken, and too large: with the address, and without
    a name.
    """
    made, arguments = secured(tmp_path)
    limits = json.loads((tmp_path / "settings.yaml").read_text()) | {
        "limits": {"http_body_bytes": 10}
    }
    (tmp_path / "settings.yaml").write_text(json.dumps(limits))
    with up_process(tmp_path, *arguments) as server, client_of(server, made, "ann") as ann:
        until(lambda: bool(ann.apply(ResourceDocument(RESOURCES, "r.yaml"))) or None)
        assert asked(server, made, b"a", Origin="https://evil.example") == 403
        assert asked(server, made, b"a", Content_Type="text/html") == 415
        assert asked(server, made, b"a", Content_Encoding="gzip") == 415
        assert asked(server, made, b"a" * 11) == 413

        def told() -> set[tuple[str, ...]] | None:
            found = {(*e[:5], e[5][:3]) for e in entries(ann) if e[2] == "Http"}
            return found if len(found) == 3 else None

        where = "POST /v1/sources/pushed/rows"
        expected = {
            ("", "127.0.0.1", "Http", where, "refused", status) for status in ("403", "415", "413")
        }
        assert until(told) == expected
        assert TOKENS["ann"] not in str(entries(ann))
