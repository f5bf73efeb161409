"""An API server that answers what is no object: such a call may be tried again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from tidemill.errors import Unavailable
from tidemill.kubernetes.api import KubernetesApi

ANSWERS = {
    "no JSON": b"<html>502</html>\n",
    "no object": b"[1]\n",
    "no text": b"\xff\xfe\n",
    "lists in lists without end": b"[" * 100_000 + b"\n",
}


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[KubernetesApi]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=answer, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    kubernetes = KubernetesApi(configuration, "tidemill-operator")
    try:
        yield kubernetes
    finally:
        await kubernetes.close()
        await runner.cleanup()


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_that_is_no_object_is_unavailable(name: str) -> None:
    async with answering(ANSWERS[name]) as kubernetes:
        with pytest.raises(Unavailable, match="GET /api: the answer is no"):
            await kubernetes.call("GET", "/api")
        with pytest.raises(Unavailable, match="the answer is no"):
            await kubernetes.list("/api")
        with pytest.raises(Unavailable, match="watch /api: the answer is no"):
            _ = [each async for each in kubernetes.watch("/api", "1", 1)]


async def test_an_object_without_items_is_no_list() -> None:
    async with answering(b'{"kind": "Status"}') as kubernetes:
        assert await kubernetes.call("GET", "/api") == {"kind": "Status"}
        with pytest.raises(Unavailable, match="no list of objects"):
            await kubernetes.list("/api")


async def test_an_event_of_a_watch_without_its_type_is_unavailable() -> None:
    async with answering(b'{"kind": "Status"}\n') as kubernetes:
        with pytest.raises(Unavailable, match="watch /api"):
            _ = [each async for each in kubernetes.watch("/api", "1", 1)]
