"""A subscription: a snapshot, then every later update once, with statements of how far it has
come.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill.arrangement.updates import between
from tidemill.errors import NotYet
from tidemill.shard.capabilities import ReadCapability
from tidemill.shard.reading import EVERYTHING, Query
from tidemill.time import Frontier, frontier

WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Updates:
    """Updates that the subscriber has not seen: data columns, `_time`, `_diff`."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything at times not beyond `upper` has been delivered."""

    upper: Frontier


class Readable(Protocol):
    """The collection as a subscription reads it."""

    async def news(
        self, capability: ReadCapability, place: Place, query: Query
    ) -> tuple[pa.Table, Frontier]:
        """Updates that one at `place` was not told yet, and the collection's upper."""
        ...

    async def wait_for_news(
        self, capability: ReadCapability, beyond: int, deadline_s: float
    ) -> Frontier:
        """The upper once it is past `beyond`.

        Raises: errors of the capability, as soon as there are any.
        """
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Progress of a subscription: everything before `delivered` (None: nothing yet).

    `at` is its first instant, with the contents there iff `snapshot`.
    """

    at: int
    snapshot: bool
    delivered: Frontier | None = None


class Subscription:
    """One subscriber's place in a collection. No update is delivered twice, none is left out.

    To go on after a restart, subscribe without snapshot at the time just before `upper`.
    """

    def __init__(
        self,
        readable: Readable,
        capability: ReadCapability,
        place: Place,
        query: Query = EVERYTHING,
    ) -> None:
        self._readable = readable
        self._capability = capability
        self._place = place
        self._query = query

    @property
    def collection(self) -> str:
        """Id of the collection."""
        return self._capability.collection

    @property
    def upper(self) -> Frontier:
        """Frontier before which everything has been delivered."""
        delivered = self._place.delivered
        return delivered if delivered is not None else frontier(self._place.at)

    def attach(self, readable: Readable) -> None:
        """Go on from the same place after the process that served it was replaced."""
        self._readable = readable

    async def poll(self) -> tuple[pa.Table, Frontier]:
        """(updates not delivered before, the subscription's upper). Never waits.

        Raises: errors of the capability; BeforeSince if since has passed what was delivered.
        """
        table, upper = await self._readable.news(self._capability, self._place, self._query)
        if not upper.less_equal(self._place.at):
            self._place = Place(self._place.at, self._place.snapshot, upper)
        return table, self.upper

    async def stream(self, up_to: int | None) -> AsyncGenerator[Updates | Progress, None]:
        """Poll whenever upper moves, until everything before `up_to` is delivered or all there
        is.
        """
        while True:
            table, upper = await self.poll()
            ended = upper.empty
            if up_to is not None and (upper.empty or upper.elements[0] >= up_to):
                table, upper, ended = between(table, 0, up_to), frontier(up_to), True
            if table.num_rows:
                yield Updates(table)
            yield Progress(upper)
            if ended:
                return
            await self._next(upper.elements[0])

    async def _next(self, beyond: int) -> None:
        while True:
            try:
                await self._readable.wait_for_news(self._capability, beyond, WAIT_S)
            except NotYet:
                continue
            return
