"""A user that asks for too much is refused, by a real server on loopback; all others are
answered.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import Exhausted, Unauthenticated, Unavailable
from tidemill.rpc.admission import Admissions, Bucket, CallLimits
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.identity import Grant, Principal, Role, Tokens
from tidemill.rpc.messages import Event, Progress
from tidemill.rpc.server import serve
from tidemill.rpc.strangers import Strangers, _connections, _place_of
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


async def meet_refusal(client: AsyncClient) -> Exhausted:
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
        error = await meet_refusal(eve)
        assert str(error).startswith("call refused: eve has 3 calls under way; ask again later")
        assert error.details["setting"] == "limits.calls_per_user"
        await bob.collections()
        his = asyncio.ensure_future(bob.explain("v"))
        while handlers.waiting < 4:
            await asyncio.sleep(0.01)
        assert (await meet_refusal(joe)).details["setting"] == "limits.calls"
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
        assert (await meet_refusal(eve)).details["setting"] == "limits.calls_per_s"
        await bob.collections()
        clock.move(1)
        await eve.collections()
        await eve.collections()
        await meet_refusal(eve)


async def test_s9_bytes_that_were_sent_are_a_debt() -> None:
    async with (
        limited(CallLimits(bytes_per_s=300)) as (handlers, port, clock),
        client_of(port, "eve") as eve,
    ):
        handlers.go.set()
        await eve.explain("v")  # 1,000 bytes, of which 600 were there
        assert (await meet_refusal(eve)).details["setting"] == "limits.bytes_per_s"
        clock.move(1)
        await meet_refusal(eve)
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


@asynccontextmanager
async def strangers(port: int, count: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    """So many connections that say nothing; of each, what is done once the server has ended it."""
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]

    async def drain(reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(1_000):
                pass

    waiting = [asyncio.create_task(drain(reader)) for reader, _ in opened]
    try:
        yield waiting
    finally:
        for _, writer in opened:
            writer.close()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def passes(clock: ManualClock, seconds: float, until: Callable[[], bool]) -> bool:
    """Whether a condition holds before so many seconds of the server's clock are over."""
    for _ in range(int(seconds / 0.25)):
        if until():
            return True
        clock.move(0.25)
        await asyncio.sleep(0.05)
    return until()


async def test_s9_without_a_part_for_them_strangers_shut_users_out() -> None:
    limits = CallLimits(connections=8, strangers=8, stranger_s=inf)
    async with limited(limits) as (_, port, clock), strangers(port, 8) as waiting:
        assert not await passes(clock, 5, lambda: any(task.done() for task in waiting))
        with pytest.raises(Unavailable):
            await client_of(port, "bob").collections()


async def test_s9_strangers_have_a_part_of_the_connections_and_users_the_others() -> None:
    limits = CallLimits(connections=8, strangers=3, stranger_s=inf)
    async with (
        limited(limits) as (_, port, clock),
        client_of(port, "eve") as eve,
    ):
        await eve.collections()
        async with strangers(port, 7) as waiting:
            assert await passes(clock, 60, lambda: sum(task.done() for task in waiting) >= 4)
            async with client_of(port, "bob") as bob:
                await bob.collections()
                await eve.collections()
            assert not await passes(clock, 5, lambda: sum(t.done() for t in waiting) > 4)


async def test_s9_a_connection_that_stays_strange_ends_and_those_of_users_live() -> None:
    async with (
        limited(CallLimits(stranger_s=10)) as (_, port, clock),
        client_of(port, "eve") as eve,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as nobody,
        strangers(port, 2) as waiting,
    ):
        stream = eve.subscribe("v", snapshot=False)
        assert isinstance(await anext(stream), Progress)
        going_on = asyncio.ensure_future(anext(stream))
        watch = health_pb2_grpc.HealthStub(nobody).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        watching = asyncio.ensure_future(watch.read())
        assert not await passes(clock, 8, lambda: any(task.done() for task in waiting))
        assert await passes(clock, 60, lambda: all(t.done() for t in (*waiting, watching)))
        assert isinstance(watching.exception(), grpc.aio.AioRpcError)
        assert not await passes(clock, 30, going_on.done)
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.floats(0, 3)), max_size=40))
def test_s9_no_connection_of_a_user_is_ended_and_no_stranger_stays(
    steps: list[tuple[int, bool, float]],
) -> None:
    """Connections open, become known and close in any order; each step looks at them."""
    now_s = 0.0
    ours = Strangers(2, 5.0, lambda: now_s)
    since: dict[tuple[str, int], float] = {}
    known: set[tuple[str, int]] = set()
    for port, says, pause_s in steps:
        place = ("127.0.0.1", port)
        if says and place in since:
            ours.know(f"ipv4:127.0.0.1:{port}")
            known.add(place)
        elif place in since and place not in known:
            del since[place]
        else:
            since.setdefault(place, now_s)
        due = ours.due(since, now_s)
        strange = sorted(since.keys() - known, key=lambda each: since[each])
        assert not known & set(due)
        assert len(strange) - len(set(due)) <= 2
        assert all(now_s - since[each] < 5 for each in strange if each not in due)
        for each in due:
            del since[each]
        now_s += pause_s


def test_s9_a_peer_is_the_place_that_its_socket_says() -> None:
    assert _place_of("ipv4:127.0.0.1:50051") == ("127.0.0.1", 50051)
    assert _place_of("ipv6:%5B::1%5D:7") == ("::1", 7)
    assert _place_of("ipv6:%5B::ffff:10.0.0.1%5D:7") == ("10.0.0.1", 7)
    assert _place_of("unix:") is None


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
        await admissions.throttle_rows(user, rows)
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
    await admissions.throttle_rows("eve", 500)
    given_up = asyncio.create_task(admissions.throttle_rows("eve", 1 << 40))
    await clock.settle()
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    after = asyncio.create_task(admissions.throttle_rows("eve", 100))
    await clock.settle()
    assert not after.done()  # the first push is still owed
    await clock.advance(3.1)
    await after


async def test_a3_bytes_of_a_body_wait_for_those_before_them() -> None:
    clock = ManualClock()
    admissions = Admissions(CallLimits(bytes_per_s=100.0), clock.monotonic_s, clock.sleep)
    await admissions.throttle_bytes("eve", 200)  # a burst of two seconds
    reading = asyncio.create_task(admissions.throttle_bytes("eve", 300))
    await clock.settle()
    await admissions.throttle_bytes("ann", 200)
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
        await admissions.throttle_rows("eve", 1 << 40)


ASK = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("locked")
else:
    print("free")
"""


def lock_of(file: Path) -> str:
    """Whether another process finds the file locked or free."""
    asked = [sys.executable, "-c", ASK, str(file)]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def test_a_look_at_connections_releases_no_lock_on_a_file(tmp_path: Path) -> None:
    file = tmp_path / "database"
    with file.open("wb") as opened:
        fcntl.lockf(opened, fcntl.LOCK_EX)
        list(_connections(1))
        assert lock_of(file) == "locked"
        # The fault that this is about: whoever closes a copy releases the lock of all.
        os.close(os.dup(opened.fileno()))
        assert lock_of(file) == "free"
