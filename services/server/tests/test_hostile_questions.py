"""Questions and commands that no client of ours would send: refused with a reason, and others are
answered.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pytest

from tidemill.errors import Exhausted, UsageError
from tidemill.host.observing import watch
from tidemill.host.settings import LimitSettings
from tidemill.rpc import codecs, codecs_proof
from tidemill.rpc.admission import Admissions
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.codecs_storage import capability_out
from tidemill.rpc.messages import CollectionShape, Comparison, Condition, ResourceDocument, Right
from tidemill.rpc.server import serve
from tidemill.testkit.whole import Whole, opened
from tidemill.time import frontier
from tidemill_protos.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from tidemill_protos.query.v1 import query_pb2, query_pb2_grpc
from tidemill_protos.storage.v1 import storage_pb2, storage_pb2_grpc
from tidemill_query import controller, storage
from tidemill_query.authorizing import AuthorizedCatalog, AuthorizedQueries, AuthorizedStorage
from tidemill_query.conditions import filter_of
from tidemill_query.observing import ObservedQueries
from tidemill_server.settings import ServerSettings

TABLE = """
apiVersion: tidemill.dev/v1alpha1
kind: Table
metadata: {name: begin}
spec: {columns: [{name: x, type: int}], retain: all}
"""
DOUBLING = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: steps}
spec:
  retain: all
  program: |
    left(x) := begin(x);
    right(x) := begin(x);
    left(x + 1) := left(x) ^ right(x) if x < 18;
    right(x + 1) := left(x) ^ right(x) if x < 18;
"""
CHAIN = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: chain}
spec:
  retain: all
  program: |
    deep(x) := begin(x);
    deep(x + 1) := deep(x) if x < 200;
"""


@asynccontextmanager
async def serving(
    folder: Path, **limits: int
) -> AsyncIterator[tuple[Whole, AsyncClient, grpc.aio.Channel]]:
    """A running process with these limits, a client of its port, and a channel for any bytes."""
    chosen = ServerSettings(directory=str(folder), limits=LimitSettings(**limits))
    async with opened(chosen) as process:
        await process.start()
        world = process.context
        watch(process.process)
        server = await serve(
            "127.0.0.1:0",
            AuthorizedQueries(ObservedQueries(process.query, world.metrics), world.catalog),
            AuthorizedCatalog(process.controller, world.catalog),
            AuthorizedStorage(process.storage, world.catalog),
            admissions=Admissions(
                chosen.limits.of_calls(True), world.clock.monotonic_s, world.clock.sleep
            ),
        )  # fmt: skip
        address = f"127.0.0.1:{server.port}"
        async with (
            AsyncClient(address, timeout_s=60) as client,
            grpc.aio.insecure_channel(address) as channel,
        ):
            yield process, client, channel
        await server.stop(0)


async def apply(client: AsyncClient, *texts: str) -> None:
    await client.apply([ResourceDocument(text, "test.yaml") for text in texts])


async def meet_refusal(call: Callable[[], Awaitable[Any]]) -> str:
    """The server's refusal of a request."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call()
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT, error.value
    return str(error.value.details())


async def test_a3_a_proof_that_doubles_as_a_tree_is_told_as_text(tmp_path: Path) -> None:
    """A3: 37 facts, each under two others: half a million nodes as a tree, with one more step twice
    as many.
    """
    async with serving(tmp_path) as (_, client, _):
        await apply(client, TABLE, DOUBLING)
        at = (await client.insert("begin", pa.table({"x": [0]}))).time
        await client.snapshot("steps/left", as_of=at, wait_s=60)
        short, long = await client.why("left(3)", at), await client.why("left(18)", at)
        assert short.tree is not None
        assert long.tree is None
        assert long.text.count("[rule") + long.text.count(", rule") >= 37


