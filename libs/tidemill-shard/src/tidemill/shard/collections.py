"""Durable collections: every command of the formalism, durable when it returns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tidemill.shard.compaction import Compacted, Compaction, Merge
from tidemill.shard.garbage import GarbageCollection
from tidemill.shard.held_versions import HeldVersions
from tidemill.shard.pace_commands import PaceCommands
from tidemill.shard.part_store import LIMITS, Limits, PartGone, PartStore
from tidemill.shard.ports import Blob, Clock, Consensus
from tidemill.shard.read_commands import ReadCommands
from tidemill.shard.reading import updates_between
from tidemill.shard.stages import StageTimes
from tidemill.shard.state import State
from tidemill.shard.versions import Core, Versions
from tidemill.shard.write_commands import WriteCommands

POLL_INTERVAL_S = 0.5


class Collections(PaceCommands, WriteCommands, ReadCommands, HeldVersions):
    """The collections of one Consensus and Blob, as one process uses them.

    Any number of processes may use the same stores at once. `ids` gives unguessable names (128
    bits). A command is durable when it returns (D1) and has no effect when it raises (K10), except
    that Indeterminate leaves open whether it happened.
    """

    def __init__(
        self,
        consensus: Consensus,
        blob: Blob,
        clock: Clock,
        ids: Callable[[], str],
        *,
        poll_interval_s: float = POLL_INTERVAL_S,
        limits: Limits = LIMITS,
    ) -> None:
        versions = Versions(consensus, blob, clock, ids)
        self.stages = StageTimes(clock.monotonic_s)
        """Seconds and rows of this process, by stage: for metrics."""
        parts = PartStore(blob, ids, limits, now_ms=clock.now_ms, stages=self.stages)
        core = Core(versions, parts, clock, ids, poll_interval_s)
        PaceCommands.__init__(self, core)
        WriteCommands.__init__(self, core)
        ReadCommands.__init__(self, core)
        HeldVersions.__init__(self, core)
        self._consensus = consensus
        self._blob = blob
        self._compaction = Compaction(parts, clock, versions)
        self._garbage = GarbageCollection(parts, clock, versions)

    async def open(self) -> None:
        """Reach both stores, so that one that cannot be used is found out now.

        Raises: Unavailable; UsageError for a Redis that may lose what it acknowledges.
        """
        await self._consensus.keys()
        await self._blob.list("nothing/")

    async def close(self) -> None:
        """Release the stores. Capabilities live on."""
        await self._consensus.close()
        await self._blob.close()

    async def ids(self) -> tuple[str, ...]:
        """Every id ever bound (L5)."""
        return tuple(await self._consensus.keys())

    def known(self) -> dict[str, State]:
        """The newest states that this process has seen, without looking: for metrics."""
        return self._core.versions.seen()

    def on_commit(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the id of a collection after each version that this process commits.

        A second call replaces the callback of the first.
        """
        self._core.versions.wakeups.told = callback

    def on_remote_commit(self, collection: str) -> None:
        """Wake the readers that wait for a collection, after a hint of another process's commit.

        Each of them looks at the store at once. A wrong hint costs one look and changes nothing.
        """
        self._core.versions.log(collection).outdated()
        self._core.versions.wakeups.wake(collection)

    async def state(self, collection: str, age_s_max: float = 0.0) -> State:
        """The newest version, or one that was the newest at most `age_s_max` ago, with its parts.

        The statement of a version about an instant between its frontiers stays true (P1).
        Raises: UnknownCollection.
        """
        whole = self._core.parts.whole
        state = await self.newest(collection, age_s_max)
        with suppress(PartGone):  # lists were merged meanwhile
            return await whole(state)
        return await self._core.versions.read(collection, whole)

    async def newest(self, collection: str, age_s_max: float = 0.0) -> State:
        """`state`, for its frontiers, holds and sizes: parts that lists name are not read."""
        return await self._core.versions.state(collection, age_s_max)

    def count_updates(self, collection: str, lower: int, upper: int) -> int:
        """About the number of updates from `lower` to before `upper`, in the newest version seen.

        Cost: no read; O(p) for the p parts of batches from `lower` on, or lists of them.
        """
        known = self._core.versions.cached(collection)
        return (
            0
            if known is None
            else round(updates_between(known.state.pieces_from(lower), lower, upper))
        )

    async def compact(self, collection: str) -> None:
        """Run all physical and logical compaction that is allowed now; contents do not change
        (P6).
        """
        await self._compaction.compact(collection)

    async def compact_quiet(self, collection: str) -> int:
        """Bring a collection that nobody writes to into its smallest form; updates read, 0 if it
        is.
        """
        return await self._compaction.compact_quiet(collection)

    async def compact_step(self, collection: str, fuel_rows: int = 1_000_000) -> Compacted:
        """A bounded step of the compaction that is due: about `fuel_rows` rows of merging."""
        return await self._compaction.step(collection, fuel_rows)

    async def list_parts(self, collection: str) -> bool:
        """Put the parts of batches with very many into lists, which versions name in place of them;
        whether some were.

        A merge that `due_merge` gave of such a batch is refused from then on.
        """
        return await self._compaction.list_parts(collection)

    async def due_merge(self, collection: str, *, quiet: bool = False) -> Merge | None:
        """The merge that is due, for whoever does big ones; None if there is none or one is under
        way.
        """
        return await self._compaction.due(collection, quiet=quiet)

    async def commit_merge(self, merge: Merge) -> bool:
        """Put a merge that was done elsewhere in place, if what it replaces is still there (P6)."""
        return await self._compaction.commit(merge)

    async def collect_garbage(self, collection: str, grace_ms: int) -> int:
        """Delete objects that were given up at least `grace_ms` ago; how many."""
        return await self._garbage.collect(collection, grace_ms)

    async def shorten(self, collection: str) -> None:
        """Take what a tombstone has held out of its log, too."""
        await self._core.versions.log(collection).shorten()

    async def reap_orphans(self, collection: str, age_ms: int) -> int:
        """Delete objects that no version names and that are older than `age_ms`; how many."""
        return await self._garbage.reap(collection, age_ms)
