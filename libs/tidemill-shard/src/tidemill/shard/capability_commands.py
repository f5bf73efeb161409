"""Commands that bind collections and move capabilities."""

from __future__ import annotations

from typing import overload

import pyarrow as pa

from tidemill.shard import transitions
from tidemill.shard.capabilities import (
    Capability,
    CapabilityId,
    CollectionStatus,
    Holder,
    ReadCapability,
    WriteCapability,
)
from tidemill.shard.state import Description, Hold, State, initial_state, policy_frontier
from tidemill.shard.versions import Core
from tidemill.time import AlreadyUsed, Frontier, frontier

LEASE_MS = 900_000


class CapabilityCommands:
    """Create, acquire, hold, clone, transfer, downgrade, drop, renew; status and retention."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def create(
        self,
        collection: str,
        description: Description,
        *,
        start: Frontier = frontier(0),  # noqa: B008  a frozen value
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
    ) -> tuple[ReadCapability, WriteCapability | None]:
        """Bind an id: since equals upper equals `start` (CR1, L1).

        The write capability is None where only internal writers append (K13). Raises: AlreadyUsed, also
        if the collection is closed (L4, CR4).
        """
        now_ms = self._core.clock.now_ms()
        read, write = CapabilityId(self._core.ids()), CapabilityId(self._core.ids())
        held, state = transitions.hold_read(
            initial_state(description, start), read, owner=owner, lease_ms=lease_ms, now_ms=now_ms
        )
        if description.user_writable:
            _, state = transitions.hold_write(
                state, write, owner=owner, lease_ms=lease_ms, now_ms=now_ms
            )
        if not await self._core.versions.log(collection).create(state):
            raise AlreadyUsed(f"the id {collection} is or was bound", collection=collection)
        self._core.versions.wakeups.changed(collection)
        writable = WriteCapability(write, collection, start) if description.user_writable else None
        return ReadCapability(read, collection, held), writable

    async def acquire(
        self, collection: str, *, owner: str = "", lease_ms: int | None = LEASE_MS
    ) -> tuple[ReadCapability, WriteCapability | None]:
        """New capabilities at the current since and upper, which may be empty (AC1–AC3, K14).

        Raises: UnknownCollection (L0).
        """
        now_ms = self._core.clock.now_ms()
        read, write = CapabilityId(self._core.ids()), CapabilityId(self._core.ids())

        def acquired(state: State) -> tuple[tuple[Frontier, Frontier | None], State]:
            since, state = transitions.hold_read(
                state, read, owner=owner, lease_ms=lease_ms, now_ms=now_ms
            )
            if not state.description.user_writable:
                return (since, None), state
            upper, state = transitions.hold_write(
                state, write, owner=owner, lease_ms=lease_ms, now_ms=now_ms
            )
            return (since, upper), state

        since, upper = await self._core.versions.commit(collection, acquired)
        writable = None if upper is None else WriteCapability(write, collection, upper)
        return ReadCapability(read, collection, since), writable

    async def read_hold(
        self,
        collection: str,
        *,
        owner: str,
        at: Frontier | None = None,
        lease_ms: int | None = LEASE_MS,
    ) -> ReadCapability:
        """A hold at since, or at `at` if that is later.

        Without a lease it belongs to its owner, not to a process: the owner's hold is found again as it
        stands, whatever `at` says. Raises: UnknownCollection.
        """
        now_ms = self._core.clock.now_ms()
        fresh = self._core.ids()
        found, held = await self._core.versions.commit(
            collection,
            lambda state: transitions.hold_named(
                state, fresh, at=at, owner=owner, lease_ms=lease_ms, now_ms=now_ms
            ),
        )
        return ReadCapability(CapabilityId(found), collection, held)

    async def status(self, collection: str) -> CollectionStatus:
        """Frontiers, who holds since back and since when, sizes. Raises: UnknownCollection."""
        known = await self._core.versions.known(collection)
        state = known.state
        holders = (_holder(hold) for hold in state.reads.values())
        return CollectionStatus(
            id=collection,
            description=state.description,
            since=state.since,
            upper=state.upper,
            holders=tuple(sorted(holders, key=lambda holder: (holder.owner, holder.since_ms))),
            batches=len(state.batches),
            updates=sum(part.rows for part in state.parts()),
            bytes=sum(part.size for part in state.parts()),
            writers=len(state.writes),
            staged=sum(part.rows for part in state.staged_parts()),
            inline_bytes=state.inline_bytes(),
            garbage=len(state.garbage),
            version=known.number,
            moved_by=state.moved_by,
            retained=policy_frontier(state),
        )

    async def description(self, collection: str) -> Description:
        """What the collection is. Raises: UnknownCollection."""
        return (await self._core.versions.state(collection)).description

    async def extend_schema(self, collection: str, schema: pa.Schema) -> None:
        """Add nullable columns behind those there are; rows from before have null in them.

        Raises: UsageError for any other change.
        """
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.extend_schema(state, schema))
        )

    async def retain(self, collection: str, retain_ms: int | None) -> None:
        """How far since stays behind upper from now on; None keeps all history there is.

        What is gone does not come back (F14).
        """
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.set_retention(state, retain_ms, now_ms))
        )

    async def set_policy(self, collection: str, to: Frontier) -> None:
        """A fixed retention frontier in place of a distance. Raises: UsageError if it goes back."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.set_policy(state, to, now_ms))
        )

    async def close_collection(self, collection: str) -> None:
        """No update will follow: upper becomes empty (L3)."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.close(state, now_ms))
        )

    async def retire(self, collection: str) -> None:
        """As `close_collection`, and its data goes once the last reader has let go of it (L3)."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            collection, lambda state: (None, transitions.retire(state, now_ms))
        )

    @overload
    async def clone(
        self, capability: ReadCapability, *, owner: str | None = None
    ) -> ReadCapability: ...

    @overload
    async def clone(
        self, capability: WriteCapability, *, owner: str | None = None
    ) -> WriteCapability: ...

    async def clone(self, capability: Capability, *, owner: str | None = None) -> Capability:
        """The same right at the same frontier with a life of its own (K6)."""
        copy = CapabilityId(self._core.ids())
        now_ms = self._core.clock.now_ms()
        held = await self._core.versions.commit(
            capability.collection,
            lambda state: transitions.clone(state, capability.id, copy, now_ms, owner),
        )
        return type(capability)(copy, capability.collection, held)

    async def transfer(self, capability: Capability, owner: str) -> None:
        """Let `owner` answer for the capability; whoever presents its id has the right all along (K7)."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            capability.collection,
            lambda state: (None, transitions.transfer(state, capability.id, owner, now_ms)),
        )

    async def downgrade(self, capability: ReadCapability, to: Frontier) -> ReadCapability:
        """Hold a later frontier (K8); the lease begins anew.

        Raises: UsageError with both frontiers if `to` is not beyond the held one.
        """
        now_ms = self._core.clock.now_ms()
        held = await self._core.versions.commit(
            capability.collection,
            lambda state: transitions.downgrade(state, capability.id, to, now_ms),
        )
        return capability.at(held)

    async def drop(self, capability: Capability) -> None:
        """Give the right up (K9). Raises: UnknownCapability at the second time."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            capability.collection,
            lambda state: (None, transitions.drop(state, capability.id, now_ms)),
        )

    async def renew(self, capability: Capability) -> None:
        """Begin the lease anew. Raises: CapabilityExpired, UnknownCapability."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            capability.collection,
            lambda state: (None, transitions.renew(state, capability.id, now_ms)),
        )

    async def expire(self, capability: Capability) -> None:
        """End a lease as if its time had run out (K12)."""
        now_ms = self._core.clock.now_ms()
        await self._core.versions.commit(
            capability.collection,
            lambda state: (None, transitions.expire(state, [capability.id], now_ms)),
        )


def _holder(hold: Hold) -> Holder:
    moved_ms = hold.moved_ms or hold.created_ms
    return Holder(hold.owner, hold.frontier, hold.lease_end_ms(), hold.created_ms, moved_ms)
