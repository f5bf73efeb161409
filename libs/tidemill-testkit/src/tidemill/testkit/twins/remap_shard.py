"""A remap collection shared by named operators, as one state machine in memory.

It decides as the durable collection does: compare-and-append on upper, since held back by the
operators' holds. It never waits, so tests, the simulator and the case runner drive it directly.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import BeforeSince, NotYet, UnknownCapability, UsageError
from tidemill.reclock.mapping import source_upper, target_frontier, target_times
from tidemill.reclock.minting import Minter, Proposal
from tidemill.reclock.remap import Binding
from tidemill.testkit.partial_orders.update_sets import advance_updates
from tidemill.time import U64_TIME, Antichain, Frontier, TimeDomain, frontier

F = TypeVar("F", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Minted:
    """Outcome of one probe: the time it is bound at, if any, and the number of lost races."""

    lands_at: int | None
    mismatches: int


class RemapShard(Generic[F]):
    """The collection and its operators. Since is the meet of all holds and never goes back.

    Each operator has a hold, and a view that changes only by its own calls.
    """

    __slots__ = ("_bindings", "_domain", "_operators", "_since", "_upper")

    def __init__(self, domain: TimeDomain[F]) -> None:
        self._domain = domain
        self._bindings: list[Binding[F]] = []
        self._since = frontier(0)
        self._upper = frontier(0)
        self._operators: dict[str, Minter[F]] = {}

    @property
    def since(self) -> Frontier:
        """Frontier below which bindings are joined."""
        return self._since

    @property
    def upper(self) -> Frontier:
        """Frontier below which all bindings are known."""
        return self._upper

    @property
    def bindings(self) -> Sequence[Binding[F]]:
        """The content, its times advanced to since, consolidated."""
        return tuple(advance_updates(self._bindings, self._since, U64_TIME))

    def open(self, name: str, as_of: int) -> None:
        """Open an operator that holds `as_of` and sees the collection as it is now.

        The first to open writes the minimum source frontier at time 0.

        Raises: UsageError if the name is open; BeforeSince if `as_of` is not beyond since; NotYet
        if
            it is beyond upper, except 0.
        """
        if name in self._operators:
            raise UsageError(f"operator {name!r} is open already")
        if not self._since.less_equal(as_of):
            raise BeforeSince(
                f"cannot open at {as_of}: it is not beyond the since {self._since}",
                requested=as_of,
                since=self._since,
            )
        if self._upper == frontier(0):
            self._bindings.append((self._domain.minimum(), 0, 1))
            self._upper = frontier(1)
        if as_of != 0 and self._upper.less_equal(as_of):
            raise NotYet(
                f"cannot open at {as_of}: it is beyond the upper {self._upper}",
                requested=as_of,
                upper=self._upper,
            )
        self._operators[name] = Minter(self._domain, as_of, self._bindings, self._upper)
        self._advance_since()

    def mint(self, name: str, at: int, source: Antichain[F]) -> Minted:
        """Bind `source` at `at`, proposing again after each lost race, until nothing is left to
        do.
        """
        minter = self._operator(name)
        mismatches = 0
        while (proposal := minter.propose(at, source)) is not None:
            if self._append(proposal):
                minter.landed(proposal)
                return Minted(at, mismatches)
            mismatches += 1
            minter.lost(self._bindings, self._upper)
        return Minted(None, mismatches)

    def target_times(self, name: str, times: Sequence[F]) -> list[int | None]:
        """The target of each source time by all that is written, seen from the operator's hold."""
        return target_times(self._read(name).view, times)

    def target_frontier(self, name: str, source: Antichain[F]) -> Frontier:
        """The frontier of our times that `source` stands for, seen from the operator's hold."""
        return target_frontier(self._read(name).view, source)

    def source_upper(self, name: str, upper: int) -> Antichain[F]:
        """The source frontier that our times before `upper` cover, seen from the operator's
        hold.
        """
        return source_upper(self._read(name).view, upper)

    def downgrade(self, name: str, to: Frontier) -> None:
        """Move the operator's hold. Raises: UsageError if `to` is not beyond it."""
        self._operator(name).downgrade(to)
        self._advance_since()

    def close(self, name: str) -> None:
        """End the operator and its hold."""
        self._operator(name)
        del self._operators[name]
        self._advance_since()

    def _operator(self, name: str) -> Minter[F]:
        if name not in self._operators:
            raise UnknownCapability(f"operator {name!r} is not open")
        return self._operators[name]

    def _read(self, name: str) -> Minter[F]:
        minter = self._operator(name)
        minter.refresh(self._bindings, self._upper)
        return minter

    def _append(self, proposal: Proposal[F]) -> bool:
        """Compare-and-append; false if the upper is not the expected one."""
        if proposal.expected != self._upper:
            return False
        self._bindings.extend(proposal.bindings)
        self._upper = proposal.new
        return True

    def _advance_since(self) -> None:
        if not self._operators:
            return
        held: Frontier = frontier()
        for minter in self._operators.values():
            held = held.meet(minter.hold)
        self._since = self._since.join(held, U64_TIME)
        # A hold may lie beyond upper. The stored frontier stays before it: minters ask for R there.
        readable = frontier(*[time - 1 for time in self._upper])
        stored = self._since.meet(readable) if len(readable) else self._since
        self._bindings = advance_updates(self._bindings, stored, U64_TIME)
