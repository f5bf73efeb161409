"""Oracles where times are partially ordered: from all updates ever, at every time that can matter.

The operators on rows meet the state in which stored times lie beyond the upper; the parts of loops
 are driven pass by pass, at times of up to four nested rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce as fold
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.loops import counts, reductions, tables
from tidemill.arrangement.loops.counts import distinct as counts_distinct
from tidemill.arrangement.loops.groups import Groups
from tidemill.arrangement.loops.nodes import Arrange, Join, Reduce, Threshold
from tidemill.arrangement.loops.rows import Rows
from tidemill.arrangement.loops.times import Rounds
from tidemill.testkit.partial_orders import Reduce as RowReduce
from tidemill.testkit.partial_orders import count, distinct, greatest, least, threshold, top, total
from tidemill.testkit.partial_orders.interesting_times import InterestingTimes, interesting_times
from tidemill.testkit.twins.collections import consolidated
from tidemill.testkit.twins.operators import joined, reduced
from tidemill.time import U64_TIME, Antichain, ProductOrder

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


def lattice_of(depth: int) -> Any:
    return U64_TIME if depth == 1 else ProductOrder(depth)


def word_of(rounds: Rounds, time: Any) -> int:
    """A time of nested rounds in one word."""
    lanes = (time,) if rounds.depth == 1 else time
    return sum(lane * rounds.one(at + 1) for at, lane in enumerate(lanes))


def time_of(rounds: Rounds, word: int) -> Any:
    """The nested rounds of a word."""
    lanes = tuple(
        word // rounds.one(at + 1) % (1 << rounds.bits) for at in range(max(rounds.depth, 1))
    )
    return lanes[0] if rounds.depth == 1 else lanes


@st.composite
def epochs_in_rounds(
    draw: st.DrawFn, depths: tuple[int, ...] = (1, 2, 3, 4)
) -> tuple[int, list[list[list[tuple[Update, bool]]]]]:
    """A depth and epochs: updates of two inputs, and which of them are handed over early."""
    depth = draw(st.sampled_from(depths))
    lane = st.integers(0, 2)
    time = lane if depth == 1 else st.tuples(*[lane] * depth)
    record = st.tuples(st.sampled_from([3, 2**40]), st.sampled_from([0, 1, 2**24]))
    diff = st.sampled_from([1, 1, 1, 2, -1, -1, 2**15, 2**33, -(2**33)])
    update = st.tuples(st.tuples(record, time, diff), st.booleans())
    inputs = st.lists(st.lists(update, max_size=6), min_size=2, max_size=2)
    return depth, draw(st.lists(inputs, min_size=1, max_size=4))


class Passes:
    """Members of a scope run at each time at which something comes or is due, in order."""

    def __init__(self, depth: int, members: list[Any], inboxes: list[Any], out: Any) -> None:
        self.rounds = Rounds(depth)
        self._members, self._inboxes = members, inboxes
        self.found: list[Any] = []
        out.receivers.append(self._record)
        for member in members:
            member.start(self.rounds)

    def _record(self, rows: Rows) -> None:
        data = zip(rows.keys.tolist(), rows.vals.view(np.int64).tolist(), strict=True)
        times = [time_of(self.rounds, word) for word in rows.times.tolist()]
        self.found += zip(data, times, rows.diffs.tolist(), strict=True)

    def run(self, inputs: list[list[tuple[Update, bool]]]) -> None:
        """One epoch. What is early is delivered in the first pass, whatever its time."""
        coming: dict[int, list[tuple[int, Update]]] = {}
        for side, updates in enumerate(inputs):
            for update, early in updates:
                at = 0 if early else word_of(self.rounds, update[1])
                coming.setdefault(at, []).append((side, update))
        while True:
            due = [member.due for member in self._members if member.due is not None]
            times = [*coming, *due]
            if not times:
                break
            now = min(times)
            for side, update in coming.pop(now, []):
                self._inboxes[side](self._rows([update]))
            for member in self._members:
                member.run(now)
        for member in self._members:
            member.settle()

    def _rows(self, updates: list[Update]) -> Rows:
        return Rows(
            np.array([key for (key, _), _, _ in updates], np.uint64),
            np.array([val for (_, val), _, _ in updates], np.uint64),
            np.array([word_of(self.rounds, time) for _, time, _ in updates], np.uint64),
            np.array([diff for _, _, diff in updates], np.int64),
        )


MEMBERS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "least": (least, lambda: Reduce(reductions.least)),
    "greatest": (greatest, lambda: Reduce(reductions.greatest)),
    "count": (count, lambda: Reduce(reductions.count)),
    "total": (total, lambda: Reduce(reductions.total())),
    "top": (top(2), lambda: Reduce(reductions.top(2))),
    "distinct": (
        threshold(lambda _, n: int(n > 0)),
        lambda: Threshold(lambda _keys, _vals, counts: (counts > 0).astype(np.int64)),
    ),
    "distinct as it comes": (
        threshold(lambda _, n: int(n > 0)),
        lambda: Threshold(counts_distinct),
    ),
    "large": (
        threshold(lambda _, n: 40_000 * (n % 3)),
        lambda: Threshold(lambda _keys, _vals, counts: 40_000 * (counts % 3)),
    ),
}


@pytest.fixture(params=["row by row", "at once"], scope="module")
def _sizes(request: pytest.FixtureRequest) -> Any:
    """The same law where rows are placed one by one, and where all are placed at once."""
    many, bulk = tables.MANY, counts.BULK
    if request.param == "at once":
        tables.MANY = counts.BULK = 1
    yield
    tables.MANY, counts.BULK = many, bulk


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.usefixtures("_sizes")
@settings(max_examples=25, deadline=None)
@given(epochs_in_rounds())
def test_a_member_of_nested_loops_is_right_at_every_time(name: str, drawn: Any) -> None:
    depth, epochs = drawn
    reduction, build = MEMBERS[name]
    member = build()
    passes = Passes(depth, [member], [member.inbox, member.inbox], member.out)
    everything: list[Update] = []
    for inputs in epochs:
        passes.run(inputs)
        everything += [update for updates in inputs for update, _ in updates]
        wanted = consolidated(reduced(lattice_of(depth), reduction, everything))
        assert consolidated(passes.found) == wanted
        member.sweep()


@pytest.mark.usefixtures("_sizes")
@settings(max_examples=60, deadline=None)
@given(epochs_in_rounds((1,)), epochs_in_rounds((1,)), st.booleans(), st.booleans())
def test_a_first_load_of_distinct_records_is_right_at_every_time(
    first: Any, later: Any, idle: bool, swept: bool
) -> None:
    """While only additions come in order, rows are logged; then all that is changed is looked up."""
    member = Threshold(counts_distinct)
    passes = Passes(1, [member], [member.inbox, member.inbox], member.out)
    load = [
        [((record, time, abs(diff) % 100 + 1), False) for (record, time, diff), _ in updates]
        for epoch in first[1]
        for updates in epoch
    ]
    everything: list[Update] = []
    if idle:
        passes.run([])
    for inputs in [[updates for updates in load if updates], *later[1]]:
        passes.run([[update for updates in inputs for update in updates]])
        everything += [update for updates in inputs for update, _ in updates]
        wanted = consolidated(reduced(U64_TIME, MEMBERS["distinct"][0], everything))
        assert consolidated(passes.found) == wanted
        if swept:
            member.sweep()


@pytest.mark.usefixtures("_sizes")
@settings(max_examples=40, deadline=None)
@given(epochs_in_rounds())
def test_a_join_in_nested_loops_is_right_at_every_time(drawn: Any) -> None:
    depth, epochs = drawn
    left, right = Arrange(settled=False), Arrange(settled=False)
    mixed = Join(left, right, lambda keys, a, b: (keys, 3 * a + b))
    passes = Passes(depth, [left, right, mixed], [left.inbox, right.inbox], mixed.out)
    sides: list[list[Update]] = [[], []]
    for inputs in epochs:
        small = [[((r, t, d % 7 - 3), early) for (r, t, d), early in side] for side in inputs]
        passes.run(small)
        for side, updates in zip(sides, small, strict=True):
            side += [update for update, _ in updates]
        pairs = joined(lattice_of(depth), *sides)
        wanted = [(((k, 3 * a + b), t), n) for ((k, a, b), t), n in pairs.items()]
        assert consolidated(passes.found) == consolidated([(d, t, n) for (d, t), n in wanted])
        for member in (left, right):
            member.sweep()


def test_without_the_joins_of_times_the_oracle_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = Groups.evaluate

    def forgetful(groups: Groups, *arguments: Any) -> Any:
        changes, (times, slots) = evaluate(groups, *arguments)
        return changes, (times[:0], slots[:0])

    updates: list[Update] = [((3, 0), (0, 1), 1), ((3, 1), (1, 0), 1)]
    wanted = consolidated(reduced(ProductOrder(2), least, updates))
    found = []
    for fault in (False, True):
        if fault:
            monkeypatch.setattr(Groups, "evaluate", forgetful)
        member = Reduce(reductions.least)
        passes = Passes(2, [member], [member.inbox], member.out)
        passes.run([[(update, False) for update in updates]])
        found.append(consolidated(passes.found))
    assert found[0] == wanted
    assert found[1] != wanted
