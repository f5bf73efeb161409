"""Commands that append updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.arrangement.updates import TIME
from tidemill.errors import Indeterminate, TidemillError, UsageError
from tidemill.shard import transitions
from tidemill.shard.absent import refuse_absent, takes_away
from tidemill.shard.appending import Write, answered, append, check_bounds, update
from tidemill.shard.capabilities import Appended, AppendOutcome, UpperMismatch, WriteCapability
from tidemill.shard.conforming import admitted
from tidemill.shard.log import Transition
from tidemill.shard.parts import Part, has_at_most, span_of
from tidemill.shard.reading import VersionReader
from tidemill.shard.state import Batch, State
from tidemill.shard.versions import Core
from tidemill.time import Frontier

NOT_HELD: Mapping[str, WriteCapability] = MappingProxyType({})
INLINE_TOTAL_MAX = 4 * 1024 * 1024
"""More than this is not kept in the log of one collection, however small the writes are."""
CROWD = 64
"""So many more collections are written to before those that are closed are forgotten."""


Outcome = TypeVar("Outcome", "AppendOutcome", "AppendOutcome | None")


class WriteCommands:
    """Compare-and-append for internal writers, UpdateAndDowngrade for holders of write
    capabilities.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reading = VersionReader(core.parts)
        self._inline = _InlineBytes()
        self.mismatches: Counter[str] = Counter()
        """Appends of this process, by collection, that another writer was ahead of: for metrics."""

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

        A repeated `token` of one `writer` answers as the first time and applies nothing. Raises:
        UsageError naming the rule broken; Indeterminate: ask again with the same token.
        """
        span = _span(updates)
        check_bounds(expected, new, span)
        now_ms = self._core.clock.now_ms()
        return await self._append(
            collection,
            updates,
            span,
            lambda write: lambda state: append(state, expected, new, write, writer, token, now_ms),
        )

    async def append_all(
        self,
        lower: Frontier,
        upper: Frontier,
        updates: Mapping[str, pa.Table],
        *,
        writer: str,
        held: Mapping[str, WriteCapability] = NOT_HELD,
    ) -> bool:
        """Append [lower, upper) of several collections in one transaction; whether that was done.

        Of those in `held` a capability is presented, which has to hold `lower`.

        If not, the store has no such transactions, a collection stands elsewhere or is in use, or
        updates are too many for the log. Nothing has happened then, unless the answer was lost;
        `compare_and_append` of each finds out. Raises: UsageError as it does. Cost: one commit.
        """
        if not self._core.versions.groups:
            return False
        transitions, rows, now_ms = {}, 0, self._core.clock.now_ms()
        for collection, table in updates.items():
            span = _span(table)
            check_bounds(lower, upper, span)
            parts = await self._inline_parts(collection, table)
            if parts is None:
                return False
            write = Write(parts, span, self._core.ids())
            presented = held.get(collection)
            transitions[collection] = partial(
                append, expected=lower, new=upper, write=write, writer=writer, now_ms=now_ms
            ) if presented is None else partial(
                update, capability=presented.id, stated=lower, new=upper, write=write, now_ms=now_ms
            )  # fmt: skip
            rows += table.num_rows
        with self._core.parts.stages.timed("commit", rows):
            return await self._core.versions.commit_together(transitions)

    async def _inline_parts(self, collection: str, updates: pa.Table) -> tuple[Part, ...] | None:
        """Parts that need no object, None if there are none."""
        known = self._core.versions.cached(collection)
        if known is None:
            return None
        if not updates.num_rows:
            return ()
        store, description = self._core.parts, known.state.description
        few = has_at_most(updates, store.limits.inline_bytes_max)
        if not few or self._inline.of(collection, known.state) >= INLINE_TOTAL_MAX:
            return None
        schema, limits = description.update_schema(), store.limits
        conforming = admitted(updates, schema, limits.row_bytes_max, limits.diff_max)
        parts = await store.write(collection, description, conforming)
        if any(part.key for part in parts):
            await store.discard(parts)
            return None
        return parts

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
        """Append parts of one sorted whole that a job has written, as `compare_and_append` does."""
        now_ms = self._core.clock.now_ms()
        return await self._append_written(
            collection,
            Write(tuple(parts), _span_of(parts), self._core.ids()),
            lambda write: lambda state: append(state, expected, new, write, writer, token, now_ms),
        )

    async def update_and_downgrade(
        self,
        capability: WriteCapability,
        updates: pa.Table | None,
        new: Frontier,
        *,
        token: str | None = None,
        body: str = "",
        there: bool = False,
    ) -> AppendOutcome:
        """Write [held, new) and hold `new` from then on (UP1–UP6, K2), atomically.

        `body` is what tells a request with a token from another one. With `there` a row that is
        taken away has to be there, by all that is written before this. Raises: UnknownCapability,
        CapabilityExpired, UsageError; Indeterminate: ask again with the same token. Cost: with
        `there` and rows that are taken away a read of all parts that may hold them.
        """
        collection = capability.collection
        transitions.live_write(await self._core.versions.state(collection), capability.id)
        span = _span(updates)
        check_bounds(capability.frontier, new, span)
        stated, now_ms = capability.frontier, self._core.clock.now_ms()
        checks = there and updates is not None and takes_away(updates)
        while True:
            seen = await self._check_there(capability, updates, token, body) if checks else None

            def written(
                write: Write, seen: State | None = seen
            ) -> Transition[AppendOutcome | None]:
                def transition(state: State) -> tuple[AppendOutcome | None, State]:
                    if seen is not None and _differ(seen, state):
                        return None, state
                    return update(state, capability.id, stated, new, write, token, now_ms, body)

                return transition

            outcome = await self._append(collection, updates, span, written)
            if outcome is not None:
                return outcome

    async def _check_there(
        self, capability: WriteCapability, updates: pa.Table | None, token: str | None, body: str
    ) -> State | None:
        """The version over which the updates take nothing away that is not there.

        None if that does not matter: the collection allows it, or the answer is known without.
        Raises: UsageError (NotThere).
        """
        assert updates is not None
        collection, store = capability.collection, self._core.parts

        async def look(state: State) -> State | None:
            hold = state.writes.get(capability.id)
            stale = hold is None or hold.frontier != capability.frontier
            known = token is not None and answered(state, capability.id, token, body) is not None
            if state.description.allow_negative or stale or known:
                return None
            schema = state.description.update_schema()
            conforming = admitted(
                updates, schema, store.limits.row_bytes_max, store.limits.diff_max
            )
            await refuse_absent(self._reading, collection, state, conforming)
            return state

        return await self._core.versions.read(collection, look)

    async def find_answer(
        self, capability: WriteCapability, token: str | None, body: str = ""
    ) -> Appended | None:
        """The earlier answer to an update with this token; None if there was none.

        Raises: UsageError (TokenUsed) if that update had another `body`.
        """
        if token is None:
            return None
        state = await self._core.versions.state(capability.collection)
        return answered(state, capability.id, token, body)

    async def _append(
        self,
        collection: str,
        updates: pa.Table | None,
        span: tuple[int, int] | None,
        transition: Callable[[Write], Transition[Outcome]],
    ) -> Outcome:
        log = self._core.versions.log(collection)
        known = log.cached or await log.refresh()
        store = self._core.parts
        if updates is not None:
            schema = known.state.description.update_schema()
            updates = admitted(updates, schema, store.limits.row_bytes_max, store.limits.diff_max)
        # NB: a lost race that is seen before anything is written is counted here, others at the
        # commit.
        if updates is not None and not has_at_most(updates, store.limits.inline_bytes_max):
            # An append that would change nothing is not worth an object.
            known = await log.refresh()
            before = self._core.versions.expired(collection, known.state)
            outcome, after = transition(Write((), span, ""))(before)
            if after is before:
                self.mismatches[collection] += isinstance(outcome, UpperMismatch)
                return outcome
        if self._inline.crowded:
            for name in {*self._inline.collections(), *self.mismatches}:
                seen = self._core.versions.cached(name)
                if seen is not None and seen.state.upper.empty:
                    self._inline.forget(name)
                    self.mismatches.pop(name, None)
        inline = self._inline.of(collection, known.state) < INLINE_TOTAL_MAX
        # NB: readers in this process are close behind its writers.
        parts = await store.write(
            collection, known.state.description, updates, inline=inline, keep=True
        )
        return await self._append_written(
            collection, Write(parts, span, self._core.ids()), transition
        )

    async def _append_written(
        self,
        collection: str,
        write: Write,
        transition: Callable[[Write], Transition[Outcome]],
    ) -> Outcome:
        """Commit an append; objects that it turns out not to name are deleted."""
        commit = self._core.versions.commit_counted
        try:
            with self._core.parts.stages.timed("commit", sum(part.rows for part in write.parts)):
                outcome, made = await commit(collection, transition(write))
        except Indeterminate:
            raise
        except TidemillError:
            await self._core.parts.discard(write.parts)
            raise
        self.mismatches[collection] += isinstance(outcome, UpperMismatch)
        if not made or isinstance(outcome, UpperMismatch):
            await self._core.parts.discard(write.parts)
        return outcome


def _differ(seen: State, state: State) -> bool:
    """Whether something was written between two versions, or merged."""
    same = seen.batches == state.batches and seen.staged == state.staged
    return not (same and seen.upper == state.upper)


class _InlineBytes:
    """Bytes of each collection in the log; the part that its newest batches add is counted once."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[Batch, ...], int]] = {}
        self._looked = 0

    @property
    def crowded(self) -> bool:
        """Whether so many more are here that some may be closed; once for each that many."""
        crowded = len(self._seen) > 2 * self._looked + CROWD
        if crowded:
            self._looked = len(self._seen)
        return crowded

    def collections(self) -> Iterable[str]:
        """The collections of which something is known."""
        return self._seen

    def forget(self, collection: str) -> None:
        """Forget a collection that is closed."""
        self._seen.pop(collection, None)
        self._looked = len(self._seen)

    def of(self, collection: str, state: State) -> int:
        """The value of `state.inline_bytes()` without staged batches."""
        batches, size = self._seen.get(collection, ((), 0))
        if state.batches[: len(batches)] != batches:
            batches, size = (), 0
        size += sum(batch.inline_bytes for batch in state.batches[len(batches) :])
        self._seen[collection] = state.batches, size
        return size


def _span(updates: pa.Table | None) -> tuple[int, int] | None:
    """(least, greatest) time of an update table. Raises: UsageError if it has no times."""
    if updates is None or not updates.num_rows:
        return None
    if updates.schema.get_field_index(TIME) < 0:
        raise UsageError("updates lack the column _time", reason="CodecMismatch")
    times = updates.column(TIME)
    if times.type == pa.uint64() and not times.null_count:
        return span_of(times.to_numpy())
    limits = pc.min_max(times)
    least, greatest = limits["min"].as_py(), limits["max"].as_py()
    if not isinstance(least, int) or not isinstance(greatest, int):
        raise UsageError("the column _time holds no times", reason="CodecMismatch")
    return least, greatest


def _span_of(parts: Sequence[Part]) -> tuple[int, int] | None:
    if not parts:
        return None
    return min(part.time_min for part in parts), max(part.time_max for part in parts)
