"""Batches over any partially ordered times: cut from held updates, merged with their neighbours."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import UsageError
from tidemill.testkit.partial_orders.update_sets import (
    Update,
    advance_updates,
    consolidate_updates,
    split_updates,
)
from tidemill.time import Antichain, Lattice, TimeDomain

D = TypeVar("D", bound=Hashable)
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SealedBatch(Generic[D, T]):
    """All updates at times beyond `lower` and not beyond `upper`.

    Accumulations at times beyond `since` are exact; times themselves may have been advanced by it.
    """

    lower: Antichain[T]
    upper: Antichain[T]
    since: Antichain[T]
    updates: tuple[Update[D, T], ...]


class Batcher(Generic[D, T]):
    """Holds updates until a frontier passes them, then gives them out as one batch.

    Batches touch: the lower of each is the upper of the one before, the first starts at the
    minimum. Pushed times must be beyond the last upper.
    """

    __slots__ = ("_domain", "_held", "_lower")

    def __init__(self, domain: TimeDomain[T]) -> None:
        self._domain = domain
        self._lower = Antichain.minimum(domain)
        self._held: list[Update[D, T]] = []

    @property
    def lower(self) -> Antichain[T]:
        return self._lower

    def frontier(self) -> Antichain[T]:
        """The minimal times of what is held, after cancelling opposite updates."""
        self._held = consolidate_updates(self._held)
        return Antichain.of(self._domain, (time for _, time, _ in self._held))

    def push(self, updates: Iterable[Update[D, T]]) -> None:
        """Hold `updates`, in any order, opposite and repeated ones included."""
        self._held.extend(updates)

    def seal(self, upper: Antichain[T]) -> SealedBatch[D, T]:
        """Everything held that is not beyond `upper`, consolidated, as the next batch.

        Raises: UsageError if `upper` is not beyond the last one; nothing changes then.
        Cost: O(n · width of `upper`) for n updates held.
        """
        if not self._lower.precedes(upper):
            raise UsageError(
                f"seal refused: {upper} is not beyond {self._lower}",
                reason="InvalidBounds",
                lower=self._lower,
                upper=upper,
            )
        cut, self._held = split_updates(consolidate_updates(self._held), upper)
        batch = SealedBatch(self._lower, upper, Antichain.minimum(self._domain), tuple(cut))
        self._lower = upper
        return batch


def merge_batches(
    a: SealedBatch[D, T], b: SealedBatch[D, T], logical: Antichain[T], lattice: Lattice[T]
) -> SealedBatch[D, T]:
    """One batch for the intervals of `a` and then `b`, advanced as far as readers allow.

    Its since is the join of both sinces and the logical frontier. Times that either batch or the
    readers cannot tell apart stay merged. Accumulations beyond it are those of both together.

    Raises: UsageError if the intervals do not touch or one starts at the empty frontier.
    Cost: O(n · width of the since).
    Source: seed arrangement, since' = batch1.since ∨ batch2.since ∨ logical frontier.
    """
    if a.lower.empty or b.lower.empty:
        raise UsageError("merge refused: no batch starts at the empty frontier")
    if a.upper != b.lower:
        raise UsageError(
            f"merge refused: the batch up to {a.upper} does not touch the one from {b.lower}",
            upper=a.upper,
            lower=b.lower,
        )
    since = a.since.join(b.since, lattice).join(logical, lattice)
    updates = advance_updates((*a.updates, *b.updates), since, lattice)
    return SealedBatch(a.lower, b.upper, since, tuple(updates))
