"""Permission of calls: every method of every service, for every role, within its collections and
beyond.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tidemill.catalog.catalog import Catalog
from tidemill.errors import Denied, TidemillError, Unauthenticated, UnknownCollection, UsageError
from tidemill.host.process import checked, users_of
from tidemill.host.settings import TlsSettings
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.identity import NEEDS, Role
from tidemill.rpc.messages import (
    CollectionShape,
    Decision,
    HeldCapability,
    MaintainedView,
    ResourceDocument,
    Right,
)
from tidemill.rpc.server import serve
from tidemill.rpc.tls import ServerCredentials, TlsFiles
from tidemill.testkit.certificates import Certificates
from tidemill.testkit.handlers_memory import MemoryHandlers
from tidemill.time import frontier
from tidemill_protos.catalog.v1 import catalog_pb2
from tidemill_protos.compute.v1 import compute_pb2
from tidemill_protos.ingest.v1 import ingest_pb2
from tidemill_protos.query.v1 import query_pb2
from tidemill_protos.storage.v1 import storage_pb2
from tidemill_protos.work.v1 import work_pb2
from tidemill_query.authorizing import (
    AuthorizedCatalog,
    AuthorizedCompute,
    AuthorizedQueries,
    AuthorizedStorage,
)
from tidemill_server.settings import ServerSettings

Call = Callable[[AsyncClient, str], Awaitable[object]]


def table(name: str) -> ResourceDocument:
    return ResourceDocument(
        "apiVersion: tidemill.dev/v1alpha1\nkind: Table\n"
        f"metadata:\n  name: {name}\nspec: {{columns: [{{name: a, type: int}}]}}\n",
        "t.yaml",
    )


def held(name: str) -> HeldCapability:
    return HeldCapability("c" * 32, name, frontier(0), Right.READ)


async def first(stream: AsyncIterator[object]) -> object:
    async for event in stream:
        return event
    return None


CALLS: dict[str, tuple[Role, Call]] = {
    "QueryService/Snapshot": (Role.reader, lambda c, n: c.snapshot(n)),
    "QueryService/Ask": (Role.reader, lambda c, n: c.ask(f"{n}(a)")),
    "QueryService/Subscribe": (Role.reader, lambda c, n: first(c.subscribe(n))),
    "QueryService/Why": (Role.reader, lambda c, n: c.why(f"{n}(1)")),
    "QueryService/WhyNot": (Role.reader, lambda c, n: c.why_not(f"{n}(1)")),
    "QueryService/Explain": (Role.reader, lambda c, n: c.explain(n)),
    "QueryService/Tables": (Role.reader, lambda c, n: c.tables([n])),
    "CatalogService/Describe": (Role.reader, lambda c, n: c.describe("Table", n)),
    "CatalogService/Insert": (Role.writer, lambda c, n: c.insert(n, pa.table({"a": [1]}))),
    "CatalogService/Push": (Role.writer, lambda c, n: c.push(n, [b"{}"])),
    "CatalogService/Apply": (Role.admin, lambda c, n: c.apply([table(n)])),
    "CatalogService/Delete": (Role.admin, lambda c, n: c.delete("Table", n)),
    "CatalogService/Decide": (Role.admin, lambda c, n: c.decide(n, Decision.ABORT)),
    "StorageService/Create": (
        Role.writer,
        lambda c, n: c.storage.create(n, CollectionShape(pa.schema([("a", pa.int64())]))),
    ),
    "StorageService/AcquireCapabilities": (
        Role.reader,
        lambda c, n: c.storage.acquire_right(n, Right.READ),
    ),
    "StorageService/Renew": (Role.reader, lambda c, n: c.storage.renew(held(n))),
    "StorageService/Expire": (Role.admin, lambda c, n: c.storage.expire(n, "a key")),
    "QueryService/ExplainTimestamp": (Role.reader, lambda c, n: c.explain_timestamp([n])),
    "QueryService/Translate": (Role.reader, lambda c, n: c.translate(n)),
    "ComputeService/MaintainView": (
        Role.admin,
        lambda c, n: c.compute.maintain_view(MaintainedView(n, "a(x) := b(x);", {"b": held(n)})),
    ),
    "ComputeService/DropView": (Role.admin, lambda c, n: c.compute.drop_view(held(f"{n}/a"))),
    "StorageService/CloneCapability": (Role.reader, lambda c, n: c.storage.clone(held(n))),
    "StorageService/TransferCapability": (
        Role.reader,
        lambda c, n: c.storage.transfer(held(n), "o"),
    ),
    "StorageService/Downgrade": (
        Role.reader,
        lambda c, n: c.storage.downgrade(held(n), frontier(1)),
    ),
    "StorageService/Drop": (Role.reader, lambda c, n: c.storage.drop(held(n))),
    "StorageService/UpdateAndDowngrade": (
        Role.writer,
        lambda c, n: c.storage.update_and_downgrade(held(n), None, frontier(1)),
    ),
    "StorageService/HoldVersion": (Role.reader, lambda c, n: c.storage.hold_version(n)),
    "StorageService/LocateObjects": (Role.reader, lambda c, n: c.storage.locate(held(n), [])),
    "StorageService/SubscribeAt": (
        Role.reader,
        lambda c, n: first(c.storage.subscribe_at(held(n), 0)),
    ),
}
"""Calls that name a collection, with the role that they need over it."""

LISTS = {"QueryService/Collections", "CatalogService/Get"}
"""Calls whose answers hold what the caller may read."""

INTERNAL = {
    "IngestService/Probe",
    "IngestService/Deliver",
    "IngestService/Commit",
    "WorkService/List",
}
"""Calls of services; users have a port where these are not."""

USERS = {"reader": "reader", "writer": "writer", "admin": "admin"}


def token_file(folder: Path) -> Path:
    lines = ["users:"]
    for name in USERS:
        (folder / f"{name}.token").write_text(f"token-of-{name}\n")
        digest = hashlib.sha256(f"token-of-{name}".encode()).hexdigest()
        lines += [
            f"- name: {name}",
            f"  sha256: {digest}",
            "  grants:",
            f"  - {{role: {name}, collections: ['ops-*', flights]}}",
        ]
    (folder / "users.yaml").write_text("\n".join(lines) + "\n")
    return folder / "users.yaml"


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Callable[[str], AsyncClient]]:
    """A server that asks for tokens; clients by the name of their user."""
    made = Certificates.of(folder)
    server = made.issued("server")
    (folder / "stranger.token").write_text("token-of-nobody\n")
    settings = ServerSettings(
        token_file=str(token_file(folder)),
        tls=TlsSettings(str(server.certificate), str(server.key)),
    )
    checked(settings)
    handlers, catalog = MemoryHandlers(), Catalog()
    running = await serve(
        "127.0.0.1:0", AuthorizedQueries(handlers, catalog), AuthorizedCatalog(handlers, catalog),
        AuthorizedStorage(handlers, catalog), AuthorizedCompute(handlers, catalog),
        authenticator=users_of(settings),
        credentials=ServerCredentials(server).credentials(),
    )  # fmt: skip

    def client(user: str) -> AsyncClient:
        token = folder / f"{user}.token" if user else None
        dialer = Dialer(TlsFiles(authority=made.authority), token_file=token)
        return AsyncClient(f"127.0.0.1:{running.port}", timeout_s=5, dialer=dialer)

    try:
        yield client
    finally:
        await running.stop(0)


async def outcome(call: Call, client: AsyncClient, name: str) -> str:
    try:
        await call(client, name)
    except Unauthenticated:
        return "unknown"
    except Denied:
        return "denied"
    except TidemillError:
        return "allowed"  # the handlers were asked, and have an opinion of their own
    return "allowed"


def test_the_table_names_every_method_there_is() -> None:
    offered = {
        f"{service.name}/{method.name}"
        for file in (catalog_pb2, compute_pb2, ingest_pb2, query_pb2, storage_pb2, work_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert offered == set(CALLS) | LISTS | INTERNAL
    needs = {name.rpartition(".")[2]: role for name, role in NEEDS.items()}
    assert needs == {
        **{name: role for name, (role, _) in CALLS.items()},
        **dict.fromkeys(LISTS, Role.reader),
        **dict.fromkeys(INTERNAL, Role.admin),
    }


async def test_each_role_may_call_what_it_needs_for_over_its_collections_alone(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as connect:
        for user in (*USERS, "", "stranger"):
            async with connect(user) as client:
                found = {
                    (method, name): await outcome(call, client, name)
                    for method, (_, call) in CALLS.items()
                    for name in ("ops-flights", "flights", "ops", "secrets")
                }
            for (method, name), was in found.items():
                expected = "unknown"
                if user in USERS:
                    within = name in ("ops-flights", "flights")
                    may = within and Role[user] >= CALLS[method][0]
                    expected = "allowed" if may else "denied"
                assert was == expected, (user, method, name)


async def test_v14_10_a_reader_reads_and_holds_by_capability_and_does_not_write(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as connect, connect("reader") as client:
        for ask in (
            client.storage.acquire("flights"),
            client.storage.acquire_right("flights", Right.WRITE),
            client.storage.drop(replace(held("flights"), right=Right.WRITE)),
        ):
            with pytest.raises(Denied):
                await ask
        with pytest.raises(UnknownCollection):
            await client.storage.acquire_right("flights", Right.READ)


async def test_a_list_holds_what_the_caller_may_read(tmp_path: Path) -> None:
    async with served(tmp_path) as connect, connect("admin") as admin, connect("reader") as reader:
        await admin.apply([table("ops-a")])
        assert [each.name for each in await reader.get()] == ["ops-a"]
        (tmp_path / "users.yaml").write_text(
            (tmp_path / "users.yaml").read_text().replace("'ops-*', flights", "flights")
        )
        # A changed file of users counts at once.
        assert await reader.get() == []
        (tmp_path / "users.yaml").write_text("users: none\n")
        assert await reader.get() == []


async def test_a_changed_token_is_sent_without_a_new_connection(tmp_path: Path) -> None:
    async with served(tmp_path) as connect, connect("reader") as client:
        await client.get()
        (tmp_path / "reader.token").write_text("withdrawn\n")
        with pytest.raises(Unauthenticated, match="does not know the token"):
            await client.get()
        (tmp_path / "reader.token").write_text("token-of-writer\n")
        await client.push("flights", [b"{}"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "lists no users"),
        ("users: [{name: a, sha256: ab, grants: [{role: reader, collections: ['*']}]}]", "64"),
        ("users: [{name: a, token: t, grants: []}]", "unknown fields: token"),
        (f"users: [{{name: a, sha256: {'0' * 64}, grants: [{{role: owner, collections: [a]}}]}}]", "owner"),
        (f"users: [{{name: a, sha256: {'0' * 64}, grants: [{{role: admin, collections: ['*a']}}]}}]", "pattern"),
        (f"users: [{{name: a, sha256: {'0' * 64}, grants: [{{role: admin}}]}}]", "no collections"),
    ],
)  # fmt: skip
def test_a_file_of_users_with_a_mistake_is_refused_with_its_place(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "users.yaml").write_text(text)
    with pytest.raises(UsageError, match=says):
        users_of(ServerSettings(token_file=str(tmp_path / "users.yaml")))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"token_file": "users.yaml"}, "tls.certificate"),
        ({"services": {"tls": {"authority": "ca.pem"}}}, "services.tls needs"),
        ({"services": {"names": ["a"]}}, "need services.tls"),
        ({"role": ["ingest", "compte"]}, "did you mean"),
        ({"store": {"consensus": "redis://:secret@host/0"}}, "password_file"),
    ],
)
def test_settings_that_are_not_safe_are_refused(settings: dict[str, object], says: str) -> None:
    chosen = msgspec.convert(settings, ServerSettings)
    with pytest.raises(UsageError, match=says) as refused:
        checked(chosen)
    assert "secret@" not in str(refused.value)
