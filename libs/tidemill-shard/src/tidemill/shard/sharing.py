"""Reads of whole collections that several readers want alike: one of them reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakValueDictionary

import pyarrow as pa

from tidemill.shard.offloading import while_others_wait
from tidemill.shard.reading import Query, VersionReader
from tidemill.shard.state import State

TOLD_MAX = 256
TOLD_BYTES_MAX = 1024 * 1024
"""So many collections' latest news are kept for the other subscribers, each up to this size."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The answer about a version at one place, kept for further subscribers that stand at that
    place.
    """

    state: State
    wanted: tuple[int, Sequence[str] | None]
    table: pa.Table


@dataclass(slots=True, weakref_slot=True)
class _Whole:
    """Contents at one instant, for as long as somebody wants them."""

    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    table: pa.Table | None = None


_Wanted: TypeAlias = "tuple[str, int, tuple[str, ...]]"


class SharedReads:
    """Guarantees of VersionReader; readers that want the same at the same time read it once."""

    def __init__(self, reader: VersionReader) -> None:
        self._reader = reader
        self._told: dict[str, _Told] = {}
        self._wholes: WeakValueDictionary[_Wanted, _Whole] = WeakValueDictionary()

    async def contents(self, collection: str, state: State, at: int, query: Query) -> pa.Table:
        """The rows at an instant below upper, which are the same in every version.

        `told` and `settled` of the query hear of all bytes also where another reader has read them.
        Raises: as VersionReader.
        """
        if query.where is not None or query.equal:
            return await self._reader.contents(state, at, query)
        columns = tuple(query.columns or state.description.schema.names)
        whole = self._wholes.setdefault((collection, at, columns), _Whole())
        async with while_others_wait(whole.reading):
            if whole.table is None:
                whole.table = await self._reader.contents(state, at, query)
                return whole.table
        for hear in filter(None, (query.told, query.settled)):
            hear(whole.table.nbytes)
        return whole.table

    async def changes(self, collection: str, state: State, lower: int, query: Query) -> pa.Table:
        """All updates from `lower` on; subscribers at one place that want the same read it once."""
        if query.where is not None or query.equal is not None:
            return await self._reader.changes(state, lower, None, query)
        wanted = (lower, query.columns and tuple(query.columns))
        told = self._told.get(collection)
        if told is not None and told.state is state and told.wanted == wanted:
            return told.table
        table = await self._reader.changes(state, lower, None, query)
        if table.nbytes <= TOLD_BYTES_MAX:
            self._told[collection] = _Told(state, wanted, table)
            if len(self._told) > TOLD_MAX:
                del self._told[next(iter(self._told))]
        return table
