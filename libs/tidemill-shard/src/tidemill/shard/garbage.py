"""Deleting objects: those that a version gave up, and those that no version ever named."""

from __future__ import annotations

from contextlib import suppress

from tidemill.errors import Corrupt
from tidemill.shard.appending import forget_garbage, reap
from tidemill.shard.listed import is_list
from tidemill.shard.log import KnownVersion, folder_of
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.parts import begun_ms_of
from tidemill.shard.ports import Clock
from tidemill.shard.state import State, collectable
from tidemill.shard.versions import Versions

FOREVER_MS = 2**63 - 1
"""Later than every stamp."""


class GarbageCollection:
    """The only code that deletes what others may have written. Every step may be cut short (P8)."""

    def __init__(self, parts: PartStore, clock: Clock, versions: Versions) -> None:
        self._parts = parts
        self._blob = parts.blob
        self._clock = clock
        self._versions = versions

    async def collect(self, collection: str, grace_ms: int) -> int:
        """Delete the objects that were given up at least `grace_ms` ago; how many.

        A list of parts goes after its parts; those of a damaged list are left to `reap`. Objects of
        a version that a live capability keeps stay.
        Any other read that comes too late for one reads the newest version again and finds the
        same answer.
        """
        state = (await self._versions.catch_up(collection)).state
        latest = self._clock.now_ms() - grace_ms
        due = collectable(state, latest)
        # IMPORTANT: deleted first, forgotten after: the other way round a crash would leak them.
        deleted = 0
        for key in sorted(due):
            listed: set[str] = set()
            # One that is gone was deleted before, and its parts before it.
            with suppress(PartGone, Corrupt):
                listed = await self._read_listed(key)
            for each in (*sorted(listed), key):
                await self._blob.delete(each)
                deleted += 1
        if due:
            await self._versions.commit(collection, lambda held: (None, forget_garbage(held, due)))
        return deleted

    async def _read_listed(self, key: str) -> set[str]:
        """The parts that go with an object: those that it lists, if it lists any.

        Raises: PartGone, Corrupt.
        """
        if not is_list(key):
            return set()
        return {part.key for part in await self._parts.read_list(key) if part.key}

    async def reap(self, collection: str, age_ms: int) -> int:
        """Delete the collection's objects that no version names and that are older than `age_ms`.

        `age_ms` ought to be longer than an append or a job takes from its first object to its
        commit. A writer that takes longer is told to begin anew. Returns the number of deleted
        objects. Raises: Corrupt, with nothing deleted, if a list of parts is missing or damaged.
        """
        latest = self._clock.now_ms() - age_ms
        entries = await self._blob.list(folder_of(collection) + "/")
        old = {
            e.key for e in entries if e.modified_ms < latest and (begun_ms_of(e.key) or 0) < latest
        }
        if not old - await self._read_named(collection):
            return 0
        # IMPORTANT: from this version on nothing old that is not named can be named; so listed
        # before, decided by what is named after.
        await self._versions.commit(collection, lambda state: (None, reap(state, latest)))
        orphans = old - await self._read_named(collection)
        for key in sorted(orphans):
            await self._blob.delete(key)
        return len(orphans)

    async def _read_named(self, collection: str) -> set[str]:
        while True:
            known = await self._versions.catch_up(collection)
            try:
                return await self._read_keys(known)
            except PartGone as gone:
                # IMPORTANT: without its list no part is known to be named: none may go (P8).
                if str(gone) in _needed((await self._versions.catch_up(collection)).state):
                    raise Corrupt(
                        f"the object {gone} of {collection} is missing", object=str(gone)
                    ) from gone

    async def _read_keys(self, known: KnownVersion) -> set[str]:
        """Objects that a version names, or that go with its garbage. Raises: PartGone, Corrupt."""
        rollup = {known.rollup[0]} if known.rollup is not None else set()
        state = known.state
        needed = _needed(state)
        listed: set[str] = set()
        for key in sorted(needed):
            listed |= await self._read_listed(key)
        for key in sorted(set(state.garbage) - needed):
            with suppress(PartGone):  # by a collection that was cut short
                listed |= await self._read_listed(key)
        return set(state.garbage).union(needed, rollup, listed)


def _needed(state: State) -> set[str]:
    """Objects that a batch names, or that a live capability keeps: nobody may have deleted them."""
    return state.objects() | (set(state.garbage) - collectable(state, FOREVER_MS))
