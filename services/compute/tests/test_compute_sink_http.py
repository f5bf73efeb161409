"""An endpoint that answers garbage, or refuses now and then, keeps nobody who posts to it."""

from __future__ import annotations

import gzip
import resource

from aiohttp import web

from tidemill.errors import Unavailable
from tidemill.testkit.http_endpoints import served
from tidemill_compute.actions.outbox import Firing
from tidemill_compute.actions.sink_http import Endpoint, HttpSink


async def test_s8_a_sink_that_answers_a_bomb_is_read_a_little_and_never_unpacked() -> None:
    bomb = gzip.compress(b" " * (256 << 20))
    answered: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        answered.append(request.headers["Idempotency-Key"])
        await request.read()
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    firings = [Firing(f"k{number}", "calls", 1, "r", "{}", None) for number in range(3)]
    async with served(web.post("/", answer)) as url:
        await HttpSink(Endpoint(url)).fire(firings)
    assert answered == ["k0", "k1", "k2"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10


async def test_a4_a_sink_that_refuses_now_and_then_says_what_it_took() -> None:
    """However long a batch is, who asks can go on where it was refused."""
    requests = 0
    taken: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if requests % 3 == 0:
            return web.Response(status=503)
        taken.append(request.headers["Idempotency-Key"])
        return web.Response(status=204)

    left = [Firing(f"k{number}", "calls", 1, "r", "{}", None) for number in range(30)]
    expected = [firing.key for firing in left]
    refused = 0
    async with served(web.post("/", answer)) as url:
        sink = HttpSink(Endpoint(url))
        while left:
            try:
                await sink.fire(tuple(left), lambda took: left.__delitem__(slice(len(took))))
            except Unavailable:
                refused += 1
    assert refused == 14
    assert taken == expected
