"""Servers and networks that go away without a word: calls end, and what comes back is found
soon.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import grpc.aio
import pytest

from tidemill.errors import Unavailable
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import Event, Progress
from tidemill.testkit.handlers_memory import MemoryHandlers, behind_proxy, flights
from tidemill.time import frontier
from tidemill_protos.query.v1 import query_pb2, query_pb2_grpc

SILENCE_S = 1.2


class Quiet(MemoryHandlers):
    """Subscriptions that say one thing, and then nothing until the test says so."""

    def __init__(self) -> None:
        super().__init__({"flights": flights()})
        self.again = asyncio.Event()

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        try:
            yield Progress(frontier(1))
            await self.again.wait()
            yield Progress(frontier(2))
        finally:
            self.closed.append(goal)


async def test_a_subscription_over_a_network_that_fell_silent_ends_as_unavailable() -> None:
    dialer = Dialer(silence_s=SILENCE_S)
    async with (
        behind_proxy(Quiet()) as (_, proxy),
        AsyncClient(f"127.0.0.1:{proxy.port}", dialer=dialer) as client,
    ):
        events = client.subscribe("flights")
        assert await anext(events) == Progress(frontier(1))
        proxy.set_mode("silent")
        with pytest.raises(Unavailable):
            await asyncio.wait_for(anext(events), 60)
        proxy.set_mode("open")


async def test_the_silence_was_one_that_a_call_without_pings_does_not_notice() -> None:
    async with (
        behind_proxy(Quiet()) as (_, proxy),
        grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as channel,
    ):
        stub = query_pb2_grpc.QueryServiceStub(channel)
        call = aiter(stub.Subscribe(query_pb2.SubscribeRequest(goal="flights")))
        await anext(call)
        proxy.set_mode("silent")
        with suppress(TimeoutError):
            await asyncio.wait_for(anext(call), 4 * SILENCE_S)
            pytest.fail("it was told")
        proxy.set_mode("open")


async def test_a_subscription_with_nothing_to_say_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = grpc.aio.insecure_channel

    def however_late_the_answer(address: str, options: list[tuple[str, int]]) -> grpc.aio.Channel:
        """Pings come as often, and a machine that stands still answers in time."""
        late = {"grpc.keepalive_timeout_ms": 600_000, "grpc.http2.ping_timeout_ms": 600_000}
        return plain(address, options=[*dict(options, **late).items()])

    monkeypatch.setattr(grpc.aio, "insecure_channel", however_late_the_answer)
    dialer = Dialer(silence_s=SILENCE_S)
    async with (
        behind_proxy(Quiet()) as (handlers, proxy),
        AsyncClient(f"127.0.0.1:{proxy.port}", dialer=dialer) as client,
    ):
        events = client.subscribe("flights")
        assert await anext(events) == Progress(frontier(1))
        asked = proxy.pieces["open"]
        async with asyncio.timeout(60):
            while (
                proxy.pieces["open"] < asked + 8
            ):  # pings and their answers, more than a server bears by default
                await asyncio.sleep(0.05)
        handlers.again.set()
        assert await anext(events) == Progress(frontier(2))


async def times_looked_for(channel_to: Callable[[str], grpc.aio.Channel], calls: int) -> int:
    """Number of connections to a server that refuses, while calls fail, one every 50 ms."""
    times = 0

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal times
        times += 1
        writer.transport.abort()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0, family=socket.AF_INET)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, channel_to(address) as channel:
        stub = query_pb2_grpc.QueryServiceStub(channel)
        for _ in range(calls):
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Explain(query_pb2.ExplainRequest(view="v"), timeout=5)
            await asyncio.sleep(0.05)
    return times


async def test_a_server_that_is_away_is_looked_for_more_often_than_the_library_would() -> None:
    ours, plain = await asyncio.gather(
        times_looked_for(Dialer().channel, 120), times_looked_for(grpc.aio.insecure_channel, 120)
    )
    assert ours > plain > 0
