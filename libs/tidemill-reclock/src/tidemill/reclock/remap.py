"""The remap collection R: at each of our times, the source frontier that is bound to it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from tidemill.errors import BeforeSince, Corrupt, NotYet, UsageError
from tidemill.time import Antichain, ChangeBatch, Frontier, TimeDomain, frontier

F = TypeVar("F", bound=Hashable)

Binding = tuple[F, int, int]
"""Source time, our time, ±1: an element of the source frontier that comes or goes at our time."""

Change = tuple[F, int]


class RemapTrace(Generic[F]):
    """Bindings between a since and an upper: R(t) for each time beyond since and not beyond upper.

    Bindings at times before since count at since. Those at times beyond upper are kept until upper
    passes them. R(t) accumulates to an antichain with each element exactly once and never goes
    back; bindings that break this are refused as Corrupt.

    Cost: bindings that since has passed are one antichain. Bindings before it, closed or not, take
    memory of the width of the source frontier, however many they were.
    """

    __slots__ = ("_as_of", "_base", "_changes", "_current", "_domain", "_open", "_since", "_upper")

    def __init__(self, domain: TimeDomain[F], since: int = 0) -> None:
        self._domain = domain
        self._as_of = since
        self._since = frontier(since)
        self._upper = frontier(0)
        self._base: Antichain[F] = Antichain(domain)
        self._current = self._base
        self._changes: list[tuple[int, tuple[Change[F], ...]]] = []
        self._open: dict[int, ChangeBatch[F]] = {}

    @property
    def domain(self) -> TimeDomain[F]:
        """Order of the source's times."""
        return self._domain

    @property
    def since(self) -> Frontier:
        """Frontier below which bindings are joined."""
        return self._since

    @property
    def upper(self) -> Frontier:
        """Frontier below which all bindings are known."""
        return self._upper

    @property
    def current(self) -> Antichain[F]:
        """R just before upper, wherever since is."""
        return self._current

    @property
    def readable(self) -> bool:
        """Whether upper has passed since, so that R is known at since."""
        return not any(self._upper.less_equal(time) for time in self._since)

    @property
    def retained(self) -> int:
        """Number of bindings that are kept one by one."""
        return sum(len(changes) for _, changes in self._changes) + sum(
            len(batch) for batch in self._open.values()
        )

    def insert(self, bindings: Iterable[Binding[F]], upper: Frontier | None = None) -> None:
        """Add bindings, then move upper; `None` leaves it.

        Raises: UsageError if a binding, advanced to the first since, is not beyond the old upper,
        or upper would go back. Corrupt if R is no well-formed antichain, or goes back, at a time
        that upper passed.
        """
        for source, time, diff in bindings:
            counted_at = max(time, self._as_of)
            if not self._upper.less_equal(counted_at):
                raise UsageError(
                    f"binding refused: {time} is not beyond the upper {self._upper}",
                    reason="UpdateNotBeyondLower",
                    time=time,
                    upper=self._upper,
                )
            if not self._since.empty:
                self._open.setdefault(counted_at, ChangeBatch()).update(source, diff)
        if upper is not None:
            self._close(upper)

    def at(self, time: int) -> Antichain[F]:
        """R(time).

        Raises: BeforeSince if `time` is not beyond since, NotYet if it is beyond upper.
        """
        if not self._since.less_equal(time):
            raise BeforeSince(
                f"{time} is not beyond the since {self._since} of the remap collection",
                requested=time,
                since=self._since,
            )
        if self._upper.less_equal(time):
            raise NotYet(
                f"{time} is beyond the upper {self._upper} of the remap collection",
                requested=time,
                upper=self._upper,
            )
        held = self._base
        for changed_at, held_then in self.steps():
            if changed_at > time:
                break
            held = held_then
        return held

    def steps(self) -> Iterator[tuple[int, Antichain[F]]]:
        """Since and each later closed time of a binding, ascending, with R there.

        Between two of them R does not change. None if upper has not passed since, or since is
        empty.
        """
        if not self.readable or self._since.empty:
            return
        held = self._base
        yield self._since.elements[0], held
        for time, changes in self._changes:
            held = _applied(held, changes)
            yield time, held

    def changes(self) -> Iterator[tuple[int, tuple[Change[F], ...]]]:
        """Changes of R: all of it at since, then the changes at each later closed time."""
        if not self.readable or self._since.empty:
            return
        yield self._since.elements[0], tuple((element, 1) for element in self._base)
        yield from self._changes

    def compact(self, to: Frontier) -> None:
        """Move since to `to`, unless it is there already: R stays as it is at times beyond it."""
        if to.precedes(self._since):
            return
        self._since = to
        if to.empty:
            self._base = self._current
            self._changes = []
            self._open = {}
            return
        (since,) = to
        passed = 0
        for time, changes in self._changes:
            if time > since:
                break
            self._base = _applied(self._base, changes)
            passed += 1
        del self._changes[:passed]

    def _close(self, upper: Frontier) -> None:
        if not self._upper.precedes(upper):
            raise UsageError(
                f"the upper {upper} is not beyond the upper {self._upper} of the remap collection",
                reason="InvalidBounds",
            )
        self._upper = upper
        for time in sorted(time for time in self._open if not upper.less_equal(time)):
            changes = tuple(self._open.pop(time).drain())
            if not changes:
                continue
            self._current = _checked(self._current, changes, time)
            if self._since.less_equal(time) and time not in self._since:
                self._changes.append((time, changes))
            else:
                self._base = self._current


def _applied(held: Antichain[F], changes: Iterable[Change[F]]) -> Antichain[F]:
    """R after `changes`, which are known to keep it an antichain."""
    elements = dict.fromkeys(held)
    for element, diff in changes:
        if diff > 0:
            elements[element] = None
        else:
            del elements[element]
    return Antichain(held.domain, tuple(sorted(elements, key=held.domain.sort_key)))


def _checked(held: Antichain[F], changes: tuple[Change[F], ...], time: int) -> Antichain[F]:
    """R after `changes` at `time`. Raises Corrupt if it is not well-formed or goes back."""
    present = set(held)
    if any(diff != (-1 if element in present else 1) for element, diff in changes):
        raise Corrupt(f"an element of the remap collection is not there exactly once at {time}")
    before = held.beyond()
    for element, diff in changes:
        if diff > 0 and not held.empty and not before.covers(element):
            raise Corrupt(
                f"the remap collection goes back at {time}: {element} is not beyond {held}"
            )
    after = _applied(held, changes)
    if len(Antichain.of(held.domain, after)) != len(after):
        raise Corrupt(f"the remap collection is not an antichain at {time}: {after}")
    return after
