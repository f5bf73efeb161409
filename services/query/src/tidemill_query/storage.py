"""Sessions of users on durable collections: capabilities, writes, subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa

from tidemill.rpc.messages import (
    Appended,
    AppendOutcome,
    CapabilityPair,
    Changes,
    CollectionShape,
    Event,
    HeldCapability,
    Progress,
    Right,
    UpperMismatch,
)
from tidemill.runtime.clock import Clock
from tidemill.shard import Appended as Written
from tidemill.shard import (
    Capability,
    CapabilityId,
    Collections,
    Description,
    ReadCapability,
    Updates,
    WriteCapability,
)
from tidemill.time import Frontier, UsageError


class StorageDriver:
    """Guarantees of StorageHandlers: the commands of the formalism for whoever presents a capability.

    Nothing is kept here: a capability lives in its collection, so it survives this process, and any
    process on the same stores honours it.
    """

    def __init__(self, collections: Collections, clock: Clock) -> None:
        self._collections = collections
        self._clock = clock

    async def create(
        self,
        collection: str,
        shape: CollectionShape,
        start: Frontier,
        owner: str,
        lease_ms: int | None,
    ) -> CapabilityPair:
        """Bind a name that was never bound, with since and upper at `start`."""
        if not collection:
            raise UsageError("a collection needs a name", reason="NoName")
        description = Description(
            shape.schema, kind=shape.kind or "table", timeline=shape.timeline or "system",
            key=shape.key, retain_ms=shape.retain_ms, allow_negative=shape.allow_negative,
            user_writable=shape.user_writable,
        )  # fmt: skip
        return _pair(
            *await self._collections.create(
                collection, description, start=start, owner=owner, lease_ms=lease_ms
            )
        )

    async def acquire(self, collection: str, owner: str, lease_ms: int | None) -> CapabilityPair:
        """Capabilities at the collection's since and upper."""
        return _pair(*await self._collections.acquire(collection, owner=owner, lease_ms=lease_ms))

    async def clone(self, capability: HeldCapability) -> HeldCapability:
        """A second capability with the same right and frontier."""
        return _held(await self._collections.clone(_presented(capability)))

    async def transfer(self, capability: HeldCapability, owner: str) -> HeldCapability:
        """The same right under a new id, held in the name of `owner`; the old id is dead.

        A crash in between leaves both, never neither: the old one ends with its lease.
        """
        presented = _presented(capability)
        moved = await self._collections.clone(presented, owner=owner)
        await self._collections.drop(presented)
        return _held(moved)

    async def downgrade(self, capability: HeldCapability, to: Frontier) -> HeldCapability:
        """Give up the times before `to`."""
        return _held(await self._collections.downgrade(_reader(capability), to))

    async def drop(self, capability: HeldCapability) -> None:
        """Give up the capability."""
        await self._collections.drop(_presented(capability))

    async def update_and_downgrade(
        self,
        capability: HeldCapability,
        updates: pa.Table | None,
        new: Frontier,
        token: str | None,
    ) -> AppendOutcome:
        """Append and move on in one step. A repeated token never writes twice."""
        if capability.right is not Right.WRITE:
            raise UsageError("a read capability does not write", reason="NotAWriter")
        writer = WriteCapability(
            CapabilityId(capability.id), capability.collection, capability.frontier
        )
        outcome = await self._collections.update_and_downgrade(writer, updates, new, token=token)
        if isinstance(outcome, Written):
            return Appended(outcome.upper)
        return UpperMismatch(outcome.current)

    async def subscribe_at(
        self, capability: HeldCapability, at: int, snapshot: bool, up_to: int | None
    ) -> AsyncIterator[Event]:
        """The collection's changes from `at`, the snapshot there first if asked for.

        The lease of the capability does not run out while somebody listens.
        """
        reader = _reader(capability)
        async with self._renewed(reader):
            stream = self._collections.subscribe(reader, at, snapshot=snapshot, up_to=up_to)
            try:
                async for event in stream:
                    if isinstance(event, Updates):
                        yield Changes(event.table)
                    else:
                        yield Progress(event.upper)
            finally:
                await stream.aclose()

    @asynccontextmanager
    async def _renewed(self, reader: ReadCapability) -> AsyncIterator[None]:
        renewing = asyncio.create_task(self._renew_forever(reader))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew_forever(self, reader: ReadCapability) -> None:
        hold = (await self._collections.state(reader.collection)).reads.get(reader.id)
        if hold is None or hold.lease_ms is None:
            return
        while True:
            await self._clock.sleep(hold.lease_ms / 4000)
            await self._collections.renew(reader)


def _presented(capability: HeldCapability) -> Capability:
    kind = ReadCapability if capability.right is Right.READ else WriteCapability
    return kind(CapabilityId(capability.id), capability.collection, capability.frontier)


def _reader(capability: HeldCapability) -> ReadCapability:
    if capability.right is not Right.READ:
        raise UsageError(
            "a write capability neither reads nor is downgraded: it moves on with what it writes",
            reason="NotAReader",
        )
    return ReadCapability(CapabilityId(capability.id), capability.collection, capability.frontier)


def _held(capability: Capability) -> HeldCapability:
    right = Right.READ if isinstance(capability, ReadCapability) else Right.WRITE
    return HeldCapability(capability.id, capability.collection, capability.frontier, right)


def _pair(read: ReadCapability, write: WriteCapability | None) -> CapabilityPair:
    return CapabilityPair(_held(read), None if write is None else _held(write))
