"""Oracles where times are partially ordered: from all updates ever, at every time that can matter.

The operators on rows meet the state in which stored times lie beyond the upper.
"""

from __future__ import annotations

from functools import reduce as fold
from importlib import import_module
from typing import Any

import pytest

from tidemill.testkit.partial_orders import Reduce as RowReduce
from tidemill.testkit.partial_orders import distinct
from tidemill.testkit.partial_orders.interesting_times import InterestingTimes, interesting_times
from tidemill.testkit.twins.collections import consolidated
from tidemill.testkit.twins.operators import reduced
from tidemill.time import Antichain, ProductOrder

row_reducing = import_module(RowReduce.__module__)
"""Its name in the package is taken by a function."""

Update = tuple[tuple[int, int], Any, int]

THREE = ProductOrder(3)
UPPERS = (
    Antichain.of(THREE, [(0, 1, 0)]),
    Antichain.of(THREE, [(0, 1, 2), (2, 1, 0)]),
    Antichain(THREE),
)
ROUNDS: tuple[list[Update], ...] = (
    [((7, 1), (2, 0, 0), 1)],
    [((7, 1), (0, 2, 0), 1), ((7, 1), (0, 1, 1), 1)],
    [],
)


def in_rounds_of_rows(compacted: bool) -> dict[Any, int]:
    """The output of a reduction of rows over the three rounds."""
    operator: RowReduce[int, int, Any] = RowReduce(THREE, distinct)
    found: list[Any] = []
    for updates, upper in zip(ROUNDS, UPPERS, strict=True):
        found += operator.step(updates, upper)
        if compacted and len(upper):
            operator.compact(upper)
            while operator.exert(64):
                pass
    return consolidated(found)


EVERYTHING = [update for updates in ROUNDS for update in updates]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_stored_time_that_lies_beyond_upper_owes_its_joins_later(compacted: bool) -> None:
    assert in_rounds_of_rows(compacted) == consolidated(reduced(THREE, distinct, EVERYTHING))


def forgetful_of_rows(
    lattice: Any, new: Any, pending: Any, stored: Any, upper: Any
) -> InterestingTimes[Any]:
    """The fault: partners that lie beyond the upper once they are lifted are passed over."""
    seeds = list(new)
    meet = fold(lattice.meet, seeds) if seeds else lattice.minimum()
    lifted = [lattice.join(time, meet) for time in stored]
    kept = [time for time in lifted if not upper.less_equal(time)]
    return interesting_times(lattice, seeds, pending, kept, upper)


def test_without_joins_of_stored_times_beyond_upper_the_oracle_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_reducing, "interesting_times", forgetful_of_rows)
    assert in_rounds_of_rows(False) != consolidated(reduced(THREE, distinct, EVERYTHING))
