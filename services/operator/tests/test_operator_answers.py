"""An API server that answers what is no object: such a call may be tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from tidemill.errors import Unavailable
from tidemill.kubernetes.api import Expired, KubernetesApi
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.rng import new_rng
from tidemill_operator.watching import PAUSE_S_MAX, Mirror

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


def made(called: str, **more: object) -> dict[str, Any]:
    """A table as the API server has it; `more` are fields of its metadata."""
    metadata = {"name": called, "namespace": "n", "uid": called, "resourceVersion": "1", **more}
    return {"metadata": metadata, "spec": {"columns": [{"name": "k", "type": "int"}]}}


ODD_OBJECTS: dict[str, dict[str, Any]] = {
    "no metadata": {"spec": {}},
    "metadata that are null": {"metadata": None},
    "no name": {"metadata": {"namespace": "n", "uid": "u", "resourceVersion": "1"}},
    "a name that is a list": made("b", name=["b"]),
    "labels that are a list": made("b", labels=["x"]),
    "annotations of numbers": made("b", annotations={"tidemill.dev/read-by": 7}),
    "finalizers that are a text": made("b", finalizers="tidemill.dev/in-use"),
    "a generation that is a text": made("b", generation="second"),
}


class Answers:
    """An API server as a mirror asks it: lists one after the other, then nothing more."""

    def __init__(self, lists: list[list[Any]], changes: list[tuple[str, Any]]) -> None:
        self.lists, self.changes = lists, changes
        self.watched = 0

    async def list(self, _: str) -> tuple[list[Any], str]:
        if not self.lists:
            await asyncio.get_running_loop().create_future()
        return self.lists.pop(0), "1"

    async def watch(self, *_: object) -> AsyncIterator[tuple[str, Any]]:
        self.watched += 1
        for change in self.changes:
            yield change
        raise Expired("too old a version")


async def mirror_of(answers: Answers) -> dict[str, Any]:
    """The objects of a mirror that has asked for all there was."""
    clock = ManualClock()
    told = cast(KubernetesApi, answers)
    mirror = Mirror(told, "Table", "", clock, new_rng(), 60, lambda: None)
    following = asyncio.create_task(mirror.follow_forever())
    for _ in range(40):
        await clock.advance(PAUSE_S_MAX)
    assert not following.done(), "the operator goes on"
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return {each.name: each for each in mirror.objects.values()}


@pytest.mark.parametrize("odd", ODD_OBJECTS)
async def test_an_object_that_is_none_ends_no_operator_and_hides_no_other(odd: str) -> None:
    wrong, right = ODD_OBJECTS[odd], [made("a"), made("b")]
    listed = Answers([right, [made("a"), wrong], [made("a"), wrong], right], [])
    assert set(await mirror_of(listed)) == {"a", "b"}
    watched = Answers([right, right], [("MODIFIED", wrong)])
    assert set(await mirror_of(watched)) == {"a", "b"}
    assert watched.watched == 2
    never = Answers([right, *[[made("a"), wrong]] * 30], [])
    assert set(await mirror_of(never)) == {"a", "b"}, "what was seen is not taken for deleted"


async def test_a_status_that_is_none_is_no_status() -> None:
    for status in ("gone", [1], 7, None):
        found = await mirror_of(Answers([[{**made("a"), "status": status}]], []))
        assert found["a"].status == {}
