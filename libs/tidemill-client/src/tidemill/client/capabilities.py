"""Capabilities and views as context managers: renewed in the background, dropped at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self, TypedDict, Unpack

import pyarrow as pa

from tidemill.errors import CapabilityExpired, Indeterminate, Unavailable, UnknownCapability
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import (
    Appended,
    AppendOutcome,
    Changes,
    CollectionShape,
    Condition,
    Event,
    HeldCapability,
    MaintainedView,
    Right,
)
from tidemill.runtime.clock import SystemClock
from tidemill.time import frontier, sole_time

LEASE_MS = 60_000
RENEWALS = 3
"""So often a lease is renewed within its length."""


class AsyncHeld:
    """A capability that its process holds: a lease ends soon after the process does, whatever ends
    it.
    """

    def __init__(self, client: AsyncClient, held: HeldCapability, lease_ms: int) -> None:
        self._storage = client.storage
        self._lease_ms = lease_ms
        self._turn = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self.capability = held
        """The capability as it stands now; every holder of this value has its right."""

    @property
    def frontier(self) -> int:
        """The instant that is held. Raises: ValueError where nothing is left to hold."""
        return sole_time(self.capability.frontier)

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.create_task(self._renew_forever())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._renewing is not None:
            await self.drop()

    async def keep(self) -> HeldCapability:
        """The capability for whoever uses it next: it is not renewed here any more, nor dropped at
        the end.
        """
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        return self.capability

    async def drop(self) -> None:
        """Give it up; what is not there any more is given up."""
        await self.keep()
        with suppress(CapabilityExpired, UnknownCapability, Unavailable, Indeterminate):
            await self._storage.drop(self.capability)

    async def _renew_forever(self) -> None:
        """Until the lease is over: then whatever the capability is used for says so."""
        while True:
            await SystemClock().sleep(self._lease_ms / RENEWALS / 1000)
            async with self._turn:
                with suppress(Unavailable, Indeterminate):
                    self.capability = await self._storage.renew(self.capability)


class AsyncReader(AsyncHeld):
    """Reads a collection, whose history from the held frontier on stays."""

    async def snapshot(self, at: int) -> pa.Table:
        """The rows at an instant with their multiplicity in `_diff`, once it is definite.

        Without columns if there are none. Raises: BeforeSince, errors of the capability.
        """
        tables = [e.table async for e in self.subscribe(at, up_to=at + 1) if isinstance(e, Changes)]
        return pa.concat_tables(tables).drop_columns(["_time"]) if tables else pa.table({})

    def subscribe(
        self,
        at: int | None = None,
        *,
        snapshot: bool = True,
        up_to: int | None = None,
        columns: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> AsyncGenerator[Event, None]:
        """The contents at an instant, by default the held one, then every change."""
        begin = self.frontier if at is None else at
        return self._storage.subscribe_at(
            self.capability, begin, snapshot=snapshot, up_to=up_to, columns=columns, where=where
        )

    async def downgrade(self, to: int) -> None:
        """Move the hold to `to`: history before it may be compacted."""
        async with self._turn:
            self.capability = await self._storage.downgrade(self.capability, frontier(to))


class AsyncWriter(AsyncHeld):
    """Writes a collection, whose upper does not pass the held frontier."""

    async def append(
        self, rows: pa.Table | None, to: int, *, token: str | None = None
    ) -> AppendOutcome:
        """Write rows and hold `to` from then on; without `_time` they come at the held instant,
        once each.

        A lost race is the value UpperMismatch, and the frontier is where the winner has come.
        """
        async with self._turn:
            outcome = await self._storage.update_and_downgrade(
                self.capability, self._stamped(rows), frontier(to), token=token
            )
            came = outcome.upper if isinstance(outcome, Appended) else outcome.current
            held = self.capability
            self.capability = HeldCapability(held.id, held.collection, came, held.right)
            return outcome

    def _stamped(self, rows: pa.Table | None) -> pa.Table | None:
        if rows is None:
            return None
        count = rows.num_rows
        if "_time" not in rows.column_names:
            rows = rows.append_column("_time", pa.array([self.frontier] * count, pa.uint64()))
        if "_diff" not in rows.column_names:
            rows = rows.append_column("_diff", pa.array([1] * count, pa.int64()))
        return rows


async def hold(
    client: AsyncClient, collection: str, *, owner: str = "", lease_ms: int = LEASE_MS
) -> AsyncReader:
    """A read capability at since: `async with await hold(client, name) as read`."""
    held = await client.storage.acquire_right(
        collection, Right.READ, owner=owner, lease_ms=lease_ms
    )
    return AsyncReader(client, held, lease_ms)


async def acquire_writer(
    client: AsyncClient, collection: str, *, owner: str = "", lease_ms: int = LEASE_MS
) -> AsyncWriter:
    """A write capability at upper, over a table or what was created to be written."""
    held = await client.storage.acquire_right(
        collection, Right.WRITE, owner=owner, lease_ms=lease_ms
    )
    return AsyncWriter(client, held, lease_ms)


async def create_with_rights(
    client: AsyncClient,
    collection: str,
    schema: pa.Schema | CollectionShape,
    *,
    start: int = 0,
    owner: str = "",
    lease_ms: int = LEASE_MS,
    token: str | None = None,
) -> tuple[AsyncReader, AsyncWriter]:
    """The handles of a new collection that is written by who creates it."""
    shape = schema if isinstance(schema, CollectionShape) else CollectionShape(schema)
    pair = await client.storage.create(
        collection, replace(shape, user_writable=True), start=frontier(start), owner=owner,
        lease_ms=lease_ms, token=token,
    )  # fmt: skip
    assert pair.write is not None
    return AsyncReader(client, pair.read, lease_ms), AsyncWriter(client, pair.write, lease_ms)


@asynccontextmanager
async def create(
    client: AsyncClient,
    collection: str,
    schema: pa.Schema | CollectionShape,
    *,
    start: int = 0,
    owner: str = "",
    lease_ms: int = LEASE_MS,
    token: str | None = None,
) -> AsyncIterator[tuple[AsyncReader, AsyncWriter]]:
    """A new collection that is written here:
    `async with create(client, name, schema) as (read, write)`.

    Leaving drops both, and with its last writer a collection ends; `write.keep()` leaves it as it
    is.
    """
    reader, writer = await create_with_rights(
        client, collection, schema, start=start, owner=owner, lease_ms=lease_ms, token=token
    )
    async with reader as read, writer as write:
        yield read, write


class AsyncView:
    """A view that its process began: it ends with the context, unless it is kept."""

    def __init__(
        self, client: AsyncClient, held: Mapping[str, HeldCapability], lease_ms: int
    ) -> None:
        self._compute = client.compute
        self._kept = False
        self.outputs = {p: AsyncReader(client, each, lease_ms) for p, each in held.items()}
        """To read each output, by predicate."""

    async def __aenter__(self) -> Self:
        for reader in self.outputs.values():
            await reader.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if not self._kept:
                await self.drop()
        finally:
            for reader in self.outputs.values():
                await reader.drop()

    def keep(self) -> None:
        """Keep the view after the context ends: `tidemill delete view NAME` ends it."""
        self._kept = True

    async def drop(self) -> None:
        """End the view. Raises: UsageError while something else reads an output."""
        reader = next(iter(self.outputs.values()))
        self._kept = True
        await self._compute.drop_view(await reader.keep())


class ViewOptions(TypedDict, total=False):
    """Options of a view; by default outputs begin at the first instant at which all inputs are
    held.

    `outputs` are the readable predicates, by default all, and `retain_ms` their history. `owner`
    and `lease_ms` are those of the capabilities. A repeated command with one `token` applies once.
    """

    at: int | None
    outputs: Sequence[str]
    retain_ms: int | None
    owner: str
    lease_ms: int
    token: str | None


async def maintain(
    client: AsyncClient,
    name: str,
    program: str,
    inputs: Mapping[str, AsyncReader],
    into: Mapping[str, AsyncWriter] | None = None,
    **options: Unpack[ViewOptions],
) -> AsyncView:
    """A view over what is held, by predicate: `async with await maintain(client, ...) as view`.

    By each writer of `into` the view writes an output on: who had it writes no more.
    """
    at, lease_ms = options.get("at"), options.get("lease_ms", LEASE_MS)
    view = MaintainedView(
        name, program, {predicate: each.capability for predicate, each in inputs.items()},
        None if at is None else frontier(at), tuple(options.get("outputs", ())),
        options.get("retain_ms"), options.get("owner", ""), lease_ms,
        {predicate: each.capability for predicate, each in (into or {}).items()},
    )  # fmt: skip
    held = await client.compute.maintain_view(view, token=options.get("token"))
    for each in (into or {}).values():
        await each.keep()
    return AsyncView(client, held, lease_ms)
