"""The HTTP server answers what every process answers, and what services add."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest
from aiohttp.http_parser import DeflateBuffer

from tidemill.errors import Corrupt, NotYet, Unavailable, UnknownCollection, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.http_messages import HttpReply, HttpRequest
from tidemill.runtime.http_server import HttpLimits, HttpServer
from tidemill.runtime.metrics import DECODE_ERRORS, Metrics


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    metrics = Metrics(ManualClock())
    metrics.increment(DECODE_ERRORS, source="flights")
    server = HttpServer("127.0.0.1", 0, metrics)
    yield server
    await server.close()


async def ask(
    port: int, method: str, path: str, body: bytes | io.BytesIO = b""
) -> tuple[int, str, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}", data=body) as reply,
    ):
        return reply.status, reply.headers["Content-Type"], await reply.read()


async def test_metrics_and_health_are_served(server: HttpServer) -> None:
    port = await server.start()
    status, kind, body = await ask(port, "GET", "/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    assert b'tidemill_decode_errors_total{source="flights"} 1.0' in body
    assert await ask(port, "GET", "/healthz") == (200, "text/plain", b"ok\n")
    assert (await ask(port, "GET", "/none"))[0] == 404


async def test_a_process_is_ready_when_every_check_is(server: HttpServer) -> None:
    waiting: dict[str, str | None] = {"log": "broker not reached", "state": None}
    for name in waiting:
        server.add_ready_check(name, lambda name=name: waiting[name])  # type: ignore[misc]
    port = await server.start()
    status, _, body = await ask(port, "GET", "/readyz")
    assert status == 503
    assert json.loads(body) == {"ready": False, "waiting": {"log": "broker not reached"}}
    waiting["log"] = None
    status, _, body = await ask(port, "GET", "/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "waiting": {}})


async def test_a_service_adds_routes(server: HttpServer) -> None:
    async def push(request: HttpRequest) -> HttpReply:
        rows = request.body.count(b"\n")
        return HttpReply.json(
            {"source": request.parts["source"], "rows": rows, "key": request.query["key"][0]}, 202
        )

    server.add_route("POST", "/v1/sources/{source}/rows", push)
    port = await server.start()
    status, kind, body = await ask(port, "POST", "/v1/sources/flights/rows?key=a", b"{}\n{}\n")
    assert (status, kind) == (202, "application/json")
    assert json.loads(body) == {"source": "flights", "rows": 2, "key": "a"}
    assert (await ask(port, "GET", "/v1/sources/flights/rows"))[0] == 405


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("bad"), 400),
        (UnknownCollection("none"), 404),
        (NotYet("soon"), 425),
        (Unavailable("down"), 503),
        (Corrupt("damaged"), 500),
    ],
)
async def test_an_error_tells_the_client_what_to_do(
    server: HttpServer, error: Exception, status: int
) -> None:
    async def fail(request: HttpRequest) -> HttpReply:
        raise error

    server.add_route("GET", "/fail", fail)
    port = await server.start()
    answered, _, body = await ask(port, "GET", "/fail")
    assert answered == status
    problem = json.loads(body)
    assert problem["detail"] == str(error)
    assert problem["title"] == (type(error).__doc__ or "").partition("\n")[0]


async def test_a_body_that_is_too_large_is_refused(server: HttpServer) -> None:
    async def push(request: HttpRequest) -> HttpReply:
        return HttpReply()

    server.add_route("POST", "/push", push)
    port = await server.start()
    large = io.BytesIO(b"x" * (HttpLimits().body_bytes + 1))
    assert (await ask(port, "POST", "/push", large))[0] == 413


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Content-Encoding: IDENTITY\r\n", 200),
        ("Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", 415),
        ("Content-Encoding: identity, br\r\n", 415),
    ],
)
async def test_a_body_is_taken_as_it_is_or_not_at_all(
    server: HttpServer, header: str, status: int
) -> None:
    port, taken = await take_rows(server)
    head = f"POST /push?token=1 HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: 3\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + b"abc")
    assert (await reader.readline()).split()[1] == str(status).encode()
    writer.close()
    assert [request.body for request in taken] == [b"abc"] * (status == 200)


async def test_a_body_packed_in_its_transfer_is_refused(server: HttpServer) -> None:
    port, taken = await take_rows(server)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /push?token=1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\n"
    )
    assert b" 415 " in await reader.readline()
    writer.close()
    assert not taken


async def test_a_taken_address_is_named(server: HttpServer) -> None:
    port = await server.start()
    second = HttpServer("127.0.0.1", port, Metrics(ManualClock()))
    with pytest.raises(UsageError, match=rf"127.0.0.1:{port}: is it .* --http-port"):
        await second.start()
    await server.close()


async def take_rows(server: HttpServer) -> tuple[int, list[HttpRequest]]:
    """The port of a server that takes rows, and what it was given."""
    taken: list[HttpRequest] = []

    async def push(request: HttpRequest) -> HttpReply:
        taken.append(request)
        return HttpReply()

    def admits(request: HttpRequest) -> HttpReply | None:
        return None if "token" in request.query else HttpReply.json({"error": "who"}, 401)

    server.add_route("POST", "/push", push, admits)
    return await server.start(), taken


def limited(limits: HttpLimits) -> HttpServer:
    return HttpServer("127.0.0.1", 0, Metrics(ManualClock()), limits=limits)


async def send(port: int, sent: bytes, *, then_leave: bool = False) -> bytes:
    """All that the server answers to these bytes; with `then_leave` the client goes away at
    once.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    if then_leave:
        writer.transport.abort()
        return b""
    answer = await reader.read()
    writer.close()
    return answer


