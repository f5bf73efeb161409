"""Durable collections: every command of the formalism, durable when it returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.shard import transitions
from tidemill.shard.capabilities import (
    Appended,
    AppendOutcome,
    Capability,
    CapabilityId,
    CollectionStatus,
    Holder,
    ReadCapability,
    UpperMismatch,
    WriteCapability,
)
from tidemill.shard.compaction import Compaction
from tidemill.shard.log import Answer, CollectionLog, Known, Transition, folder_of
from tidemill.shard.parts import conform, encode_parts, sorted_updates
from tidemill.shard.ports import Blob, Clock, Consensus
from tidemill.shard.reading import PartCache, PartGone, changes_between, contents_at
from tidemill.shard.state import Description, Part, State, initial_state
from tidemill.shard.subscription import Progress, Subscription, Updates
from tidemill.time import AlreadyUsed, Corrupt, Frontier, NotYet, UsageError, frontier

LEASE_MS = 900_000
POLL_INTERVAL_S = 0.5


class Collections:
    """The collections of one Consensus and Blob, as one process uses them.

    Any number of processes may use the same stores at once. `ids` gives unguessable names (128 bits).
    """

    def __init__(
        self, consensus: Consensus, blob: Blob, clock: Clock, ids: Callable[[], str]
    ) -> None:
        self._consensus = consensus
        self._blob = blob
        self._clock = clock
        self._ids = ids
        self._logs: dict[str, CollectionLog] = {}
        self._cache = PartCache(blob)
        self._moved: dict[str, asyncio.Event] = {}
        self.compaction = Compaction(self._cache, blob, clock, self._write_parts)

    async def open(self) -> None:
        """Nothing is read before it is needed; kept so that a store can refuse early."""
        await self._consensus.keys()

    async def close(self) -> None:
        """Release the stores. Capabilities live on."""
        await self._consensus.close()
        await self._blob.close()

    def _log(self, collection: str) -> CollectionLog:
        log = self._logs.get(collection)
        if log is None:
            log = CollectionLog(collection, self._consensus, self._blob, self._ids)
            self._logs[collection] = log
        return log

    async def _commit(self, collection: str, transition: Transition[Answer]) -> Answer:
        """Commit after ending the leases that have run out; wake who waits for upper."""
        answer, _ = await self._commit_counted(collection, transition)
        return answer

    async def _commit_counted(
        self, collection: str, transition: Transition[Answer]
    ) -> tuple[Answer, bool]:
        now_ms = self._clock.now_ms()
        answer, made = await self._log(collection).commit(
            lambda state: transition(transitions.expire_due(state, now_ms))
        )
        if made:
            event = self._moved.pop(collection, None)
            if event is not None:
                event.set()
        return answer, made

    async def state(self, collection: str) -> State:
        """The newest version, with the leases that have run out ended in it and in the log."""
        known: Known = await self._log(collection).refresh()
        now_ms = self._clock.now_ms()
        if transitions.expire_due(known.state, now_ms) is not known.state:
            await self._commit(collection, lambda state: (None, state))
            known = await self._log(collection).refresh()
        return known.state

    # -- life cycle ---------------------------------------------------------------------------

    async def create(
        self,
        collection: str,
        description: Description,
        *,
        start: Frontier = frontier(0),  # noqa: B008  # a frozen value
        owner: str = "",
        lease_ms: int | None = LEASE_MS,
    ) -> tuple[ReadCapability, WriteCapability | None]:
        """Bind an id: since equals upper equals `start` (CR1, L1).

        The write capability is None where only internal writers append. Raises: AlreadyUsed (L4).
        """
        now_ms = self._clock.now_ms()
        read, write = CapabilityId(self._ids()), CapabilityId(self._ids())
        state = initial_state(description, start)
        _, state = transitions.hold_read(state, read, None, owner, lease_ms, now_ms)
        if description.user_writable:
            _, state = transitions.hold_write(state, write, owner, lease_ms, now_ms)
        if not await self._log(collection).create(state):
            raise AlreadyUsed(f"the id {collection} is or was bound", collection=collection)
        writable = WriteCapability(write, collection, start) if description.user_writable else None
        return ReadCapability(read, collection, start), writable

    async def acquire(
        self, collection: str, *, owner: str = "", lease_ms: int | None = LEASE_MS
    ) -> tuple[ReadCapability, WriteCapability | None]:
        """New capabilities at the current since and upper (AC1–AC3). Raises: UnknownCollection."""
        now_ms = self._clock.now_ms()
        read, write = CapabilityId(self._ids()), CapabilityId(self._ids())

        def acquired(state: State) -> tuple[tuple[Frontier, Frontier | None], State]:
            since, state = transitions.hold_read(state, read, None, owner, lease_ms, now_ms)
            upper: Frontier | None = None
            if state.description.user_writable:
                upper, state = transitions.hold_write(state, write, owner, lease_ms, now_ms)
            return (since, upper), state

        since, upper = await self._commit(collection, acquired)
        writable = None if upper is None else WriteCapability(write, collection, upper)
        return ReadCapability(read, collection, since), writable

    async def read_hold(
        self,
        collection: str,
        *,
        owner: str,
        at: Frontier | None = None,
        lease_ms: int | None = LEASE_MS,
    ) -> ReadCapability:
        """A named hold at since, or at `at` where that is later.

        A hold without a lease belongs to its owner, not to a process: if the owner has one already,
        it is handed out again as it is.
        """
        now_ms = self._clock.now_ms()
        read = CapabilityId(self._ids())

        def taken(state: State) -> tuple[tuple[str, Frontier], State]:
            if lease_ms is None and owner:
                for name, hold in state.reads.items():
                    if hold.owner == owner and hold.lease_ms is None:
                        return (name, hold.frontier), state
            held, state = transitions.hold_read(state, read, at, owner, lease_ms, now_ms)
            return (read, held), state

        name, held = await self._commit(collection, taken)
        return ReadCapability(CapabilityId(name), collection, held)

    async def ids(self) -> tuple[str, ...]:
        """Every id ever bound (L5)."""
        return tuple(await self._consensus.keys())

    def known(self) -> dict[str, State]:
        """The newest states that this process has seen, without looking: for metrics."""
        found = {name: log.cached for name, log in self._logs.items()}
        return {name: state for name, state in found.items() if state is not None}

    async def status(self, collection: str) -> CollectionStatus:
        """Frontiers, holders and size. Raises: UnknownCollection."""
        state = await self.state(collection)
        holders = tuple(
            Holder(hold.owner, hold.frontier, hold.lease_end_ms())
            for hold in sorted(state.reads.values(), key=lambda hold: hold.owner)
        )
        parts = state.parts()
        known = await self._log(collection).refresh()
        return CollectionStatus(
            collection, state.description.kind, state.description.timeline, state.since,
            state.upper, holders, len(state.writes), len(state.batches),
            sum(part.rows for part in parts), sum(part.size for part in parts), known.number,
        )  # fmt: skip

    async def description(self, collection: str) -> Description:
        """What the collection is. Raises: UnknownCollection."""
        return (await self.state(collection)).description

    async def close_collection(self, collection: str) -> None:
        """No update will follow: upper becomes empty."""
        await self._commit(collection, lambda state: (None, transitions.close(state)))

    async def retain(self, collection: str, retain_ms: int | None) -> None:
        """How far since follows upper from now on."""
        await self._commit(
            collection, lambda state: (None, transitions.set_retention(state, retain_ms))
        )

    async def set_policy(self, collection: str, to: Frontier) -> None:
        """A fixed retention frontier. Raises: UsageError if it goes back."""
        await self._commit(collection, lambda state: (None, transitions.set_policy(state, to)))

    # -- capabilities -------------------------------------------------------------------------

    async def clone(self, capability: Capability) -> Capability:
        """The same right with a life of its own (K6)."""
        copy = CapabilityId(self._ids())
        now_ms = self._clock.now_ms()
        held = await self._commit(
            capability.collection,
            lambda state: transitions.clone(state, capability.id, copy, now_ms),
        )
        return type(capability)(copy, capability.collection, held)

    async def downgrade(self, capability: ReadCapability, to: Frontier) -> ReadCapability:
        """Hold a later frontier (K8). Raises: UsageError with both frontiers if it is not later."""
        held = await self._commit(
            capability.collection, lambda state: transitions.downgrade(state, capability.id, to)
        )
        return ReadCapability(capability.id, capability.collection, held)

    async def drop(self, capability: Capability) -> None:
        """Give the right up (K9). Raises: UnknownCapability at the second time."""
        await self._commit(
            capability.collection, lambda state: (None, transitions.drop(state, capability.id))
        )

    async def renew(self, capability: Capability) -> None:
        """Begin the lease anew. Raises: CapabilityExpired, UnknownCapability."""
        now_ms = self._clock.now_ms()
        await self._commit(
            capability.collection,
            lambda state: (None, transitions.renew(state, capability.id, now_ms)),
        )

    async def expire(self, capability: Capability) -> None:
        """End a lease as if its time had run out (K12)."""
        await self._commit(
            capability.collection, lambda state: (None, transitions.expire(state, [capability.id]))
        )

    # -- writing ------------------------------------------------------------------------------

    async def compare_and_append(
        self,
        collection: str,
        expected: Frontier,
        new: Frontier,
        updates: pa.Table | None,
        *,
        writer: str,
        token: str | None = None,
    ) -> AppendOutcome:
        """Append [expected, new) iff expected is the collection's upper (UP1–UP6), atomically.

        Raises: UsageError naming the rule broken; Indeterminate if it may have happened: ask again
        with the same token.
        """
        description = await self._describe(collection)
        transitions.check_bounds(expected, new, _span(updates))
        parts = await self._write_parts(collection, description, updates)
        return await self.append_parts(collection, expected, new, parts, writer=writer, token=token)

    async def append_parts(
        self,
        collection: str,
        expected: Frontier,
        new: Frontier,
        parts: Sequence[Part],
        *,
        writer: str,
        token: str | None = None,
    ) -> AppendOutcome:
        """As `compare_and_append`, for parts that a job has already written."""
        written = transitions.Updates(tuple(parts))
        return await self._commit(
            collection,
            lambda state: transitions.append(state, expected, new, written, writer, token),
        )

    async def update_and_downgrade(
        self,
        capability: WriteCapability,
        updates: pa.Table | None,
        new: Frontier,
        *,
        token: str | None = None,
    ) -> AppendOutcome:
        """Write [held, new) and hold `new` from then on (UP1–UP6, K2).

        Raises: UnknownCapability, CapabilityExpired, UsageError.
        """
        state = await self.state(capability.collection)
        transitions.live_write(state, capability.id)
        transitions.check_bounds(capability.frontier, new, _span(updates))
        parts = await self._write_parts(capability.collection, state.description, updates)
        written = transitions.Updates(tuple(parts))
        return await self._commit(
            capability.collection,
            lambda state: transitions.update(
                state, capability.id, capability.frontier, new, written, token
            ),
        )

    async def _describe(self, collection: str) -> Description:
        cached = self._log(collection).cached
        return (cached or await self.state(collection)).description

    async def _write_parts(
        self, collection: str, description: Description, updates: pa.Table | None
    ) -> list[Part]:
        """Parts of the updates; what is too big for the log is in Blob when this returns."""
        if updates is None or not updates.num_rows:
            return []
        table = sorted_updates(conform(updates, description.update_schema()), description.key)
        parts = []
        for part, data in encode_parts(table, description.key):
            parts.append(await self.store_part(collection, part, data))
        return parts

    async def store_part(self, collection: str, part: Part, data: bytes) -> Part:
        """A part with its bytes where readers find them."""
        if part.inline is not None:
            return part
        key = part_key(collection, self._ids())
        await self._blob.put(key, data)
        return placed(part, key)

    # -- reading ------------------------------------------------------------------------------

    async def snapshot(
        self,
        capability: ReadCapability,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        equal: Mapping[str, object] | None = None,
        where: pc.Expression | None = None,
    ) -> pa.Table:
        """The rows at `as_of` with their multiplicity in `_diff` (F11), never an approximation.

        `columns` are projected after counting; `equal` and `where` filter before. Raises:
        BeforeSince, NotYet, UnknownCapability, CapabilityExpired, Corrupt.
        """

        async def read(state: State) -> pa.Table:
            transitions.live_read(state, capability.id)
            transitions.check_readable(state, as_of)
            return await contents_at(
                state, self._cache, as_of, columns=columns, equal=equal, where=where
            )

        return await self._read(capability.collection, read)

    async def changes(self, capability: ReadCapability, lower: int, upper: int) -> pa.Table:
        """All updates with lower <= time < upper, exactly as they were at their own times.

        Raises: BeforeSince if since is beyond lower, NotYet if upper is beyond the collection's.
        """

        async def read(state: State) -> pa.Table:
            transitions.live_read(state, capability.id)
            if lower > 0:
                transitions.check_readable(state, min(lower, upper) - 1)
            if upper > 0 and state.upper.less_equal(upper - 1):
                raise NotYet(
                    f"updates before {upper} may still come: upper is {state.upper}",
                    requested=upper, upper=state.upper,
                )  # fmt: skip
            return await changes_between(state, self._cache, lower, upper)

        return await self._read(capability.collection, read)

    async def _read(
        self, collection: str, read: Callable[[State], Awaitable[pa.Table]]
    ) -> pa.Table:
        """Read from the newest version; once more if garbage collection was faster."""
        for _ in range(16):
            state = await self.state(collection)
            try:
                return await read(state)
            except PartGone as gone:
                missing = gone
        raise Corrupt(f"the object {missing} of {collection} is missing", object=str(missing))

    def subscribe(
        self,
        capability: ReadCapability,
        at: int,
        *,
        snapshot: bool = True,
        up_to: int | None = None,
    ) -> AsyncIterator[Updates | Progress]:
        """The contents at `at`, then every later update, with progress statements (SU1–SU6).

        Ends once upper reaches `up_to` or is empty. Raises: BeforeSince and errors of the capability.
        """
        return self.subscription(capability, at, snapshot=snapshot).stream(up_to)

    async def check_subscription(self, capability: ReadCapability, at: int) -> None:
        """Whether a subscription at `at` may begin. Raises: errors of the capability, BeforeSince."""
        state = await self.state(capability.collection)
        transitions.live_read(state, capability.id)
        if not state.since.less_equal(at):
            transitions.check_readable(state, at)

    async def stored(self, collection: str) -> pa.Table:
        """All updates that upper has passed, at the times that compaction has left them."""

        async def read(state: State) -> pa.Table:
            bound = None if state.upper.empty else state.upper.elements[0]
            return await changes_between(state, self._cache, 0, bound)

        return await self._read(collection, read)

    def subscription(
        self, capability: ReadCapability, at: int, *, snapshot: bool = True
    ) -> Subscription:
        """A subscription that is polled by hand."""
        return Subscription(self, capability, at, snapshot)

    async def updates_since(
        self, capability: ReadCapability, at: int, delivered: int | None, snapshot: bool
    ) -> tuple[pa.Table | None, Frontier]:
        """What a subscription at `at` that was told everything before `delivered` is told next."""
        found: list[Frontier] = []

        async def read(state: State) -> pa.Table:
            transitions.live_read(state, capability.id)
            found.append(state.upper)
            if delivered is None and not state.since.less_equal(at):
                transitions.check_readable(state, at)
            schema = state.description.update_schema()
            if state.upper.less_equal(at):
                return schema.empty_table()
            bound = None if state.upper.empty else state.upper.elements[0]
            news = await changes_between(
                state, self._cache, at + 1 if delivered is None else delivered, bound
            )
            if delivered is not None or not snapshot:
                return news
            present = await contents_at(state, self._cache, at)
            times = pa.array([at] * present.num_rows, pa.uint64())
            stamped = present.add_column(present.num_columns - 1, "_time", times)
            return pa.concat_tables([stamped.select(schema.names).cast(schema), news])

        table = await self._read(capability.collection, read)
        return table, found[-1]

    async def wait_for_upper(self, collection: str, beyond: int, deadline_s: float) -> Frontier:
        """The upper, once it is past `beyond`. Raises: NotYet when `deadline_s` is over.

        Commits of this process wake the caller; those of others are found by polling.
        """
        waited_s = 0.0
        while True:
            event = self._moved.setdefault(collection, asyncio.Event())
            upper = (await self.state(collection)).upper
            if not upper.less_equal(beyond):
                return upper
            if waited_s >= deadline_s:
                raise NotYet(
                    f"{collection} has not come past {beyond}: upper is {upper}",
                    requested=beyond, upper=upper,
                )  # fmt: skip
            pause_s = min(POLL_INTERVAL_S, deadline_s - waited_s)
            await self._wake_or_pause(event, pause_s)
            waited_s += pause_s

    async def _wake_or_pause(self, event: asyncio.Event, pause_s: float) -> None:
        woken = asyncio.ensure_future(event.wait())
        paused = asyncio.ensure_future(self._clock.sleep(pause_s))
        try:
            await asyncio.wait((woken, paused), return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            paused.cancel()
            await asyncio.gather(woken, paused, return_exceptions=True)

    # -- upkeep -------------------------------------------------------------------------------

    async def compact(self, collection: str) -> None:
        """Run all physical and logical compaction that is allowed now; contents do not change (P6)."""
        await self.compaction.run(collection, self.state, self._commit)

    async def merge_newest(self, collection: str) -> bool:
        """One bounded step of compaction: merge the newest batches of like size; whether it did."""
        return await self.compaction.run(collection, self.state, self._commit, all_batches=False)

    async def collect_garbage(self, collection: str, grace_ms: int) -> int:
        """Delete objects that no version has named for `grace_ms`; how many."""
        state = await self.state(collection)
        now_ms = self._clock.now_ms()
        due = [g.key for g in state.garbage.values() if g.dropped_ms + grace_ms <= now_ms]
        for key in due:
            await self._blob.delete(key)
        if due:
            await self._commit(
                collection, lambda held: (None, transitions.forget_garbage(held, due))
            )
        return len(due)

    async def reap_orphans(self, collection: str, age_ms: int) -> int:
        """Delete objects of a collection that no version names and that are older than `age_ms`."""
        state = await self.state(collection)
        known = await self._log(collection).refresh()
        named = {part.key for part in state.parts()} | set(state.garbage)
        if known.rollup is not None:
            named.add(known.rollup[0])
        limit = self._clock.now_ms() - age_ms
        reaped = 0
        for entry in await self._blob.list(folder_of(collection) + "/"):
            if entry.key not in named and entry.modified_ms < limit:
                await self._blob.delete(entry.key)
                reaped += 1
        return reaped


def part_key(collection: str, unique: str) -> str:
    """The Blob key of a new part."""
    return f"{folder_of(collection)}/part-{unique}"


def placed(part: Part, key: str) -> Part:
    """A part whose bytes are in Blob under `key`."""
    return Part(
        part.rows, part.size, part.checksum, part.time_min, part.time_max, key, None, part.bounds
    )


def _span(updates: pa.Table | None) -> tuple[int, int] | None:
    """(least, greatest) time of an update table."""
    if updates is None or not updates.num_rows:
        return None
    if "_time" not in updates.column_names:
        raise UsageError("updates lack the column _time", reason="CodecMismatch")
    times = updates["_time"]
    return pc.min(times).as_py(), pc.max(times).as_py()


__all__ = ["Appended", "Collections", "UpperMismatch"]
