"""Event time when nothing comes any more: what silence means is decided once, durably."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidemill.errors import UsageError
from tidemill.rpc.messages import ResourceDocument
from tidemill.testkit.whole import Whole, opened
from tidemill.time import heartbeat, sole_time
from tidemill_server.settings import ServerSettings

SOURCE = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {name: NAME}
spec:
  http: {}
  columns: [{name: id, type: int}, {name: at, type: int}]
  timestampInterval: 50ms
  retain: all
  eventTime: {column: at, timeline: desk, expiresAfter: 1h, QUIET}
---
"""
VIEW = """
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {name: watch}
spec:
  retain: all
  inputs: {request: req, reply: rep}
  program: |
    answered(r) @expires(t + 60000) := reply(r, _) @time(t);
    due(r) @time(t + 500) @expires(t + 501) := request(r, _) @time(t);
    unanswered(r) @expires(c + 600000) := due(r) @time(c) ^ not answered(r);
  outputs: [unanswered]
"""


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


def stream(name: str, quiet: str) -> str:
    return SOURCE.replace("NAME", name).replace("QUIET", quiet)


async def apply(process: Whole, text: str) -> None:
    await process.controller.apply([ResourceDocument(text, "test.yaml")])


async def push(process: Whole, source: str, number: int, at: int) -> None:
    await process.controller.push(source, [json.dumps({"id": number, "at": at}).encode()])


async def upper_of(process: Whole, collection: str) -> int:
    return sole_time((await process.context.collections.status(collection)).upper)


async def passes(process: Whole, collection: str, instant: int) -> None:
    """Wait until the collection is definite at `instant`."""
    for _ in range(1_500):
        if await upper_of(process, collection) > instant:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{collection} stays at {await upper_of(process, collection)}")


async def answer(process: Whole, goal: str, at: int) -> set[tuple[object, ...]]:
    table = (await process.query.ask(goal, at, 60.0)).table.drop_columns(["_diff"])
    return set(zip(*(column.to_pylist() for column in table.columns), strict=True))


async def letters(process: Whole, source: str) -> list[str]:
    rows = await process.context.collections.read_updates(f"{source}/deadletters")
    return [str(reason) for reason in rows["reason"].to_pylist()]


