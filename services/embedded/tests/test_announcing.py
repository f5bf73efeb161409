"""Commits of one process wake readers of another at once; without announcements they wait for their next look."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pyarrow as pa

from tidemill.arrangement.updates import empty_updates
from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier
from tidemill_embedded.replicas.announcing import Announcements

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
