"""Stages are counted once for each batch, with their rows."""

from __future__ import annotations

import itertools
from threading import Thread

import pyarrow as pa
import pytest

from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.part_store import Limits
from tidemill.shard.stages import STAGES, StageTimes
from tidemill.time import frontier

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


class TickingClock:
    """A clock of which each read takes a millisecond."""

    def __init__(self) -> None:
        self.reads = 0

    def now_ms(self) -> int:
        return 10_000

    def monotonic_s(self) -> float:
        self.reads += 1
        return self.reads / 1000

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits")


def updates(count: int, time: int) -> pa.Table:
    return pa.table(
        {
            "n": range(count),
            "_time": pa.array([time] * count, pa.uint64()),
            "_diff": pa.array([1] * count, pa.int64()),
        }
    )


async def test_an_append_and_a_read_are_counted_by_stage_with_their_rows() -> None:
    clock, ids = TickingClock(), map(str, itertools.count())
    stores = MemoryConsensus(), MemoryBlob()
    writer = Collections(*stores, clock, ids.__next__, limits=Limits(inline_bytes_max=0))
    await writer.create("c", Description(SCHEMA))
    await writer.compare_and_append("c", frontier(0), frontier(5), updates(1_000, 3), writer="test")
    written = {stage: writer.stages.rows[stage] for stage in ("sort", "encode", "write", "commit")}
    assert set(written.values()) == {1_000}
    assert writer.stages.rows["read"] == 0
    reader = Collections(*stores, clock, ids.__next__)
    capability, _ = await reader.acquire("c", owner="test")
    for _ in range(2):
        assert (await reader.snapshot(capability, 4)).num_rows == 1_000
    assert reader.stages.rows["read"] == 1_000, "a part that is in memory is not read again"
    for counted, stages in ((writer, written), (reader, ["read"])):
        assert all(counted.stages.seconds[stage] > 0 for stage in stages)


async def test_the_clock_is_read_per_batch_and_never_per_row() -> None:
    reads = []
    for rows in (10, 100_000):
        clock, ids = TickingClock(), map(str, itertools.count())
        collections = Collections(
            MemoryConsensus(), MemoryBlob(), clock, ids.__next__, limits=Limits(inline_bytes_max=0)
        )
        await collections.create("c", Description(SCHEMA))
        await collections.compare_and_append(
            "c", frontier(0), frontier(5), updates(rows, 3), writer="test"
        )
        reads.append(clock.reads)
    assert reads[0] == reads[1]


def test_a_stage_that_fails_is_not_counted() -> None:
    times = StageTimes(iter(range(100)).__next__)
    with pytest.raises(ValueError, match="no"), times.timed("decode", 5):
        raise ValueError("no")
    assert not any(times.seconds.values())
    assert not any(times.rows.values())
    assert tuple(times.rows) == STAGES


def test_threads_add_up() -> None:
    times = StageTimes(lambda: 0.0)

    def work() -> None:
        for _ in range(5_000):
            with times.timed("sort", 1):
                pass

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert times.rows["sort"] == 20_000
