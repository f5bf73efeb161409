"""Commands that read: snapshots, changes, subscriptions, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, advance, concatenate, stamp
from tidemill.errors import (
    CapabilityExpired,
    Corrupt,
    Indeterminate,
    NotYet,
    Unavailable,
    UnknownCapability,
)
from tidemill.shard import transitions
from tidemill.shard.capabilities import Capability, ReadCapability
from tidemill.shard.conforming import adding_up
from tidemill.shard.log import Answer
from tidemill.shard.part_store import PartGone
from tidemill.shard.pruning import Equal
from tidemill.shard.reading import EVERYTHING, Query, VersionReader, nothing_read, upper_of_rows
from tidemill.shard.sharing import SharedReads
from tidemill.shard.state import State, compaction_frontier
from tidemill.shard.subscription import Place, Progress, Subscription, Updates
from tidemill.shard.versions import Core
from tidemill.time import Frontier, frontier

KEPT_LEASE_MS = 900_000
"""For so long a version is kept for a reader whose capability has no lease, and who has died."""


class ReadCommands:
    """Definite answers at readable times, by any live read capability, whatever its own
    frontier.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = VersionReader(core.parts)
        self._shared = SharedReads(self._reader)

    async def snapshot(
        self,
        capability: ReadCapability,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        equal: Equal | None = None,
        where: pc.Expression | None = None,
        told: Callable[[int], None] | None = None,
        settled: Callable[[int], None] | None = None,
    ) -> pa.Table:
        """The rows at `as_of` with their multiplicity in `_diff` (F11), never an approximation.

        `equal` and `where` filter; where `equal` fixes the key, or its first column, only the parts
        of the data that can hold it are read. `columns` are projected after counting. `told` hears
        of the bytes that have been read, part by part. `settled` hears of those that are surely in
        the answer. An error of either ends the reading. Raises: BeforeSince, NotYet,
        UnknownCapability, CapabilityExpired, UsageError, Corrupt.
        """
        query = Query(columns, equal, where, told, settled)

        async def read(state: State) -> pa.Table:
            transitions.live_read(state, capability.id)
            transitions.check_readable(state, as_of)
            return await self._shared.contents(capability.collection, state, as_of, query)

        return await self._read(capability, read)

    async def read_without_hold(
        self,
        collection: str,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        equal: Equal | None = None,
        where: pc.Expression | None = None,
        told: Callable[[int], None] | None = None,
        settled: Callable[[int], None] | None = None,
        age_s_max: float = 0.0,
    ) -> pa.Table | None:
        """The rows at `as_of`, as `snapshot` gives them, without a capability.

        None if objects were collected meanwhile: acquire a capability then. The version that
        answers was the newest at most `age_s_max` ago. Its statement about an instant between its
        frontiers stays true (P1), wherever since goes meanwhile. Meant for a single read:
        repeated reads need a capability. Raises: BeforeSince, NotYet, UnknownCollection,
        UsageError, Corrupt. Cost: no commit.
        """
        state = await self._core.versions.state(collection, age_s_max)
        transitions.check_readable(state, as_of)
        try:
            query = Query(columns, equal, where, told, settled)
            return await self._shared.contents(collection, state, as_of, query)
        except PartGone:
            return None

    async def changes(
        self,
        capability: ReadCapability,
        lower: int,
        upper: int,
        *,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        told: Callable[[int], None] | None = None,
        added_up: bool = True,
        seen: bool = False,
    ) -> pa.Table:
        """All updates with lower <= time < upper, exactly as they were at their own times.

        From `lower` 0 on a collection whose since has moved, times before since count at since−1.
        Without `added_up` updates come as they are stored, which costs no sort: those of one row
        and time may be apart. With `seen` a version may answer that this process has seen. Its
        upper has come so far, and the capability is live in it: no newer one says anything else.
        Raises: BeforeSince if `lower` is neither 0 nor beyond since, NotYet if `upper` is past the
        collection's, errors of the capability.
        """
        query = Query(columns, None, where, told, added_up=added_up)

        async def read(state: State) -> pa.Table:
            transitions.live_read(state, capability.id)
            if lower > 0 or state.since.empty:
                transitions.check_since(state, lower)
            if upper > 0 and state.upper.less_equal(upper - 1):
                raise NotYet(
                    f"updates before {upper} may still come: upper is {state.upper}",
                    requested=upper, upper=state.upper,
                )  # fmt: skip
            table = await self._reader.changes(state, lower, upper, query)
            reached = compaction_frontier(state.since)
            with adding_up():
                return advance(table, frontier(reached)) if lower == 0 < reached else table

        known = self._core.versions.seen_past(capability.collection, upper - 1) if seen else None
        if known is not None and capability.id in known.reads:
            with suppress(PartGone):  # it has been merged meanwhile
                return await read(known)
        return await self._read(capability, read)

    async def upper_of_rows(self, collection: str, lower: int, upper: int, rows_max: int) -> int:
        """An instant in (lower, upper] below which about `rows_max` updates from `lower` on lie.

        For readers of a backlog, piece by piece. Cost: no read of an object, nor of the newest
        version where the upper is known to have come to `upper`.
        """
        known = self._core.versions.seen_past(collection, upper - 1)
        state = known or await self._core.versions.state(collection)
        return upper_of_rows(state.pieces_from(lower), lower, upper, rows_max)

    async def _read(
        self, capability: ReadCapability, read: Callable[[State], Awaitable[Answer]]
    ) -> Answer:
        """The result of `read` on the newest version.

        If garbage collection was faster, the result on a version that is kept for it.
        """
        try:
            return await read(await self._core.versions.state(capability.collection))
        except PartGone:
            pass
        async with self.kept_version(capability) as state:
            return await read(state)

    @asynccontextmanager
    async def kept_version(self, capability: ReadCapability) -> AsyncIterator[State]:
        """The newest version, whose objects nobody deletes meanwhile (P8), however long reading
        them takes.

        It is kept by a clone of the capability, with a lease that is renewed. Raises: errors of the
        capability; Corrupt if an object is missing. Cost: two commits.
        """
        commit, now_ms = self._core.versions.commit, self._core.clock.now_ms()
        copy = self._core.ids()

        def kept(state: State) -> tuple[State, State]:
            lease_ms = transitions.live_read(state, capability.id).lease_ms or KEPT_LEASE_MS
            after = transitions.keep_version(state, capability.id, copy, lease_ms, now_ms)
            return after, after

        def dropped(state: State) -> tuple[None, State]:
            return None, transitions.drop(state, copy, self._core.clock.now_ms())

        state = await commit(capability.collection, kept)
        lease_ms = state.reads[copy].lease_ms or KEPT_LEASE_MS
        renewing = asyncio.create_task(self._renew(capability.collection, copy, lease_ms))
        try:
            yield state
        except PartGone as gone:
            newest = await self._core.versions.state(capability.collection)
            transitions.live_read(newest, copy)
            raise Corrupt(
                f"the object {gone} of {capability.collection} is missing", object=str(gone)
            ) from gone
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            # A capability that cannot be dropped now ends with its lease; its answer stays right.
            with suppress(CapabilityExpired, UnknownCapability, Unavailable, Indeterminate):
                await commit(capability.collection, dropped)

    async def _renew(self, collection: str, kept: str, lease_ms: int) -> None:
        """Begin the lease of a clone anew well before it ends, until cancelled or too late."""

        def renewed(state: State) -> tuple[None, State]:
            return None, transitions.renew(state, kept, self._core.clock.now_ms())

        while True:
            await self._core.clock.sleep(lease_ms / 4_000)
            with suppress(Unavailable, Indeterminate):
                await self._core.versions.commit(collection, renewed)

    async def read_updates(self, collection: str) -> pa.Table:
        """All updates that upper has passed, at the times where compaction has left them."""
        return await self._core.versions.read(
            collection, lambda state: self._reader.changes(state, 0, None)
        )

    def subscribe(
        self,
        capability: ReadCapability,
        at: int,
        *,
        snapshot: bool = True,
        up_to: int | None = None,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> AsyncGenerator[Updates | Progress, None]:
        """The contents at `at`, then every later update, with progress statements (SU1–SU6).

        Without `snapshot` only updates after `at`. Ends once everything before `up_to` is
        delivered, or the collection is closed. Raises at the first step: BeforeSince, errors of the
        capability.
        """
        place, query = Place(at, snapshot), Query(columns, None, where)

        async def check_all() -> AsyncGenerator[Updates | Progress, None]:
            await self.check_subscription(capability, at)
            stream = Subscription(self, capability, place, query).stream(up_to)
            try:
                async for event in stream:
                    yield event
            finally:
                await stream.aclose()

        return check_all()

    def subscription(
        self, capability: ReadCapability, at: int, *, snapshot: bool = True
    ) -> Subscription:
        """A subscription that is polled by hand."""
        return Subscription(self, capability, Place(at, snapshot))

    async def check_stated(self, capability: Capability) -> None:
        """Raises: UsageError unless the capability is as its holder states it (K4), or its other
        errors.
        """
        state = await self._core.versions.state(capability.collection)
        transitions.presented(state, capability, exact=True)

    async def check_subscription(self, capability: ReadCapability, at: int) -> None:
        """Whether a subscription at `at` may begin (SU7).

        Raises: errors of the capability, BeforeSince.
        """
        state = await self._core.versions.state(capability.collection)
        transitions.live_read(state, capability.id)
        transitions.check_since(state, at)

    async def news(
        self, capability: ReadCapability, place: Place, query: Query = EVERYTHING
    ) -> tuple[pa.Table, Frontier]:
        """Updates that a subscription at `place` was not told yet, and the collection's upper."""

        async def read(state: State) -> tuple[pa.Table, Frontier]:
            transitions.live_read(state, capability.id)
            lower = await self._first_news(state, place)
            if lower is None or state.upper.less_equal(place.at):
                return nothing_read(state.description, query), state.upper
            table = await self._shared.changes(capability.collection, state, lower, query)
            if place.delivered is None and place.snapshot:
                present = await self._shared.contents(capability.collection, state, place.at, query)
                table = concatenate([_stamped(present, place.at, table.schema), table])
            return table, state.upper

        return await self._read(capability, read)

    async def _first_news(self, state: State, place: Place) -> int | None:
        """The first time not told yet; None if there is none."""
        if place.delivered is None:
            if place.snapshot:
                transitions.check_since(state, place.at)
            transitions.check_since(state, place.at + 1)
            return place.at + 1
        if place.delivered.empty:
            return None
        transitions.check_since(state, place.delivered.elements[0])
        return place.delivered.elements[0]

    def known_past(self, collection: str, beyond: int) -> bool:
        """Whether the upper was past `beyond` when this process last read it: so it is now, since
        an upper never goes back.
        """
        return self._core.versions.seen_past(collection, beyond) is not None

    async def upper_seen(self, collection: str) -> Frontier:
        """An upper that the collection has come to: the newest that this process has seen.

        The present one is not before it. Cost: a read only if this process has seen none.
        """
        known = self._core.versions.seen_past(collection, -1)
        return (known or await self._core.versions.state(collection)).upper

    async def wait_for_upper(self, collection: str, beyond: int, deadline_s: float) -> Frontier:
        """The upper, once it is past `beyond`. Raises: NotYet when `deadline_s` is over.

        Commits of this process wake the caller; those of others are found by polling. Cost: no read
        if this process has seen such an upper, which need not be the newest one.
        """
        known = self._core.versions.seen_past(collection, beyond)
        if known is not None:
            return known.upper
        return await self._past(collection, beyond, deadline_s, lambda state: None)

    async def wait_for_news(
        self, capability: ReadCapability, beyond: int, deadline_s: float
    ) -> Frontier:
        """The upper once it is beyond `beyond`, for as long as the capability lives (K12).

        Raises: the errors of `wait_for_upper`, NotYet.
        """

        def live(state: State) -> None:
            transitions.live_read(state, capability.id)

        return await self._past(capability.collection, beyond, deadline_s, live)

    async def _past(
        self, collection: str, beyond: int, deadline_s: float, check: Callable[[State], None]
    ) -> Frontier:
        end_s = self._core.clock.monotonic_s() + deadline_s
        age_s_max = 0.0
        watched = collection
        while True:
            change = self._core.versions.wakeups.change(watched)
            state = (await self._core.versions.catch_up(collection, age_s_max)).state
            moved_by = self._core.versions.moved_by(collection, state)
            if watched != moved_by:
                watched = moved_by
                continue
            upper = state.upper
            check(state)
            if not upper.less_equal(beyond):
                return upper
            left_s = end_s - self._core.clock.monotonic_s()
            if left_s <= 0:
                raise NotYet(
                    f"{collection} has not come past {beyond}: upper is {upper}",
                    requested=beyond, upper=upper,
                )  # fmt: skip
            await self._core.versions.wakeups.wait(change, min(self._core.poll_interval_s, left_s))
            # Of all that wait for one collection, one asks the store at each interval.
            age_s_max = self._core.poll_interval_s / 2


def _stamped(present: pa.Table, at: int, schema: pa.Schema) -> pa.Table:
    """Contents as updates at one time, with the columns of `schema`."""
    multiplicities = present.column(DIFF)
    stamped = stamp(present.drop_columns([DIFF]), at)
    place = stamped.schema.get_field_index(DIFF)
    return stamped.set_column(place, DIFF, multiplicities).select(schema.names).cast(schema)
