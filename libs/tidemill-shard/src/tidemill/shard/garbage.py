"""Deleting objects: those that a version gave up, and those that no version ever named."""

from __future__ import annotations

from tidemill.shard.appending import forget_garbage
from tidemill.shard.log import folder_of
from tidemill.shard.ports import Blob, Clock
from tidemill.shard.versions import Versions


class GarbageCollection:
    """The only code that deletes what others may have written. Every step may be cut short (P8)."""

    def __init__(self, blob: Blob, clock: Clock, versions: Versions) -> None:
        self._blob = blob
        self._clock = clock
        self._versions = versions

    async def collect(self, collection: str, grace_ms: int) -> int:
        """Delete the objects that were given up at least `grace_ms` ago; how many.

        A read that comes too late for one reads the newest version again and finds the same answer.
        """
        state = (await self._versions.known(collection)).state
        latest = self._clock.now_ms() - grace_ms
        due = {key for key, at_ms in state.garbage.items() if at_ms <= latest} - state.objects()
        # IMPORTANT: deleted first, forgotten after: the other way round a crash would leak them.
        for key in sorted(due):
            await self._blob.delete(key)
        if due:
            await self._versions.commit(collection, lambda held: (None, forget_garbage(held, due)))
        return len(due)

    async def reap(self, collection: str, age_ms: int) -> int:
        """Delete the collection's objects that no version names and that are older than `age_ms`.

        `age_ms` has to be longer than the longest append or job takes from its first object to its
        commit. Returns how many.
        """
        # IMPORTANT: listed first, looked up after: what is linked in between counts as named.
        entries = await self._blob.list(folder_of(collection) + "/")
        known = await self._versions.known(collection)
        named = known.state.objects() | set(known.state.garbage)
        if known.rollup is not None:
            named.add(known.rollup[0])
        latest = self._clock.now_ms() - age_ms
        orphans = [e.key for e in entries if e.key not in named and e.modified_ms < latest]
        for key in orphans:
            await self._blob.delete(key)
        return len(orphans)
