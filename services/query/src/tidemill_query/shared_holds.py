"""Holds of subscribers: one for each collection, at the least instant that a subscriber needs.

With a hold for each subscriber, each would commit to the collection whenever it moves on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from weakref import WeakValueDictionary

from tidemill.errors import (
    CapabilityExpired,
    Indeterminate,
    Unavailable,
    UnknownCapability,
    UnknownCollection,
)
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections, ReadCapability
from tidemill.time import frontier, sole_time


class SharedHolds:
    """The holds of the subscribers of this process, each renewed well within its lease."""

    def __init__(self, collections: Collections, clock: Clock, lease_ms: int) -> None:
        self._collections = collections
        self._clock = clock
        self._lease_ms = lease_ms
        self._shared: dict[str, _SharedHold] = {}
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def following(self, collection: str, start: int | None) -> AsyncIterator[Subscriber]:
        """A place under the hold, from `start` on; with None the caller chooses under the hold.

        Cost: two commits for the first and last subscriber of a collection, none for the others.
        Raises: UnknownCollection.
        """
        shared = await self._join(collection, start)
        subscriber = Subscriber(shared, shared.target if start is None else start)
        shared.subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            shared.subscribers.discard(subscriber)
            if shared.subscribers:
                shared.moved.set()
            else:
                await self._drop(collection, shared)

    async def _join(self, collection: str, start: int | None) -> _SharedHold:
        making = self._making.setdefault(collection, asyncio.Lock())
        async with making:
            shared = self._shared.get(collection)
            if shared is not None and (start is None or shared.target <= start):
                return shared
            held = await self._collections.read_hold(
                collection, owner="subscriber", lease_ms=self._lease_ms
            )
            made = _SharedHold(held)
            made.keeping = asyncio.create_task(self._keep_forever(collection, made))
            self._shared[collection] = made
            return made

    async def _keep_forever(self, collection: str, shared: _SharedHold) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._renew_forever(shared))
                tasks.create_task(self._downgrade_forever(shared))
        except* (UnknownCapability, CapabilityExpired, UnknownCollection):
            pass  # deleted, or the process stood still: subscribers meet it at their next read
        finally:
            self._forget(collection, shared)

    async def _renew_forever(self, shared: _SharedHold) -> None:
        while True:
            await self._clock.sleep(self._lease_ms / 4000)
            with suppress(Unavailable, Indeterminate):  # three more renewals fit into the lease
                await self._collections.renew(shared.held)

    async def _downgrade_forever(self, shared: _SharedHold) -> None:
        """Move the hold to the least place of its subscribers, whenever that has moved."""
        while True:
            await shared.moved.wait()
            shared.moved.clear()
            least = min((each.at for each in shared.subscribers), default=shared.target)
            shared.target = max(shared.target, least)
            if shared.target > sole_time(shared.held.frontier):
                with suppress(Unavailable, Indeterminate):  # the next move asks for it again
                    shared.held = await self._collections.downgrade(
                        shared.held, frontier(shared.target)
                    )

    async def _drop(self, collection: str, shared: _SharedHold) -> None:
        self._forget(collection, shared)
        shared.keeping.cancel()
        await asyncio.gather(shared.keeping, return_exceptions=True)
        with suppress(UnknownCapability, CapabilityExpired, UnknownCollection):
            await self._collections.drop(shared.held)

    def _forget(self, collection: str, shared: _SharedHold) -> None:
        if self._shared.get(collection) is shared:
            del self._shared[collection]


class Subscriber:
    """The place of one subscriber."""

    def __init__(self, shared: _SharedHold, at: int) -> None:
        self._shared = shared
        self.at = at

    @property
    def held(self) -> ReadCapability:
        """The hold that all share, as it stands."""
        return self._shared.held

    def reached(self, at: int) -> None:
        """Nothing before `at` is needed any more."""
        if at > self.at:
            self.at = at
            self._shared.moved.set()


class _SharedHold:
    """One hold, and who follows under it."""

    def __init__(self, held: ReadCapability) -> None:
        self.held = held
        self.target = sole_time(held.frontier)
        self.subscribers: set[Subscriber] = set()
        self.moved = asyncio.Event()
        self.keeping: asyncio.Task[None]
