"""Every call through a real server on loopback, over handlers in memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import FrameType

import grpc.aio
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tidemill.arrangement.looks import let_go
from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    CutOff,
    DeadlinePassed,
    Exhausted,
    Fenced,
    Indeterminate,
    NotYet,
    TidemillError,
    Unavailable,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.rpc import calls, interceptors, turns
from tidemill.rpc.admission import Admissions, CallLimits
from tidemill.rpc.blocking import BlockingClient
from tidemill.rpc.calls import DeadlinePolicy
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.delivery import DeliveryPolicy
from tidemill.rpc.identity import EVERYBODY
from tidemill.rpc.messages import (
    Answer,
    Appended,
    Applied,
    Changes,
    CollectionShape,
    Event,
    Explanation,
    Inserted,
    Outcome,
    Progress,
    Pushed,
    ResourceDocument,
    Right,
    UpperMismatch,
)
from tidemill.rpc.server import Server, serve
from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.testkit.handlers_memory import MemoryHandlers, flights
from tidemill.time import frontier

WAIT_S_MAX = 120.0


@dataclass
class Seen:
    """An observer that remembers."""

    calls: list[tuple[str, str, BaseException | None]] = field(default_factory=list)
    messages: int = 0
    limits: list[str] = field(default_factory=list)

    def started(self, method: str) -> None: ...

    def sent(self, method: str) -> None:
        self.messages += 1

    def refused(self, limit: str) -> None:
        self.limits.append(limit)

    def ended(self, method: str, code: str, seconds: float, error: BaseException | None) -> None:
        self.calls.append((method.rpartition("/")[2], code, error))


@asynccontextmanager
async def connected(
    handlers: MemoryHandlers, **options: object
) -> AsyncIterator[tuple[AsyncClient, Server]]:
    """A client of a server over the handlers."""
    server = await serve("127.0.0.1:0", handlers, handlers, handlers, **options)  # type: ignore[arg-type]
    try:
        async with AsyncClient(f"127.0.0.1:{server.port}", timeout_s=WAIT_S_MAX) as client:
            yield client, server
    finally:
        await server.stop(0)


async def test_reads_come_back_as_the_handlers_gave_them() -> None:
    handlers = MemoryHandlers({"flights": flights(), "late": flights(2)})
    async with connected(handlers) as (client, _):
        answer = await client.snapshot("flights", 11)
        assert answer == await handlers.snapshot("flights", 11, None)
        assert answer.table.num_rows == 2
        assert isinstance(answer, Answer)
        assert (await client.ask("late(c, d)")).as_of == 11
        assert await client.tables(["flights", "late"]) == await handlers.tables(
            ["flights", "late"], 11, None
        )
        assert await client.collections() == await handlers.collections()
        assert await client.why("late(1)") == await handlers.why("late(1)", None)
        assert await client.why_not("late(1)", 11) == Explanation(
            "late(1) is not present: no match for flight(1)"
        )
        assert await client.explain("v") == "view v\n  stratum 1"
        assert await client.explain("v", "dot") == "dot of v"


async def test_a_subscription_gives_its_snapshot_its_changes_and_progress_and_ends() -> None:
    async with connected(MemoryHandlers({"flights": flights()})) as (client, _):
        events = [event async for event in client.subscribe("flights", 10, until=12)]
        first, later, progress = events
        assert isinstance(first, Changes)
        assert first.table["_time"].to_pylist() == [10]
        assert isinstance(later, Changes)
        assert later.table["_time"].to_pylist() == [11, 12]
        assert progress == Progress(frontier(13))


async def test_leaving_a_subscription_ends_it_on_the_server() -> None:
    handlers = MemoryHandlers({"flights": flights()})
    async with connected(handlers) as (client, _):
        events = client.subscribe("flights", 12)
        await anext(events)
        await events.aclose()
        async with asyncio.timeout(WAIT_S_MAX):
            while not handlers.closed:
                await asyncio.sleep(0.01)
    assert handlers.closed == ["flights"]


async def test_a_subscriber_that_does_not_read_is_cut_off_and_told_where_to_resume() -> None:
    closed = asyncio.Event()

    class Torrent(MemoryHandlers):
        async def subscribe(
            self, goal: str, start: int | None, snapshot: bool, until: int | None
        ) -> AsyncIterator[Event]:
            table = pa.table({"n": pa.array([0] * 60_000, pa.int64())})
            try:
                for upper in range(1, 1_000_000):
                    yield Changes(table)
                    yield Progress(frontier(upper))
            finally:
                closed.set()

    pace = DeliveryPolicy(messages_max=2, patience_s=0.1)
    async with connected(Torrent(), delivery=pace) as (client, _):
        events = client.subscribe("x")
        await anext(events)
        await asyncio.wait_for(closed.wait(), WAIT_S_MAX)
        uppers = [0]

        async def follow() -> None:
            async for event in events:
                uppers.extend(event.upper if isinstance(event, Progress) else ())

        with pytest.raises(CutOff) as caught:
            await follow()
        last = max(uppers)
        assert caught.value.details == {"upper": frontier(last), "resume_at": last - 1}


async def test_the_catalog_round_trips() -> None:
    handlers = MemoryHandlers({"flights": flights()})
    async with connected(handlers) as (client, _):
        document = ResourceDocument("kind: View\nname: v\n---\nkind: Table\nname: t", "x.yaml")
        assert await client.apply([document]) == [
            Applied("View", "v", Outcome.CREATED), Applied("Table", "t", Outcome.CREATED),
        ]  # fmt: skip
        assert [a.outcome for a in await client.apply([document])] == [Outcome.UNCHANGED] * 2
        assert [s.name for s in await client.get()] == ["t", "v"]
        assert [s.name for s in await client.get("View")] == ["v"]
        assert await client.get("View", "none") == []
        assert (await client.describe("View", "v")).ready
        await client.delete("View", "v")
        with pytest.raises(UnknownCollection):
            await client.describe("View", "v")
        rows = pa.table({"carrier": ["B6"], "delay": [7]})
        assert await client.insert("flights", rows) == Inserted(time=13, rows=1)
        assert await client.push("s", [b"a", b"\xff"]) == Pushed(2)
        assert handlers.pushed == [("s", b"a"), ("s", b"\xff")]


async def test_the_storage_commands_round_trip() -> None:
    schema = pa.schema([("a", pa.int64())])
    async with connected(MemoryHandlers()) as (client, _):
        storage = client.storage
        pair = await storage.create("c", CollectionShape(schema), start=frontier(5))
        assert pair.write is not None
        assert (pair.read.right, pair.write.frontier) == (Right.READ, frontier(5))
        with pytest.raises(AlreadyUsed):
            await storage.create("c", CollectionShape(schema))
        columns = {"a": [1], "_time": pa.array([5], pa.uint64()), "_diff": [1]}
        rows = pa.table(columns)
        done = Appended(frontier(6))
        assert await storage.update_and_downgrade(pair.write, rows, frontier(6), token="t") == done
        assert await storage.update_and_downgrade(pair.write, rows, frontier(6), token="t") == done
        lost = await storage.update_and_downgrade(pair.write, None, frontier(7))
        assert lost == UpperMismatch(frontier(6))
        cloned = await storage.clone((await storage.acquire("c")).read)
        given = await storage.transfer(cloned, "somebody")
        assert (given.right, given.frontier) == (cloned.right, cloned.frontier)
        with pytest.raises(UnknownCapability):
            await storage.downgrade(cloned, frontier())
        moved = await storage.downgrade(given, frontier())
        assert moved.frontier == frontier()
        events = [e async for e in storage.subscribe_at(pair.read, 5, up_to=6)]
        assert events[-1] == Progress(frontier(6))
        await storage.drop(moved)
        with pytest.raises(UnknownCapability):
            await storage.drop(moved)


@pytest.mark.parametrize(
    "kind",
    [
        UsageError, UnknownCollection, AlreadyUsed, BeforeSince, NotYet, Fenced, CapabilityExpired,
        Unavailable, Indeterminate, Corrupt, TidemillError,
    ],
)  # fmt: skip
async def test_an_error_of_a_handler_is_raised_at_the_caller(kind: type[TidemillError]) -> None:
    error = kind("refused: so", since=frontier(3), upper=frontier(), id="x")
    handlers = MemoryHandlers(failing={"x": error})
    async with connected(handlers) as (client, _):
        for call in (client.snapshot("x"), client.push("x", [b""]), anext(client.subscribe("x"))):
            with pytest.raises(kind) as caught:
                await call
            assert type(caught.value) is kind
            assert (caught.value.message, caught.value.details) == (error.message, error.details)


async def test_instants_outside_of_the_definite_interval_name_the_frontiers() -> None:
    async with connected(MemoryHandlers({"flights": flights()})) as (client, _):
        with pytest.raises(NotYet) as early:
            await client.snapshot("flights", 99, wait_s=0.01)
        assert (early.value.requested, early.value.upper) == (99, frontier(13))
        with pytest.raises(BeforeSince) as late:
            await client.snapshot("flights", 3)
        assert (late.value.since, late.value.holder) == (frontier(10), "retain 10m")


async def test_a_bug_is_reported_to_the_observer_and_named_to_the_caller() -> None:
    seen = Seen()
    bug = ZeroDivisionError("by zero")
    async with connected(MemoryHandlers(failing={"x": bug}), observer=seen) as (client, _):
        with pytest.raises(TidemillError) as caught:
            await client.snapshot("x")
        assert "ZeroDivisionError: by zero" in str(caught.value)
        assert await client.explain("v")
    assert seen.calls == [("Snapshot", "INTERNAL", bug), ("Explain", "OK", None)]


async def test_a_call_without_a_deadline_gets_one() -> None:
    class Stuck(MemoryHandlers):
        async def explain(self, view: str, form: str) -> str:
            await asyncio.Event().wait()
            return ""

    seen = Seen()
    policy = DeadlinePolicy(default_s=0.05, cap_s=0.05)
    async with connected(Stuck(), observer=seen, deadlines=policy) as (client, _):
        with pytest.raises(DeadlinePassed):
            await client.explain("v")
    assert seen.calls == [("Explain", "DEADLINE_EXCEEDED", None)]
    assert DeadlinePolicy().seconds("/tidemill.query.v1.QueryService/Ask", None) == 30
    assert DeadlinePolicy().seconds("/tidemill.query.v1.QueryService/Ask", 9e9) == 600
    assert DeadlinePolicy().seconds("/tidemill.query.v1.QueryService/Subscribe", None) is None


async def test_the_deadline_of_the_caller_ends_a_read_and_leaves_a_write_open() -> None:
    class Stuck(MemoryHandlers):
        async def explain(self, view: str, form: str) -> str:
            await asyncio.Event().wait()
            return ""

        async def delete(self, kind: str, name: str) -> None:
            await asyncio.Event().wait()

    server = await serve("127.0.0.1:0", Stuck(), Stuck())
    async with AsyncClient(f"127.0.0.1:{server.port}", timeout_s=0.1) as client:
        with pytest.raises(DeadlinePassed):
            await client.explain("v")
        with pytest.raises(Indeterminate):
            await client.delete("View", "v")
    await server.stop(0)


async def test_a_port_where_nobody_listens_is_unavailable() -> None:
    async with AsyncClient("127.0.0.1:1", timeout_s=WAIT_S_MAX) as client:
        with pytest.raises(Unavailable):
            await client.delete("View", "v")


async def test_an_address_in_use_is_refused_in_one_line() -> None:
    async with connected(MemoryHandlers()) as (_, server):
        with pytest.raises(Unavailable) as caught:
            await serve(f"127.0.0.1:{server.port}", MemoryHandlers())
        assert "is it in use?" in str(caught.value)
        assert "--grpc" in str(caught.value)


async def test_a_service_that_is_not_offered_is_a_usage_error() -> None:
    server = await serve("127.0.0.1:0", MemoryHandlers())
    async with AsyncClient(f"127.0.0.1:{server.port}") as client:
        with pytest.raises(UsageError):
            await client.get()
    await server.stop(0)


@pytest.mark.parametrize("reflect", [False, True])
async def test_health_names_each_service_and_reflection_comes_by_flag(reflect: bool) -> None:
    async with (
        connected(MemoryHandlers(), reflect=reflect) as (_, server),
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "tidemill.query.v1.QueryService"):
            reply = await stub.Check(
                health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S_MAX
            )
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        lister = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = lister.ServerReflectionInfo(iter([asked]), timeout=WAIT_S_MAX)
        if reflect:
            names = [one.name for one in (await anext(aiter(call))).list_services_response.service]
            assert "tidemill.catalog.v1.CatalogService" in names
        else:
            with pytest.raises(grpc.aio.AioRpcError):
                await anext(aiter(call))


async def test_the_blocking_client_has_the_same_calls() -> None:
    handlers = MemoryHandlers({"flights": flights()})

    def use(port: int) -> None:
        with BlockingClient(f"127.0.0.1:{port}", timeout_s=WAIT_S_MAX) as client:
            assert client.snapshot("flights").table.num_rows == 3
            assert client.ask("flights(c, d)", 10).table.num_rows == 1
            events = client.subscribe("flights", 12)
            assert isinstance(next(events), Changes)
            assert next(events) == Progress(frontier(13))
            events.close()  # type: ignore[attr-defined]  # a generator
            assert len(list(client.subscribe("flights", 10, until=12))) == 3
            assert client.get() == []
            with pytest.raises(UnknownCollection):
                client.delete("View", "v")
            client.close()

    async with connected(handlers) as (_, server):
        await asyncio.to_thread(use, server.port)


async def test_an_old_connection_takes_no_new_calls_and_lets_streams_go_on() -> None:
    server = await serve("127.0.0.1:0", MemoryHandlers(), connection_age_s=0.5)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S_MAX)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        state = channel.get_state()
        while state is grpc.ChannelConnectivity.READY:
            await channel.wait_for_state_change(state)
            state = channel.get_state()
        # The old connection has been given up for new calls: the next one makes another.
        reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S_MAX)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(server.stop(WAIT_S_MAX))
        # The stream of the old one is still there, and is told that the server stops.
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
        await stopping


async def test_a3_a_refusal_is_told_with_the_setting_of_its_limit() -> None:
    seen = Seen()
    limited = Admissions(
        CallLimits(calls_per_user=1), SystemClock().monotonic_s, SystemClock().sleep
    )
    async with connected(MemoryHandlers(), observer=seen, admissions=limited) as (client, _):
        await client.get()
        assert seen.limits == []
        under_way = limited.admitted(EVERYBODY.name, endless=False, request_bytes=0)
        with under_way, pytest.raises(Exhausted, match=r"limits\.calls_per_user"):
            await client.get()
    assert seen.limits == ["limits.calls_per_user"]


@pytest.mark.parametrize(("rows", "beside"), [(10, False), (20_000, True)])
async def test_a3_a_long_request_is_read_on_a_thread(
    rows: int, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a message is work for each of its rows, and so is freeing these; the loop does not
    stand meanwhile.
    """
    threads: list[bool] = []
    validated = interceptors.validate

    def seen(message: object) -> None:
        threads.append(threading.current_thread() is not threading.main_thread())
        validated(message)

    def freed(things: list[bytes]) -> None:
        assert len(things) == rows
        threads.append(threading.current_thread() is not threading.main_thread())
        let_go(things)

    monkeypatch.setattr(interceptors, "validate", seen)
    monkeypatch.setattr(turns, "let_go", freed)
    async with connected(MemoryHandlers()) as (client, _):
        await client.push("s", [b'{"n": 1}'] * rows)
    assert threads == [beside, beside]


