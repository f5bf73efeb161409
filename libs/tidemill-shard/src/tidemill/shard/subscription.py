"""A subscription: a snapshot, then every later update once, with statements of how far it has come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill.shard.capabilities import ReadCapability
from tidemill.time import Frontier, NotYet, frontier, sole_time

POLL_DEADLINE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates that the subscriber has not seen: data columns, `_time`, `_diff`."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything at times not beyond `upper` has been delivered."""

    upper: Frontier


class Readable(Protocol):
    """What a subscription reads from."""

    async def updates_since(
        self, capability: ReadCapability, at: int, delivered: int | None, snapshot: bool
    ) -> tuple[pa.Table | None, Frontier]: ...

    async def wait_for_upper(self, collection: str, beyond: int, deadline_s: float) -> Frontier: ...


class Subscription:
    """One subscriber's place in a collection. No update is delivered twice, none is left out."""

    def __init__(
        self, collections: Readable, capability: ReadCapability, at: int, snapshot: bool
    ) -> None:
        self._collections = collections
        self._capability = capability
        self._at = at
        self._snapshot = snapshot
        self._delivered: Frontier | None = None

    @property
    def collection(self) -> str:
        """What is subscribed to."""
        return self._capability.collection

    def attach(self, collections: Readable) -> None:
        """Go on from the same place after the process that served it was replaced."""
        self._collections = collections

    @property
    def upper(self) -> Frontier:
        """How far everything has been delivered."""
        return self._delivered if self._delivered is not None else frontier(self._at)

    async def poll(self) -> tuple[pa.Table, Frontier]:
        """(updates not delivered before, the subscription's upper). Never waits."""
        if self._delivered is not None and self._delivered.empty:
            delivered: int | None = 2**64 - 1
        else:
            delivered = None if self._delivered is None else sole_time(self._delivered)
        table, upper = await self._collections.updates_since(
            self._capability, self._at, delivered, self._snapshot
        )
        assert table is not None
        if not upper.less_equal(self._at):
            self._delivered = upper
        return table, self.upper

    async def stream(self, up_to: int | None) -> AsyncIterator[Updates | Progress]:
        """Poll whenever upper moves; end at `up_to` or when the collection is closed."""
        while True:
            table, upper = await self.poll()
            if table.num_rows:
                yield Updates(table)
            yield Progress(upper)
            if upper.empty or (up_to is not None and not upper.less_equal(up_to - 1)):
                return
            await self._wait(sole_time(upper))

    async def _wait(self, beyond: int) -> None:
        try:
            await self._collections.wait_for_upper(
                self._capability.collection, beyond, POLL_DEADLINE_S
            )
        except NotYet:
            return
