"""Writes of a view: by compare-and-append, or as one of several ranges by capabilities."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.catalog.made.views import writer_of_range
from tidemill.shard import Collections, UpperMismatch, WriteCapability
from tidemill.time import Frontier, frontier
from tidemill_compute.appending import (
    append_held,
    append_stored,
    append_through,
    refuse_fenced,
)
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import StoredUpdates, Updates


class Writing:
    """Writes the state, the outputs and the errors of a view, of which it is the only one."""

    def __init__(self, target: ViewTarget, collections: Collections) -> None:
        self._target = target
        self._collections = collections
        self._held: dict[str, WriteCapability] = {}

    async def uppers(self) -> list[Frontier]:
        """Upper of each collection, the state first. Raises: Fenced."""
        found = [(await self._collections.status(each)).upper for each in self._target.written]
        refuse_fenced(self._target.state, found[0])
        return found

    async def append_all(
        self, updates: Sequence[tuple[str, Updates]], lower: int, upper: int
    ) -> bool:
        """Whether all that a step gave was written in one transaction; it then is nobody else's."""
        tables = {each: table for each, table in updates if isinstance(table, pa.Table)}
        if len(tables) < len(updates):
            return False
        done = await self._collections.append_all(
            frontier(lower), frontier(upper), tables, writer=self._target.name, held=self._held
        )
        if done:
            self._held = {name: each.at(frontier(upper)) for name, each in self._held.items()}
        return done

    async def append_state(
        self, update: tuple[str, Updates], lower: int, upper: int
    ) -> bool | None:
        """Write the state of a step; false if the one that is there is as good but not the same.

        None if another process stands between `lower` and `upper` with a state of its own.
        """
        collection, table = update
        if isinstance(table, StoredUpdates) or not table.num_rows:
            await self.append(update, upper)
            return True
        outcome = await self._collections.compare_and_append(
            collection, frontier(lower), frontier(upper), table, writer=self._target.name
        )
        if not isinstance(outcome, UpperMismatch):
            return True
        refuse_fenced(collection, outcome.current)
        return False if outcome.current == frontier(upper) else None

    async def append(self, update: tuple[str, Updates], upper: int) -> None:
        """Write what is missing of a collection below `upper`."""
        (collection, table), writer = update, self._target.name
        if isinstance(table, StoredUpdates):
            await append_stored(self._collections, collection, table.parts, upper, writer)
        else:
            await append_through(self._collections, collection, table, upper, writer)


class RangeWriting(Writing):
    """Writes the state of one range, and its share of outputs and errors.

    The range has a write capability on each collection that it shares with the others (K2), found
    again by its name. Rows that it writes ahead of them are staged: durable, and read by nobody. A
    range of which two processes believe that they own it is one writer. So the second of two
    appends finds another frontier (UP5).
    """

    async def uppers(self) -> list[Frontier]:
        """Upper of the state, and the frontiers that the range holds of the other collections."""
        state, *shared = self._target.written
        for each in shared:
            self._held[each] = await self._collections.write_hold(
                each, owner=writer_of_range(self._target.name), users=False
            )
        upper = (await self._collections.status(state)).upper
        return [upper, *(self._held[each].frontier for each in shared)]

    async def append(self, update: tuple[str, Updates], upper: int) -> None:
        """Write what is missing of the share of the range below `upper`."""
        collection, table = update
        held = self._held.get(collection)
        if held is None:
            await super().append(update, upper)
            return
        assert isinstance(table, pa.Table), "a range is evaluated in its own process"
        self._held[collection] = await append_held(self._collections, held, table, upper)
