"""Connections that break within gRPC: a read did not happen, a write may have; neither is a fault
of the server.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

import grpc
import grpc.aio
import pyarrow as pa
import pytest

from tidemill.errors import Indeterminate, TidemillError, Unavailable
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.client_services import ServiceClient
from tidemill.rpc.messages import Delivered, Event, Progress, Pushed, Work
from tidemill.rpc.server import ServiceHandlers, serve
from tidemill.testkit.faults.proxy import Proxy
from tidemill.testkit.handlers_memory import MemoryHandlers, behind_proxy, flights
from tidemill.time import frontier
from tidemill_protos.query.v1 import query_pb2_grpc

BREAKS = 12


class Busy(MemoryHandlers):
    """Answers that never end, and calls that wait until the test is over."""

    def __init__(self) -> None:
        super().__init__({"flights": flights()})
        self.asked = asyncio.Event()
        self.pushed: list[bytes] = []

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        at = 0
        while True:
            at += 1
            yield Progress(frontier(at))
            await asyncio.sleep(0)

    async def push(self, source: str, rows: Sequence[bytes], token: str | None = None) -> Pushed:
        self.pushed += rows
        self.asked.set()
        waited: asyncio.Future[Pushed] = asyncio.get_running_loop().create_future()
        return await waited


async def drain(stream: AsyncIterator[object]) -> None:
    """Take what is still to come, until the stream ends."""
    while True:
        await asyncio.wait_for(anext(stream), 60)


async def test_a_stream_whose_connection_breaks_at_any_moment_is_unavailable() -> None:
    async with behind_proxy(Busy()) as (_, proxy):
        for messages in range(BREAKS):
            async with AsyncClient(f"127.0.0.1:{proxy.port}") as client:
                events = client.subscribe("flights")
                for _ in range(messages + 1):
                    await anext(events)
                proxy.cut()
                with pytest.raises(Unavailable):
                    await drain(events)
        assert proxy.passed["open"] >= BREAKS  # each break made a new connection necessary


async def test_a_write_whose_connection_breaks_may_have_happened() -> None:
    async with behind_proxy(Busy()) as (handlers, proxy):
        attempts = breaks = 0
        while breaks < BREAKS:
            handlers.asked.clear()
            attempts, row = attempts + 1, str(attempts).encode()
            async with AsyncClient(f"127.0.0.1:{proxy.port}") as client:
                pushing = asyncio.create_task(client.push("web", [row]))
                asked = asyncio.create_task(handlers.asked.wait())
                await asyncio.wait((pushing, asked), return_when=asyncio.FIRST_COMPLETED)
                asked.cancel()
                proxy.cut()
                # NB: the break before may reach this connection too, before the server is asked.
                arrived = row in handlers.pushed
                breaks += arrived
                with pytest.raises(Indeterminate if arrived else (Indeterminate, Unavailable)):
                    await asyncio.wait_for(pushing, 60)


async def test_a_connection_that_is_closed_beside_its_calls_cancels_nobody() -> None:
    async with behind_proxy(Busy()) as (handlers, proxy):
        client = AsyncClient(f"127.0.0.1:{proxy.port}")
        pushing = asyncio.create_task(client.push("web", [b"{}"]))
        events = client.subscribe("flights")
        await anext(events)
        await asyncio.wait_for(handlers.asked.wait(), 60)
        await client.close()
        with pytest.raises(Indeterminate):
            await pushing
        with pytest.raises(Unavailable):
            await drain(events)


async def test_a_connection_that_was_closed_meanwhile_is_unavailable() -> None:
    client = ServiceClient("127.0.0.1:1", Dialer())
    await client.close()
    with pytest.raises(Unavailable):
        await client.probe("s")
    with pytest.raises(Unavailable):
        await drain(client.deliver("s", {}))


class Endless:
    """A reader of rows that never ends."""

    async def probe(self, source: str) -> Mapping[int, int]:
        return {0: 1_000_000}

    async def deliver(self, source: str, starts: Mapping[int, int]) -> AsyncIterator[Delivered]:
        rows = pa.table({"n": list(range(1_000))})
        for at in itertools.count(1):
            yield Delivered(rows, rows.slice(0, 0), {0: at})

    async def commit(self, source: str, offsets: Mapping[int, int]) -> None: ...


def sending() -> list[str]:
    """The tasks of gRPC that send the requests of calls."""
    coroutines = (task.get_coro() for task in asyncio.all_tasks())
    names = (getattr(each, "__qualname__", "") for each in coroutines)
    return [name for name in names if name.endswith("_consume_request_iterator")]


class Idle:
    """A process that works on nothing."""

    async def work(self) -> Sequence[Work]:
        return ()


async def test_rows_whose_connection_breaks_in_both_directions_are_unavailable() -> None:
    server = await serve("127.0.0.1:0", services=lambda _: ServiceHandlers(Endless(), Idle()))
    proxy = Proxy(server.port)
    await proxy.start()
    try:
        breaks = 0
        while breaks < BREAKS:
            client = ServiceClient(f"127.0.0.1:{proxy.port}", Dialer())
            rows = client.deliver("s", {})
            # NB: the break before may reach this connection too, before a row has come.
            with suppress(Unavailable):
                for _ in range(breaks + 1):
                    await asyncio.wait_for(anext(rows), 60)
                breaks += 1
                proxy.cut()
                with pytest.raises(Unavailable):
                    await drain(rows)
            await client.close()
    finally:
        await proxy.stop()
        await server.stop(0)


class Moved(Endless):
    """A reader that has become another process's before the first row."""

    async def deliver(self, source: str, starts: Mapping[int, int]) -> AsyncIterator[Delivered]:
        raise Unavailable("elsewhere")
        yield


