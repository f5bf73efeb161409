"""Lanes of effects: those of one lane keep their order, and the others do not wait for them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.goals import goal_over
from tidemill.errors import Unavailable
from tidemill_compute.actions.lanes import fire_abreast, lane_by
from tidemill_compute.actions.outbox import Firing
from tidemill_compute.actions.sinks import lane_of_goal

COLUMNS = {"alarm": (("kind", "text"), ("tank", "text"))}


def firings(lanes: Sequence[int]) -> list[Firing]:
    return [
        Firing(f"k{at}", "calls", at, "r", json.dumps([f"t{lane}", at]), None)
        for at, lane in enumerate(lanes)
    ]


class Endpoint:
    """Takes as many turns of the loop for each firing as it is told, and may refuse one."""

    def __init__(self, turns: Sequence[int], refused: int | None = None) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.most = 0
        self._turns = turns
        self._refused = refused

    async def fire(self, firing: Firing) -> None:
        at = firing.instant
        self.begun.append(at)
        self.most = max(self.most, len(self.begun) - len(self.ended))
        for _ in range(self._turns[at % len(self._turns)]):
            await asyncio.sleep(0)
        self.ended.append(at)
        if at == self._refused:
            raise Unavailable("not now")


LANES = st.lists(st.integers(0, 5), min_size=1, max_size=40)
TURNS = st.lists(st.integers(0, 6), min_size=1, max_size=40)


@given(LANES, TURNS, st.integers(1, 7))
def test_a_lane_keeps_its_order_and_the_earliest_comes_first(
    lanes: list[int], turns: list[int], lanes_max: int
) -> None:
    endpoint, due = Endpoint(turns), firings(lanes)
    asyncio.run(fire_abreast(due, lane_by(0), lanes_max, endpoint.fire))
    assert sorted(endpoint.begun) == sorted(endpoint.ended) == list(range(len(due)))
    for lane in set(lanes):
        mine = [at for at, each in enumerate(lanes) if each == lane]
        for order in (endpoint.begun, endpoint.ended):
            assert [at for at in order if lanes[at] == lane] == mine
    assert endpoint.most <= min(lanes_max, len(set(lanes)))
    first = [lanes.index(lane) for lane in dict.fromkeys(lanes)]
    if min(turns) > 0:  # else the first one has ended before another begins
        assert endpoint.begun[: min(lanes_max, len(first))] == first[:lanes_max]
    if lanes_max == 1:
        assert endpoint.begun == list(range(len(due)))


@given(LANES, TURNS, st.integers(1, 7), st.integers(0, 39))
def test_after_a_refusal_no_firing_begins_and_those_under_way_end(
    lanes: list[int], turns: list[int], lanes_max: int, refused: int
) -> None:
    refused %= len(lanes)
    endpoint = Endpoint(turns, refused)
    with pytest.raises(Unavailable):
        asyncio.run(fire_abreast(firings(lanes), lane_by(0), lanes_max, endpoint.fire))
    assert sorted(endpoint.begun) == sorted(endpoint.ended)
    behind = [at for at in endpoint.begun if lanes[at] == lanes[refused] and at > refused]
    assert not behind
    for lane in set(lanes):
        mine = [at for at, each in enumerate(lanes) if each == lane]
        begun = [at for at in endpoint.begun if lanes[at] == lane]
        assert begun == mine[: len(begun)]
    if lanes_max == 1:
        assert endpoint.begun == list(range(refused + 1))


def test_lanes_are_told_at_the_same_time() -> None:
    endpoint = Endpoint([5])
    asyncio.run(fire_abreast(firings([0, 1, 2, 3] * 3), lane_by(0), 3, endpoint.fire))
    assert endpoint.most == 3


def test_a_slow_lane_does_not_hold_the_others_up() -> None:
    lanes = [0, *range(1, 5), 0, *range(1, 5)]
    endpoint = Endpoint([500, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    asyncio.run(fire_abreast(firings(lanes), lane_by(0), 2, endpoint.fire))
    assert endpoint.ended[-2:] == [0, 5]


async def test_who_is_cancelled_leaves_nothing_under_way() -> None:
    endpoint = Endpoint([1_000])
    task = asyncio.create_task(fire_abreast(firings([0, 1]), lane_by(0), 2, endpoint.fire))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(1_200):
        await asyncio.sleep(0)
    assert (endpoint.begun, endpoint.ended) == ([0, 1], [])


@pytest.mark.parametrize(
    ("text", "at"),
    [("alarm(k, t)", 0), ('alarm("hot", t)', 1), ("alarm(_, t)", 0), ('alarm("hot", "a")', 0)],
)
def test_a_lane_is_a_value_of_the_first_argument_that_the_goal_leaves_open(
    text: str, at: int
) -> None:
    assert lane_of_goal(goal_over(text, COLUMNS, "calls")) == at


def test_lanes_of_firings_are_told_apart_by_that_argument() -> None:
    values = ["a", "b", 1, 1.5, None, [1, 2], True, "1"]
    made = [Firing("k", "calls", 1, "r", json.dumps(["x", value]), None) for value in values]
    lanes = Counter(map(lane_by(1), made))
    assert len(lanes) == len(values)
    assert len(set(map(lane_by(0), made))) == 1
    assert len(set(map(lane_by(2), made))) == 1, "without arguments there is one lane"
    assert all(one == other for one, other in itertools.pairwise(map(lane_by(0), made)))
