"""Descriptions of batches: the interval of times, and the frontier of exact accumulations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from tidemill.errors import UsageError
from tidemill.time import Antichain, Lattice

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Description(Generic[T]):
    """All updates at times beyond `lower` and not beyond `upper`.

    At every time beyond `since` the accumulation of the batch is that of those updates. The times
    in the batch may have been advanced by `since`: nothing is promised about each of them.

    Raises: UsageError if `lower` is empty or `upper` is not beyond it.
    """

    lower: Antichain[T]
    upper: Antichain[T]
    since: Antichain[T]

    def __post_init__(self) -> None:
        if self.lower.empty or not self.lower.precedes(self.upper):
            raise UsageError(
                f"no batch runs from {self.lower} to {self.upper}",
                reason="InvalidBounds",
                lower=self.lower,
                upper=self.upper,
            )

    def followed_by(
        self, later: Description[T], logical: Antichain[T], lattice: Lattice[T]
    ) -> Description[T]:
        """The description of this interval and the one that touches it, compacted to `logical`.

        Its since is the join of both sinces and `logical`: what either batch or the readers cannot
        tell apart stays merged.

        Raises: UsageError if the intervals do not touch.
        """
        if self.upper != later.lower:
            raise UsageError(
                f"merge refused: the batch up to {self.upper} does not touch the one from {later.lower}",
                upper=self.upper,
                lower=later.lower,
            )
        since = self.since.join(later.since, lattice).join(logical, lattice)
        return Description(self.lower, later.upper, since)