async def test_a_call_that_ended_leaves_no_task_that_waits_for_its_requests() -> None:
    server = await serve("127.0.0.1:0", services=lambda _: ServiceHandlers(Moved(), Idle()))
    client = ServiceClient(f"127.0.0.1:{server.port}", Dialer())
    try:
        with pytest.raises(Unavailable):
            await drain(client.deliver("s", {}))
        for _ in range(100):
            await asyncio.sleep(0)
        assert sending() == []
    finally:
        await client.close()
        await server.stop(0)


class Bare(query_pb2_grpc.QueryServiceServicer):
    """A server, or something between, that ends calls with a status and no details of ours."""

    def __init__(self) -> None:
        self.code = grpc.StatusCode.INTERNAL

    async def Ask(self, request: object, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg,override]  # noqa: N802
        await context.abort(self.code, "Internal error from Core")


async def test_a_status_without_details_of_ours_is_never_the_fault_of_a_resource() -> None:
    server, bare = grpc.aio.server(), Bare()
    query_pb2_grpc.add_QueryServiceServicer_to_server(bare, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        for code in (
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNKNOWN,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            grpc.StatusCode.UNAVAILABLE,
        ):
            bare.code = code
            async with AsyncClient(f"127.0.0.1:{port}") as client:
                with pytest.raises(Unavailable):
                    await client.ask("flights(f)")
    finally:
        await server.stop(0)


class Wrong(MemoryHandlers):
    """Handlers with a bug."""

    async def snapshot(self, collection: str, as_of: int | None, wait_s: float | None) -> object:  # type: ignore[override]
        raise IndexError("a bug")


async def test_a_bug_of_the_server_is_told_as_one_and_is_no_broken_connection() -> None:
    handlers = Wrong({"flights": flights()})
    server = await serve("127.0.0.1:0", handlers, handlers, handlers)
    try:
        async with AsyncClient(f"127.0.0.1:{server.port}") as client:
            with pytest.raises(TidemillError, match="the server failed: IndexError: a bug") as told:
                await client.snapshot("flights")
            assert type(told.value) is TidemillError
    finally:
        await server.stop(0)
