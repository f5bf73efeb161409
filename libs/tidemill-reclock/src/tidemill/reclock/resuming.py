"""Resumption after a restart, and feedback of committed outputs to the source."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from functools import reduce
from typing import Generic, TypeVar

from tidemill.errors import UsageError
from tidemill.reclock.mapping import source_upper
from tidemill.reclock.remap import Binding, RemapTrace
from tidemill.time import Antichain, Frontier, TimeDomain, frontier

F = TypeVar("F", bound=Hashable)


def resume_as_of(uppers: Iterable[Frontier], remap_since: Frontier) -> Frontier:
    """The latest time at which the remap collection still answers for all these output uppers.

    The least of max(t − 1, since) over all t in them; empty if all are empty.
    """
    as_of: Frontier = frontier()
    for upper in uppers:
        for time in upper:
            before = max(time - 1, 0)
            as_of = as_of.meet(
                frontier(max(before, *remap_since)) if len(remap_since) else remap_since
            )
    return as_of


def resume_points(remap: RemapTrace[F], outputs: Mapping[str, Frontier]) -> dict[str, Antichain[F]]:
    """From where the source is read again for each output, given the upper it has written.

    An output with upper [t] has everything up to R(t − 1). One that is not past the since of
    `remap`, the as_of of the restart, starts from the minimum; a closed one never resumes.

    Raises: NotYet if the bindings before an upper are not all known.
    """
    return {
        name: source_upper(remap, *upper) if len(upper) else Antichain(remap.domain)
        for name, upper in outputs.items()
    }


def resume_source(points: Iterable[Antichain[F]], domain: TimeDomain[F]) -> Antichain[F]:
    """From where the source is read again for all outputs: the meet of their points."""
    return reduce(Antichain.meet, points, Antichain(domain))


class CommitFeedback(Generic[F]):
    """Translates what outputs have committed back to the source, for offsets it may forget.

    It is information for the source, not a compaction frontier. Only bindings at times from the
    least committed upper of an open output on are kept one by one.
    """

    __slots__ = ("_as_of", "_committed", "_remap")

    def __init__(self, domain: TimeDomain[F], as_of: int, outputs: Iterable[str]) -> None:
        self._as_of = as_of
        self._remap: RemapTrace[F] = RemapTrace(domain, as_of)
        self._committed: dict[str, Frontier] = dict.fromkeys(outputs, frontier(0))

    @property
    def retained(self) -> int:
        """Number of bindings that are kept one by one."""
        return self._remap.retained

    def commit(self, output: str, upper: Frontier) -> None:
        """An output has durably written everything before `upper`.

        Raises: UsageError for an unknown output or an upper that goes back.
        """
        if output not in self._committed:
            raise UsageError(f"output {output!r} is not one of {sorted(self._committed)}")
        if not self._committed[output].precedes(upper):
            raise UsageError(
                f"the committed upper {upper} of {output!r} is not beyond {self._committed[output]}"
            )
        self._committed[output] = upper
        self._forget()

    def bind(self, bindings: Iterable[Binding[F]], upper: Frontier | None) -> None:
        """The remap collection has these further bindings and, unless None, this upper."""
        self._remap.insert(bindings, upper)
        self._forget()

    def point(self, output: str) -> Antichain[F] | None:
        """The source frontier that the output has committed; None while that is not known."""
        upper = self._committed[output]
        if upper.empty:
            return Antichain(self._remap.domain)
        known = upper.meet(self._remap.upper)
        if known.precedes(frontier(self._as_of)):
            return None
        return source_upper(self._remap, *known)

    def source(self) -> Antichain[F] | None:
        """The frontier that all outputs have committed; None while one of them is unknown.

        Closed outputs hold nothing back.
        """
        points = [self.point(output) for output in self._committed]
        known = [point for point in points if point is not None]
        return resume_source(known, self._remap.domain) if len(known) == len(points) else None

    def _forget(self) -> None:
        """Keep of the bindings only what some output can still ask for."""
        least = reduce(Antichain.meet, self._committed.values(), frontier())
        if least.empty:
            self._remap.compact(frontier())
            return
        (needed,) = least.meet(self._remap.upper)
        if needed - 1 > self._as_of:
            self._remap.compact(frontier(needed - 1))
