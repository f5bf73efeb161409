"""The reclock operator: a source collection and its remap collection in, our collection out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import UsageError
from tidemill.reclock.mapping import target_frontier
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.testkit.twins.deferred_updates import ChainBatch, DeferredUpdates
from tidemill.time import Antichain, Frontier, TimeDomain

D = TypeVar("D", bound=Hashable)
F = TypeVar("F", bound=Hashable)

Update = tuple[D, F, int]
Message = tuple[D, int, int]
"""Record, our time, diff."""


@dataclass(frozen=True, slots=True)
class Reclocked(Generic[D]):
    """The output of one step: messages in no order, and the frontier of all that are still to
    come.
    """

    messages: tuple[Message[D], ...]
    frontier: Frontier


class ReclockOperator(Generic[D, F]):
    """Emits each source update exactly once, at the least t with not R(t) ≤ its source time.

    It is emitted in the first step in which a closed binding gives that t; until then it waits.
    Nothing is emitted at a time that is not beyond the frontier announced before, and the frontier
    never goes back. Until the bindings pass `as_of` nothing is emitted; bindings before `as_of`
    count at it.

    Cost: a step costs O(bindings · (width + chains) + updates emitted · width), where bindings are
    those that the output frontier has not passed. Memory: one antichain for what it has passed.
    Source: mz_timely_util::reclock; twin in tidemill.testkit.twins.reclocking.
    """

    __slots__ = ("_deferred", "_remap", "_source")

    def __init__(self, domain: TimeDomain[F], as_of: int) -> None:
        self._remap: RemapTrace[F] = RemapTrace(domain, as_of)
        self._source: Antichain[F] = Antichain.minimum(domain)
        self._deferred: DeferredUpdates[D, F] = DeferredUpdates(domain)

    @property
    def frontier(self) -> Frontier:
        """The output frontier: no message comes at a time that is not beyond it."""
        return self._remap.since

    @property
    def unbound(self) -> int:
        """Number of source updates that wait for a binding."""
        return len(self._deferred)

    @property
    def retained_bindings(self) -> int:
        """Number of bindings that are kept one by one."""
        return self._remap.retained

    def step(
        self,
        bindings: Iterable[Binding[F]] = (),
        remap_upper: Frontier | None = None,
        data: Iterable[Update[D, F]] = (),
        source_frontier: Antichain[F] | None = None,
    ) -> Reclocked[D]:
        """Take in all parts together, then do all work that can be done.

        `None` leaves a frontier as it is. The data are beyond the source frontier before the step.

        Raises: UsageError for updates or bindings behind their frontier and for frontiers that go
            back; Corrupt for bindings that are no antichain.
        """
        before = self._remap.upper
        arrived = self._arrived(data)
        if source_frontier is not None:
            self._downgrade(source_frontier)
        self._remap.insert(bindings, remap_upper)
        messages: list[Message[D]] = []
        for time, held in self._remap.steps():
            bound = arrived.extract(held)
            if before.less_equal(time):
                # Waiting updates were tried with all bindings that were closed before this step.
                bound += self._deferred.extract(held)
            messages.extend((record, time, diff) for record, _, diff in bound)
        self._deferred.add(arrived)
        reached = target_frontier(self._remap, self._source)
        self._remap.compact(reached)
        if reached.empty:
            self._deferred.clear()
        return Reclocked(tuple(messages), reached)

    def _arrived(self, data: Iterable[Update[D, F]]) -> ChainBatch[D, F]:
        updates = list(data)
        for _, time, _ in updates:
            if not self._source.less_equal(time):
                raise UsageError(
                    f"source update refused: {time} is not beyond the source frontier {self._source}",
                    reason="UpdateNotBeyondLower",
                    time=time,
                    frontier=self._source,
                )
        return ChainBatch(self._remap.domain, updates)

    def _downgrade(self, source: Antichain[F]) -> None:
        if not self._source.precedes(source):
            raise UsageError(
                f"the source frontier {source} is not beyond {self._source}", reason="InvalidBounds"
            )
        self._source = source
