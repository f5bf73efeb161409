"""Stores with transactions over several keys: one whose whole text is seen at once, and faults."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.shard.ports import Attempt, GroupConsensus, is_expected
from tidemill.shard.stores_memory import MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, MortalConsensus
from tidemill.testkit.faults.stores import Faults, FaultyConsensus


class MemoryGroups(MemoryConsensus):
    """Twin of stores with such transactions; `landed` and `refused` count them."""

    def __init__(self) -> None:
        super().__init__()
        self.landed = self.refused = 0

    async def compare_and_set_all(self, attempts: Sequence[Attempt]) -> bool:
        for key, expected, _ in attempts:
            if not is_expected(await self.head(key), expected):
                self.refused += 1
                return False
        for attempt in attempts:
            assert await self.compare_and_set(*attempt)
        self.landed += 1
        return True


class FaultyGroups(FaultyConsensus):
    """Such a store with faults: one outcome for all of a transaction."""

    def __init__(self, inner: MemoryGroups, faults: Faults) -> None:
        super().__init__(inner, faults)
        self._groups = inner

    async def compare_and_set_all(self, attempts: Sequence[Attempt]) -> bool:
        return await self._faults.call(lambda: self._groups.compare_and_set_all(attempts))


class MortalGroups(MortalConsensus):
    """Such a store as one mortal process uses it: a transaction is one write."""

    def __init__(self, inner: MemoryGroups, fuse: Fuse) -> None:
        super().__init__(inner, fuse)
        self._groups: GroupConsensus = inner

    async def compare_and_set_all(self, attempts: Sequence[Attempt]) -> bool:
        return await self._fuse.write(lambda: self._groups.compare_and_set_all(attempts))
