"""Minting: bind the probed frontier of a source to one of our times, beside any other minter.

There is no leader. Every minter writes with compare-and-append on the upper of the remap
collection. A minter that lost reads the winner's bindings and proposes again, or has nothing left
to do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import UsageError
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.time import (
    U64_MAX,
    Antichain,
    Frontier,
    TimeDomain,
    frontier,
    frontier_changes,
    sole_time,
)

F = TypeVar("F", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Proposal(Generic[F]):
    """One compare-and-append on the remap collection: bindings at times in [expected, new)."""

    at: int
    expected: Frontier
    new: Frontier
    bindings: tuple[Binding[F], ...]


class Minter(Generic[F]):
    """One process's view of a remap collection, and what it should write next.

    The driver carries out a proposal and reports `landed` or `lost`, until there is none. An
    unknown outcome is reported as lost: if the write happened after all, the view then covers it.
    The view changes only by these reports and `refresh`, and counts bindings before the hold at it.
    """

    __slots__ = ("_domain", "_hold", "_view", "landed_count", "lost_count")

    def __init__(
        self, domain: TimeDomain[F], as_of: int, bindings: Iterable[Binding[F]], upper: Frontier
    ) -> None:
        self._domain = domain
        self._hold = frontier(as_of)
        self._view: RemapTrace[F] = RemapTrace(domain, as_of)
        self.landed_count = 0
        self.lost_count = 0
        self.refresh(bindings, upper)

    @property
    def view(self) -> RemapTrace[F]:
        """The remap collection as this minter has read it."""
        return self._view

    @property
    def hold(self) -> Frontier:
        """The frontier below which this minter needs no bindings; since of its view."""
        return self._hold

    def propose(self, at: int, source: Antichain[F]) -> Proposal[F] | None:
        """Bindings that bind `source`, the upstream frontier seen by a probe, at `at`.

        None if this view leaves nothing to write: `at` is closed already, or the source is bound
        further than `source`, or it has ended. Unchanged elements are not written. A source that
        did not move gives no bindings and moves the upper. An empty `source` closes the collection.
        """
        upper, bound = self._view.upper, self._view.current
        if not upper.less_equal(at) or not bound.precedes(source):
            return None
        changes = frontier_changes(bound, source)
        closed = source.empty or at == U64_MAX
        return Proposal(
            at,
            expected=upper,
            new=frontier() if closed else frontier(at + 1),
            bindings=tuple((element, at, diff) for element, diff in changes),
        )

    def landed(self, proposal: Proposal[F]) -> None:
        """The proposal was written: it is part of the view."""
        self._view.insert(proposal.bindings, proposal.new)
        self.landed_count += 1

    def lost(self, bindings: Iterable[Binding[F]], upper: Frontier) -> None:
        """The proposal met another upper; this is what the collection holds now."""
        self.lost_count += 1
        self.refresh(bindings, upper)

    def refresh(self, bindings: Iterable[Binding[F]], upper: Frontier) -> None:
        """Take the whole content of the collection, at times before `upper`, as the view.

        Raises: Corrupt if it is not an antichain at each time.
        """
        view: RemapTrace[F] = RemapTrace(self._domain)
        view.insert(bindings, upper)
        view.compact(self._hold)
        self._view = view

    def extend(self, bindings: Iterable[Binding[F]], upper: Frontier) -> None:
        """Add what was written between the upper of the view and `upper`.

        Right only while since has not passed the upper of the view; else `refresh`.
        """
        self._view.insert(bindings, upper)

    def downgrade(self, to: Frontier) -> None:
        """Move the hold: bindings before it count at it from now on.

        Raises: UsageError if `to` is not beyond the hold.
        """
        if not self._hold.precedes(to):
            raise UsageError(
                f"downgrade refused: {to} is not beyond the hold {self._hold}",
                reason="InvalidBounds",
            )
        self._hold = to
        self._view.compact(to)


@dataclass(frozen=True, slots=True)
class MintAt:
    """The time to bind a probe at."""

    time: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The time is closed already: probe again after this long."""

    ms: int


def mint_time(now: int, interval: int, upper: Frontier) -> MintAt | Wait:
    """`now` rounded up to the interval, so that many sources share times, unless it is closed.

    Units: milliseconds. Raises: UsageError if the interval is not positive, the collection has
    ended, or the rounded time
        does not fit in 64 bits.
    """
    if interval <= 0:
        raise UsageError(f"the interval {interval} ms is not positive")
    rounded = -(-now // interval) * interval
    if rounded > U64_MAX:
        raise UsageError(f"no multiple of {interval} ms from {now} on fits in 64 bits")
    return MintAt(rounded) if upper.less_equal(rounded) else Wait(sole_time(upper) - now)
