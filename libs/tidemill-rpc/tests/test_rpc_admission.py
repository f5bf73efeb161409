"""A user that asks for too much is refused, by a real server on loopback; all others are
answered.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import Exhausted
from tidemill.rpc.admission import Admissions, Bucket, CallLimits
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.identity import Grant, Principal, Role, Tokens
from tidemill.rpc.messages import Event, Progress
from tidemill.rpc.server import serve
from tidemill.rpc.status import Unauthenticated
from tidemill.runtime.clock import ManualClock
from tidemill.testkit.handlers_memory import MemoryHandlers
from tidemill.time import frontier

WAIT_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Named(Dialer):
    """Calls over a connection of its own, under a name."""

    name: str = ""

    def channel(self, address: str) -> grpc.aio.Channel:
        """In the clear; the name is what the client calls its program."""
        local = ("grpc.use_local_subchannel_pool", 1)
        return grpc.aio.insecure_channel(
            address, options=[("grpc.primary_user_agent", self.name), local]
        )


class ByName:
    """Takes what a client calls its program for the name of a user."""

    def principal(
        self, metadata: Mapping[str, str], identities: Callable[[], Iterable[str]]
    ) -> Principal:
        """The named user. Raises: Unauthenticated without a name."""
        name = metadata["user-agent"].partition(" ")[0]
        if name.startswith("grpc"):
            raise Unauthenticated("who?")
        return Principal(name, (Grant(Role.admin),))


class Held(MemoryHandlers):
    """Explanations and subscriptions wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.waiting = 0
        self.chatty = False
        """A subscription goes on and on."""

    async def explain(self, view: str, form: str) -> str:
        self.waiting += 1
        await self.go.wait()
        return "x" * 1_000

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        """Progress once, then nothing."""
        yield Progress(frontier(1))
        for at in range(2, 1_000 if self.chatty else 2):
            yield Progress(frontier(at))
        await self.go.wait()


@asynccontextmanager
async def limited(limits: CallLimits) -> AsyncIterator[tuple[Held, int, ManualClock]]:
    """Handlers behind a server with these limits, its port, and the clock of its rates."""
    handlers, clock = Held(), ManualClock()
    server = await serve(
        "127.0.0.1:0", handlers, handlers, handlers, authenticator=ByName(),
        admissions=Admissions(limits, clock.monotonic_s, clock.sleep),
    )  # fmt: skip
    try:
        yield handlers, server.port, clock
    finally:
        handlers.go.set()
        await server.stop(0)


def client_of(port: int, user: str) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{port}", timeout_s=WAIT_S_MAX, dialer=Named(name=user))


async def refused(client: AsyncClient) -> Exhausted:
    with pytest.raises(Exhausted) as caught:
        await client.collections()
    return caught.value


async def test_s9_calls_of_one_user_are_bounded_and_the_others_are_answered() -> None:
    async with (
        limited(CallLimits(calls_per_user=3, calls=4)) as (handlers, port, _),
        client_of(port, "eve") as eve,
        client_of(port, "bob") as bob,
        client_of(port, "joe") as joe,
    ):
        hers = [asyncio.ensure_future(eve.explain("v")) for _ in range(3)]
        while handlers.waiting < 3:
            await asyncio.sleep(0.01)
        error = await refused(eve)
        assert str(error).startswith("call refused: eve has 3 calls under way; ask again later")
        assert error.details["setting"] == "limits.calls_per_user"
        await bob.collections()
        his = asyncio.ensure_future(bob.explain("v"))
        while handlers.waiting < 4:
            await asyncio.sleep(0.01)
        assert (await refused(joe)).details["setting"] == "limits.calls"
        handlers.go.set()
        await asyncio.gather(*hers, his)
        for client in (eve, bob, joe):
            await client.collections()


async def test_s9_subscriptions_are_bounded_and_counted_apart() -> None:
    limits = CallLimits(subscriptions_per_user=2, calls_per_user=1)
    async with limited(limits) as (_, port, _), client_of(port, "eve") as eve:
        streams = [eve.subscribe("flights") for _ in range(2)]
        for stream in streams:
            assert await anext(aiter(stream)) == Progress(frontier(1))
        with pytest.raises(Exhausted) as caught:
            await anext(aiter(eve.subscribe("flights")))
        assert caught.value.details["setting"] == "limits.subscriptions_per_user"
        await eve.collections()


async def test_s9_the_rate_of_calls_is_of_each_user() -> None:
    async with (
        limited(CallLimits(calls_per_s=2)) as (_, port, clock),
        client_of(port, "eve") as eve,
        client_of(port, "bob") as bob,
    ):
        for _ in range(4):
            await eve.collections()
        assert (await refused(eve)).details["setting"] == "limits.calls_per_s"
        await bob.collections()
        clock.move(1)
        await eve.collections()
        await eve.collections()
        await refused(eve)


async def test_s9_bytes_that_were_sent_are_a_debt() -> None:
    async with (
        limited(CallLimits(bytes_per_s=300)) as (handlers, port, clock),
        client_of(port, "eve") as eve,
    ):
        handlers.go.set()
        await eve.explain("v")  # 1,000 bytes, of which 600 were there
        assert (await refused(eve)).details["setting"] == "limits.bytes_per_s"
        clock.move(1)
        await refused(eve)
        clock.move(3)
        await eve.explain("v")


