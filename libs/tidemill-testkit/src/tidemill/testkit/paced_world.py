"""Collections that rest, of several processes over one store: the world of the tests of pacing."""

from __future__ import annotations

import itertools

import pyarrow as pa

from tidemill.runtime.clock import ManualClock
from tidemill.shard import Appended, Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.time import Frontier, frontier

ROWS = pa.schema([("n", pa.int64())])
UPDATES = pa.schema([*ROWS, ("_time", pa.uint64()), ("_diff", pa.int64())])
PACE = "pace/1000/here"


def updates(time: int, *rows: int) -> pa.Table:
    """Each row once, at one time."""
    count = len(rows)
    return pa.table({"n": rows, "_time": [time] * count, "_diff": [1] * count}, UPDATES)


class World:
    """One store and several processes over it."""

    def __init__(self, processes: int = 2) -> None:
        self.clock = ManualClock()
        self.consensus = MemoryConsensus()
        self.blob = MemoryBlob()
        self.names = itertools.count()
        self.processes = [self.opened() for _ in range(processes)]

    def opened(self) -> Collections:
        """A process that knows nothing."""
        ids = self.names
        return Collections(
            self.consensus, self.blob, self.clock, lambda: f"{next(ids):032x}", poll_interval_s=0.5
        )

    async def create(self, *collections: str, retain_ms: int | None = None) -> World:
        """Make collections with upper 10, and the pace."""
        for each in collections:
            held, _ = await self.processes[0].create(each, Description(ROWS, retain_ms=retain_ms))
            await self.processes[0].drop(held)
            await self.write(each, 0, 10)
        await self.processes[0].open_pace(PACE)
        return self

    async def write(self, collection: str, lower: int, upper: int, *rows: int) -> bool:
        """Append rows at `lower`; whether upper was there."""
        answer = await self.processes[0].compare_and_append(
            collection, frontier(lower), frontier(upper), updates(lower, *rows), writer="w"
        )
        return isinstance(answer, Appended)

    async def rest(self, group: str, *collections: str, at: int, pace: str = PACE) -> bool:
        """Make collections follow a pace as one group from `at` on; whether they do."""
        here = self.processes[0]
        numbers = {}
        for each in collections:
            number = await here.follow(each, (pace,), frontier(at))
            assert number is not None
            numbers[each] = number
        return group in await here.step_pace(pace, frontier(at), {group: numbers}, ())

    async def step(self, upper: int, *leave: str, pace: str = PACE) -> frozenset[str]:
        """Step a pace; the groups that follow it."""
        return await self.processes[0].step_pace(pace, frontier(upper), {}, leave)

    async def uppers(self, collection: str) -> list[Frontier]:
        """The upper of a collection as each process sees it."""
        return [(await each.status(collection)).upper for each in self.processes]

    def versions(self) -> int:
        """The number of versions of all collections."""
        return sum(log[-1].number + 1 for log in self.consensus._logs.values())
