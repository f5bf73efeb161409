"""Decisions about a source are read while more are made."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from tidemill.catalog.records.decisions import DECISIONS_SCHEMA, Decision, Decisions
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier

FIRST, SECOND = (Decision("first-offset", "t", partition=p, first=7) for p in (0, 1))


class Overtaken(Collections):
    """Somebody decides more, and the collection forgets what was before, just before it is read."""

    overtaken = 0

    async def snapshot(self, *asked: Any, **how: Any) -> pa.Table:
        if not self.overtaken:
            self.overtaken += 1
            await Decisions(self, "s/decided").make([SECOND])
            reader = asked[0]
            await self.downgrade(reader, frontier(1))
        return await super().snapshot(*asked, **how)


async def test_d3_what_is_decided_while_it_is_read_is_read_too() -> None:
    clock, ids = ManualClock(), map(str, itertools.count())
    collections = Overtaken(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    await collections.bind("s/decided", Description(DECISIONS_SCHEMA, kind="catalog"), frontier(0))
    await Decisions(collections, "s/decided").make([FIRST])
    assert set(await Decisions(collections, "s/decided").all()) == {FIRST, SECOND}
    assert collections.overtaken == 1
