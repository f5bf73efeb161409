"""The same pipeline over the embedded log and over a real Kafka broker gives the same answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tidemill.rpc.messages import ResourceDocument
from tidemill.runtime.log import Entry, Log
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.testkit.whole import Whole, opened
from tidemill.time import sole_time
from tidemill_server.settings import ServerSettings

NUMBERS = count()
MINUTE = 60_000
SKEW = 5 * MINUTE
END = 10_000 * 1000

RESOURCES = """
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: readings}}
spec:
  kafka: {{topic: {topic}{bootstrap}}}
  format: {{json: {{}}}}
  columns: [{{name: tank, type: text}}, {{name: level, type: int}}, {{name: at, type: int}}]
  timestampInterval: 50ms
  retain: all
  eventTime: {{column: at, timeline: plant, expiresAfter: 10m, skew: 5m}}
---
apiVersion: tidemill.dev/v1alpha1
kind: Source
metadata: {{name: tanks}}
spec: {{file: {{path: {tanks}, format: csv}}, timeline: plant, retain: all, timestampInterval: 50ms,
  columns: [{{name: tank, type: text}}, {{name: limit, type: int}}]}}
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {{name: levels}}
spec:
  retain: all
  program: |
    over(t, l) := readings(t, l, _) ^ tanks(t, m) if l > m;
    fine(t) := tanks(t, _) ^ not over(t, _);
---
apiVersion: tidemill.dev/v1alpha1
kind: View
metadata: {{name: summary}}
spec:
  retain: all
  program: count(t) @count(l) := over(t, l);
"""


@dataclass
class Given:
    """Records that were written to the log."""

    events: list[tuple[str, int, int]]
    broken: list[str]


async def write(log: Log, topic: str, random: Random, begin: int, end: int, given: Given) -> None:
    """Readings of one stretch of event time, out of order; every tenth record is broken."""
    entries = []
    for n in range(60):
        at = begin + n * (end - begin) // 60 + random.randrange(-SKEW // 2, SKEW // 2)
        event = (f"t{random.randrange(4)}", random.randrange(100), max(0, at))
        text = json.dumps(dict(zip(("tank", "level", "at"), event, strict=True)))
        if n % 10 == 9:
            text = text.replace('"level"', '"height"')
            given.broken.append(text)
        else:
            given.events.append(event)
        entries.append(Entry(event[0].encode(), text.encode()))
    await log.append(topic, entries)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Whole]:
    async with opened(ServerSettings(directory=str(folder / "state"))) as process:
        await process.start()
        yield process


async def until_upper(process: Whole, collection: str, upper: int) -> None:
    async with asyncio.timeout(240):
        held = await process.context.collections.wait_for_upper(collection, upper - 1, 240.0)
    assert sole_time(held) >= upper


async def rows(process: Whole, goal: str, at: int) -> list[tuple[object, ...]]:
    answer = await process.query.ask(goal, at, 120.0)
    names = [n for n in answer.table.column_names if n not in ("time", "expires", "_diff")]
    return sorted(tuple(row[name] for name in names) for row in answer.table.to_pylist())


@pytest.mark.parametrize("kind", ["embedded", pytest.param("kafka", marks=pytest.mark.server)])
async def test_answers_do_not_depend_on_the_log(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    random, given, topic = Random(3), Given([], []), f"readings-{next(NUMBERS)}"
    tanks = tmp_path / "tanks.csv"
    tanks.write_text("tank,limit\nt0,50\nt1,80\nt2,20\n")
    bootstrap = request.getfixturevalue("kafka_bootstrap") if kind == "kafka" else None
    async with running(tmp_path) as process:
        log = process.context.log if bootstrap is None else KafkaLog(bootstrap)
        await log.create_topic(topic, 3)
        await write(log, topic, random, 0, END // 3, given)
        where = "" if bootstrap is None else f', bootstrap: "{bootstrap}"'
        text = RESOURCES.format(topic=topic, bootstrap=where, tanks=tanks)
        await process.controller.apply([ResourceDocument(text, "test.yaml")])
        await write(log, topic, random, END // 3, 2 * END // 3, given)
        await until_upper(process, "readings", 1)
        if bootstrap is not None:
            await log.close()
    async with running(tmp_path) as process:
        log = process.context.log if bootstrap is None else KafkaLog(bootstrap)
        await write(log, topic, random, 2 * END // 3, END, given)
        # Every partition has to say that its time is over.
        last = json.dumps({"tank": "end", "level": 0, "at": END + 2 * SKEW}).encode()
        await log.append(topic, [Entry(None, last, partition) for partition in range(3)])
        await until_upper(process, "levels/over", END + SKEW)
        await until_upper(process, "summary/count", END + SKEW)
        await check(process, given)
        if bootstrap is not None:
            await log.close()


async def check(process: Whole, given: Given) -> None:
    """Answers at several instants against a recomputation from what was written."""
    limits = {"t0": 50, "t1": 80, "t2": 20}
    for at in (0, END // 4, END // 2, END - 1):
        present = {(t, level, x) for t, level, x in given.events if x <= at < x + 10 * MINUTE}
        assert await rows(process, "readings(t, l, a)", at) == sorted(present)
        over = sorted((t, lv) for t, lv, _ in present if t in limits and lv > limits[t])
        assert await rows(process, "levels/over(t, l)", at) == over
        full = {t for t, _ in over}
        assert await rows(process, "fine(t)", at) == [(t,) for t in limits if t not in full]
        counts = sorted((t, sum(x == t for x, _ in over)) for t in full)
        assert await rows(process, "summary/count(t) @count(n)", at) == counts
    letters = await process.query.snapshot("readings/deadletters", None, 120.0)
    assert sorted(letters.table["raw"].to_pylist()) == sorted(given.broken)
