"""Frontiers over time: bounded, without a hole where somebody asks, and those of the collection."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from tidemill.errors import UnknownCollection
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.lifecycle import Scope
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier
from tidemill_query.frontier_history import SAMPLE_S, SAMPLES_MAX, FrontierHistory


async def test_looks_follow_the_frontiers_and_old_ones_are_forgotten() -> None:
    clock, ids = ManualClock(1_000_000), map(str, range(100_000))
    collections = Collections(MemoryConsensus(), MemoryBlob(), clock, ids.__next__)
    schema = pa.schema([("n", pa.int64())])
    for name in ("a", "b"):
        held, _ = await collections.create(name, Description(schema, retain_ms=1 << 40))
        await collections.drop(held)
    history, scope = FrontierHistory(collections, clock), Scope()
    looking = asyncio.create_task(history.run(scope))
    for upper in range(1, SAMPLES_MAX + 20):
        await collections.compare_and_append(
            "a", frontier(upper - 1), frontier(upper), None, writer="test"
        )
        await clock.advance(SAMPLE_S)
    looks = await history.of("a")
    uppers = [upper for _, _, upper in looks]
    assert len(looks) == SAMPLES_MAX
    assert uppers == sorted(uppers, key=lambda each: each or 0)
    assert uppers[-1] == SAMPLES_MAX + 19
    assert {since for _, since, _ in looks} == {0}
    assert len(await history.of("a")) == SAMPLES_MAX, "asking makes no more of them"
    assert {upper for _, _, upper in await history.of("b")} == {0}
    with pytest.raises(UnknownCollection):
        await history.of("c")
    scope._stopping.set()
    await clock.advance(0.1)
    await looking
