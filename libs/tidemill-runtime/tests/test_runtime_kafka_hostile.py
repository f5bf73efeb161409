"""Brokers that answer what is none of Kafka: a call fails for now, in the memory of one answer."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tidemill.errors import Unavailable
from tidemill.runtime.kafka_gate import FRAME_BYTES_MAX
from tidemill.runtime.log_kafka import KafkaLog

Answer = Callable[[bytes], bytes]
"""The answer to a request, of which the first four bytes after its kind are its number."""


@asynccontextmanager
async def broker(answer: Answer, endless: bytes = b"") -> AsyncIterator[str]:
    """A server that answers each request so, and then goes on with `endless`; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4))
                request = await reader.readexactly(size)
                writer.write(answer(request[4:8]))
                await writer.drain()
                while endless:
                    writer.write(endless)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


VERSIONS = {
    "contradicting": framed(b"%NUMBER" + b"\0\0" + b"\0\0\0\x01" + b"\0\x12\0\x05\0\x01"),
    "more than there are": framed(b"%NUMBER" + b"\0\0" + b"\x7f\xff\xff\xff"),
    "none": framed(b"%NUMBER"),
    "of another request": framed(b"\x7f\0\0\0" + bytes(10)),
}
"""Answers to the first request: which versions of calls the broker knows."""
FRAMES = {
    "a length of two gigabytes": b"\x7f\xff\xff\xff",
    "a length below zero": b"\x80\0\0\0",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "nothing": bytes(4),
}


@pytest.mark.parametrize("answer", [*VERSIONS.values(), *FRAMES.values()], ids=[*VERSIONS, *FRAMES])
async def test_a_broker_that_does_not_speak_kafka_is_away(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with broker(lambda number: answer.replace(b"%NUMBER", number)) as address:
        log = KafkaLog(address, deadline_s=1)
        try:
            with pytest.raises(Unavailable):
                await log.reader("t", {0: 0})
        finally:
            await log.close()
    assert "Traceback" not in caplog.text


async def test_an_answer_of_two_gigabytes_takes_no_memory() -> None:
    assert FRAME_BYTES_MAX < 1 << 30
    tracemalloc.start()
    try:
        async with broker(lambda _: b"\x7f\xff\xff\xff", endless=bytes(1 << 20)) as address:
            log = KafkaLog(address, deadline_s=1)
            try:
                with pytest.raises(Unavailable):
                    await log.reader("t", {0: 0})
            finally:
                await log.close()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
