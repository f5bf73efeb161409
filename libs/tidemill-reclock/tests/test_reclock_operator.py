"""Operators of reclocking against the twin, and the guarantees of reclocking one by one.

A partitioned log goes through the operator that the service runs, other clocks through the one of
the testkit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidemill.errors import Corrupt, UsageError
from tidemill.reclock import RemapTrace, contents_at
from tidemill.testkit.generators import DOMAINS, histories_of, points_of, remap_histories
from tidemill.testkit.live_operator import LiveOperator, operator_of
from tidemill.testkit.partial_orders.update_sets import advance_updates, consolidate_updates
from tidemill.testkit.twins import reclocking as twin
from tidemill.testkit.twins.reclock_operator import ReclockOperator
from tidemill.testkit.twins.reclocking import ReclockTwin, bindings_of_history, next_upper
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    U64_TIME,
    Antichain,
    Frontier,
    Partitions,
    frontier,
    partition_frontier,
)

any_domain = pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
laws = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Step:
    """All parts of one step; frontiers are those after it."""

    bindings: list[tuple[Any, int, int]]
    upper: Frontier
    data: list[tuple[str, Any, int]]
    source: Antichain[Any]


@dataclass(frozen=True)
class Story:
    """A remap history, a source, and one order in which both become known."""

    domain: Any
    as_of: int
    steps: list[Step]
    history: list[tuple[Any, int, int]]
    """All bindings, also those that no step brings."""

    @property
    def bindings(self) -> list[tuple[Any, int, int]]:
        return [binding for step in self.steps for binding in step.bindings]

    @property
    def data(self) -> list[tuple[str, Any, int]]:
        return [update for step in self.steps for update in step.data]


@st.composite
def stories(draw: st.DrawFn, domain: Any) -> Story:
    """Bindings arrive at or before the step that closes them, data in any order that is allowed."""
    # Of a partitioned log the end of the range stands for no time, and is none.
    latest = 20 if domain is PARTITIONED else U64_MAX
    bindings = bindings_of_history(draw(remap_histories(domain, latest)))
    progress = draw(histories_of(domain))
    uppers = sorted(draw(st.lists(st.integers(0, 21), max_size=4)))
    closing: list[Frontier] = [frontier(time) for time in uppers]
    if draw(st.booleans()):
        closing.append(frontier())
    steps: list[Step] = []
    source, upper = Antichain.minimum(domain), frontier(0)
    waiting = list(bindings)
    for at in range(max(len(progress), len(closing))):
        update = st.tuples(st.sampled_from("ab"), points_of(domain), st.integers(-1, 2))
        data = [u for u in draw(st.lists(update, max_size=4)) if source.less_equal(u[1])]
        source = progress[min(at, len(progress) - 1)]
        upper = closing[min(at, len(closing) - 1)] if closing else upper
        due = [b for b in waiting if not upper.less_equal(b[1]) or draw(st.booleans())]
        waiting = [b for b in waiting if b not in due]
        steps.append(Step(due, upper, data, source))
    return Story(domain, draw(st.sampled_from([0, 0, 1, 7, 30])), steps, bindings)


def emitted(story: Story, steps: Sequence[Step]) -> tuple[Counter[Any], Frontier]:
    operator = operator_of(story.domain, story.as_of)
    messages: Counter[Any] = Counter()
    reached = operator.frontier
    for step in steps:
        answer = operator.step(step.bindings, step.upper, step.data, step.source)
        messages.update(answer.messages)
        reached = answer.frontier
    return messages, reached


@any_domain
@given(data=st.data())
@laws
def test_every_step_answers_as_the_definition_does(domain: Any, data: st.DataObject) -> None:
    story = data.draw(stories(domain))
    operator = operator_of(domain, story.as_of)
    obvious: ReclockTwin[str, Any] = ReclockTwin(domain, story.as_of)
    for step in story.steps:
        messages, reached = obvious.step(step.bindings, step.upper, step.data, step.source)
        answer = operator.step(step.bindings, step.upper, step.data, step.source)
        assert Counter(answer.messages) == Counter(messages)
        assert answer.frontier == reached == operator.frontier


@pytest.mark.rule("G1")
@any_domain
@given(data=st.data())
@laws
def test_g1_every_bound_update_is_emitted_once_at_the_least_time_that_covers_it(
    domain: Any, data: st.DataObject
) -> None:
    story = data.draw(stories(domain))
    messages, _ = emitted(story, story.steps)
    upper = story.steps[-1].upper
    closed = [(s, max(t, story.as_of), n) for s, t, n in story.bindings if not upper.less_equal(t)]
    expected: Counter[Any] = Counter()
    if not upper.less_equal(story.as_of):
        candidates = {story.as_of} | {time for _, time, _ in closed}
        for record, time, diff in story.data:
            target = twin.target_time(domain, closed, candidates, time)
            expected.update([(record, target, diff)] if target is not None else [])
    assert messages == expected


@pytest.mark.rule("G2", "G4")
@any_domain
@given(data=st.data())
@laws
def test_g2_g4_nothing_comes_behind_an_announced_frontier_and_none_goes_back(
    domain: Any, data: st.DataObject
) -> None:
    story = data.draw(stories(domain))
    operator = operator_of(domain, story.as_of)
    for step in story.steps:
        announced = operator.frontier
        answer = operator.step(step.bindings, step.upper, step.data, step.source)
        assert all(announced.less_equal(time) for _, time, _ in answer.messages)
        assert announced.precedes(answer.frontier)
        if step.upper.less_equal(story.as_of):
            assert (answer.messages, answer.frontier) == ((), frontier(story.as_of))


@pytest.mark.rule("G3")
def test_g3_the_output_follows_the_slower_of_bindings_and_source() -> None:
    operator = LiveOperator(0)
    bindings = bindings_of_history(
        [(0, partition_frontier({})), (10, partition_frontier({0: 5})),
         (20, partition_frontier({0: 9}))]
    )  # fmt: skip
    assert operator.step(bindings, frontier(21)).frontier == frontier(10)
    for offsets, reached in (({0: 4}, 10), ({0: 5}, 20), ({0: 8}, 20), ({0: 9}, 21)):
        source = partition_frontier(offsets)
        assert operator.step(source_frontier=source).frontier == frontier(reached)
    assert operator.step(remap_upper=frontier(99)).frontier == frontier(99)


@pytest.mark.rule("G5")
def test_g5_movement_of_another_partition_does_not_release_an_update() -> None:
    history = [
        (0, partition_frontier({})),
        (10, partition_frontier({0: 50})),
        (20, partition_frontier({0: 50, 1: 50})),
        (30, partition_frontier({0: 100, 1: 50})),
    ]
    operator = LiveOperator(0)
    answer = operator.step(
        bindings_of_history(history), frontier(31), [("x", Partitions(0, 0, 50), 1)]
    )
    assert answer.messages == (("x", 30, 1),)


@pytest.mark.rule("G6")
@any_domain
@given(data=st.data(), to=st.sampled_from([0, 1, 7, 20, U64_MAX]))
@laws
def test_g6_compacting_the_bindings_or_the_output_is_one(
    domain: Any, data: st.DataObject, to: int
) -> None:
    assume(domain is not PARTITIONED or to < U64_MAX)
    story = data.draw(stories(domain))
    whole = operator_of(domain, 0)
    compacted = operator_of(domain, to)
    end: Antichain[Any] = Antichain(domain)
    advanced = advance_updates(story.history, frontier(to), U64_TIME)
    after = whole.step(story.history, frontier(), story.data, end).messages
    before = compacted.step(advanced, frontier(), story.data, end).messages
    assert Counter(before) == Counter((record, max(time, to), n) for record, time, n in after)


@pytest.mark.rule("G7", "G10")
@any_domain
@given(data=st.data())
@laws
def test_g7_g10_the_answer_does_not_depend_on_what_arrives_first(
    domain: Any, data: st.DataObject
) -> None:
    story = data.draw(stories(domain))
    last = story.steps[-1]
    everything = Step(story.bindings, last.upper, story.data, last.source)
    bindings_first = [
        Step(story.bindings, last.upper, [], Antichain.minimum(domain)),
        Step([], last.upper, story.data, last.source),
    ]
    data_first = [
        Step([], frontier(0), story.data, last.source),
        Step(story.bindings, last.upper, [], last.source),
    ]
    expected = emitted(story, story.steps)
    assert emitted(story, [everything]) == expected
    assert emitted(story, bindings_first) == expected
    assert emitted(story, data_first) == expected


@pytest.mark.rule("G8")
def test_g8_bindings_before_as_of_take_the_memory_of_one_frontier() -> None:
    as_of = 10_000
    operator = LiveOperator(as_of)
    before: Antichain[Partitions] = Antichain(PARTITIONED)
    most = 0
    for time in range(0, as_of, 10):
        now = partition_frontier({0: time, 1: time + 1})
        changes = [(e, time, -1) for e in before] + [(e, time, 1) for e in now]
        operator.step(changes, frontier(time + 1))
        most = max(most, operator.retained_bindings)
        before = now
    assert most <= 2 * len(before)
    operator.step(remap_upper=frontier(as_of + 1))
    assert operator.retained_bindings == 0


@pytest.mark.rule("G8")
def test_g8_bindings_behind_the_output_frontier_are_forgotten() -> None:
    operator = LiveOperator(0)
    held = partition_frontier({})
    operator.step([(e, 0, 1) for e in held], frontier(1))
    for time in range(1, 200):
        now = partition_frontier({0: time})
        moved = [(e, time, -1) for e in held] + [(e, time, 1) for e in now]
        operator.step(moved, frontier(time + 1), source_frontier=now)
        assert operator.retained_bindings <= 2 * len(now)
        held = now


@pytest.mark.rule("G9")
def test_g9_duplicates_keep_their_multiplicity_at_once_and_after_waiting() -> None:
    operator = LiveOperator(0)
    at, early = Partitions(0, 0, 3), Partitions(0, 0, 1)
    data = [("a", at, 1), ("a", at, 1), ("a", at, -1), ("b", early, 2)]
    bindings = bindings_of_history([(0, partition_frontier({})), (7, partition_frontier({0: 5}))])
    operator.step([b for b in bindings if b[1] == 0], frontier(1), data)
    assert operator.unbound == 4
    operator.step(data=data[:2])
    answer = operator.step([b for b in bindings if b[1] == 7], frontier(8), data)
    expected = Counter({("a", 7, 1): 6, ("a", 7, -1): 2, ("b", 7, 2): 2})
    assert Counter(answer.messages) == expected
    assert operator.unbound == 0


@any_domain
@given(data=st.data())
@laws
def test_what_was_emitted_accumulates_to_the_reclocked_collection(
    domain: Any, data: st.DataObject
) -> None:
    story = data.draw(stories(domain))
    operator = operator_of(domain, 0)
    messages = operator.step(story.history, frontier(), story.data, Antichain(domain)).messages
    remap: RemapTrace[Any] = RemapTrace(domain)
    remap.insert(story.history, frontier())
    for at in (0, 1, 5, 20, U64_MAX):
        expected = twin.contents_at(domain, story.history, story.data, at)
        assert contents_at(remap, story.data, at) == expected
        reached = consolidate_updates((d, 0, n) for d, t, n in messages if t <= at)
        assert {record: n for record, _, n in reached} == expected


def test_a_closed_empty_remap_sends_everything_to_as_of() -> None:
    operator = LiveOperator(5)
    answer = operator.step(
        [], frontier(), [("a", Partitions(0, 0, U64_MAX), 1)], Antichain(PARTITIONED)
    )
    assert answer.messages == (("a", 5, 1),)
    assert answer.frontier.empty


def test_what_can_never_be_bound_is_forgotten_at_the_end() -> None:
    operator: ReclockOperator[str, int] = ReclockOperator(U64_TIME, 0)
    answer = operator.step([(5, 0, 1)], frontier(), [("a", 4, 1), ("b", 5, 1)], frontier())
    assert answer.messages == (("a", 0, 1),)
    assert answer.frontier.empty
    assert operator.unbound == 0
    assert operator.step().frontier.empty


def test_updates_bindings_and_frontiers_behind_are_refused() -> None:
    bindings = bindings_of_history([(0, partition_frontier({}))])
    for operator in (LiveOperator(0), ReclockOperator[str, Partitions](PARTITIONED, 0)):
        operator.step(bindings, frontier(5), [], partition_frontier({0: 3}))
        with pytest.raises(UsageError):
            operator.step(data=[("a", Partitions(0, 0, 2), 1)])
        with pytest.raises(UsageError):
            operator.step([(Partitions(0, 0, 9), 4, 1)])
        with pytest.raises(UsageError):
            operator.step(remap_upper=frontier(4))
        with pytest.raises(UsageError):
            operator.step(source_frontier=partition_frontier({0: 2}))


@pytest.mark.parametrize(
    "bindings",
    [
        [(0, 0, 1), (0, 3, 1)],
        [(0, 0, 1), (4, 3, 1)],
        [(5, 0, 1), (5, 3, -1), (4, 3, 1)],
        [(0, 0, 1), (7, 3, -1)],
        [(0, 0, 2)],
    ],
    ids=["twice", "not an antichain", "goes back", "never came", "doubled"],
)
def test_bindings_that_are_no_antichain_are_refused(bindings: list[tuple[int, int, int]]) -> None:
    operator: ReclockOperator[str, int] = ReclockOperator(U64_TIME, 0)
    with pytest.raises(Corrupt):
        operator.step(bindings, frontier(9))


def test_times_at_the_end_of_the_range_are_times_like_others() -> None:
    operator: ReclockOperator[str, int] = ReclockOperator(U64_TIME, U64_MAX)
    answer = operator.step([(0, 0, 1), (0, U64_MAX, -1), (U64_MAX, U64_MAX, 1)], next_upper(9))
    assert answer.frontier == frontier(U64_MAX)
    data = [("a", U64_MAX - 1, 1), ("b", U64_MAX, 1)]
    answer = operator.step([], next_upper(U64_MAX), data, frontier())
    assert answer.messages == (("a", U64_MAX, 1),)
    assert answer.frontier == frontier()
