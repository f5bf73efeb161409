"""Commands for collections that rest: see `tidemill.shard.pacing`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import pyarrow as pa

from tidemill.shard.capabilities import CapabilityId
from tidemill.shard.capability_commands import CapabilityCommands
from tidemill.shard.pacing import following, groups_of, joined_under, roused, stepped
from tidemill.shard.state import Description, State
from tidemill.time import Frontier

PACE = Description(pa.schema([("group", pa.string())]), kind="pace", retain_ms=0)
"""A pace has no rows: its upper is all that it says."""


class PaceCommands(CapabilityCommands):
    """Commands of rest: put collections to rest, advance them, await those that leave."""

    async def open_pace(self, pace: str) -> None:
        """Create a pace, or let all leave that have followed it: nobody has watched them
        meanwhile.
        """
        if await self.bind(pace, PACE):
            return

        def alone(state: State) -> tuple[None, State]:
            groups = {said.group for said in state.paced.values()}
            return None, stepped(state, state.upper, {}, groups)[1]

        await self._core.versions.commit(pace, alone)

    async def follow(
        self,
        collection: str,
        paces: tuple[str, ...],
        expected: Frontier,
        writer: CapabilityId | None = None,
    ) -> int | None:
        """The version that may follow `paces`, for `step_pace`; None unless `expected` is the
        upper.

        The write capability `writer` goes along, and stands where upper does; None if others write
        beside it. Raises: UsageError without it for a collection with writers of its own;
        UnknownCapability, CapabilityExpired. Cost: a commit.
        """
        versions = self._core.versions
        carried = writer or ""
        if not await versions.commit(collection, lambda s: following(s, paces, expected, carried)):
            return None
        known = await versions.log(collection).refresh()
        stands = known.state.paces == paces and known.state.upper == expected
        return known.number if stands else None

    async def follow_under(
        self, group: str, collections: Sequence[str], inputs: Sequence[str], expected: Frontier
    ) -> bool | None:
        """Make `collections`, with all that `inputs` wrote, follow as long as all of these do.

        Returns whether they do. None says that nothing was written: an input follows no pace, or
        has written beyond `expected`, the upper of all collections. The caller vouches that the
        collections change only where the inputs do.

        Raises: UsageError for a collection with writers of its own. Cost: a commit for each
        collection and one to each pace that an input follows.
        """
        versions = self._core.versions
        needed: dict[str, dict[str, int]] = {}
        for each in inputs:
            log = versions.log(each)
            known = await log.refresh()
            written = log.written
            if written is None or written.number != known.number:
                return None
            if not known.state.paces or not written.state.upper.precedes(expected):
                return None
            for pace in known.state.paces:
                needed.setdefault(pace, {})[each] = known.number
        for pace, over in needed.items():
            if groups_of(await versions.state(pace), over) is None:
                return None
        paces, numbers = tuple(sorted(needed)), dict[str, int]()
        for each in collections:
            number = await self.follow(each, paces, expected)
            if number is None:
                return False
            numbers[each] = number
        for pace in paces:
            join = partial(joined_under, group=group, numbers=numbers, inputs=needed[pace])
            if not await versions.commit(pace, join):
                return False
        return True

    async def step_pace(
        self,
        pace: str,
        upper: Frontier,
        joining: Mapping[str, Mapping[str, int]],
        leave: Collection[str],
    ) -> frozenset[str]:
        """Groups leave, others join, all that follow advance to `upper`; returns the followers.

        `joining` are the versions of each group as `follow` named them, with one upper. A group
        with a version written since does not join. Cost: one commit, however many follow; none if
        there is nothing to do.
        """
        versions = self._core.versions

        def step(state: State) -> tuple[frozenset[str], State]:
            return stepped(state, upper, joining, leave, versions.closed(state.paced))

        return await versions.commit(pace, step)

    async def rouse(self, collection: str) -> None:
        """Make the collection leave its paces with its group, if it follows any."""
        await self._core.versions.commit(collection, roused)

    async def rests(self, collection: str) -> bool:
        """Whether the newest version follows all paces that it names, or is about to."""
        return bool((await self._core.versions.state(collection)).paces)

    async def rest_over(self, collection: str, pause_s: float) -> bool:
        """Whether the collection does not rest; if it does, after another version or `pause_s`."""
        change = self._core.versions.wakeups.change(collection)
        if not await self.rests(collection):
            return True
        await self._core.versions.wakeups.wait(change, pause_s)
        return False
