"""A schema registry that answers garbage takes neither memory nor time of who asks it."""

from __future__ import annotations

import gzip
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.time import Unavailable


@asynccontextmanager
async def answering(body: bytes, **headers: str) -> AsyncIterator[str]:
    """The URL of an endpoint that gives this answer to every question."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=body, headers=headers)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def test_s8_a_registry_that_answers_a_bomb_is_refused_and_nothing_is_unpacked() -> None:
    bomb = gzip.compress(b" " * (256 << 20))
    before = peak_mb()
    async with answering(bomb, **{"Content-Encoding": "gzip"}) as url:
        registry = HttpRegistry(RegistryAccess(url))
        with pytest.raises(Unavailable):
            await registry.schema(1)
        await registry.close()
    assert peak_mb() - before < 128


async def test_s8_a_registry_that_answers_without_end_is_refused() -> None:
    async with answering(b" " * (32 << 20)) as url:
        registry = HttpRegistry(RegistryAccess(url))
        with pytest.raises(Unavailable, match="more than 4194304 bytes"):
            await registry.schema(1)
        await registry.close()
