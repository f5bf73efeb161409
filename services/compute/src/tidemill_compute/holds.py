"""The named holds of one driver on the collections it reads."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, concatenate, stamp
from tidemill.catalog.lifetime import release_holds
from tidemill.datalog.pushdown import EVERYTHING, Reading
from tidemill.shard import Collections, ReadCapability
from tidemill.shard.stages import StageTimes
from tidemill.time import U64_MAX, Frontier, sole_time

AT_REST_MS = 3_600_000
"""Least move of a hold on a resting collection, in milliseconds: a move ends the rest."""


class Holds:
    """Keeps the history that a restart of its owner needs, across the death of the process.

    A hold has no lease: it belongs to a resource, not to a process, and is found again by its
    owner's name.
    """

    def __init__(self, collections: Collections, owner: str) -> None:
        self._collections = collections
        self.owner = owner
        self._held: dict[str, ReadCapability] = {}

    @property
    def stages(self) -> StageTimes:
        """Seconds and rows of this process, by stage."""
        return self._collections.stages

    async def take(self, collection: str, at: Frontier | None = None) -> Frontier:
        """Hold `collection` where it was held before, else from `at` or its since on."""
        if collection not in self._held:
            self._held[collection] = await self._collections.read_hold(
                collection, at=at, owner=self.owner, lease_ms=None
            )
        return self._held[collection].frontier

    async def snapshot(
        self,
        collection: str,
        as_of: int,
        *,
        where: pc.Expression | None = None,
        reading: Reading = EVERYTHING,
        told: Callable[[int], None] | None = None,
    ) -> pa.Table:
        """Contents of the collection at `as_of`, as far as they are read, with their multiplicity.

        `told` hears of the bytes as they come, and may raise.
        """
        rows = await self._collections.snapshot(
            self._held[collection],
            as_of,
            columns=reading.columns,
            equal=reading.equal,
            where=reading.where if where is None else where,
            told=told,
        )
        return reading.whole(rows)

    async def changes(
        self,
        collection: str,
        lower: int,
        upper: int,
        *,
        reading: Reading = EVERYTHING,
        told: Callable[[int], None] | None = None,
        added_up: bool = True,
    ) -> pa.Table:
        """All updates with lower <= _time < upper, as far as they are read; `told` as for a
        snapshot. Without `added_up` they are as stored. The hold is the owner's for good, so that a
        version that the process has seen will do.
        """
        rows = await self._collections.changes(
            self._held[collection], lower, upper,
            columns=reading.columns, where=reading.where, told=told, added_up=added_up, seen=True,
        )  # fmt: skip
        return reading.whole(rows)

    async def history(self, collection: str) -> pa.Table:
        """The updates from the hold up to the upper, what came before it at the hold."""
        held = sole_time(self._held[collection].frontier)
        upper = (await self._collections.status(collection)).upper
        if upper.less_equal(held):
            schema = (await self._collections.description(collection)).update_schema()
            return schema.empty_table()
        content = await self.snapshot(collection, held)
        rows = [stamp(content.drop_columns([DIFF]), held)]
        until = U64_MAX if upper.empty else sole_time(upper)
        if held + 1 < until:
            rows.append(await self.changes(collection, held + 1, until))
        return concatenate(rows)

    async def downgrade(self, collection: str, to: Frontier) -> None:
        """Release history before `to`; a hold that is there already stays.

        A hold on a collection at rest stays for an hour: its move would end the rest, and release
        nothing that came meanwhile.
        """
        held = self._held[collection]
        if held.frontier == to or not held.frontier.precedes(to):
            return
        near = not to.empty and sole_time(to) - sole_time(held.frontier) < AT_REST_MS
        if near and await self._collections.rests(collection):
            return
        self._held[collection] = await self._collections.downgrade(held, to)

    async def give_up(self, collection: str) -> None:
        """Release the history of one collection, also if an earlier life has held it."""
        self._held.pop(collection, None)
        await release_holds(self._collections, collection, frozenset((self.owner,)))

    async def release(self) -> None:
        """Give all holds up: the owner is deleted."""
        for held in self._held.values():
            await self._collections.drop(held)
        self._held = {}
