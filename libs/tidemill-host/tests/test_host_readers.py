"""A source read through a server: nothing is read ahead of the credit, and whoever follows hears
when it moves.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pyarrow as pa
import pytest

from tidemill.errors import DeadlinePassed, Unavailable, UsageError
from tidemill.host.feeds import Feeds
from tidemill.host.peers import Peers
from tidemill.host.readers import Readers
from tidemill.rpc.channel import Dialer
from tidemill.rpc.client_services import CREDIT, ServiceClient
from tidemill.rpc.identity import OneRun, Open
from tidemill.rpc.messages import Delivered, Work
from tidemill.rpc.server import Server, ServiceHandlers, serve
from tidemill.rpc.tls import ServerCredentials, TlsFiles
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.log import Entry, LogRecord
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.shard.claims import Claiming
from tidemill.testkit.certificates import Certificates
from tidemill_ingest.driver import Deliver, Share, SourceBroken, SourceReader
from tidemill_ingest.settings import IngestSettings

LETTERS = pa.table({"reason": pa.array([], pa.string())})


class Endless:
    """A source without end: each delivery is bigger than a message."""

    failed: asyncio.Future[None]

    def __init__(self, rows: int = 1) -> None:
        self.rows = rows
        self.delivered = 0
        self.committed: dict[int, int] = {}

    async def probe(self) -> dict[int, int]:
        return {0: 10, 3: 7}

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        at = starts[0]
        while True:
            table = pa.table({"n": pa.array([at] * self.rows, pa.int64())})
            at += 1
            await deliver(Delivered(table, LETTERS, {0: at}))
            self.delivered += 1

    async def commit(self, offsets: Mapping[int, int]) -> None:
        self.committed.update(offsets)


class Broken(Endless):
    """A source that turns out to be another one."""

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        raise SourceBroken("the topic was recreated", reason="TopicRecreated")


class Refused(Endless):
    """A source whose broker takes no login."""

    async def probe(self) -> dict[int, int]:
        raise Unavailable("no broker was reached")

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        raise Unavailable("no broker was reached")


@asynccontextmanager
async def connected(source: Endless) -> AsyncIterator[tuple[Readers, ServiceClient]]:
    readers = Readers()
    source.failed = readers.offer("Source/s", source, source.commit)
    server = await serve("127.0.0.1:0", services=lambda _: ServiceHandlers(ingest=readers))
    client = ServiceClient(f"127.0.0.1:{server.port}", Dialer())
    try:
        yield readers, client
    finally:
        await client.close()
        await server.stop(0)


async def test_deliveries_arrive_whole_and_in_order_no_further_than_the_credit() -> None:
    source = Endless(rows=200_000)  # 1.6 MB: two messages each
    async with connected(source) as (_, client), aclosing(client.deliver("Source/s", {0: 5})) as it:
        found = [await anext(it) for _ in range(3)]
        assert [each.rows["n"][0].as_py() for each in found] == [5, 6, 7]
        assert {each.rows.num_rows for each in found} == {200_000}
        assert [each.positions for each in found] == [{0: 6}, {0: 7}, {0: 8}]
        for _ in range(20):  # whatever could be read ahead is read now
            await client.probe("Source/s")
        # Three were taken, and two of them allowed one more each; one waits on either side of the
        # queue.
        assert 3 <= source.delivered <= 2 + CREDIT + 2


@pytest.mark.parametrize("called", ["", "#one-before"])
async def test_an_address_that_was_given_to_another_process_delivers_nothing_of_its(
    called: str,
) -> None:
    """Both may be of two systems, with sources of one name."""
    source, readers = Endless(), Readers()
    readers.offer("Source/s", source, source.commit)
    server = await serve(
        "127.0.0.1:0",
        services=lambda _: ServiceHandlers(ingest=readers),
        authenticator=OneRun("this", Open()),
    )
    place = f"127.0.0.1:{server.port}"
    other, client = (
        ServiceClient(place + called, Dialer()),
        ServiceClient(f"{place}#this", Dialer()),
    )
    try:
        for call in (other.probe("Source/s"), other.commit("Source/s", {0: 1})):
            with pytest.raises(Unavailable, match="is gone"):
                await call
        with pytest.raises(Unavailable):  # in words of grpc's, if a credit meets the end
            await anext(other.deliver("Source/s", {0: 0}))
        assert (source.delivered, source.committed) == (0, {})
        assert await client.probe("Source/s") == {0: 10, 3: 7}
    finally:
        await client.close()
        await other.close()
        await server.stop(0)


@dataclass(frozen=True)
class Counting(Dialer):
    """Counts the connections that it makes."""

    made: list[str] = field(default_factory=list)

    def channel(self, address: str) -> grpc.aio.Channel:
        self.made.append(address)
        return super().channel(address)


def unclaimed(role: str) -> Claiming:
    raise AssertionError("nobody asks for claims")


async def test_runs_that_follow_each_other_at_one_place_share_a_connection() -> None:
    """A process at a fixed address may start ever so often."""
    readers, dialer = Readers(), Counting()
    readers.offer("Source/s", Endless(), Endless().commit)
    server = await serve(
        "127.0.0.1:0",
        services=lambda _: ServiceHandlers(ingest=readers),
        authenticator=OneRun("5", Open()),
    )
    place, peers = f"127.0.0.1:{server.port}", Peers(unclaimed, dialer)
    try:
        for run in range(10):
            called = peers.client(f"{place}#{run}").probe("Source/s")
            if run == 5:
                assert await called == {0: 10, 3: 7}
            else:
                with pytest.raises(Unavailable, match="is gone"):
                    await called
                assert await peers.work([f"{place}#{run}"]) == []
        assert dialer.made == [place]
    finally:
        await server.stop(0)
    assert await peers.work([f"{place}#5"]) == []
    peers.client(f"{place}#6")
    assert dialer.made == [place] * 2  # what was lost is made anew
    await peers.close()


async def test_a_connection_is_given_up_by_those_alone_who_called_over_it() -> None:
    dialer = Counting()
    peers = Peers(unclaimed, dialer)
    first = peers.client("127.0.0.1:1#1")
    await peers.forget(first)
    second = peers.client("127.0.0.1:1#1")
    await peers.forget(first)
    assert peers.client("127.0.0.1:1#1") is second, "it is not the one that failed"
    peers.client("127.0.0.1:1#2")  # over the same connection
    await peers.forget(second)
    peers.client("127.0.0.1:1#2")
    assert len(dialer.made) == 3
    await peers.close()


async def test_a_peer_that_is_slow_to_tell_of_its_work_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its deliveries would end with that, and begin anew."""

    async def late(self: ServiceClient) -> Sequence[Work]:
        raise DeadlinePassed("the deadline passed before the answer came")

    monkeypatch.setattr(ServiceClient, "work", late)
    peers = Peers(unclaimed, Dialer())
    client = peers.client("127.0.0.1:1#1")
    assert await peers.work(["127.0.0.1:1#1"]) == []
    assert peers.client("127.0.0.1:1#1") is client
    await peers.close()


