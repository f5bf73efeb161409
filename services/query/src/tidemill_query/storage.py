"""Sessions of users on durable collections: capabilities, writes, subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import pyarrow as pa

from tidemill.catalog.names import refuse_disguised
from tidemill.errors import Exhausted, UsageError
from tidemill.rpc.messages import (
    Appended,
    AppendOutcome,
    CapabilityPair,
    Changes,
    CollectionShape,
    Condition,
    Event,
    HeldCapability,
    HeldVersion,
    HolderInfo,
    Progress,
    Right,
    UpperMismatch,
)
from tidemill.rpc.turns import BYTES_INLINE_MAX, in_turn
from tidemill.runtime.clock import Clock
from tidemill.shard import (
    KEEP_ALL_MS,
    Capability,
    CapabilityId,
    Collections,
    Description,
    Holder,
    ReadCapability,
    Updates,
    WriteCapability,
)
from tidemill.shard import Appended as Written
from tidemill.shard.conforming import INCOMING_BYTES_MAX, refuse_long_rows
from tidemill.shard.encoding import encode_rollup
from tidemill.shard.hashing import fingerprint
from tidemill.shard.incoming import normal_rows
from tidemill.time import Frontier
from tidemill_query.conditions import filter_of, refuse_unknown


class Names(Protocol):
    """By which names collections are known to who reads them."""

    def refuse_taken(self, name: str) -> None:
        """Raises: AlreadyUsed if a resource gives the name to what it makes."""

    def collection_of(self, name: str) -> str:
        """The collection that readers know by a name; one that is nobody's by its own."""

    def learn(self, name: str, description: Description) -> None:
        """A collection that users have created can be read by its name from now on."""


LEASE_MS_MAX = 7 * 86_400_000
"""The longest lease of a capability, and that of one who asks for none."""

COLUMNS_INLINE_MAX = 100
"""Rows with so many columns, if they are short, are looked at in a few milliseconds."""

T = TypeVar("T")

CAPABILITIES_MAX = 4_000
"""All of a collection are read with each of its versions, by every process."""


