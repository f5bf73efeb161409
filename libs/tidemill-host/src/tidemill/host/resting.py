"""When a source rests, and when it wakes up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tidemill.errors import NotYet, UnknownCollection
from tidemill.host.pace import Pace
from tidemill.shard import Collections
from tidemill.shard.pacing import Patience
from tidemill.time import Frontier, sole_time


class Rest:
    """Rest of one idle source: its bindings, and the outputs by them, follow a pace.

    Meanwhile no binding is made. A writer of any of them makes all leave at one upper, so nothing
    is ever written before the frontier that others have seen.
    """

    def __init__(
        self, source: str, bound: Sequence[str], collections: Collections, pace: Pace
    ) -> None:
        """`bound` are the collections of the source that are written as far as it is bound,
        bindings first.
        """
        self._source = source
        self._bound = tuple(bound)
        self._collections = collections
        self._pace = pace
        self._patience = Patience()

    def due(self, moved: bool) -> bool:
        """Whether the source has been still for long enough. To be told of each probe."""
        return self._patience.due(moved)

    async def rest(self, upper: Frontier, moved: Callable[[], Awaitable[bool]]) -> None:
        """Follow the pace from `upper` on; returns when `moved` says so, or when somebody has
        written.

        Nothing happens if not everything bound is written. Raises: what `moved` raises; it has left
        then.
        """
        self._patience.begun()
        intervals = 0
        try:
            if not await self._await_written(upper):
                return
            if not await self._follows(upper):
                self._patience.ended(0, news=False)
                return
            while self._pace.follows(self._source):
                await self._pace.next_interval()
                intervals += 1
                if await moved():
                    self._patience.ended(intervals, news=True)
                    return
            self._patience.ended(intervals, news=False)
        finally:
            self._pace.leave(self._source)

    async def _await_written(self, upper: Frontier) -> bool:
        """Whether everything bound is written, within an interval or two."""
        try:
            for each in self._bound:
                reached, wait_s = sole_time(upper) - 1, self._pace.interval_ms / 500
                await self._collections.wait_for_upper(each, reached, wait_s)
        except (NotYet, UnknownCollection):  # not yet, or not made yet
            return False
        return True

    async def _follows(self, upper: Frontier) -> bool:
        """Whether all collections were at `upper`, and follow."""
        await self._pace.open()
        numbers: dict[str, int] = {}
        for each in self._bound:
            number = await self._collections.follow(each, (self._pace.name,), upper)
            if number is None:
                return False
            numbers[each] = number
        return await self._pace.join(self._source, numbers)
