"""A schema registry that answers garbage takes neither memory nor time of who asks it."""

from __future__ import annotations

import asyncio
import gzip
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.runtime.places import Egress
from tidemill.runtime.places.egress import host_rule
from tidemill.testkit.http_endpoints import served


@asynccontextmanager
async def answering(body: bytes, **headers: str) -> AsyncIterator[str]:
    """The URL of an endpoint that gives this answer to every question."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(body=body, headers=headers)

    async with served(web.route("*", "/{path:.*}", answer)) as url:
        yield url


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


async def test_a1_a_registry_that_sends_to_another_host_is_not_followed() -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        raise web.HTTPTemporaryRedirect(f"http://localhost:{request.url.port}/elsewhere")

    async with served(web.route("*", "/{path:.*}", answer)) as url:
        registry = HttpRegistry(RegistryAccess(url))
        with pytest.raises(Unavailable, match="answered 307"):
            await registry.schema(1)
        await registry.close()
    assert asked == ["/schemas/ids/1"]


async def test_s8_a_registry_that_goes_on_answering_is_left() -> None:
    """Each piece comes in time; all of them together do not."""

    async def answer(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse()
        await reply.prepare(request)
        while True:
            await reply.write(b" ")
            await asyncio.sleep(0.01)

    async with served(web.route("*", "/{path:.*}", answer)) as url:
        registry = HttpRegistry(RegistryAccess(url), timeout_s=0.5)
        async with asyncio.timeout(30):
            with pytest.raises(Unavailable, match="does not answer: TimeoutError"):
                await registry.schema(1)
        await registry.close()


async def test_a1_a_registry_where_nobody_may_connect_is_not_asked() -> None:
    async with answering(b"{}") as url:
        access = RegistryAccess(url, egress=Egress((host_rule("registry.example.org"),)))
        with pytest.raises(UsageError, match=r"places\.egress"):
            await HttpRegistry(access).schema(1)
        # A name that is allowed, and leads to this machine.
        inner = url.replace("127.0.0.1", "localhost")
        private = HttpRegistry(RegistryAccess(inner, egress=Egress((host_rule("*"),))))
        with pytest.raises(Unavailable, match=r"is refused: places\.egress does not name that"):
            await private.schema(1)
        await private.close()


async def test_s8_a_registry_that_answers_without_end_is_refused() -> None:
    async with answering(b" " * (32 << 20)) as url:
        registry = HttpRegistry(RegistryAccess(url))
        with pytest.raises(Unavailable, match="more than 4194304 bytes"):
            await registry.schema(1)
        await registry.close()