async def test_s9_connections_are_bounded_and_those_that_are_open_live() -> None:
    async with limited(CallLimits(connections=3)) as (_, port, _):
        clients = [client_of(port, f"u{number}") for number in range(3)]
        for client in clients:
            await client.collections()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(100), WAIT_S_MAX) == b""  # closed without a word
        writer.close()
        for client in clients:
            await client.collections()
            await client.close()


async def test_a6_bytes_that_are_no_message_are_refused_after_it_is_known_who_sends_them() -> None:
    method = "/tidemill.query.v1.QueryService/Ask"
    async with (
        limited(CallLimits()) as (_, port, _),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as nobody,
        Named(name="eve").channel(f"127.0.0.1:{port}") as eve,
    ):
        for channel, code in (
            (nobody, grpc.StatusCode.UNAUTHENTICATED),
            (eve, grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(method)(b"\xff\xff\xff")
            assert caught.value.code() == code


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 20)), max_size=40))
def test_s9_no_more_is_spent_than_comes_in_and_one_cost_of_debt(
    steps: list[tuple[float, float]],
) -> None:
    bucket, now_s, spent = Bucket(per_s=3, left=6, at_s=0), 0.0, 0.0
    for pause_s, cost in steps:
        now_s += pause_s
        if bucket.open(now_s):
            bucket.spend(cost)
            spent += cost
    assert spent <= 6 + 3 * now_s + max((cost for _, cost in steps), default=0) + 1e-6


def test_a6_a_token_of_bytes_that_are_no_text_is_an_unknown_one(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"hers").hexdigest()
    grants = [{"role": "admin", "collections": ["*"]}]
    document = {"users": [{"name": "eve", "sha256": digest, "grants": grants}]}
    file = tmp_path / "users.yaml"
    file.write_text("")
    tokens = Tokens(file, lambda text: document)
    assert tokens.principal({"authorization": "Bearer hers"}, tuple).name == "eve"
    with pytest.raises(Unauthenticated, match="does not know the token"):
        tokens.principal(
            {"authorization": b"Bearer \xff\xfe".decode(errors="surrogateescape")}, tuple
        )


async def test_a3_who_watches_health_is_counted_though_nobody_asks_who_it_is() -> None:
    """A3: each watch is held until its client goes, and there was no end of how many one had."""
    clock = ManualClock()
    admissions = Admissions(CallLimits(subscriptions_per_user=3), clock.monotonic_s, clock.sleep)
    server = await serve("127.0.0.1:0", MemoryHandlers(), admissions=admissions)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        watching = [stub.Watch(asked) for _ in range(3)]
        for call in watching:
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="subscriptions_per_user") as refused:
            await stub.Watch(asked).read()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        watching[0].cancel()
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                try:
                    assert (await stub.Watch(asked).read()).status
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)
    await server.stop(0)


async def test_a3_rows_of_a_user_wait_for_those_before_them_and_others_do_not() -> None:
    clock = ManualClock()
    admissions = Admissions(CallLimits(rows_per_s=100.0), clock.monotonic_s, clock.sleep)
    written: list[str] = []

    async def write(user: str, rows: int) -> None:
        await admissions.pace_rows(user, rows)
        written.append(f"{user} {rows}")

    async with asyncio.TaskGroup() as tasks:
        for user, rows in (("eve", 500), ("eve", 100), ("ann", 150)):
            tasks.create_task(write(user, rows))
        await clock.settle()
        assert written == ["eve 500", "ann 150"]  # a burst of two seconds is free, the rest a debt
        await clock.advance(2.9)
        assert len(written) == 2
        await clock.advance(0.2)
    assert written[2:] == ["eve 100"]


async def test_a3_a_push_that_is_given_up_while_it_waits_owes_no_rows() -> None:
    clock = ManualClock()
    admissions = Admissions(CallLimits(rows_per_s=100.0), clock.monotonic_s, clock.sleep)
    await admissions.pace_rows("eve", 500)
    given_up = asyncio.create_task(admissions.pace_rows("eve", 1 << 40))
    await clock.settle()
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    after = asyncio.create_task(admissions.pace_rows("eve", 100))
    await clock.settle()
    assert not after.done()  # the first push is still owed
    await clock.advance(3.1)
    await after


async def test_a3_bytes_of_a_body_wait_for_those_before_them() -> None:
    clock = ManualClock()
    admissions = Admissions(CallLimits(bytes_per_s=100.0), clock.monotonic_s, clock.sleep)
    await admissions.pace_bytes("eve", 200)  # a burst of two seconds
    reading = asyncio.create_task(admissions.pace_bytes("eve", 300))
    await clock.settle()
    await admissions.pace_bytes("ann", 200)
    await clock.advance(2.9)
    assert not reading.done()
    await clock.advance(0.2)
    await reading
    with admissions.admitted("eve", endless=False, request_bytes=None):
        pass  # what was paced is not refused on top


async def test_a3_a_long_answer_waits_while_its_caller_is_in_debt() -> None:
    limits = CallLimits(bytes_per_s=50.0)
    async with limited(limits) as (handlers, port, clock), client_of(port, "eve") as eve:
        handlers.chatty = True
        stream = aiter(eve.subscribe("flights"))
        for _ in range(20):
            slow = asyncio.ensure_future(anext(stream))
            if not (await asyncio.wait((slow,), timeout=0.5))[0]:
                break
        assert not slow.done()
        await clock.advance(60.0)
        await slow


async def test_a3_rows_are_not_paced_without_a_limit() -> None:
    clock = ManualClock()
    admissions = Admissions(CallLimits(), clock.monotonic_s, clock.sleep)
    for _ in range(3):
        await admissions.pace_rows("eve", 1 << 40)
