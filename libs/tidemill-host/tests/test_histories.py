"""Presences of the records of an input: as the obvious reading of its changes has them."""

from __future__ import annotations

import gc
import math

from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.looks import LOOK
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.host.questions.histories import Move, Stretch

MANY = 50_000


def record(number: int) -> Record:
    return Record("p", (number,), time=None if number % 2 else 3)


def twin(stretch: Stretch) -> list[Presence]:
    """Each record with the instant at which it came, until it goes."""
    came: dict[Record, float] = {}
    for each in stretch.present:
        came[each] = -math.inf if stretch.begins == 0 and each.time is None else stretch.begins
    ended: list[Presence] = []
    for each, at, diff in stretch.moves:
        if diff > 0:
            came[each] = at
        else:
            ended.append(Presence(each, came.pop(each), at))
    return ended + [Presence(each, at, math.inf) for each, at in came.items()]


@given(
    begins=st.sampled_from([0, 5]),
    there=st.sets(st.integers(0, 5)),
    turned=st.lists(st.integers(0, 5), max_size=12),
)
def test_presences_are_those_of_the_twin_in_its_order(
    begins: int, there: set[int], turned: list[int]
) -> None:
    now, moves = set(there), list[Move]()
    for at, number in enumerate(turned, begins + 1):
        moves.append((record(number), at, -1 if number in now else 1))
        now ^= {number}
    stretch = Stretch(begins, [record(number) for number in sorted(there)], moves)
    assert stretch.presences() == twin(stretch)


def test_a3_the_collector_of_garbage_finds_no_large_container_that_is_young() -> None:
    """It goes through a young one as a whole, twice: 8 ms for a dict of 200,000 records."""
    stretch = Stretch(5, [record(number) for number in range(MANY)], [(record(0), 6, -1)])
    sizes: list[int] = []

    def look() -> None:
        young = [*gc.get_objects(generation=0), *gc.get_objects(generation=1)]
        sizes.append(max(len(each) for each in young if type(each) in (dict, list, set)))

    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1_000, 2, 7_000)  # of a server
    token = LOOK.set(look)
    try:
        assert len(stretch.presences()) == MANY
    finally:
        LOOK.reset(token)
        gc.set_threshold(*thresholds)
    assert len(sizes) > MANY / 1_000
    assert max(sizes) < MANY / 5
