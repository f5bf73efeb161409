"""The pieces of an interval that go out each at one held time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tidemill.time import Antichain

T = TypeVar("T")


def tiles(
    lower: Antichain[T], upper: Antichain[T], held: Sequence[T]
) -> list[tuple[Antichain[T], Antichain[T], T]]:
    """Consecutive pieces of the interval from `lower` to `upper`, one for each held time.

    A piece runs from the edge before it to the minimal elements of `upper` and all later held
    times. So an update goes out at the last held time that is not after it. Empty pieces are left
    out.
    """
    found: list[tuple[Antichain[T], Antichain[T], T]] = []
    edge = lower
    for i, time in enumerate(held):
        end = Antichain.of(upper.domain, (*upper, *held[i + 1 :]))
        if end != edge:
            found.append((edge, end, time))
            edge = end
    return found