BEGUN = b"POST /push?token HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{"


async def test_s6_uploads_that_break_off_log_nothing_and_the_server_answers(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    port, taken = await take_rows(server)
    for _ in range(100):
        await send(port, BEGUN, then_leave=True)
    broken_chunk = (
        b"POST /push?token HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    )
    assert b" 400 " in await send(port, broken_chunk)
    assert (await ask(port, "GET", "/healthz"))[0] == 200
    assert not taken
    assert [each for each in caplog.records if each.levelno > logging.DEBUG] == []


async def test_s6_a_caller_is_asked_for_before_the_body_is_read(server: HttpServer) -> None:
    port, taken = await take_rows(server)
    answer = await asyncio.wait_for(send(port, BEGUN.replace(b"?token", b"")[:-1]), 10)
    assert b" 401 " in answer  # though the body has not begun to come
    assert not taken


async def test_s6_a_body_that_comes_too_slowly_is_refused_with_the_setting() -> None:
    server = limited(HttpLimits(body_s=0.2))
    port, taken = await take_rows(server)
    answer = await asyncio.wait_for(send(port, BEGUN), 10)
    assert b" 408 " in answer
    assert b"limits.http_body_s" in answer
    assert not taken
    assert (await ask(port, "POST", "/push?token", b"x"))[0] == 200
    await server.close()


async def test_s6_a_client_that_takes_no_whole_answer_is_cut_off() -> None:
    """The answer stood in memory, and its connection was open, for as long as the client liked."""
    long = b"x" * (64 << 20)

    async def show(request: HttpRequest) -> HttpReply:
        return HttpReply(200, long)

    patient, server = limited(HttpLimits()), limited(HttpLimits(answer_s=0.2))
    for each in (patient, server):
        each.add_route("GET", "/long", show)
    whole = await ask(await patient.start(), "GET", "/long")
    assert whole == (200, "application/octet-stream", long)
    await patient.close()
    port = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
    first = await reader.read(1)
    assert server._runner.server is not None
    async with asyncio.timeout(60):
        while server._runner.server.connections:
            await asyncio.sleep(0.01)
    taken = len(first)
    with suppress(ConnectionError):
        while piece := await reader.read(1 << 20):
            taken += len(piece)
    assert taken < len(long)
    writer.close()
    await server.close()


async def test_s6_all_bodies_together_are_bounded() -> None:
    server = limited(HttpLimits(bodies_bytes=1 << 20))
    port, taken = await take_rows(server)
    many = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for _, writer in many:
        writer.write(BEGUN + b"x" * 500_000)
    first = asyncio.ensure_future(many[0][0].read(2_000))
    answers = [first, *(asyncio.ensure_future(reader.read(2_000)) for reader, _ in many[1:])]
    done, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    refused = b"".join(each.result() for each in done)
    assert b" 429 " in refused
    assert b"Retry-After: 1" in refused
    assert b"limits.http_bodies_bytes" in refused
    for each in answers:
        each.cancel()
    for _, writer in many:
        writer.transport.abort()
    for _ in range(100):  # what the others held is free again
        if (await ask(port, "POST", "/push?token", b"x" * 900_000))[0] == 200:
            break
        await asyncio.sleep(0.01)
    assert [len(each.body) for each in taken] == [900_000]
    await server.close()


async def test_s6_a_packed_body_is_not_unpacked(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it while it is thrown away."""
    unpacked: list[bytes] = []
    monkeypatch.setattr(DeflateBuffer, "feed_data", lambda self, data: unpacked.append(data))
    port, taken = await take_rows(server)
    packed = gzip.compress(b"x" * (1 << 24))
    head = (
        "POST /push?token HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    )
    assert b" 415 " in await send(port, head.encode() + packed)
    assert not taken
    assert not unpacked


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def test_s9_a_connection_too_many_is_refused_and_the_others_live() -> None:
    server = limited(HttpLimits(connections=3))
    port, taken = await take_rows(server)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for _, writer in held:
        writer.write(BEGUN)
    await asyncio.sleep(0.2)
    answer = await asyncio.wait_for(send(port, HEALTH), 10)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"limits.http_connections" in answer
    held[0][1].write(b"x" * 999_999)
    assert b" 200 " in await asyncio.wait_for(held[0][0].read(1_000), 10)
    assert len(taken) == 1
    for _, writer in held:
        writer.close()
    await server.close()


async def test_a3_connections_that_ask_for_nothing_shut_out_nobody() -> None:
    """A3: whoever held all of them, without a token, kept probes out, so that the process was
    killed.
    """
    server = limited(HttpLimits(connections=3))
    port = await server.start()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    silent[0][1].write(HEALTH.replace(b"Connection: close\r\n", b""))
    assert b" 200 " in await asyncio.wait_for(silent[0][0].read(1_000), 10)  # it is kept open
    silent[1][1].write(b"GET /heal")
    for _ in range(6):
        assert b" 200 " in await asyncio.wait_for(send(port, HEALTH), 10)
    assert await asyncio.wait_for(silent[0][0].read(1_000), 10) == b""
    for _, writer in silent:
        writer.close()
    await server.close()


async def test_a3_scrapes_take_a_share_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: nobody is asked who scrapes; a scrape of many series takes long, and the loop has other
    work.
    """
    metrics, made = Metrics(ManualClock()), 0

    def slow() -> tuple[bytes, str]:
        nonlocal made
        made += 1
        time.sleep(0.1)
        return f"{made}\n".encode(), "text/plain"

    monkeypatch.setattr(metrics, "expose", slow)
    server = HttpServer("127.0.0.1", 0, metrics)
    port = await server.start()
    assert {(await ask(port, "GET", "/metrics"))[2] for _ in range(5)} == {b"1\n"}
    await asyncio.sleep(0.6)
    assert (await ask(port, "GET", "/metrics"))[2] == b"2\n"
    await server.close()


async def test_s9_a_connection_that_asks_for_nothing_is_ended() -> None:
    server = limited(HttpLimits(body_s=0.1))
    port = await server.start()
    assert await asyncio.wait_for(send(port, b""), 10) == b""
    assert await asyncio.wait_for(send(port, b"GET /heal"), 10) == b""
    await server.close()


async def test_s9_a_request_that_is_trickled_behind_another_is_ended() -> None:
    """Its connection was as one that is kept open, for an hour."""
    server = limited(HttpLimits(body_s=0.2))
    port = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEALTH.replace(b"Connection: close\r\n", b""))
    assert b" 200 " in await asyncio.wait_for(reader.read(1_000), 10)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
    ended = asyncio.create_task(reader.read())
    async with asyncio.timeout(60):
        while not ended.done():
            writer.write(b"x")
            await asyncio.wait([ended], timeout=0.02)
    with suppress(ConnectionError):
        assert ended.result() == b""
    writer.close()
    await server.close()


async def test_a_connection_that_is_kept_open_may_be_silent_between_two_requests() -> None:
    server = limited(HttpLimits(body_s=0.05))
    port = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(HEALTH.replace(b"Connection: close\r\n", b""))
        assert b" 200 " in await asyncio.wait_for(reader.read(1_000), 10)
        await asyncio.sleep(0.2)
    writer.close()
    await server.close()


@pytest.mark.parametrize("answer_s", [0.2, 60.0])
async def test_s6_a_client_that_takes_no_short_answer_is_cut_off(answer_s: float) -> None:
    """So many wait for it that the last one is in a buffer of the server."""
    short, asked = b"x" * 60_000, 0

    async def show(request: HttpRequest) -> HttpReply:
        nonlocal asked
        asked += 1
        return HttpReply(200, short)

    server = limited(HttpLimits(answer_s=answer_s))
    server.add_route("GET", "/short", show)
    port = await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    request, count = b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n", 1_000
    writer.write(request)
    assert len(await reader.read(1)) == 1
    writer.write(request * count)
    open_still = server._runner.server
    assert open_still is not None
    if answer_s < 60:
        async with asyncio.timeout(60):
            while open_still.connections:
                await asyncio.sleep(0.01)
        assert asked < count
    else:  # the fault happened: it stands in the middle of them, and goes on with who reads again
        await asyncio.sleep(0.5)
        assert asked < count
        assert open_still.connections
        while asked <= count:
            await asyncio.wait_for(reader.read(1 << 20), 60)
    writer.close()
    await server.close()
