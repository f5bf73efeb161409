"""The laws of lattices and of advancing hold in every domain, for all times and frontiers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.testkit.generators import DOMAINS, LATTICES, antichains_of, times_of
from tidemill.testkit.laws import LAWS, Universe, law_holds
from tidemill.time import (
    U64_TIME,
    Antichain,
    ProductOrder,
    advance,
    advance_lanes,
    beyond_lanes,
    frontier,
)

# The total order is not the partial one, and advancing keeps only the partial one. Two times that a
# sample cannot tell apart may be told apart by a time outside it.
NOT_GENERAL = {"sort-equals-order", "advance-keeps-sort", "advance-canonical"}


@st.composite
def universes(draw: st.DrawFn) -> Universe[Any]:
    lattice: Any = draw(st.sampled_from(LATTICES))
    times = draw(st.lists(times_of(lattice), max_size=4))
    since = draw(antichains_of(lattice, 3))
    earlier = since.meet(draw(antichains_of(lattice, 2)))
    return Universe(lattice, times, since, earlier)


@pytest.mark.parametrize("law", sorted(LAWS.keys() - NOT_GENERAL))
@given(universe=universes())
@settings(max_examples=50, deadline=None)
def test_the_law_holds(law: str, universe: Universe[Any]) -> None:
    if law == "advance-composes" and universe.since.empty:
        return  # an empty F moves nothing, so it cannot undo what G moved
    assert law_holds(law, universe)


@given(universe=universes())
@settings(max_examples=50, deadline=None)
def test_equal_representatives_compare_alike_with_all_times_beyond_since(
    universe: Universe[Any],
) -> None:
    for a in universe.times:
        for b in universe.times:
            if not universe.since.empty and universe.adv(a) == universe.adv(b):
                assert all(universe.le(a, s) == universe.le(b, s) for s in universe.beyond())


def test_representatives_differ_only_if_some_later_read_can_tell() -> None:
    grid = [(x, y) for x in range(4) for y in range(4)]
    lattice = ProductOrder(2)
    for elements in ([(1, 2), (2, 1)], [(0, 3), (3, 0)], [(2, 2)], [(0, 0)]):
        since = Antichain.of(lattice, elements)
        assert law_holds("advance-canonical", Universe(lattice, grid, since, since))


def test_sorting_is_not_the_partial_order_of_products() -> None:
    lattice = ProductOrder(2)
    universe = Universe(lattice, [(1, 9), (2, 0)], Antichain(lattice), Antichain(lattice))
    assert not law_holds("sort-equals-order", universe)
    assert law_holds("sort-equals-order", Universe(U64_TIME, [1, 2, 2], frontier(), frontier()))


def test_advancing_does_not_keep_the_sort_order() -> None:
    lattice = ProductOrder(2)
    since = Antichain.of(lattice, [(1, 0)])
    times = [(0, 5), (1, 0)]
    assert not law_holds("advance-keeps-sort", Universe(lattice, times, since, since))


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_the_sort_order_extends_the_partial_order_in_every_domain(
    domain: Any, data: st.DataObject
) -> None:
    times = data.draw(st.lists(times_of(domain), max_size=5))
    empty: Antichain[Any] = Antichain(domain)
    assert law_holds("sort-extends-order", Universe(domain, times, empty, empty))
    assert all(domain.less_equal(domain.minimum(), time) for time in times)


@given(st.data(), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_columns_advance_and_compare_as_single_times_do(data: st.DataObject, lanes: int) -> None:
    lattice = ProductOrder(lanes)
    times = data.draw(st.lists(times_of(lattice), max_size=6))
    since = data.draw(antichains_of(lattice))
    column = np.array(times, dtype=np.uint64).reshape(len(times), lanes)
    advanced = [tuple(row) for row in advance_lanes(column, since).tolist()]
    assert advanced == [advance(time, since, lattice) for time in times]
    assert beyond_lanes(column, since).tolist() == [since.less_equal(time) for time in times]
