"""An endpoint that answers garbage, or refuses now and then, keeps nobody who posts to it."""

from __future__ import annotations

import gzip
import resource

import pytest
from aiohttp import web

from tidemill.errors import Unavailable
from tidemill.runtime.clock import SystemClock
from tidemill.testkit.http_endpoints import served
from tidemill_compute.actions.outbox import Firing
from tidemill_compute.actions.sink_http import Delivery, Endpoint, HttpSink


class Sleepless(SystemClock):
    """A clock that only notes how long somebody wants to sleep."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_s8_a_sink_that_answers_a_bomb_is_read_a_little_and_never_unpacked() -> None:
    bomb = gzip.compress(b" " * (256 << 20))
    answered: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        answered.append(request.headers["Idempotency-Key"])
        await request.read()
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    firings = [Firing(f"k{number}", "calls", 1, "r", "[]", None) for number in range(3)]
    async with served(web.post("/", answer)) as url:
        await HttpSink(Endpoint(url), SystemClock()).fire(firings)
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

    left = [Firing(f"k{number}", "calls", 1, "r", "[]", None) for number in range(30)]
    expected = [firing.key for firing in left]
    refused = 0
    async with served(web.post("/", answer)) as url:
        sink = HttpSink(Endpoint(url, again_s=()), SystemClock())
        while left:
            try:
                await sink.fire(tuple(left), lambda took: left.__delitem__(slice(len(took))))
            except Unavailable:
                refused += 1
    assert refused == 14
    assert taken == expected


async def test_a1_an_effect_that_is_refused_for_now_is_tried_again_at_once() -> None:
    """A1: each refusal made the whole action begin again, after seconds: it fell behind."""
    requests = 0
    taken: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if requests % 3:
            taken.append(request.headers["Idempotency-Key"])
        return web.Response(status=204 if requests % 3 else 500)

    clock = Sleepless()

    firings = [Firing(f"k{number}", "calls", 1, "r", "[]", None) for number in range(30)]
    async with served(web.post("/", answer)) as url:
        await HttpSink(Endpoint(url), clock).fire(firings)
        assert taken == [firing.key for firing in firings]
        assert clock.slept == [0.1] * 14
        with pytest.raises(Unavailable):
            await HttpSink(Endpoint(url, Delivery.AT_MOST_ONCE), clock).fire(firings)
    assert clock.slept == [0.1] * 14, "what may have happened is not done again"


async def test_a1_an_endpoint_that_goes_on_refusing_ends_the_try() -> None:
    clock = Sleepless()

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429)

    async with served(web.post("/", answer)) as url:
        with pytest.raises(Unavailable):
            await HttpSink(Endpoint(url), clock).fire([Firing("k", "calls", 1, "r", "[]", None)])
    assert clock.slept == [0.1, 0.2, 0.4, 0.8]
