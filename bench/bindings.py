"""Delay until a reader in another process knows a binding: told on a topic, looked for, or streamed
by its minter.

    python -m bench.bindings

One binding after the other is appended to a remap collection over Redis (appendfsync always). All
three readers wait for the same one, and each has to know it before the next is made. Their
knowledge is equal by construction. Times are from the beginning of the append, so the first line is
the floor of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from secrets import token_hex
from statistics import median
from typing import Any

import grpc

from tidemill.arrangement.updates import empty_updates
from tidemill.host.announcements import Announcements
from tidemill.reclock.remap_rows import REMAP_SCHEMA
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.shard import Collections, Description, MemoryBlob
from tidemill.shard.stores import open_consensus
from tidemill.testkit.servers import kafka_server, redis_server
from tidemill.time import frontier

BINDINGS = 60
REMAP = "s/remap"
METHOD = "/bench.Bindings/Follow"
CLOCK = SystemClock()


def opened(address: str, prefix: str) -> Collections:
    """The collections as one process has them: nothing is known of what the others do."""
    consensus = open_consensus(f"{address}?prefix={prefix}")
    return Collections(consensus, MemoryBlob(CLOCK.now_ms), CLOCK, partial(token_hex, 16))


class Minter:
    """Streams each binding that it has made durable to whoever has asked."""

    def __init__(self) -> None:
        self.made: asyncio.Queue[int] = asyncio.Queue()

    def service(self, details: Any) -> Any:
        """The handler of the one call."""
        return grpc.unary_stream_rpc_method_handler(self._follow)

    async def _follow(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        while True:
            yield str(await self.made.get()).encode()


async def stream(port: int, known: asyncio.Queue[float]) -> None:
    """Follow the minter."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        async for _ in channel.unary_stream(METHOD)(b""):
            known.put_nowait(CLOCK.monotonic_s())


async def poll_store(collections: Collections, known: asyncio.Queue[float]) -> None:
    """Follow the collection."""
    upper = 0
    while True:
        upper = next(iter((await collections.wait_for_upper(REMAP, upper, 60.0)).elements))
        known.put_nowait(CLOCK.monotonic_s())


async def measure(redis: str, bootstrap: str) -> dict[str, list[float]]:
    """Milliseconds by way."""
    prefix = f"bench-{token_hex(4)}"
    writer, told, looking = (opened(redis, prefix) for _ in range(3))
    await writer.create(REMAP, Description(REMAP_SCHEMA))
    logs = [KafkaLog(bootstrap) for _ in range(2)]
    telling, hearing = (
        Announcements(c, log, CLOCK, name)
        for c, log, name in zip((writer, told), logs, ("writer", "told"), strict=True)
    )
    minter, server = Minter(), grpc.aio.server()
    server.add_generic_rpc_handlers((minter,))  # type: ignore[arg-type]  # it has what is asked of it
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    known = {way: asyncio.Queue[float]() for way in ("told on a topic", "looked for", "streamed")}
    tasks = [
        asyncio.create_task(telling.run(lambda: None)),
        asyncio.create_task(hearing.run(lambda: None)),
        asyncio.create_task(poll_store(told, known["told on a topic"])),
        asyncio.create_task(poll_store(looking, known["looked for"])),
        asyncio.create_task(stream(port, known["streamed"])),
    ]
    await hearing.listening.wait()
    found: dict[str, list[float]] = {"made durable": [], **{way: [] for way in known}}
    empty = empty_updates(REMAP_SCHEMA)
    for number in range(BINDINGS):
        begun_s = CLOCK.monotonic_s()
        lower, upper = frontier(number), frontier(number + 1)
        await writer.compare_and_append(REMAP, lower, upper, empty, writer="minter")
        found["made durable"].append(1000 * (CLOCK.monotonic_s() - begun_s))
        minter.made.put_nowait(number)
        for way, times in known.items():
            found[way].append(1000 * (await times.get() - begun_s))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.stop(0)
    for log in logs:
        await log.close()
    for collections in (writer, told, looking):
        await collections.close()
    return found


def main() -> None:
    """Measure, and print a table."""
    with redis_server("bench-redis") as redis, kafka_server("bench-kafka") as kafka:
        found = asyncio.run(measure(redis.address, kafka.address))
    print("| way | median ms | worst of 10 ms |\n|---|---|---|")
    for way, times in found.items():
        print(f"| {way} | {median(times):.1f} | {sorted(times)[-len(times) // 10]:.1f} |")


if __name__ == "__main__":
    main()