async def test_a3_an_error_is_freed_when_its_call_ends_with_the_frames_that_it_came_through() -> (
    None
):
    """In a cycle all of them would be freed at once by the garbage collector, and requests too."""
    kept: list[weakref.ref[object]] = []

    class Held:
        """A thing that the frame of a handler holds."""

    class Failing(MemoryHandlers):
        async def explain(self, view: str, form: str) -> str:
            held = Held()
            kept.append(weakref.ref(held))
            raise UsageError("refused")

        async def subscribe(self, goal: str, *asked: object) -> AsyncIterator[Event]:
            held = Held()
            kept.append(weakref.ref(held))
            yield Progress(frontier(1))
            if goal == "endless":
                await asyncio.Event().wait()
            raise UsageError("refused")

    def frames() -> list[FrameType]:
        found = [each for each in gc.get_objects() if isinstance(each, FrameType)]
        return [each for each in found if each.f_globals["__name__"] == calls.__name__]

    gc.collect()
    before = frames()  # of other tests
    gc.disable()
    limits = CallLimits(calls_per_s=4.5)
    admissions = Admissions(limits, ManualClock().monotonic_s, ManualClock().sleep)
    try:
        async with connected(Failing({}), admissions=admissions) as (client, _):
            for _ in range(3):
                with pytest.raises(UsageError):
                    await client.explain("v")
                with pytest.raises(UsageError):
                    _ = [event async for event in client.subscribe("v")]
            for _ in range(3):
                stream = client.subscribe("endless")
                assert await anext(stream)
                await stream.aclose()
            with pytest.raises(Exhausted):
                await client.explain("v")
        assert len(kept) == 9
        for _ in range(500):  # gRPC lets a call that was cut go when its threads have turned
            alive = [each for each in kept if each() is not None]
            alive += [each for each in frames() if each not in before]
            if not alive:
                return
            await asyncio.sleep(0.01)
        pytest.fail(f"still there: {alive}")
    finally:
        gc.enable()
