"""A question about several collections waits for all of them together."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pyarrow as pa
import pytest

from tidemill.catalog.directory import Readable
from tidemill.errors import NotYet
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import frontier
from tidemill_query.driver import QueryDriver
from tidemill_query.settings import QuerySettings

ROWS = pa.schema([("n", pa.int64())])
WAIT_S = 60.0


class ByName:
    """A directory in which each collection has its own name."""

    def find(self, name: str) -> Readable:
        return Readable(name, name, (("n", "int"),), 1, lambda table: [], None)


@pytest.mark.parametrize("as_of", [None, 50])
async def test_of_several_tables_none_is_waited_for_longer_than_was_allowed(
    as_of: int | None,
) -> None:
    """Three were waited for one after the other: each for as long, once the last one had come."""
    clock, ids = ManualClock(0), itertools.count()
    store = Collections(MemoryConsensus(), MemoryBlob(), clock, lambda: f"i{next(ids)}")
    names = ["first", "second", "third"]
    for name in names:
        await store.create(name, Description(ROWS), lease_ms=None)
    directory: Any = ByName()
    query = QueryDriver(store, directory, clock, QuerySettings())
    began_s = clock.monotonic_s()
    asking = asyncio.create_task(query.tables(names, as_of, WAIT_S))
    for name in names[:2]:  # each comes just before its time is over
        await clock.advance(0.9 * WAIT_S)
        await store.compare_and_append(name, frontier(0), frontier(100), None, writer="w")
        await clock.advance(1.0)
    assert clock.monotonic_s() - began_s > WAIT_S
    assert asking.done()
    with pytest.raises(NotYet, match=r"after .* s of waiting"):
        await asking