async def test_a2_conditions_that_no_stack_holds_are_refused(tmp_path: Path) -> None:
    """A2: Arrow goes down a filter on its stack: ten thousand of them in a chain were a dead
    process.
    """
    async with serving(tmp_path) as (_, client, channel):
        await apply(client, TABLE)
        at = (await client.insert("begin", pa.table({"x": [1, 2]}))).time
        held = await client.storage.acquire_right("begin", Right.READ, owner="me")
        stub = storage_pb2_grpc.StorageServiceStub(channel)

        async def ask(*conditions: storage_pb2.Condition) -> None:
            request = storage_pb2.SubscribeAtRequest(
                capability=capability_out(held), at=at, snapshot=True, where=conditions
            )
            async for _ in stub.SubscribeAt(request, timeout=60):
                return

        one = storage_pb2.Condition(column="x", comparison=1, value_json="1")
        says = await meet_refusal(lambda: ask(*[one] * 10_000))
        assert says == "the request's where are 10,000, more than 1,000: ask for fewer at a time"
        deep = storage_pb2.Condition(column="x", comparison=1, value_json="[" * 60_000)
        assert "has no JSON" in await meet_refusal(lambda: ask(deep))
        half = storage_pb2.Condition(column="x", comparison=1, value_json='"\\ud800"')
        assert "is no value of x" in await meet_refusal(lambda: ask(half))
        with pytest.raises(UsageError, match="10,000 conditions, more than 1,000"):
            filter_of(
                [Condition("x", Comparison.EQUAL, 1)] * 10_000, pa.schema([("x", pa.int64())])
            )
        many = [Condition("x", Comparison.GREATER, 1)] * 1_000
        async for event in client.storage.subscribe_at(held, at, where=many):
            assert event.table["x"].to_pylist() == [2]  # type: ignore[union-attr]  # the contents
            break


