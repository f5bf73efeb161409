"""Deleting objects: those that a version gave up, and those that no version ever named."""

from __future__ import annotations

from contextlib import suppress

from tidemill.shard.appending import forget_garbage, reap
from tidemill.shard.listed import is_list
from tidemill.shard.log import folder_of
from tidemill.shard.part_store import PartGone, PartStore
from tidemill.shard.parts import begun_ms_of
from tidemill.shard.ports import Clock
from tidemill.shard.state import collectable
from tidemill.shard.versions import Versions


class GarbageCollection:
    """The only code that deletes what others may have written. Every step may be cut short (P8)."""

    def __init__(self, parts: PartStore, clock: Clock, versions: Versions) -> None:
        self._parts = parts
        self._blob = parts.blob
        self._clock = clock
        self._versions = versions

    async def collect(self, collection: str, grace_ms: int) -> int:
        """Delete the objects that were given up at least `grace_ms` ago; how many.

        A list of parts goes after its parts. Those of a version that a live capability keeps stay.
        Any other read that comes too late for
        one reads the newest version again and finds the same answer.
        """
        state = (await self._versions.catch_up(collection)).state
        latest = self._clock.now_ms() - grace_ms
        due = collectable(state, latest)
        # IMPORTANT: deleted first, forgotten after: the other way round a crash would leak them.
        deleted = 0
        for key in sorted(due):
            for each in (*sorted(await self._read_listed(key)), key):
                await self._blob.delete(each)
                deleted += 1
        if due:
            await self._versions.commit(collection, lambda held: (None, forget_garbage(held, due)))
        return deleted

    async def _read_listed(self, key: str) -> set[str]:
        """The parts that go with an object: those of a list that is still there."""
        if not is_list(key):
            return set()
        with suppress(PartGone):  # deleted before, and its parts before it
            return {part.key for part in await self._parts.read_list(key) if part.key}
        return set()

    async def reap(self, collection: str, age_ms: int) -> int:
        """Delete the collection's objects that no version names and that are older than `age_ms`.

        `age_ms` ought to be longer than an append or a job takes from its first object to its
        commit. A writer that takes longer is told to begin anew. Returns the number of deleted
        objects.
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
        known = await self._versions.catch_up(collection)
        rollup = {known.rollup[0]} if known.rollup is not None else set()
        named = known.state.objects() | set(known.state.garbage)
        listed = [await self._read_listed(key) for key in sorted(named)]
        return named.union(rollup, *listed)
