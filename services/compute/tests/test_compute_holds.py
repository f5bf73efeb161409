"""Holds of drivers: moved as soon as they may be, unless that would end a rest."""

from __future__ import annotations

import itertools

import pyarrow as pa

from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier
from tidemill_compute.holds import AT_REST_MS, Holds


async def test_d5_a_hold_ends_no_rest_within_an_hour() -> None:
    ids = map(str, itertools.count())
    collections = Collections(MemoryConsensus(), MemoryBlob(), ManualClock(), ids.__next__)
    await collections.bind(
        "s", Description(pa.schema([("n", pa.int64())]), retain_ms=0), frontier(0)
    )
    holds = Holds(collections, "view:v")
    await holds.take("s")
    await collections.compare_and_append("s", frontier(0), frontier(10), None, writer="w")
    await holds.downgrade("s", frontier(5))
    assert (await collections.status("s")).since == frontier(5)
    await collections.open_pace("pace")
    for begun, to, rests in (
        (10, 5 + AT_REST_MS - 1, True),
        (5 + AT_REST_MS, 5 + AT_REST_MS, False),
    ):
        number = await collections.follow("s", ("pace",), frontier(begun))
        assert number is not None
        assert await collections.step_pace("pace", frontier(to + 1), {"s": {"s": number}}, ()) == {
            "s"
        }
        await holds.downgrade("s", frontier(to))
        assert await collections.rests("s") == rests
        assert (await collections.status("s")).since == frontier(5 if rests else to)
        await collections.rouse("s")
    # The hold is where it was: what it let go at rest it lets go at the next move.
    await holds.downgrade("s", frontier(6 + AT_REST_MS))
    assert (await collections.status("s")).since == frontier(6 + AT_REST_MS)