class StorageDriver:
    """Guarantees of StorageHandlers: the commands of the formalism for whoever presents a
    capability.

    Nothing is kept here: a capability lives in its collection, so it survives this process, and any
    process on the same stores honours it.
    """

    def __init__(
        self,
        collections: Collections,
        clock: Clock,
        names: Names | None = None,
        lease_ms_max: int = LEASE_MS_MAX,
        row_bytes: int = INCOMING_BYTES_MAX,
        capabilities_max: int = CAPABILITIES_MAX,
    ) -> None:
        """No capability that a client takes outlives the client by more than `lease_ms_max`.

        No row that a client writes is longer than `row_bytes`. Of a collection that is held by
        `capabilities_max` with leases clients take no more.
        """
        self._capabilities_max = capabilities_max
        self._row_bytes = row_bytes
        self._lease_ms_max = lease_ms_max
        self._collections = collections
        self._clock = clock
        self._names = names

    async def create(
        self,
        collection: str,
        shape: CollectionShape,
        start: Frontier,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> CapabilityPair:
        """Bind a name that was never bound, with since and upper at `start`.

        Views, questions, holds and arrangements read it by its name from then on.
        """
        if not collection:
            raise UsageError("a collection needs a name", reason="NoName")
        refuse_disguised(collection)
        if self._names is not None:
            self._names.refuse_taken(collection)
        description = Description(
            shape.schema, kind=shape.kind or "table", timeline=shape.timeline or "system",
            key=shape.key, retain_ms=KEEP_ALL_MS if shape.retain_ms is None else shape.retain_ms,
            allow_negative=shape.allow_negative, user_writable=shape.user_writable, created=True,
        )  # fmt: skip
        read, write = await self._collections.create(
            collection,
            description,
            start=start,
            owner=owner,
            lease_ms=self._lease(lease_ms),
            token=token,
        )
        if self._names is not None:
            self._names.learn(collection, description)
        return _pair(read, write)

    async def acquire(
        self, collection: str, owner: str, lease_ms: int | None, token: str | None = None
    ) -> CapabilityPair:
        """Capabilities at the collection's since and upper."""
        await self._refuse_crowd(self._id_of(collection))
        read, write = await self._collections.acquire(
            self._id_of(collection),
            owner=owner,
            lease_ms=self._lease(lease_ms),
            rights="both",
            token=token,
        )
        assert read is not None
        return _pair(read, write)

    def _lease(self, asked_ms: int | None) -> int:
        return self._lease_ms_max if asked_ms is None else min(asked_ms, self._lease_ms_max)

    async def _refuse_crowd(self, collection: str) -> None:
        """Raises: Exhausted for a collection of which clients hold too many capabilities."""
        state = await self._collections.newest(collection)
        leased = sum(
            hold.lease_ms is not None
            for holds in (state.reads, state.writes)
            for hold in holds.values()
        )
        if leased >= self._capabilities_max:
            raise Exhausted(
                f"capability refused: {collection} is held by {leased:,} already; drop those that nobody "
                "needs, or ask again when their leases have ended (limits.capabilities)",
                setting="limits.capabilities",
            )

    async def acquire_right(
        self,
        collection: str,
        right: Right,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldCapability:
        """One capability, to read at since or to write at upper."""
        await self._refuse_crowd(self._id_of(collection))
        taken = await self._collections.acquire(
            self._id_of(collection), owner=owner, lease_ms=self._lease(lease_ms), token=token,
            rights="read" if right is Right.READ else "write",
        )  # fmt: skip
        return next(_held(capability) for capability in taken if capability is not None)

    async def clone(self, capability: HeldCapability, token: str | None = None) -> HeldCapability:
        """A second capability with the same right and frontier."""
        await self._refuse_crowd(capability.collection)
        presented = _presented(capability)
        return _held(await self._collections.clone(presented, token=token, exact=True))

    async def transfer(
        self, capability: HeldCapability, owner: str, token: str | None = None
    ) -> HeldCapability:
        """The same right under a new id, held in the name of `owner`; the old id is dead."""
        presented = _presented(capability)
        return _held(await self._collections.hand_over(presented, owner, token=token, exact=True))

    async def downgrade(self, capability: HeldCapability, to: Frontier) -> HeldCapability:
        """Give up the times before `to`."""
        return _held(await self._collections.downgrade(_reader(capability), to, exact=True))

    async def check_read(self, capability: HeldCapability) -> None:
        """Raises: UsageError unless it is one to read, as it is held (K4); its other errors."""
        await self._collections.check_stated(_reader(capability))

    async def check_write(self, capability: HeldCapability) -> None:
        """Raises: UsageError unless it is one to write, as it is held (K4); its other errors."""
        if capability.right is not Right.WRITE:
            raise UsageError("a read capability does not write", reason="NotAWriter")
        await self._collections.check_stated(_presented(capability))

    async def drop(self, capability: HeldCapability) -> None:
        """Give up the capability."""
        await self._collections.drop(_presented(capability), exact=True)

    async def renew(self, capability: HeldCapability) -> HeldCapability:
        """Begin the lease anew."""
        await self._collections.renew(_presented(capability), exact=True)
        return capability

    async def expire(self, collection: str, key: str) -> HolderInfo:
        """End the capability of the holder with this key, as if its lease had run out; who it
        was.
        """
        return holder_info(await self._collections.expire_holder(self._id_of(collection), key))

    def _id_of(self, name: str) -> str:
        return name if self._names is None else self._names.collection_of(name)

    async def update_and_downgrade(
        self,
        capability: HeldCapability,
        updates: pa.Table | None,
        new: Frontier,
        token: str | None,
    ) -> AppendOutcome:
        """Append and move on in one step. A repeated token never writes twice.

        Values get the forms of the language, as those of an insert do: a view may read them.
        """
        if capability.right is not Right.WRITE:
            raise UsageError("a read capability does not write", reason="NotAWriter")
        if updates is not None:
            given = updates

            def checked() -> pa.Table:
                refuse_long_rows(given, self._row_bytes)
                return normal_rows(given, capability.collection)

            updates = await examine(given, checked)
        writer = WriteCapability(
            CapabilityId(capability.id), capability.collection, capability.frontier
        )
        body = "" if token is None or updates is None else fingerprint(updates)
        outcome = await self._collections.update_and_downgrade(
            writer, updates, new, token=token, body=body, there=True
        )
        if isinstance(outcome, Written):
            return Appended(outcome.upper)
        return UpperMismatch(outcome.current)

    async def subscribe_at(
        self,
        capability: HeldCapability,
        at: int,
        snapshot: bool,
        up_to: int | None,
        columns: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> AsyncIterator[Event]:
        """The collection's changes from `at`, the snapshot there first if asked for.

        Filter and projection come before anything is sent (SU6). The lease of the capability does
        not run out while somebody listens; if it was ended, the listener hears so.
        """
        reader = _reader(capability)
        await self._collections.check_stated(reader)
        schema = (await self._collections.description(reader.collection)).schema
        refuse_unknown(columns, schema)
        async with self._renewed(reader):
            stream = self._collections.subscribe(
                reader, at, snapshot=snapshot, up_to=up_to,
                columns=list(columns) or None, where=filter_of(where, schema),
            )  # fmt: skip
            try:
                async for event in stream:
                    if isinstance(event, Updates):
                        yield Changes(event.table)
                    else:
                        yield Progress(event.upper)
            finally:
                await stream.aclose()

    async def hold_version(
        self,
        collection: str,
        at: int | None,
        owner: str,
        lease_ms: int | None,
        token: str | None = None,
    ) -> HeldVersion:
        """The newest version, held at an instant, by default the latest definite one."""
        name = self._id_of(collection)
        await self._refuse_crowd(name)
        found = await self._collections.hold_version(
            name, at, owner=owner, lease_ms=self._lease(lease_ms), token=token
        )
        return HeldVersion(_held(found.capability), found.at, encode_rollup(found.version))

    async def locate(self, capability: HeldCapability, keys: Sequence[str]) -> Sequence[str]:
        """The places of objects of a held version."""
        return await self._collections.locate(_reader(capability), keys)

    @asynccontextmanager
    async def _renewed(self, reader: ReadCapability) -> AsyncIterator[None]:
        renewing = asyncio.create_task(self._renew_forever(reader))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew_forever(self, reader: ReadCapability) -> None:
        hold = (await self._collections.newest(reader.collection)).reads.get(reader.id)
        if hold is None or hold.lease_ms is None:
            return
        while True:
            await self._clock.sleep(hold.lease_ms / 4000)
            await self._collections.renew(reader)


async def examine(rows: pa.Table, look: Callable[[], T]) -> T:
    """The result of `look` on a client's rows: at once if they are short, else in a turn."""
    few = rows.nbytes <= BYTES_INLINE_MAX and rows.num_columns <= COLUMNS_INLINE_MAX
    return look() if few else await in_turn(look)


def holder_info(holder: Holder) -> HolderInfo:
    """A holder as those see it who may not use what it holds."""
    return HolderInfo(
        holder.owner,
        holder.frontier,
        holder.lease_end_ms,
        holder.key,
        holder.moved_ms,
        holder.since_ms,
    )


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
