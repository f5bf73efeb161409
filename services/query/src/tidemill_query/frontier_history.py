"""Frontiers of collections over the last half hour, kept in bounded memory."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from contextlib import suppress

from tidemill.errors import TidemillError
from tidemill.runtime.clock import Clock
from tidemill.runtime.lifecycle import Scope
from tidemill.shard import Collections
from tidemill.shard.state import State
from tidemill.time import Frontier, sole_time

SAMPLE_S = 15.0
"""Seconds between two looks at a collection."""

SAMPLES_MAX = 120
"""Looks at one collection that are kept: half an hour of them."""

COLLECTIONS_MAX = 2_000
"""Collections whose looks are kept, each in 24 bytes; those not seen for longest are forgotten."""

_NONE = -1
"""The time of an empty frontier."""

Sample = tuple[int, int | None, int | None]
"""Milliseconds of the wall clock, since, upper; None is an empty frontier."""


class FrontierHistory:
    """Looks at every collection that this process knows, now and then."""

    def __init__(self, collections: Collections, clock: Clock) -> None:
        self._collections = collections
        self._clock = clock
        self._kept: OrderedDict[str, array[int]] = OrderedDict()

    async def run(self, scope: Scope) -> None:
        """Look until the process ends; looks are spread evenly, and read no more than they must."""
        looking = asyncio.create_task(self._look_forever())
        scope.ready()
        await scope.until_stopping_or(looking)

    async def _look_forever(self) -> None:
        while True:
            known = list(self._collections.known())[:COLLECTIONS_MAX]
            for name in known:
                await self._clock.sleep(SAMPLE_S / len(known))
                with suppress(TidemillError):  # one that is away or broken has a gap
                    self._keep(name, await self._collections.newest(name, SAMPLE_S))
            if not known:
                await self._clock.sleep(SAMPLE_S)

    async def of(self, collection: str) -> list[Sample]:
        """Looks at a collection, oldest first, the last one of this moment. Raises:
        UnknownCollection.
        """
        self._keep(collection, await self._collections.newest(collection))
        flat = self._kept[collection]
        return [
            (flat[at], _shown(flat[at + 1]), _shown(flat[at + 2])) for at in range(0, len(flat), 3)
        ]

    def _keep(self, name: str, state: State) -> None:
        flat = self._kept.setdefault(name, array("q"))
        self._kept.move_to_end(name)
        sample = [self._clock.now_ms(), _stored(state.since), _stored(state.upper)]
        if flat and sample[0] - flat[-3] < 1_000:
            del flat[-3:]  # somebody asks again and again: one look a second is enough
        flat.extend(sample)
        del flat[: -3 * SAMPLES_MAX]
        while len(self._kept) > COLLECTIONS_MAX:
            self._kept.popitem(last=False)


def _stored(held: Frontier) -> int:
    return _NONE if held.empty else min(sole_time(held), (1 << 63) - 1)


def _shown(time: int) -> int | None:
    return None if time == _NONE else time
