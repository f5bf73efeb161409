"""An endpoint that answers garbage, or refuses now and then, keeps nobody who posts to it."""

from __future__ import annotations

import gzip
import resource

from aiohttp import web

from tidemill.time import Unavailable
from tidemill_compute.actions.outbox import Firing
from tidemill_compute.actions.sink_http import Endpoint, HttpSink


async def test_s8_a_sink_that_answers_a_bomb_is_read_a_little_and_never_unpacked() -> None:
    bomb = gzip.compress(b" " * (256 << 20))
    answered: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        answered.append(request.headers["Idempotency-Key"])
        await request.read()
        return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    firings = [Firing(f"k{number}", "calls", 1, "r", "{}", None) for number in range(3)]
    await HttpSink(Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/")).fire(firings)
    await runner.cleanup()
    assert answered == ["k0", "k1", "k2"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10


async def test_a4_a_sink_that_refuses_now_and_then_is_told_all_the_same() -> None:
    """However long a batch is, each attempt goes on where the one before it was refused."""
    requests = 0
    taken: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if requests % 3 == 0:
            return web.Response(status=503)
        taken.append(request.headers["Idempotency-Key"])
        return web.Response(status=204)

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    firings = [Firing(f"k{number}", "calls", 1, "r", "{}", None) for number in range(30)]
    sink = HttpSink(Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/"))
    refused = 0
    for _ in firings:
        try:
            await sink.fire(firings)
            break
        except Unavailable:
            refused += 1
    await runner.cleanup()
    assert refused == 14
    assert taken == [firing.key for firing in firings]
