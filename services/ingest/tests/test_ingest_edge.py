"""A source read through a server: nothing is read ahead of the credit, and whoever follows hears when it moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

import pyarrow as pa
import pytest

from tidemill.rpc.channel import Dialer
from tidemill.rpc.client_services import CREDIT, ServiceClient
from tidemill.rpc.messages import Delivered
from tidemill.rpc.server import ServiceHandlers, serve
from tidemill.time import Unavailable, UsageError
from tidemill_ingest.driver import Deliver, SourceBroken
from tidemill_ingest.edge import Readers

LETTERS = pa.table({"reason": pa.array([], pa.string())})


class Endless:
    """A source without end: each delivery is bigger than a message."""

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


@asynccontextmanager
async def connected(source: Endless) -> AsyncIterator[tuple[Readers, ServiceClient]]:
    readers = Readers()
    readers.offer("Source/s", source, source.commit)
    server = await serve("127.0.0.1:0", services=ServiceHandlers(ingest=readers))
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
        # Three were taken, and two of them allowed one more each; one waits on either side of the queue.
        assert 3 <= source.delivered <= 2 + CREDIT + 2


async def test_a_source_that_moves_ends_its_deliveries() -> None:
    async with connected(Endless()) as (readers, client):
        assert await client.probe("Source/s") == {0: 10, 3: 7}
        deliveries = client.deliver("Source/s", {0: 0})
        await anext(deliveries)
        readers.withdraw("Source/s")
        with pytest.raises(Unavailable, match="elsewhere") as moved:
            _ = [each async for each in deliveries]
        assert moved.value.details["reason"] == "elsewhere"
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
