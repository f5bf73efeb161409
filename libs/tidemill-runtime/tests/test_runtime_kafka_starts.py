"""A start of a Kafka client that is given up leaves no connection open."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemill.errors import Unavailable
from tidemill.runtime.log_kafka import KafkaLog

API_VERSIONS, METADATA = 18, 3


@asynccontextmanager
async def forgetful_broker(asked: asyncio.Event) -> AsyncIterator[str]:
    """A broker that says which requests it knows, and never answers any other one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            request = await reader.readexactly(int.from_bytes(size, "big"))
            kind, _, number = struct.unpack(">hhi", request[:8])
            if kind != API_VERSIONS:
                asked.set()
                continue
            told = struct.pack(">ihihhh", number, 0, 1, METADATA, 0, 1)
            writer.write(len(told).to_bytes(4, "big") + told)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname())
    finally:
        server.close()


@pytest.mark.parametrize("call", ["admin", "reader"])
@pytest.mark.parametrize("ends", ["cancelled", "late"])
async def test_a_start_that_is_given_up_closes_its_first_connection(call: str, ends: str) -> None:
    told: list[dict[str, Any]] = []
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda loop, context: told.append(context))
    async with forgetful_broker(asked) as address:
        log = KafkaLog(address, deadline_s=60.0 if ends == "cancelled" else 0.2)
        starts = {"admin": log._start_admin, "reader": log._start_prober}
        starting = asyncio.create_task(
            log.topics() if (call, ends) == ("admin", "late") else starts[call]()
        )
        await asked.wait()
        if ends == "cancelled":
            starting.cancel()
        (error,) = await asyncio.gather(starting, return_exceptions=True)
        kinds = asyncio.CancelledError if ends == "cancelled" else (Unavailable, TimeoutError)
        assert isinstance(error, kinds)
        del error, starting
        gc.collect()
        await asyncio.sleep(0)
        assert not told
        await log.close()
