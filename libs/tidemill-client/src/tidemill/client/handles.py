"""Capabilities for code that is not asynchronous: the same handles, each call driven to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Self, TypeVar, Unpack

import pyarrow as pa

from tidemill.client import capabilities
from tidemill.client.capabilities import (
    LEASE_MS,
    AsyncHeld,
    AsyncReader,
    AsyncView,
    AsyncWriter,
    ViewOptions,
)
from tidemill.rpc.blocking import BlockingClient
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import AppendOutcome, CollectionShape, Condition, Event, HeldCapability

D = TypeVar("D", bound=AsyncHeld | AsyncView)
H = TypeVar("H", bound=AsyncHeld)


class Driven(Generic[D]):
    """Guarantees of an asynchronous handle, each call of it driven to its end."""

    def __init__(self, calls: BlockingClient, held: D) -> None:
        self._calls = calls
        self.held = held
        """The handle that is driven."""

    def __enter__(self) -> Self:
        self._calls.drive(lambda _: self.held.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._calls.drive(lambda _: self.held.__aexit__(kind, error, traceback))

    def drop(self) -> None:
        """Give up what is held; a view ends.

        Raises: UsageError while something else reads an output.
        """
        self._calls.drive(lambda _: self.held.drop())


class Held(Driven[H]):
    """A capability that this process holds, as AsyncHeld says."""

    @property
    def capability(self) -> HeldCapability:
        """The capability as it stands now; possession of it is the right."""
        return self.held.capability

    @property
    def frontier(self) -> int:
        """The instant that is held. Raises: ValueError where nothing is left to hold."""
        return self.held.frontier

    def keep(self) -> HeldCapability:
        """The capability for whoever uses it next: not renewed here any more, nor dropped at the
        end.
        """
        return self._calls.drive(lambda _: self.held.keep())


class Reader(Held[AsyncReader]):
    """Reads a collection, whose history from the held frontier on stays."""

    def snapshot(self, at: int) -> pa.Table:
        """The rows at an instant with their multiplicity in `_diff`, once it is definite."""
        return self._calls.drive(lambda _: self.held.snapshot(at))

    def subscribe(
        self,
        at: int | None = None,
        *,
        snapshot: bool = True,
        up_to: int | None = None,
        columns: Sequence[str] = (),
        where: Sequence[Condition] = (),
    ) -> Iterator[Event]:
        """The contents at an instant, by default the held one, then every change."""
        return self._calls.each(
            lambda _: self.held.subscribe(
                at, snapshot=snapshot, up_to=up_to, columns=columns, where=where
            )
        )

    def downgrade(self, to: int) -> None:
        """Move the hold to `to`: history before it may be compacted."""
        self._calls.drive(lambda _: self.held.downgrade(to))


class Writer(Held[AsyncWriter]):
    """Writes a collection, whose upper does not pass the held frontier."""

    def append(self, rows: pa.Table | None, to: int, *, token: str | None = None) -> AppendOutcome:
        """Write rows and hold `to` from then on; without `_time` they come at the held instant,
        once each.
        """
        return self._calls.drive(lambda _: self.held.append(rows, to, token=token))


class View(Driven[AsyncView]):
    """A view that this process began, as AsyncView says."""

    def __init__(self, calls: BlockingClient, view: AsyncView) -> None:
        super().__init__(calls, view)
        self.outputs = {p: Reader(calls, reader) for p, reader in view.outputs.items()}
        """To read each output, by predicate."""

    def keep(self) -> None:
        """Keep the view after the context ends: `tidemill delete view NAME` ends it."""
        self.held.keep()


class Handles:
    """Factory of a client's capabilities; a lease lasts `lease_ms` from its last renewal."""

    _calls: BlockingClient

    def hold(self, collection: str, *, owner: str = "", lease_ms: int = LEASE_MS) -> Reader:
        """A read capability at since: `with client.hold(name) as read`."""
        held = self._calls.drive(
            lambda c: capabilities.hold(c, collection, owner=owner, lease_ms=lease_ms)
        )
        return Reader(self._calls, held)

    def writing(self, collection: str, *, owner: str = "", lease_ms: int = LEASE_MS) -> Writer:
        """A write capability at upper, over a table or what was created to be written."""
        held = self._calls.drive(
            lambda c: capabilities.acquire_writer(c, collection, owner=owner, lease_ms=lease_ms)
        )
        return Writer(self._calls, held)

    @contextmanager
    def create(
        self,
        collection: str,
        schema: pa.Schema | CollectionShape,
        *,
        start: int = 0,
        owner: str = "",
        lease_ms: int = LEASE_MS,
        token: str | None = None,
    ) -> Iterator[tuple[Reader, Writer]]:
        """A new collection that is written here:
        `with client.create(name, schema) as (read, write)`.

        Leaving drops both, and with its last writer a collection ends; `write.keep()` leaves it as
        it is.
        """

        async def create(client: AsyncClient) -> tuple[AsyncReader, AsyncWriter]:
            return await capabilities.create_with_rights(
                client, collection, schema, start=start, owner=owner, lease_ms=lease_ms, token=token
            )

        reader, writer = self._calls.drive(create)
        with Reader(self._calls, reader) as read, Writer(self._calls, writer) as write:
            yield read, write

    def maintain(
        self,
        name: str,
        program: str,
        inputs: Mapping[str, Reader],
        into: Mapping[str, Writer] | None = None,
        **options: Unpack[ViewOptions],
    ) -> View:
        """A view over what is held, by predicate: `with client.maintain(...) as view`.

        By each writer of `into` the view writes an output on: who had it writes no more.
        """
        held = {predicate: reader.held for predicate, reader in inputs.items()}
        written = {predicate: writer.held for predicate, writer in (into or {}).items()}
        view = self._calls.drive(
            lambda c: capabilities.maintain(c, name, program, held, written, **options)
        )
        return View(self._calls, view)
