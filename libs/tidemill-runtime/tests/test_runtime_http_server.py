"""The HTTP server answers what every process answers, and what services add."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tidemill.runtime.clock import ManualClock
from tidemill.runtime.http_server import BODY_BYTES_MAX, HttpReply, HttpRequest, HttpServer
from tidemill.runtime.metrics import DECODE_ERRORS, Metrics
from tidemill.time.errors import Corrupt, NotYet, Unavailable, UnknownCollection, UsageError


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
            {"source": request.parts["source"], "rows": rows, "key": request.query["key"]}, 202
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
    assert json.loads(body) == {"error": type(error).__name__, "message": str(error)}


async def test_a_body_that_is_too_large_is_refused(server: HttpServer) -> None:
    async def push(request: HttpRequest) -> HttpReply:
        return HttpReply()

    server.add_route("POST", "/push", push)
    port = await server.start()
    large = io.BytesIO(b"x" * (BODY_BYTES_MAX + 1))
    assert (await ask(port, "POST", "/push", large))[0] == 413


async def test_a_taken_address_is_named(server: HttpServer) -> None:
    port = await server.start()
    second = HttpServer("127.0.0.1", port, Metrics(ManualClock()))
    with pytest.raises(UsageError, match=rf"cannot listen on 127.0.0.1:{port}"):
        await second.start()
    await server.close()
