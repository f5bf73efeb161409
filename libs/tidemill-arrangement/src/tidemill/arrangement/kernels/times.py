"""Times as lanes: where they lie against a frontier, and what they advance to.

A frontier is a matrix of its elements, (elements, lanes); the empty one has no rows. The order is
that of a product of total orders: each lane at least as great.
"""

from __future__ import annotations

import numpy as np

from tidemill.arrangement.kernels.arrays import BoolArray, U64Array
from tidemill.arrangement.kernels.columns import Columns
from tidemill.time import Antichain


def frontier_rows(frontier: Antichain[int] | Antichain[tuple[int, ...]], lanes: int) -> U64Array:
    """The elements of a frontier of whole numbers or of tuples of them, one in each row."""
    return np.array(frontier.elements, np.uint64).reshape(-1, lanes)


def beyond(times: U64Array, frontier: U64Array) -> BoolArray:
    """Which times are beyond the frontier: some element of it is at or before them.

    Shapes: times (lanes, n), frontier (elements, lanes), out (n,).
    Cost: O(n · lanes · elements).
    """
    found = np.zeros(times.shape[1], np.bool_)
    for element in frontier:
        found |= (times >= element[:, None]).all(axis=0)
    return found


def advance_by(times: U64Array, since: U64Array) -> U64Array:
    """Each time's representative under `since`: all times beyond `since` compare with both alike.

    In a product of total orders the meet over f of (t ∨ f) is t ∨ the meet of all f: one maximum a
    lane. An empty `since` moves nothing. Rows sorted by time need not stay sorted when there are
    several lanes.

    Shapes: times (lanes, n) in and out, since (elements, lanes).
    Cost: O(n · lanes).
    """
    if not len(since):
        return times
    advanced: U64Array = np.maximum(times, since.min(axis=0)[:, None])
    return advanced


def split(updates: Columns, frontier: U64Array) -> tuple[Columns, Columns]:
    """The updates at times not beyond `frontier`, and those beyond it, each in their order.

    Cost: O(n · lanes · elements).
    """
    later = beyond(updates.times, frontier)
    if not later.any():
        return updates, Columns.empty(updates.lanes)
    if later.all():
        return Columns.empty(updates.lanes), updates
    return updates.where(~later), updates.where(later)