async def test_a3_what_there_are_too_many_of_is_counted_before_it_is_looked_at(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (_, client, channel):
        await apply(client, TABLE)
        query = query_pb2_grpc.QueryServiceStub(channel)
        catalog = catalog_pb2_grpc.CatalogServiceStub(channel)
        storage = storage_pb2_grpc.StorageServiceStub(channel)

        async def tables(names: list[str]) -> None:
            async for _ in query.Tables(query_pb2.TablesRequest(names=names), timeout=60):
                return

        says = await meet_refusal(lambda: tables(["begin"] * 100_000))
        assert "names are 100,000, more than 1,000" in says
        documents = [catalog_pb2.ResourceDocument()] * 20_000
        request = catalog_pb2.ApplyRequest(documents=documents)
        assert "documents are 20,000" in await meet_refusal(
            lambda: catalog.Apply(request, timeout=60)
        )
        named = catalog_pb2.ResourceDocument(text="a: b", file="f" * 100_000)
        one = catalog_pb2.ApplyRequest(documents=[named])
        says = await meet_refusal(lambda: catalog.Apply(one, timeout=60))
        assert says == "the request's file is too long: it has 100,000 characters"
        owner = storage_pb2.AcquireCapabilitiesRequest(collection="begin", owner="o" * 100_000)
        says = await meet_refusal(lambda: storage.AcquireCapabilities(owner, timeout=60))
        assert says == "the request's owner is too long: it has 100,000 characters"
        shape = storage_pb2.CollectionShape(timeline="t" * 1_000)
        created = storage_pb2.CreateRequest(collection="c", shape=shape)
        assert "timeline is too long" in await meet_refusal(
            lambda: storage.Create(created, timeout=60)
        )


async def test_a3_clients_take_so_many_capabilities_of_a_collection(tmp_path: Path) -> None:
    """A3: each is read with every version of the collection, by every process, for a week."""
    async with serving(tmp_path, capabilities=5) as (_, client, _):
        shape = CollectionShape(pa.schema([("x", pa.int64())]), user_writable=True)
        pair = await client.storage.create("mine", shape, owner="me", lease_ms=60_000)
        for _ in range(3):
            await client.storage.clone(pair.read)
        with pytest.raises(Exhausted, match=r"held by 5 already.*limits\.capabilities"):
            await client.storage.clone(pair.read)
        with pytest.raises(Exhausted, match=r"limits\.capabilities"):
            await client.storage.acquire_right("mine", Right.READ, owner="me")
        await client.storage.drop(pair.read)
        await client.storage.acquire_right("mine", Right.READ, owner="me")


async def test_a3_what_callers_write_becomes_no_label_of_a_metric(tmp_path: Path) -> None:
    """A3: names of collections that there are not, and what holders call themselves, are different
    each time.
    """
    async with serving(tmp_path) as (process, client, _):
        await apply(client, TABLE)
        await client.insert("begin", pa.table({"x": [1]}))
        for number in range(3):
            with pytest.raises(UsageError):
                async for _ in client.subscribe(f"unheard{number}"):
                    pass
            await client.storage.acquire_right("begin", Right.READ, owner=f"hostile{number}")
        async for _ in client.subscribe("begin"):
            shown = process.context.metrics.expose()[0].decode()
            break
        assert 'tidemill_subscriptions{collection="begin"} 1.0' in shown
        assert 'tidemill_read_holds{collection="begin",holder="session"} 4.0' in shown
        assert "unheard" not in shown
        assert "hostile" not in shown


async def test_a1_half_a_character_in_a_document_is_refused_with_its_place(tmp_path: Path) -> None:
    """A1: it was stored, and from then on nobody could list resources: no message can hold it."""
    async with serving(tmp_path) as (_, client, _):
        for text in (
            TABLE.replace("name: begin", 'name: begin, annotations: {a: "\\ud800"}'),
            TABLE.replace("retain: all", 'retain: "\\ud800"'),
            TABLE.replace("retain: all", '"\\ud800": all'),
        ):
            with pytest.raises(UsageError, match=r"test\.yaml:[45].*half of a surrogate pair"):
                await apply(client, text)
        assert await client.get() == []


async def test_a1_numbers_that_no_field_holds_are_refused_with_their_place(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client, _):
        await apply(client, TABLE)
        for spec in (
            "limits: {rows: 1e30}", f"limits: {{rows: {'9' * 30}}}", f"limits: {{rows: 0x{'f' * 5_000}}}",
            "hydrateFrom: 1e18", "nodes: 1e300", "retain: 999999999999999d",
            "tick: {period: 999999999999999d}",
        ):  # fmt: skip
            text = DOUBLING.replace("retain: all", spec)
            with pytest.raises(UsageError, match=r"test\.yaml:6:"):
                await apply(client, text)
        assert [each.name for each in await client.get()] == ["begin"]


async def test_a1_an_annotation_of_brackets_keeps_nobody_from_deleting(tmp_path: Path) -> None:
    """A1: the annotation of a view is read whenever somebody deletes a created collection."""
    async with serving(tmp_path) as (_, client, _):
        note = f"name: steps, annotations: {{tidemill.dev/written-into: '{'[' * 100_000}'}}"
        await apply(client, TABLE, DOUBLING.replace("name: steps", note))
        shape = CollectionShape(pa.schema([("x", pa.int64())]), user_writable=True)
        await client.storage.create("mine", shape, start=frontier(0), owner="me", lease_ms=60_000)
        await client.delete("collection", "mine")


async def test_a3_long_rows_and_proofs_are_looked_at_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A3: bytes of an insert, its values, those of an append, and a long proof: each in a turn of
    its caller.
    """
    threads: dict[str, str] = {}

    def noted(module: ModuleType, name: str) -> None:
        wanted = getattr(module, name)

        def work(*given: Any, **named: Any) -> Any:
            threads[name] = threading.current_thread().name
            return wanted(*given, **named)

        monkeypatch.setattr(module, name, work)

    for module, name in (
        (codecs, "table_in"), (controller, "fitted"), (storage, "normal_rows"), (codecs_proof, "why_out"),
    ):  # fmt: skip
        noted(module, name)
    async with serving(tmp_path) as (_, client, _):
        text = TABLE.replace("x, type: int", "x, type: text").replace("begin", "words")
        await apply(client, TABLE, CHAIN, text)
        long = pa.array(["ü" * 1_000] * 100)
        await client.insert("words", pa.table({"x": long}))
        shape = CollectionShape(pa.schema([("x", pa.string())]), user_writable=True)
        pair = await client.storage.create("mine", shape, owner="me", lease_ms=60_000)
        assert pair.write is not None
        lanes = {
            "_time": pa.array([0] * 100, pa.uint64()),
            "_diff": pa.array([1] * 100, pa.int64()),
        }
        rows = pa.table({"x": long, **lanes})
        await client.storage.update_and_downgrade(pair.write, rows, frontier(1))
        at = (await client.insert("begin", pa.table({"x": [0]}))).time
        await client.snapshot("chain/deep", as_of=at, wait_s=60)
        threads.pop("table_in")
        await client.insert("words", pa.table({"x": long}))
        assert (await client.why("deep(200)", at)).tree is not None
    assert set(threads) == {"table_in", "fitted", "normal_rows", "why_out"}
    assert all(name.startswith("asked") for name in threads.values()), threads
