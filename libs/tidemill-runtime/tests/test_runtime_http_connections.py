"""Connections are read in slices, and whatever fails on one is answered by a problem."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tidemill.runtime.clock import ManualClock
from tidemill.runtime.http_connections import SLICE_BYTES, _below
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.http_problems import FORM_STATUSES
from tidemill.runtime.http_server import LINE_BYTES_MAX, HttpLimits, HttpServer
from tidemill.runtime.metrics import Metrics
from tidemill.testkit.certificates import Certificates

HOST = b"Host: x\r\n"
CHUNKED = b"POST /push HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


async def serve_bodies(tls: ssl.SSLContext | None = None, **limits: int) -> tuple[HttpServer, int]:
    """A server that says how many bytes a body has, and its port."""
    server = HttpServer(
        "127.0.0.1", 0, Metrics(ManualClock()), tls=tls, limits=HttpLimits(**limits)
    )

    async def push(request: HttpRequest) -> HttpReply:
        return HttpReply.json(len(request.body))

    async def fail(request: HttpRequest) -> HttpReply:
        raise ZeroDivisionError("a password")

    server.add_route("POST", "/push", push)
    server.add_route("GET", "/fail", fail)
    return server, await server.start()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server, port = await serve_bodies()
    yield port
    await server.close()


async def exchange(
    port: int, sent: bytes, tls: ssl.SSLContext | None = None
) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    writer.write(sent)
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode()
    lines = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
    body = await reader.readexactly(int(lines["content-length"]))
    writer.close()
    return int(head.split()[1]), lines["content-type"], body


def encryption(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server, and of its clients."""
    pair = Certificates.of(folder).issued("server")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(pair.certificate, pair.key)
    return serving, ssl._create_unverified_context()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_s6_bytes_of_one_connection_are_parsed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    """S6: chunks of one byte cost as much as large ones, and held the loop for seconds."""
    sizes: list[int] = []
    parse = web.RequestHandler.data_received

    def seen(self: web.RequestHandler, data: bytes) -> None:
        sizes.append(len(data))
        parse(self, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", seen)
    serving = asking = None
    if encrypted:
        serving, asking = encryption(tmp_path)
    server, port = await serve_bodies(serving)
    count = 8 * SLICE_BYTES
    flood = CHUNKED + b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    assert await exchange(port, flood, asking) == (200, "application/json", b"%d\n" % count)
    await server.close()
    assert sum(sizes) == len(flood)
    assert max(sizes) == SLICE_BYTES  # the fault happened: more than a slice was there


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: \x00\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"GET /" + b"x" * LINE_BYTES_MAX + b" HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 1_000 + b"\r\n", 400),
        (b"POST /push HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
        (
            b"POST /push HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
            400,
        ),
        (CHUNKED + b"zz\r\n", 400),
        (b"POST /push HTTP/1.1\r\n" + HOST + b"Expect: miracles\r\n\r\n", 417),
        (b"GET /none HTTP/1.1\r\n" + HOST + b"Expect: miracles\r\n\r\n", 417),
        (b"GET /none HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /%ff%00 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"PURGE /push HTTP/1.1\r\n" + HOST + b"\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    ],
)
async def test_whatever_is_no_request_is_answered_by_a_problem(
    port: int, sent: bytes, status: int
) -> None:
    found, kind, body = await exchange(port, sent)
    assert (found, kind) == (status, "application/problem+json"), body
    problem = json.loads(body)
    assert (problem["status"], problem["title"]) == (status, FORM_STATUSES[status])
    assert problem["detail"]


async def test_a_failure_that_nobody_foresaw_is_a_problem_that_says_nothing_of_it(
    port: int,
) -> None:
    status, kind, body = await exchange(port, b"GET /fail HTTP/1.1\r\n" + HOST + b"\r\n")
    assert (status, kind) == (500, "application/problem+json")
    assert json.loads(body)["detail"] == "the server failed: ZeroDivisionError"


async def test_a_connection_too_many_is_told_so_by_a_problem() -> None:
    server, port = await serve_bodies(connections=1)
    _, held = await asyncio.open_connection("127.0.0.1", port)
    held.write(CHUNKED + b"1\r\nx\r\n")
    await asyncio.sleep(0.1)
    status, kind, body = await exchange(port, b"")
    assert (status, kind) == (503, "application/problem+json")
    assert "limits.http_connections" in json.loads(body)["detail"]
    held.close()
    await server.close()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_whoever_has_taken_an_answer_is_not_waited_for(
    tmp_path: Path, encrypted: bool
) -> None:
    """Over TLS an empty buffer was full each second time: readers were cut off as too slow."""
    serving, asking = encryption(tmp_path) if encrypted else (None, None)
    server, port = await serve_bodies(serving)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asking)
    for size in range(6):  # each piece that is read or written made it full, or empty
        head = b"POST /push HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % size
        for part in (head, *[b"x"] * size):
            writer.write(part)
            await asyncio.sleep(0.01)
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert await asyncio.wait_for(reader.readline(), 60) == b"%d\n" % size
        assert server._runner.server is not None
        (connection,) = server._runner.server.connections
        assert not connection.writing_paused
    writer.close()
    await server.close()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_s6_no_untaken_answer_waits_outside_the_limit(
    tmp_path: Path, encrypted: bool
) -> None:
    """S6: over TLS 64 KiB and a piece waited below the buffer that was looked at, for ever."""
    serving, asking = encryption(tmp_path) if encrypted else (None, None)
    limits = HttpLimits(answer_s=0.5)
    server = HttpServer("127.0.0.1", 0, Metrics(ManualClock()), tls=serving, limits=limits)
    short, waiting = b"x" * 60_000, []

    async def show(request: HttpRequest) -> HttpReply:
        assert server._runner.server is not None
        for connection in server._runner.server.connections:
            assert connection.transport is not None
            waiting.append(_below(connection.transport).get_write_buffer_size())
        return HttpReply(200, short)

    server.add_route("GET", "/short", show)
    port = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asking, limit=1)
    request, count = b"GET /short HTTP/1.1\r\n" + HOST + b"\r\n", 1_000
    writer.write(request)
    assert len(await reader.read(1)) == 1
    writer.write(request * count)  # and reads no more
    assert server._runner.server is not None
    async with asyncio.timeout(60):
        while server._runner.server.connections:
            await asyncio.sleep(0.01)
    assert len(waiting) < count  # the companion: it was cut off in the midst of them
    assert not any(waiting)  # none was begun before the one in front of it was taken
    writer.transport.abort()
    await server.close()
