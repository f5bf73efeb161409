"""The status of a source says how it comes on: what has come, and how much is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidemill.rpc.messages import ResourceDocument, ResourceStatus
from tidemill.testkit.whole import Whole, opened
from tidemill_server.settings import ServerSettings

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: pings}
spec:
  http: {}
  columns: [{name: host, type: text}]
  timestampInterval: 50ms
  retain: 10m
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: seen}
spec: {retain: all, program: seen(h) := pings(h);}
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def until(
    process: Whole, kind: str, name: str, met: Callable[[ResourceStatus], bool]
) -> ResourceStatus:
    """The status of a resource once a condition is met."""
    for _ in range(1_500):
        (status,) = await process.controller.get(kind, name)
        if met(status):
            return status
        await asyncio.sleep(0.02)
    pytest.fail(f"it never came to that: {status}")


async def test_a_source_that_has_never_seen_a_record_says_so_with_topic_and_log(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        await process.controller.apply([ResourceDocument(SOURCE, "test.yaml")])
        status = await until(process, "Source", "pings", lambda s: s.reason == "NoRecords")
        assert status.ready
        assert status.message.startswith("no records in topic ")
        assert status.message.endswith(" at the own log yet")
        assert (await process.controller.describe("source", "pings")).message == status.message
        await process.controller.push("pings", [b'{"host": "a"}'])
        status = await until(process, "Source", "pings", lambda s: s.reason == "Running")
        assert status.message == ""
    async with running(tmp_path) as process:
        status = await until(process, "Source", "pings", lambda s: s.ready)
        assert status.reason == "Running", "records before a restart count"


async def test_a_source_and_a_view_say_their_speed_and_that_nothing_is_left(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        documents = [ResourceDocument(text, "test.yaml") for text in (SOURCE, VIEW)]
        await process.controller.apply(documents)
        rows = [b'{"host": "h%d"}' % number for number in range(500)]
        await process.controller.push("pings", rows)
        for kind, name in (("Source", "pings"), ("View", "seen")):
            status = await until(process, kind, name, _has_caught_up)
            assert status.left_ms == 0
            assert (await process.controller.describe(kind, name)).records_behind == 0


def _has_caught_up(status: ResourceStatus) -> bool:
    """Whether records were taken in, and none is behind."""
    return bool(status.records_per_s) and status.records_behind == 0
