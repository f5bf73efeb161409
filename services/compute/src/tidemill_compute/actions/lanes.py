"""Effects side by side: those of one lane one after the other, in their order."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from heapq import heapify, heappop, heappush

from tidemill.errors import TidemillError
from tidemill_compute.actions.outbox import Firing


async def fire_abreast(
    firings: Sequence[Firing],
    lane_of: Callable[[Firing], Hashable],
    lanes_max: int,
    fire: Callable[[Firing], Awaitable[None]],
) -> None:
    """Call `fire` for each firing, for at most `lanes_max` at a time.

    Of one lane each begins once the one before it has ended; of several lanes the earliest firing
    comes first. After an error none begins any more, and those under way come to their end. Raises:
    the first error. Cost: O(n log n) for n lanes.
    """
    lanes: dict[Hashable, deque[int]] = {}
    for at, firing in enumerate(firings):
        lanes.setdefault(lane_of(firing), deque()).append(at)
    waiting = [(lane[0], lane) for lane in lanes.values()]
    heapify(waiting)
    errors: list[TidemillError] = []

    async def work() -> None:
        while waiting and not errors:
            _, lane = heappop(waiting)
            try:
                await fire(firings[lane.popleft()])
            except TidemillError as error:
                errors.append(error)
            else:
                if lane:
                    heappush(waiting, (lane[0], lane))

    workers = [asyncio.create_task(work()) for _ in range(min(lanes_max, len(lanes)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    if errors:
        raise errors[0]


def lane_by(at: int) -> Callable[[Firing], Hashable]:
    """The lane of a firing: the value of its argument at this place; one for all without any."""

    def lane(firing: Firing) -> Hashable:
        return json.dumps(json.loads(firing.arguments)[at : at + 1])

    return lane
