"""A process that goes on for years keeps nothing of collections that are closed."""

from __future__ import annotations

from itertools import count

import pyarrow as pa

from tidemill.runtime.clock import ManualClock
from tidemill.shard import Appended, Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.capabilities import UpperMismatch
from tidemill.shard.write_commands import CROWD
from tidemill.time import frontier

ROWS = pa.schema([("n", pa.int64())])
EACH = pa.table(
    {"n": pa.array([1], pa.int64()), "_time": pa.array([0], pa.uint64()), "_diff": pa.array([1])}
)


async def test_what_is_counted_of_writes_to_closed_collections_is_forgotten() -> None:
    ids = count()
    store = Collections(MemoryConsensus(), MemoryBlob(), ManualClock(), lambda: f"i{next(ids)}")
    stays = [f"stays{number}" for number in range(CROWD)]
    goes = [f"goes{number}" for number in range(8 * CROWD)]
    met = 0
    for name in (*stays, *goes):
        await store.create(name, Description(ROWS), lease_ms=None)
        done = await store.compare_and_append(name, frontier(0), frontier(1), EACH, writer="w")
        assert isinstance(done, Appended)
        late = await store.compare_and_append(name, frontier(0), frontier(1), EACH, writer="v")
        assert isinstance(late, UpperMismatch)
        met = max(met, len(store._inline._seen))
        if name in goes:
            await store.close_collection(name)
    assert met <= 4 * CROWD  # eight times that many were closed
    assert len(store.mismatches) <= 4 * CROWD
    assert store._inline._seen.keys() >= {*stays}
    assert [store.mismatches[name] for name in stays] == [1] * CROWD
