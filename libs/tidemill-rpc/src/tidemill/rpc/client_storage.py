"""The storage commands, called; in domain types."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio
import pyarrow as pa

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.rpc import codecs, codecs_storage
from tidemill.rpc.messages import (
    AppendOutcome,
    CapabilityPair,
    CollectionShape,
    Condition,
    Event,
    HeldCapability,
    HeldVersion,
    HolderInfo,
    Right,
)
from tidemill.rpc.outcomes import ends, messages_of
from tidemill.time import Frontier
from tidemill_protos.storage.v1 import storage_pb2 as storage
from tidemill_protos.storage.v1 import storage_pb2_grpc

LEASE_MS = 900_000


class StorageCalls:
    """The storage commands of one server. None of them is retried here."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._stub: Any = storage_pb2_grpc.StorageServiceStub(channel)
        self._timeout_s = timeout_s

    async def create(
        self,
        collection: str,
        shape: CollectionShape,
        *,
        start: Frontier = codecs.ORIGIN,
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
        token: str | None = None,
    ) -> CapabilityPair:
        """Bind a name that was never bound, with since and upper at `start`.

        With a `token`, 16 characters or more that nobody guesses, the call may be repeated. A
        repeated call is answered with the same capabilities while they live; so it is below.
        """
        request = storage.CreateRequest(
            collection=collection,
            shape=codecs_storage.shape_out(shape),
            start=codecs.frontier_out(start),
            owner=owner,
            lease_ms=lease_ms,
            token=token,
        )
        return codecs_storage.pair_in(await self._ended(self._stub.Create, request))

    async def acquire(
        self,
        collection: str,
        *,
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
        token: str | None = None,
    ) -> CapabilityPair:
        """Capabilities at the collection's since and upper."""
        request = storage.AcquireCapabilitiesRequest(
            collection=collection, owner=owner, lease_ms=lease_ms, token=token
        )
        return codecs_storage.pair_in(await self._ended(self._stub.AcquireCapabilities, request))

    async def acquire_right(
        self,
        collection: str,
        right: Right,
        *,
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
        token: str | None = None,
    ) -> HeldCapability:
        """One capability: to read at since, or to write at upper."""
        reads = right is Right.READ
        request = storage.AcquireCapabilitiesRequest(
            collection=collection, owner=owner, lease_ms=lease_ms, token=token,
            rights=storage.RIGHTS_READ if reads else storage.RIGHTS_WRITE,
        )  # fmt: skip
        found = await self._ended(self._stub.AcquireCapabilities, request)
        return codecs_storage.capability_in(found.read if reads else found.write)

    async def clone(self, held: HeldCapability, *, token: str | None = None) -> HeldCapability:
        """A second capability with the same right and frontier."""
        request = storage.CloneCapabilityRequest(
            capability=codecs_storage.capability_out(held), token=token
        )
        found = await self._ended(self._stub.CloneCapability, request)
        return codecs_storage.capability_in(found.capability)

    async def transfer(
        self, held: HeldCapability, owner: str, *, token: str | None = None
    ) -> HeldCapability:
        """The same right under a new id for `owner`; the id of `held` is dead."""
        request = storage.TransferCapabilityRequest(
            capability=codecs_storage.capability_out(held), owner=owner, token=token
        )
        found = await self._ended(self._stub.TransferCapability, request)
        return codecs_storage.capability_in(found.capability)

    async def downgrade(self, held: HeldCapability, to: Frontier) -> HeldCapability:
        """Give up the times before `to`."""
        request = storage.DowngradeRequest(
            capability=codecs_storage.capability_out(held), to=codecs.frontier_out(to)
        )
        found = await self._ended(self._stub.Downgrade, request)
        return codecs_storage.capability_in(found.capability)

    async def drop(self, held: HeldCapability) -> None:
        """Give up the capability."""
        request = storage.DropRequest(capability=codecs_storage.capability_out(held))
        await self._ended(self._stub.Drop, request)

    async def renew(self, held: HeldCapability) -> HeldCapability:
        """Begin the lease anew; the capability as it stands."""
        request = storage.RenewRequest(capability=codecs_storage.capability_out(held))
        found = await self._ended(self._stub.Renew, request)
        return codecs_storage.capability_in(found.capability)

    async def expire(self, collection: str, key: str) -> HolderInfo:
        """End the capability of the holder with this key, for administrators; who it was."""
        request = storage.ExpireRequest(collection=collection, key=key)
        found = await self._ended(self._stub.Expire, request)
        return HolderInfo(found.owner, codecs.frontier_in(found.frontier), key=key)

    async def update_and_downgrade(
        self,
        held: HeldCapability,
        updates: pa.Table | None,
        new: Frontier,
        *,
        token: str | None = None,
    ) -> AppendOutcome:
        """Append and move on in one step; with a token the same call may be made again."""
        request = storage.UpdateAndDowngradeRequest(
            capability=codecs_storage.capability_out(held),
            arrow_ipc=None if updates is None else pack_table(updates),
            new=codecs.frontier_out(new),
            token=token,
        )
        return codecs_storage.append_in(await self._ended(self._stub.UpdateAndDowngrade, request))

    async def subscribe_at(
        self,
        held: HeldCapability,
        at: int,
        *,
        snapshot: bool = True,
        up_to: int | None = None,
        columns: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> AsyncGenerator[Event, None]:
        """The collection's changes from `at`; leaving the loop ends the call.

        Only these `columns`, if any are named, of rows that meet every condition.
        """
        request = storage.SubscribeAtRequest(
            capability=codecs_storage.capability_out(held), at=at, snapshot=snapshot, up_to=up_to,
            columns=columns, where=[codecs_storage.condition_out(each) for each in where],
        )  # fmt: skip
        async with aclosing(messages_of(self._stub.SubscribeAt(request))) as messages:
            async for message in messages:
                yield codecs_storage.updates_in(message)

    async def hold_version(
        self,
        collection: str,
        at: int | None = None,
        *,
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
        token: str | None = None,
    ) -> HeldVersion:
        """The newest version, held at `at`, by default the latest definite instant."""
        request = storage.HoldVersionRequest(
            collection=collection, at=at, owner=owner, lease_ms=lease_ms, token=token
        )
        found = await self._ended(self._stub.HoldVersion, request)
        capability = codecs_storage.capability_in(found.capability)
        return HeldVersion(capability, found.at, found.version)

    async def locate(self, held: HeldCapability, keys: Sequence[str]) -> Sequence[str]:
        """The places of objects of a held version, in the order of their keys."""
        request = storage.LocateObjectsRequest(
            capability=codecs_storage.capability_out(held), keys=keys
        )
        return list((await self._ended(self._stub.LocateObjects, request)).urls)

    def _ended(self, method: Any, request: Any) -> Awaitable[Any]:
        return ends(method(request, timeout=self._timeout_s), writes=True)
