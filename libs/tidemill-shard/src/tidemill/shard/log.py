"""The log of one collection as this process knows it: catching up, committing, rolling up."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tidemill.shard.encoding import (
    FORMAT,
    Entry,
    all_cells,
    decode_entry,
    difference,
    encode_entry,
    patch,
    rebuild,
)
from tidemill.shard.ports import Blob, Consensus, Version
from tidemill.shard.state import State
from tidemill.time import Corrupt, Indeterminate, TidemillError, UnknownCollection

ROLLUP_EVERY = 128

Answer = TypeVar("Answer")
Transition = Callable[[State], tuple[Answer, State]]


def folder_of(collection: str) -> str:
    """The Blob folder of a collection: names may hold slashes, and no key may be a folder of another."""
    return hashlib.blake2b(collection.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Known:
    """A version of the state with its place in the log."""

    number: int
    state: State
    rollup: tuple[str, int] | None


class CollectionLog:
    """All versions of one collection, one at a time.

    A commit is a compare-and-set on the version number: of several processes one wins, the others
    catch up and apply their transition to what the winner left.
    """

    def __init__(
        self, collection: str, consensus: Consensus, blob: Blob, unique: Callable[[], str]
    ) -> None:
        self.collection = collection
        self._consensus = consensus
        self._blob = blob
        self._unique = unique
        self._known: Known | None = None
        self._turn = asyncio.Lock()

    @property
    def cached(self) -> State | None:
        """The newest state this process has seen."""
        return self._known.state if self._known else None

    async def create(self, state: State) -> bool:
        """Write version 0; False if the collection exists."""
        async with self._turn:
            cells, _ = difference(None, state)
            entry = Entry(FORMAT, None, cells, [])
            won = await self._consensus.compare_and_set(
                self.collection, None, Version(0, encode_entry(entry))
            )
            if won:
                self._known = Known(0, state, None)
            return won

    async def refresh(self) -> Known:
        """The newest version in Consensus. Raises: UnknownCollection if there is none, Corrupt."""
        async with self._turn:
            return await self._catch_up()

    async def commit(self, transition: Transition[Answer]) -> tuple[Answer, bool]:
        """(the transition's answer on the newest state, whether it made a version).

        Durable on return. Errors of the transition come from the newest state, and nothing was
        written. Raises: Unavailable (nothing happened), Indeterminate (it may have).
        """
        async with self._turn:
            known = self._known or await self._catch_up()
            while True:
                try:
                    answer, after = transition(known.state)
                except TidemillError:
                    newest = await self._catch_up()
                    if newest.number == known.number:
                        raise
                    known = newest
                    continue
                if after is not known.state:
                    if await self._write(known, after):
                        return answer, True
                    known = await self._catch_up()
                    continue
                # A negative answer counts only if it is about the newest version.
                newest = await self._catch_up()
                if newest.number == known.number:
                    return answer, False
                known = newest

    async def _write(self, known: Known, after: State) -> bool:
        number = known.number + 1
        rollup = known.rollup
        cells, gone = difference(known.state, after)
        entry = Entry(FORMAT, rollup, cells, gone)
        try:
            won = await self._consensus.compare_and_set(
                self.collection, known.number, Version(number, encode_entry(entry))
            )
        except Indeterminate:
            self._known = None
            raise
        if won:
            self._known = Known(number, after, rollup)
            if number % ROLLUP_EVERY == 0:
                await self._roll_up()
        return won

    async def _roll_up(self) -> None:
        """Store the whole state and name it in one more version, then forget what it covers."""
        known = self._known
        assert known is not None
        key = f"{folder_of(self.collection)}/rollup-{known.number:012d}-{self._unique()}"
        await self._blob.put(key, msgspec.msgpack.encode(all_cells(known.state)))
        rollup = (key, known.number)
        entry = Entry(FORMAT, rollup, {}, [])
        number = known.number + 1
        if await self._consensus.compare_and_set(
            self.collection, known.number, Version(number, encode_entry(entry))
        ):
            self._known = Known(number, known.state, rollup)
            await self._consensus.truncate(self.collection, known.number + 1)
            if known.rollup is not None:
                await self._blob.delete(known.rollup[0])

    async def _catch_up(self) -> Known:
        if self._known is not None:
            newer = await self._consensus.scan(self.collection, self._known.number + 1)
            if not newer:
                return self._known
            if newer[0].number == self._known.number + 1:
                self._known = self._replay(self._known, newer)
                return self._known
        self._known = await self._open()
        return self._known

    def _replay(self, known: Known, versions: Sequence[Version]) -> Known:
        for version in versions:
            where = f"{self.collection} version {version.number}"
            if version.number != known.number + 1:
                raise Corrupt(f"the log of {self.collection} has a hole before {version.number}")
            entry = decode_entry(version.data, where)
            state = known.state
            if entry.cells or entry.gone:
                state = patch(state, entry.cells, entry.gone, where)
            known = Known(version.number, state, entry.rollup)
        return known

    async def _open(self) -> Known:
        """Read from the newest rollup on, or from version 0."""
        for _ in range(8):
            head = await self._consensus.head(self.collection)
            if head is None:
                raise UnknownCollection(
                    f"there is no collection {self.collection}", collection=self.collection
                )
            entry = decode_entry(head.data, f"{self.collection} version {head.number}")
            if entry.rollup is None:
                versions = list(await self._consensus.scan(self.collection, 0))
                first = decode_entry(versions[0].data, f"{self.collection} version 0")
                base = Known(0, rebuild(first.cells, self.collection), None)
                if versions[0].number == 0:
                    return self._replay(base, versions[1:])
                continue
            key, number = entry.rollup
            data = await self._blob.get(key)
            versions = list(await self._consensus.scan(self.collection, number + 1))
            if data is None or not versions or versions[0].number != number + 1:
                continue  # a newer rollup took over between the two reads
            cells = msgspec.msgpack.decode(data, type=dict[str, bytes])
            return self._replay(
                Known(number, rebuild(cells, self.collection), entry.rollup), versions
            )
        raise Corrupt(f"the log of {self.collection} has no readable beginning")