async def test_no_answer_within_a_bound_is_told_when_everything_has_gone_quiet(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        for name in ("req", "rep"):
            await apply(process, stream(name, "silence: 300ms"))
        await apply(process, VIEW)
        began = process.context.clock.now_ms()
        await push(process, "req", 1, began)
        await push(process, "req", 2, began)
        await push(process, "rep", 1, began + 10)
        due = began + 500
        await passes(process, "watch/unanswered", due)
        assert {row[0] for row in await answer(process, "watch/unanswered(r)", due)} == {2}
        told = (await process.controller.describe("source", "req")).details
        assert told["movedBy"] == "silence"
        assert int(told["eventFrontier"]) > due
        upper = await upper_of(process, "req")
        interval_ms = 50  # by which the instants of the source may be ahead of the clock
        assert upper <= process.context.clock.now_ms() + interval_ms - 300 + 1
    async with running(tmp_path) as process:
        assert {row[0] for row in await answer(process, "watch/unanswered(r)", due)} == {2}
        before = await upper_of(process, "rep")
        # The answer that comes after the bound changes nothing any more.
        await push(process, "rep", 2, began + 400)
        for _ in range(1_500):
            if found := await letters(process, "rep"):
                break
            await asyncio.sleep(0.02)
        assert [reason.split(" is ")[0] for reason in found] == [f"late: time {began + 400}"]
        await passes(process, "rep", before + 400)
        assert {row[0] for row in await answer(process, "watch/unanswered(r)", due)} == {2}


async def test_without_a_bound_silence_moves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        began = process.context.clock.now_ms()
        await apply(process, stream("quiet", "skew: 0s") + stream("other", "silence: 100ms"))
        await push(process, "quiet", 1, began)
        await passes(process, "other", began + 1_000)
        assert await upper_of(process, "quiet") == began


async def test_a_source_of_which_all_is_idle_no_longer_holds_its_timeline_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as process:
        for name in ("req", "rep"):
            await apply(process, stream(name, "idleTimeout: 200ms"))
        await apply(process, stream("third", "skew: 0s") + VIEW)
        await push(process, "req", 2, 2_000)
        await push(process, "third", 9, 60_000)
        await passes(process, "watch/unanswered", 59_999)
        assert await upper_of(process, "watch/unanswered") == 60_000
        assert {row[0] for row in await answer(process, "watch/unanswered(r)", 2_500)} == {2}


async def test_a_silence_too_short_to_be_one_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        with pytest.raises(UsageError, match=r"eventTime\.silence: 49ms is too short"):
            await apply(process, stream("req", "silence: 49ms"))


async def test_c2_no_answer_within_a_bound_is_told_by_heartbeats_alone(tmp_path: Path) -> None:
    """C2: without a wall clock, the pusher says that nothing follows; a restart knows it too."""
    async with running(tmp_path) as process:
        await apply(process, stream("req", "skew: 0s") + stream("rep", "skew: 0s") + VIEW)
        began = process.context.clock.now_ms() - 100_000
        await push(process, "req", 1, began)
        await push(process, "req", 2, began)
        await push(process, "rep", 1, began + 10)
        await passes(process, "rep", began + 9)
        assert await upper_of(process, "watch/unanswered") <= began + 10
        for name in ("req", "rep"):
            await process.controller.push(name, [heartbeat(began + 501).encode()])
        await passes(process, "watch/unanswered", began + 500)
        assert {row[0] for row in await answer(process, "watch/unanswered(r)", began + 500)} == {2}
        told = (await process.controller.describe("source", "req")).details
        assert (told["movedBy"], told["eventFrontier"]) == ("heartbeat", began + 501)
        rows = await process.context.collections.read_updates("rep")
        assert rows["id"].to_pylist() == [1]
    async with running(tmp_path) as process:
        assert await upper_of(process, "rep") == began + 501
        await push(process, "rep", 2, began + 400)
        for _ in range(1_500):
            if found := await letters(process, "rep"):
                break
            await asyncio.sleep(0.02)
        assert [reason.split(" is ")[0] for reason in found] == [f"late: time {began + 400}"]
        assert {row[0] for row in await answer(process, "watch/unanswered(r)", began + 500)} == {2}


async def test_c2_a_heartbeat_reaches_every_partition_and_none_without_event_time(
    tmp_path: Path,
) -> None:
    """C2: a promise of the source is one of all its partitions; elsewhere it would be a dead
    letter.
    """
    settings = ServerSettings(directory=str(tmp_path / "state"), topic_partitions=3)
    topic = stream("wide", "skew: 0s").replace("http: {}", "kafka: {topic: wide}")
    plain = SOURCE.replace("NAME", "plain").split("  eventTime")[0]
    async with opened(settings) as process:
        await process.start()
        await apply(process, topic)
        await apply(process, plain)
        began = process.context.clock.now_ms()
        await push(process, "wide", 1, began - 50)
        await process.controller.push("wide", [heartbeat(began).encode()])
        await passes(process, "wide", began - 1)
        assert await letters(process, "wide") == []
        with pytest.raises(UsageError, match=r"Source/plain has no eventTime"):
            await process.controller.push("plain", [heartbeat(began).encode()])
        ahead = began + 10 * 86_400_000
        await process.controller.push(
            "wide", [heartbeat(ahead).encode(), b"tidemill-heartbeat: soon"]
        )
        for _ in range(1_500):
            if len(found := await letters(process, "wide")) >= 6:
                break
            await asyncio.sleep(0.02)
        assert {reason.split(" ")[0] for reason in found} == {"ahead:", "a"}
        assert await upper_of(process, "wide") == began
