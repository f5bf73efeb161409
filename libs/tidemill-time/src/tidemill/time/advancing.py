"""Advancing times to a frontier: the representative that all later reads cannot tell apart."""

from __future__ import annotations

from functools import reduce
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tidemill.time.antichain import Antichain
from tidemill.time.orders import Lattice

T = TypeVar("T")

Lanes = npt.NDArray[np.uint64]
"""Times of a product order as columns: n rows, one lane for each coordinate."""


def advance(time: T, since: Antichain[T], lattice: Lattice[T]) -> T:
    """The meet over all `f` of `since` of `time ∨ f`; `time` itself if `since` is empty.

    A time beyond `since` compares with the result as it did with `time`. Two times have one result
    iff every time beyond `since` compares with both alike.

    Cost: O(width of `since`).
    Source: Lattice::advance_by, differential-dataflow; laws in tidemill.testkit.laws.
    """
    if since.empty:
        return time
    return reduce(lattice.meet, (lattice.join(time, element) for element in since))


def advance_lanes(times: Lanes, since: Antichain[tuple[int, ...]]) -> Lanes:
    """`advance` of each row of `times`, a product of total orders.

    There `⋀(t ∨ f) = t ∨ ⋀f`: one maximum for each lane.

    Shapes: (n, lanes) in and out.
    Cost: O(n · lanes).
    """
    if since.empty:
        return times
    least: Lanes = np.array(since.elements, dtype=np.uint64).min(axis=0)
    advanced: Lanes = np.maximum(times, least)
    return advanced


def beyond_lanes(times: Lanes, held: Antichain[tuple[int, ...]]) -> npt.NDArray[np.bool_]:
    """Which rows of `times` are beyond the frontier `held`.

    Shapes: (n, lanes) in, (n,) out.
    Cost: O(n · lanes · width of the frontier).
    """
    beyond = np.zeros(len(times), dtype=np.bool_)
    for element in held:
        beyond |= (times >= np.array(element, dtype=np.uint64)).all(axis=1)
    return beyond
