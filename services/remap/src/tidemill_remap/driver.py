"""Mints the bindings of one source: a probe each interval, bound by compare-and-append."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tidemill.catalog.bindings import begin_bindings, latest_bindings
from tidemill.errors import Indeterminate, NotYet
from tidemill.host.resting import Rest
from tidemill.reclock import (
    Minter,
    Proposal,
    Wait,
    mint_time,
    rows_of_bindings,
)
from tidemill.runtime.clock import Clock
from tidemill.shard import Appended, Collections
from tidemill.time import (
    Antichain,
    Frontier,
    Partitions,
    frontier,
    partition_frontier,
    partition_offsets,
    sole_time,
)

PATIENCE = 3
"""After so many intervals in which nobody has minted, whoever stands by does."""

RECORDS_PER_BINDING = 125_000
"""Records that one binding adds at most, where there are instants for more bindings."""

Probe = Callable[[], Awaitable[dict[int, int]]]
"""The offset that the next record of each partition will get."""


@dataclass(slots=True)
class MintCounts:
    """Counts of this minter since it started, per partition and in all."""

    minted: int = 0
    lost: int = 0
    known: dict[int, int] = field(default_factory=dict)
    bound: dict[int, int] = field(default_factory=dict)


def steps_between(
    bound: Mapping[int, int], known: Mapping[int, int], most: int
) -> list[Mapping[int, int]]:
    """Offsets to bind one after the other, the last of them `known`: a backlog comes in parts.

    Writers and readers of an instant hold everything that is bound there. A part has at most
    `RECORDS_PER_BINDING` records, or there are as many parts as `most` and one.
    """
    behind = sum(max(0, offset - bound.get(p, 0)) for p, offset in known.items())
    count = max(1, min(-(-behind // RECORDS_PER_BINDING), most + 1))
    return [
        {p: known[p] - (known[p] - bound.get(p, 0)) * left // count for p in known}
        for left in reversed(range(count))
    ]


def _joined(minter: Minter[Partitions], offsets: Mapping[int, int]) -> Antichain[Partitions]:
    """The offsets joined with those bound already: another source may have seen more."""
    bound = partition_offsets(minter.view.current)
    for partition, offset in offsets.items():
        bound[partition] = max(offset, bound.get(partition, 0))
    return partition_frontier(bound)


class RemapDriver:
    """Binds probed frontiers at each interval; an idle source advances all the same.

    A probe that is far ahead is bound in parts, at instants of its interval.

    A binding is visible to others only once it is durable. Several drivers of one source do no
    harm: the loser of a race reads the winner's bindings and goes on from there. With `rest`, a
    source without news for some intervals is advanced together with others, and bound by none of
    them.

    If bindings are `shared` by sources, each has a driver, and the loser of a race stands by. It
    mints when nobody else has done so for some intervals. Another driver may have bound more than
    this one has seen; nobody takes that back.
    """

    def __init__(
        self,
        source: str,
        collection: str,
        collections: Collections,
        clock: Clock,
        interval_ms: int,
        begins: int = 0,
        rest: Rest | None = None,
        *,
        shared: bool = False,
    ) -> None:
        """The collection of bindings was made with since and upper at `begins`."""
        self._source = source
        self._collection = collection
        self._collections = collections
        self._clock = clock
        self._interval_ms = interval_ms
        self._begins = begins
        self._rest = rest
        self._shared = shared
        self.stands_by = False
        """Whether another driver has won the last race, and mints."""
        self.counts = MintCounts()

    async def mint_forever(self, probe: Probe) -> None:
        """Probe and mint until cancelled, or until a probe finds the source in trouble."""
        await self._begin()
        minter = await self._read()
        while not minter.view.upper.empty:
            at = mint_time(self._clock.now_ms(), self._interval_ms, minter.view.upper)
            if isinstance(at, Wait):
                # A clock that was set back may be put right again: look at it each interval.
                await self._clock.sleep(min(at.ms, self._interval_ms) / 1000)
                continue
            before, self.counts.known = self.counts.known, await probe()
            bound = partition_offsets(minter.view.current)
            steps = steps_between(bound, self.counts.known, at.time - sole_time(minter.view.upper))
            for left, offsets in zip(reversed(range(len(steps))), steps, strict=True):
                minter = await self._mint(minter, at.time - left, offsets)
            self.counts.bound = partition_offsets(minter.view.current)
            if self.stands_by:
                await self._stand_by(probe, minter.view.upper)
                minter = await self._read()
                continue
            if self._rest is not None and self._rest.due(before != self.counts.known):
                await self._rest.rest(minter.view.upper, lambda: self._has_moved(probe))
                minter = await self._read()

    async def _stand_by(self, probe: Probe, upper: Frontier) -> None:
        """Return once nobody else has minted for some intervals; until then see what is known and
        bound.
        """
        patience_s = PATIENCE * self._interval_ms / 1000
        try:
            while not upper.empty:
                upper = await self._collections.wait_for_upper(
                    self._collection, sole_time(upper), patience_s
                )
                self.counts.known = await probe()
                if self.counts.known != self.counts.bound:
                    self.counts.bound = partition_offsets((await self._read()).view.current)
        except NotYet:
            self.stands_by = False

    async def _has_moved(self, probe: Probe) -> bool:
        """Whether a probe sees something new."""
        before, self.counts.known = self.counts.known, await probe()
        return before != self.counts.known

    async def _begin(self) -> None:
        await begin_bindings(self._collections, self._collection, self._begins, self._source)

    async def _read(self) -> Minter[Partitions]:
        return await latest_bindings(self._collections, self._collection, self._source)

    async def _mint(
        self, minter: Minter[Partitions], at: int, offsets: Mapping[int, int]
    ) -> Minter[Partitions]:
        """Bind the offsets, proposing again after each lost race; the view afterwards."""
        while (proposal := minter.propose(at, _joined(minter, offsets))) is not None:
            if await self._append(proposal):
                self.counts.minted += 1
                minter.landed(proposal)
                minter.downgrade(frontier(at))
                return minter
            self.counts.lost += 1
            minter = await self._read()
        return minter

    async def _append(self, proposal: Proposal[Partitions]) -> bool:
        """Whether the proposal was written; an unknown outcome counts as lost and is read back."""
        try:
            outcome = await self._collections.compare_and_append(
                self._collection,
                proposal.expected,
                proposal.new,
                rows_of_bindings(proposal.bindings),
                writer=self._source,
            )
        except Indeterminate:
            return False
        self.stands_by = self._shared and not isinstance(outcome, Appended)
        return isinstance(outcome, Appended)
