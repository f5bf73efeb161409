"""Hypothesis strategies for times, antichains, remap histories and source updates.

Strategies are kept: Hypothesis validates each new one, which costs more than to draw from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ParamSpec, TypeVar, cast

from hypothesis import strategies as st

from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    U64_TIME,
    Antichain,
    Partitions,
    ProductOrder,
    SourceFrontier,
    TimeDomain,
    partition_frontier,
)

PRODUCT_2 = ProductOrder(2)

Domain = TimeDomain[Any]  # Any: strategies are written for each domain of times
P = ParamSpec("P")
R = TypeVar("R")


def kept(make: Callable[P, R]) -> Callable[P, R]:
    """`make`, which answers equal arguments with the same strategy; all domains have a hash."""
    return cast("Callable[P, R]", cache(make))


LATTICES: list[Domain] = [U64_TIME, PRODUCT_2, ProductOrder(3)]
DOMAINS: list[Domain] = [*LATTICES, PARTITIONED]

_NUMBERS = st.one_of(st.integers(0, 4), st.sampled_from([U64_MAX - 1, U64_MAX]))


@kept
def times_of(domain: Domain) -> st.SearchStrategy[Any]:
    """Times of `domain`, mostly small so that they meet, some at the end of the range."""
    if domain is U64_TIME:
        return _NUMBERS
    if domain is PARTITIONED:
        bounds = st.tuples(_NUMBERS, _NUMBERS).map(sorted)
        return st.builds(lambda ends, at: Partitions(ends[0], ends[1], at), bounds, _NUMBERS)
    return st.tuples(*[_NUMBERS] * len(domain.minimum()))


@kept
def antichains_of(domain: Domain, max_size: int = 4) -> st.SearchStrategy[Antichain[Any]]:
    """Antichains of `domain`, the empty one included."""
    listed = st.lists(times_of(domain), max_size=max_size)
    return listed.map(lambda times: Antichain.of(domain, times))


@st.composite
def partition_histories(draw: st.DrawFn, max_steps: int = 5) -> list[SourceFrontier]:
    """Source frontiers of a partitioned log, each beyond the one before, the first the minimum.

    Offsets grow, partitions appear with or without content, and some end for good.
    """
    history = [partition_frontier({})]
    offsets: dict[int, int] = {}
    ended: set[int] = set()
    for _ in range(draw(st.integers(0, max_steps))):
        for partition in draw(st.lists(st.integers(0, 3), max_size=3)):
            offsets[partition] = offsets.get(partition, 0) + draw(st.integers(0, 3))
        if offsets and draw(st.integers(0, 5)) == 0:
            ended.add(draw(st.sampled_from(sorted(offsets))))
        if draw(st.integers(0, 11)) == 0:
            history.append(Antichain(PARTITIONED))
            break
        elements = [
            element
            for element in partition_frontier(offsets)
            if not (element.lo == element.hi and element.lo in ended)
        ]
        history.append(Antichain.of(PARTITIONED, elements))
    return history


@st.composite
def lattice_histories(draw: st.DrawFn, domain: Domain, max_steps: int = 5) -> list[Antichain[Any]]:
    """Frontiers of a lattice of times, each beyond the one before, the first the minimum."""
    lattice: Any = domain
    history = [Antichain.minimum(domain)]
    for _ in range(draw(st.integers(0, max_steps))):
        history.append(history[-1].join(draw(antichains_of(domain, 3)), lattice))
        if history[-1].empty:
            break
    return history


@kept
def histories_of(domain: Domain) -> st.SearchStrategy[list[Antichain[Any]]]:
    """Source frontiers of `domain`, each beyond the one before, the first the minimum."""
    return partition_histories() if domain is PARTITIONED else lattice_histories(domain)


@kept
def points_of(domain: Domain) -> st.SearchStrategy[Any]:
    """Times at which source updates come: of a partitioned log single partitions."""
    if domain is PARTITIONED:
        return st.builds(lambda p, o: Partitions(p, p, o), st.integers(0, 4), st.integers(0, 9))
    return times_of(domain)


@st.composite
def remap_histories(
    draw: st.DrawFn, domain: Domain, latest: int = U64_MAX
) -> list[tuple[int, Antichain[Any]]]:
    """R as pairs of a time and the source frontier from then on: ascending, from time 0 on."""
    sources = draw(histories_of(domain))
    later = draw(_later_times(len(sources) - 1, latest))
    return list(zip([0, *sorted(later)], sources, strict=True))


@kept
def _later_times(count: int, latest: int) -> st.SearchStrategy[list[int]]:
    """So many different times after 0."""
    last = st.sampled_from([20, latest])
    either = st.one_of(st.integers(1, 20), last)
    return st.lists(either, min_size=count, max_size=count, unique=True)


@kept
def small_times(lattice: Domain, most: int = 2) -> st.SearchStrategy[Any]:
    """Few different times of a lattice, so that updates meet; no number beyond `most` in a
    tuple.
    """
    if lattice is U64_TIME:
        return st.integers(0, most + 2)
    return st.tuples(*[st.integers(0, most)] * len(lattice.minimum()))


@kept
def small_antichains(lattice: Domain) -> st.SearchStrategy[Antichain[Any]]:
    """Antichains of few different times, never empty."""
    listed = st.lists(small_times(lattice), min_size=1, max_size=3)
    return listed.map(lambda times: Antichain.of(lattice, times))


Round = tuple[list[Any], Antichain[Any], Antichain[Any]]
"""Updates of each input ((key, value), time, diff), the upper after them, and then a since."""


@kept
def _edits_of(lattice: Domain, keys: tuple[object, ...]) -> st.SearchStrategy[list[Any]]:
    """A few updates ((key, value), time, diff)."""
    record = st.tuples(st.sampled_from(keys), st.integers(0, 2))
    edit = st.tuples(record, small_times(lattice), st.sampled_from([1, 1, 2, -1]))
    return st.lists(edit, max_size=6)


@st.composite
def rounds_of(
    draw: st.DrawFn,
    inputs: int,
    *,
    lattices: Sequence[Domain] = LATTICES,
    keys: Sequence[object] = ("j", "k"),
    idle: bool = True,
) -> tuple[Any, list[Round]]:
    """A lattice, and rounds that an operator of so many inputs takes until its end.

    With `idle` some rounds advance nothing.
    """
    lattice: Any = draw(st.sampled_from(lattices))
    edits = _edits_of(lattice, tuple(keys))
    since = lower = Antichain.minimum(lattice)
    rounds: list[Round] = []
    for last in [False] * draw(st.integers(1, 4)) + [True]:
        upper = Antichain(lattice) if last else lower.join(draw(small_antichains(lattice)), lattice)
        listed = [
            [
                update
                for update in draw(edits)
                if lower.less_equal(update[1]) and not upper.less_equal(update[1])
            ]
            for _ in range(inputs)
        ]
        wanted = since.join(draw(small_antichains(lattice)), lattice)
        since = wanted if wanted.precedes(upper) else since
        if idle or upper != lower:
            rounds.append((listed, upper, since))
        lower = upper
    return lattice, rounds