async def test_a_peer_is_away_while_certificates_cannot_be_used(tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    peers = Peers(unclaimed, Dialer(TlsFiles(authority=authority)))
    with pytest.raises(Unavailable, match=r"authority\.pem"):
        peers.client("127.0.0.1:1#1")
    shutil.copy(Certificates.of(tmp_path, "ours").authority, authority)
    peers.client("127.0.0.1:1#1")
    await peers.close()


class Claimed(Peers):
    """One process has claimed every source."""

    by = ""

    async def owner(self, role: str, item: str) -> str | None:
        return self.by


@pytest.mark.parametrize(
    ("call", "run"), [("probe", 1), ("probe", 2), ("commit", 2), ("deliver", 2)]
)
async def test_a_peer_is_reached_again_after_the_certificates_were_replaced(
    tmp_path: Path, call: str, run: int
) -> None:
    """A connection has those of the time when it was made, and tries them for ever."""
    source, readers = Endless(), Readers()
    readers.offer("Source/s", source, source.commit)
    authority = tmp_path / "authority.pem"

    async def start(address: str, name: str, run: int) -> Server:
        certificates = Certificates.of(tmp_path, name)
        shutil.copy(certificates.authority, authority)
        return await serve(
            address,
            services=lambda _: ServiceHandlers(ingest=readers),
            authenticator=OneRun(str(run), Open()),
            credentials=ServerCredentials(certificates.issued(f"server-{name}")).credentials(),
        )

    server = await start("127.0.0.1:0", "first", 1)
    place = f"127.0.0.1:{server.port}"
    peers = Claimed(unclaimed, Dialer(TlsFiles(authority=authority)))
    feed = Feeds(Readers(), peers, SystemClock()).of("Source/s", 1)
    peers.by = f"{place}#1"
    assert await feed.probe() == {0: 10, 3: 7}
    await server.stop(0)
    server = await start(place, "second", run)
    peers.by = f"{place}#{run}"
    try:
        if call == "probe":
            assert await feed.probe() == {0: 10, 3: 7}
        elif call == "commit":
            with pytest.raises(Unavailable):
                await feed.commit({0: 4})
            await feed.commit({0: 4})
            assert source.committed == {0: 4}
        else:
            found = asyncio.get_running_loop().create_future()

            async def take(delivered: Delivered) -> None:
                if not found.done():
                    found.set_result(delivered.positions)

            following = asyncio.create_task(feed.deliver_from({0: 5}, take))
            await asyncio.wait((found, following), return_when=asyncio.FIRST_COMPLETED)
            assert found.done()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    finally:
        await peers.close()
        await server.stop(0)


async def test_an_address_that_was_given_to_another_program_is_away() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = ServiceClient(f"127.0.0.1:{port}#one-before", Dialer())
    try:
        with pytest.raises(Unavailable, match="does not offer this call"):
            await client.probe("Source/s")
        with pytest.raises(Unavailable):
            await anext(client.deliver("Source/s", {0: 0}))
    finally:
        await client.close()
        await server.stop(0)


async def test_a_source_that_moves_ends_its_deliveries() -> None:
    async with connected(Endless()) as (readers, client):
        assert await client.probe("Source/s") == {0: 10, 3: 7}
        deliveries, here = client.deliver("Source/s", {0: 0}), readers.deliver("Source/s", {0: 0})
        await anext(deliveries)
        await anext(here)
        readers.withdraw("Source/s")
        with pytest.raises(Unavailable, match="elsewhere") as moved:
            _ = [each async for each in here]
        assert moved.value.details["reason"] == "elsewhere"
        # A credit that meets the end of the call on its way hides the reason: grpc says "INTERNAL".
        with pytest.raises(Unavailable):
            _ = [each async for each in deliveries]
        with pytest.raises(Unavailable, match="not read by this process"):
            await client.probe("Source/s")


async def test_what_is_committed_and_what_breaks_crosses_the_wire() -> None:
    source = Broken()
    async with connected(source) as (_, client):
        await client.commit("Source/s", {0: 4})
        assert source.committed == {0: 4}
        with pytest.raises(UsageError) as broken:
            await anext(client.deliver("Source/s", {0: 0}))
        assert broken.value.details["reason"] == "TopicRecreated"


@pytest.mark.parametrize("call", ["probe", "deliver"])
async def test_a_failure_that_may_pass_ends_the_reading_so_that_it_begins_anew(call: str) -> None:
    source = Refused()
    async with connected(source) as (_, client):
        asked: dict[str, Callable[[], Awaitable[object]]] = {
            "probe": lambda: client.probe("Source/s"),
            "deliver": lambda: anext(client.deliver("Source/s", {0: 0})),
        }
        with pytest.raises(Unavailable):
            await asked[call]()
        with pytest.raises(Unavailable, match="no broker was reached"):
            await source.failed


async def test_a_source_that_stalls_is_not_opened_again() -> None:
    source = Broken()
    async with connected(source) as (_, client):
        with pytest.raises(UsageError):
            await anext(client.deliver("Source/s", {0: 0}))
        assert not source.failed.done()


async def test_shares_deliver_each_record_of_a_topic_once_and_know_all_partitions(
    tmp_path: Path,
) -> None:
    log, clock = EmbeddedLog(tmp_path), SystemClock()
    await log.create_topic("t", 5)
    await log.append("t", [Entry(None, b"%d" % n, n % 5) for n in range(40)])

    async def decode(records: Sequence[LogRecord]) -> tuple[pa.Table, pa.Table]:
        return pa.table({"n": pa.array([int(r.value or b"") for r in records])}), LETTERS

    found: list[list[int]] = []
    for number in range(3):
        settings, share = IngestSettings(), Share(number, 3)
        reader = SourceReader("t", log, "t", decode, clock, settings, share=share)
        assert await reader.probe() == dict.fromkeys(range(5), 8)
        rows, places = list[int](), dict[int, int]()
        done = asyncio.Event()

        async def take(delivered: Delivered, rows: list[int] = rows, places: dict[int, int] = places, done: asyncio.Event = done) -> None:  # fmt: skip
            rows += delivered.rows["n"].to_pylist()
            places.update(delivered.positions)
            if all(offset == 8 for offset in places.values()):
                done.set()

        reading = asyncio.create_task(reader.deliver_from({1: 3, 3: 8}, take))
        await done.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert all(partition % 3 == number for partition in places)
        found.append(rows)
    everything = sorted(n for rows in found for n in rows)
    assert everything == [n for n in range(40) if n % 5 != 3 and (n % 5 != 1 or n >= 15)]
    await log.close()
