"""Updates that wait for a frontier, kept so that a frontier takes out its part quickly.

A chain is a run of updates whose times ascend in the partial order. If its head is beyond a
frontier, all later ones are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import merge
from typing import Generic, TypeVar

from tidemill.testkit.partial_orders.update_sets import consolidate_updates
from tidemill.time import Antichain, TimeDomain

D = TypeVar("D", bound=Hashable)
F = TypeVar("F", bound=Hashable)

Update = tuple[D, F, int]


class ChainBatch(Generic[D, F]):
    """Updates in the total order of their times, cut into chains.

    Cost: O(n log n) to build; an extraction costs O(chains + updates taken), each with one look at
    the frontier.
    """

    __slots__ = ("_chains", "_domain", "_size")

    def __init__(self, domain: TimeDomain[F], updates: Iterable[Update[D, F]]) -> None:
        self._domain = domain
        self._chains: list[deque[Update[D, F]]] = []
        self._size = 0
        before: F | None = None
        for update in sorted(updates, key=lambda update: domain.sort_key(update[1])):
            if before is None or not domain.less_equal(before, update[1]):
                self._chains.append(deque())
            self._chains[-1].append(update)
            self._size += 1
            before = update[1]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Update[D, F]]:
        """All updates, in the total order of their times."""
        for chain in self._chains:
            yield from chain

    def extract(self, frontier: Antichain[F]) -> list[Update[D, F]]:
        """Take out every update whose time is not beyond `frontier`."""
        taken: list[Update[D, F]] = []
        for chain in self._chains:
            while chain and not frontier.less_equal(chain[0][1]):
                taken.append(chain.popleft())
        if taken:
            self._chains = [chain for chain in self._chains if chain]
            self._size -= len(taken)
        return taken

    def merged(self, other: ChainBatch[D, F]) -> ChainBatch[D, F]:
        """One batch with the updates of both, each kept as it is."""
        key = self._domain.sort_key
        return ChainBatch(self._domain, merge(self, other, key=lambda update: key(update[1])))


class DeferredUpdates(Generic[D, F]):
    """Updates that no frontier has taken yet, in logarithmically many batches.

    Each batch has less than half the updates of the one before it. So each update takes part in
    O(log n) merges, and an extraction looks at O(log n) batches.
    """

    __slots__ = ("_batches", "_domain")

    def __init__(self, domain: TimeDomain[F]) -> None:
        self._domain = domain
        self._batches: list[ChainBatch[D, F]] = []

    def __len__(self) -> int:
        return sum(len(batch) for batch in self._batches)

    @property
    def batches(self) -> int:
        return len(self._batches)

    def held(self) -> list[Update[D, F]]:
        """All updates kept, in no order."""
        return [update for batch in self._batches for update in batch]

    def add(self, batch: ChainBatch[D, F]) -> None:
        """Keep the updates of `batch`, each as it is: what is taken out is what was put in."""
        batches = [kept for kept in (*self._batches, batch) if len(kept)]
        self._batches = []
        for smaller in sorted(batches, key=len, reverse=True):
            self._batches.append(smaller)
            while len(self._batches) > 1 and 2 * len(self._batches[-1]) >= len(self._batches[-2]):
                last = self._batches.pop()
                self._batches[-1] = self._batches[-1].merged(last)

    def merge(self, updates: Iterable[Update[D, F]]) -> None:
        """Keep `updates` and add up all that is kept: opposite updates disappear."""
        summed = consolidate_updates((*self.held(), *updates))
        self._batches = []
        self.add(ChainBatch(self._domain, summed))

    def extract(self, frontier: Antichain[F]) -> list[Update[D, F]]:
        """Take out every update whose time is not beyond `frontier`."""
        taken = [update for batch in self._batches for update in batch.extract(frontier)]
        self._batches = [batch for batch in self._batches if len(batch)]
        return taken

    def clear(self) -> None:
        """Keep nothing any more."""
        self._batches = []
