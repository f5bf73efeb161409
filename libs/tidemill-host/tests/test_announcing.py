"""Commits of one process wake readers of another at once; without announcements they wait for their
next look.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pyarrow as pa

from tidemill.arrangement.updates import empty_updates
from tidemill.host.announcements import TOPIC, Announcements
from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.runtime.log import Entry
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.metrics import Metrics
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier

SCHEMA = pa.schema([("a", pa.int64())])


async def test_a_reader_looks_when_it_hears_and_not_before(tmp_path: Path) -> None:
    clock, ids = ManualClock(1), map(str, itertools.count())  # the clock of readers stands still
    stores = MemoryConsensus(), MemoryBlob()
    writer, reader = (Collections(*stores, clock, ids.__next__) for _ in range(2))
    log = EmbeddedLog(tmp_path)
    telling = Announcements(writer, log, SystemClock(), "writer")
    hearing = Announcements(reader, log, SystemClock(), "reader")
    await writer.create("c", Description(SCHEMA))
    waiting = asyncio.create_task(reader.wait_for_upper("c", 5, 60.0))
    hears = asyncio.create_task(hearing.run(lambda: None))
    await asyncio.wait_for(hearing.listening.wait(), 240)
    empty = empty_updates(SCHEMA)
    await writer.compare_and_append("c", frontier(0), frontier(10), empty, writer="w")
    for _ in range(200):
        await asyncio.sleep(0)
    # Nobody tells yet: the reader is asleep beside what it waits for.
    assert not waiting.done()
    assert hearing.heard == 0
    tells = asyncio.create_task(telling.run(lambda: None))
    assert await asyncio.wait_for(waiting, 240) == frontier(10)
    assert hearing.heard > 0
    assert telling.heard == 0  # its own commits are no news
    for task in (hears, tells):
        task.cancel()
    await asyncio.gather(hears, tells, return_exceptions=True)
    await log.close()


async def test_s5_what_is_no_announcement_is_passed_over_and_counted(tmp_path: Path) -> None:
    clock, ids = ManualClock(1), map(str, itertools.count())
    stores = MemoryConsensus(), MemoryBlob()
    reader = Collections(*stores, clock, ids.__next__)
    log = EmbeddedLog(tmp_path)
    hearing = Announcements(reader, log, SystemClock(), "reader")
    hears = asyncio.create_task(hearing.run(lambda: None))
    await asyncio.wait_for(hearing.listening.wait(), 240)
    foreign = [
        b"not json", b"{}", b"[]", b"\xff", b"", b"7", b'{"collection": 7}', b'{"collection": ""}',
        b'{"collection": null, "process": "x"}', b"[" * 100_000, b'{"collection": "c\xff"}',
        b'{"collection": "' + b"c" * 5_000 + b'"}', b'{"collection": "c", "process": {}}',
    ]  # fmt: skip
    await log.append(TOPIC, [Entry(None, record) for record in foreign])
    await log.append(TOPIC, [Entry(None, b'{"collection": "c", "process": "writer"}')])
    async with asyncio.timeout(240):
        while hearing.heard == 0:
            assert not hears.done()
            await asyncio.sleep(0.01)
    assert (hearing.heard, hearing.passed_over, hearing.broken) == (1, len(foreign), 0)
    metrics = Metrics(clock)
    hearing.watch(metrics)
    exposed = metrics.expose()[0].decode().splitlines()
    assert f"tidemill_announcements_passed_over_total {float(len(foreign))}" in exposed
    hears.cancel()
    await asyncio.gather(hears, return_exceptions=True)
    await log.close()


class LogThatFails(EmbeddedLog):
    """A log that breaks in a way that nobody foresaw, once."""

    failures = 0

    async def create_topic(self, topic: str, partitions: int) -> None:
        if self.failures == 0:
            self.failures += 1
            raise KeyError(topic)
        await super().create_topic(topic, partitions)


async def test_s5_what_nobody_foresaw_of_the_log_leaves_announcements_for_later(
    tmp_path: Path,
) -> None:
    clock, ids = ManualClock(1), map(str, itertools.count())
    log = LogThatFails(tmp_path)
    reader = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    hearing = Announcements(reader, log, clock, "reader")
    hears = asyncio.create_task(hearing.run(lambda: None))
    async with asyncio.timeout(240):
        while not hearing.listening.is_set():
            assert not hears.done()
            await clock.advance(1.0)
            await asyncio.sleep(0.001)
    assert (log.failures, hearing.broken) == (1, 1)
    hears.cancel()
    await asyncio.gather(hears, return_exceptions=True)
    await log.close()
