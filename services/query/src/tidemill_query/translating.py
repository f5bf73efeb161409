"""Translation between instants and offsets of a source, both ways."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pyarrow.compute as pc

from tidemill.arrangement.updates import DIFF, TIME, concatenate, stamp
from tidemill.catalog.directory import SourceOf
from tidemill.errors import BeforeSince, NotYet, UsageError
from tidemill.host.questions.limits import QuestionLimits
from tidemill.host.questions.working import Workers
from tidemill.reclock import bindings_of_rows, covered_since
from tidemill.rpc.messages import Translation
from tidemill.runtime.clock import Clock
from tidemill.shard import Collections, CollectionStatus, ReadCapability
from tidemill.shard.offloading import ROWS_INLINE_MAX
from tidemill.time import PARTITIONED, Antichain, SourceFrontier, shown_offsets, sole_time

STREAM = -1
"""The row of the stream itself in the map of event time."""

Reading = Callable[[str, str], AbstractAsyncContextManager[ReadCapability]]
Definite = Callable[[str, int | None, float | None], Awaitable[int]]


class Translator:
    """R and its adjoint, for every instant of which the source answers, and for no other.

    An instant of the system is bound by R itself. An instant of event time is looked up in the
    event map first. The answer there holds the rows that had come when event time went past it.
    """

    def __init__(
        self, collections: Collections, clock: Clock, reading: Reading, definite: Definite,
        workers: Workers, limits: QuestionLimits,
    ) -> None:  # fmt: skip
        """`definite` gives the asked instant of a collection once it is definite, or the latest
        one.
        """
        self._collections = collections
        self._clock = clock
        self._reading = reading
        self._definite = definite
        self._workers = workers
        self._limits = limits

    async def as_of(self, source: SourceOf, at: int | None, wait_s: float | None) -> Translation:
        """The offsets behind the answer. Raises: NotYet, BeforeSince as for the answer itself.

        Cost: the bindings up to the instant are read, those that its retention has not merged.
        """
        at = await self._definite(source.collection, at, wait_s)
        status = await self._collections.status(source.collection)
        _refuse_before(source, status, at)
        bound_at = at if source.event_map is None else await self._find_passed(source.event_map, at)
        allowance = self._workers.allowance()
        async with self._reading(source.remap, "translate") as held:
            rows = await self._collections.snapshot(held, bound_at, told=allowance.take)
        bindings = bindings_of_rows(stamp(rows.drop_columns([DIFF]), bound_at))
        offsets = Antichain.of(PARTITIONED, (element for element, _, _ in bindings))
        return Translation(at, status.timeline, bound_at, offsets, status.since, status.upper)

    async def find_covering(
        self, source: SourceOf, wanted: SourceFrontier, wait_s: float | None
    ) -> Translation:
        """As of the least instant whose answer is made of all records before `wanted`, and what
        else is in it.

        Raises: NotYet, saying how far the source is; BeforeSince if they were in before since;
        UsageError. Cost: all bindings that are kept are read.
        """
        if len(wanted) > self._limits.offsets:
            raise UsageError(
                f"question refused: it has offsets of {len(wanted):,} ranges of partitions, more than "
                f"{self._limits.offsets:,} (limits.question_offsets); ask for some of them at a time",
                reason="limits",
            )
        until_s = self._clock.monotonic_s() + (wait_s or 0.0)
        bound_at = await self._find_bound(source, wanted, until_s)
        at = bound_at
        if source.event_map is not None:
            at = await self._event_frontier(source, source.event_map, bound_at - 1)
        return await self.as_of(source, at, max(0.0, until_s - self._clock.monotonic_s()))

    async def _find_bound(self, source: SourceOf, wanted: SourceFrontier, until_s: float) -> int:
        """The least instant of the system at which R says at least `wanted`."""
        allowance = self._workers.allowance()
        async with self._reading(source.remap, "translate") as held:
            begin = sole_time(held.frontier)
            at = upper = begin
            while True:
                upper = await self._past(source, wanted, upper, until_s)
                told = allowance.take
                rows = await self._collections.snapshot(held, at, told=told)
                changes = await self._collections.changes(held, at + 1, upper, told=told)
                updates = concatenate([changes, stamp(rows.drop_columns([DIFF]), at)])
                long = updates.num_rows + len(wanted) > ROWS_INLINE_MAX
                found = await self._workers.beside(
                    long, covered_since, updates, wanted.elements, at
                )
                if found is not None and found == begin > source.begins:
                    raise BeforeSince(
                        f"{shown_offsets(wanted)} of {source.name} came in at {begin} or before: what was "
                        "bound when is known from there on; keep more by spec.retain",
                        since=held.frontier,
                    )
                if found is not None:
                    return found
                at = upper - 1

    async def _past(
        self, source: SourceOf, wanted: SourceFrontier, known: int, until_s: float
    ) -> int:
        """The upper of the bindings, past the one that is known.

        Raises: NotYet, with how far the source is.
        """
        left_s = max(0.0, until_s - self._clock.monotonic_s())
        try:
            return sole_time(await self._collections.wait_for_upper(source.remap, known, left_s))
        except NotYet as error:
            come = "nothing is bound yet"
            if known > source.begins + 1:
                latest = await self.as_of(source, None, None)
                come = f"as of {latest.as_of} it has come to {shown_offsets(latest.offsets)}"
            raise NotYet(
                f"{shown_offsets(wanted)} of {source.name} is not in any answer yet: {come}; "
                "ask again later, or wait for it",
                **{**error.details, "collection": source.collection},
            ) from None

    async def _find_passed(self, event_map: str, at: int) -> int:
        """The least instant of the system at which event time had gone past `at`, which it has."""
        async with self._reading(event_map, "translate") as held:
            begin = sole_time(held.frontier)
            upper = sole_time((await self._collections.status(event_map)).upper)
            stream = (pc.field("partition") == STREAM) & (pc.field("frontier") > at)
            already = await self._collections.snapshot(held, begin, where=stream)
            if already.num_rows and begin:
                raise BeforeSince(
                    f"what was in at {at} is no longer known: event time had gone past it at {begin} or "
                    "before, from where its map is known; keep more by spec.retain",
                    requested=at, since=held.frontier,
                )  # fmt: skip
            moves = await self._collections.changes(held, begin, upper, where=stream)
        return int(pc.min(moves.filter(pc.field(DIFF) > 0).column(TIME)).as_py())

    async def _event_frontier(self, source: SourceOf, event_map: str, at: int) -> int:
        """The event frontier at an instant of the system; 0 before the source began."""
        if at < source.begins:
            return 0
        async with self._reading(event_map, "translate") as held:
            rows = await self._collections.snapshot(held, at, equal={"partition": STREAM})
        return int(rows.column("frontier")[0].as_py()) if rows.num_rows else 0


def _refuse_before(source: SourceOf, status: CollectionStatus, at: int) -> None:
    if not status.since.less_equal(at):
        raise BeforeSince(
            f"what the answers of {source.name} at {at} were made of is no longer known: since is "
            f"{status.since}",
            requested=at, since=status.since, holder=status.moved_by,
        )  # fmt: skip
