"""The reclock operator against its twin, and the guarantees of reclocking one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.update_sets import advance_updates, consolidate_updates
from tidemill.reclock import ReclockOperator, RemapTrace, contents_at
from tidemill.reclock.columns import ColumnReclock, SourceColumns
from tidemill.testkit.generators import DOMAINS, histories_of, points_of, remap_histories
from tidemill.testkit.twins import reclocking as twin
from tidemill.testkit.twins.reclocking import ReclockTwin, bindings_of_history, next_upper
from tidemill.time import (
    PARTITIONED,
    U64_MAX,
    U64_TIME,
    Antichain,
    Corrupt,
    Frontier,
    Partitions,
    UsageError,
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
    bindings = bindings_of_history(draw(remap_histories(domain)))
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
    operator: ReclockOperator[str, Any] = ReclockOperator(story.domain, story.as_of)
    messages: Counter[Any] = Counter()
    reached = operator.frontier
    for step in steps:
        answer = operator.step(step.bindings, step.upper, step.data, step.source)
        messages.update(answer.messages)
        reached = answer.frontier
    return messages, reached


def source_columns(data: Sequence[tuple[str, Partitions, int]]) -> SourceColumns:
    return SourceColumns(
        np.array([time.lo for _, time, _ in data], np.uint64),
        np.array([time.offset for _, time, _ in data], np.uint64),
        np.array(["ab".index(record) for record, _, _ in data], np.uint64),
        np.array([diff for _, _, diff in data], np.int64),
    )


@any_domain
@given(data=st.data())
@laws
def test_every_step_answers_as_the_definition_does(domain: Any, data: st.DataObject) -> None:
    story = data.draw(stories(domain))
    operator: ReclockOperator[str, Any] = ReclockOperator(domain, story.as_of)
    obvious: ReclockTwin[str, Any] = ReclockTwin(domain, story.as_of)
    for step in story.steps:
        messages, reached = obvious.step(step.bindings, step.upper, step.data, step.source)
        answer = operator.step(step.bindings, step.upper, step.data, step.source)
        assert Counter(answer.messages) == Counter(messages)
        assert answer.frontier == reached == operator.frontier


@given(stories(PARTITIONED))
@laws
def test_columns_are_reclocked_as_rows_are(story: Story) -> None:
    by_row: ReclockOperator[str, Any] = ReclockOperator(PARTITIONED, story.as_of)
    by_column = ColumnReclock(story.as_of)
    for step in story.steps:
        expected = by_row.step(step.bindings, step.upper, step.data, step.source)
        answer = by_column.step(step.bindings, step.upper, source_columns(step.data), step.source)
        rows = zip(answer.vals.tolist(), answer.times.tolist(), answer.diffs.tolist(), strict=True)
        assert Counter(("ab"[val], t, n) for val, t, n in rows) == Counter(expected.messages)
        assert answer.frontier == expected.frontier == by_column.frontier
        assert by_column.unbound == by_row.unbound


@pytest.mark.parametrize("step", [1, 2**40])
def test_columns_wait_in_logarithmically_many_runs_and_come_out_once(step: int) -> None:
    """Offsets in order and not, partitions close together and far apart."""
    random = np.random.default_rng(7)
    operator = ColumnReclock(0)
    sent: Counter[Any] = Counter()
    for at in range(40):
        n = int(random.integers(1, 200))
        partitions = random.integers(0, 5, n, np.uint64) * np.uint64(step)
        offsets = random.integers(0, 1000, n, np.uint64)
        vals = np.arange(n, dtype=np.uint64) + np.uint64(1000 * at)
        sent.update(zip(offsets.tolist(), vals.tolist(), strict=True))
        operator.step(data=SourceColumns(partitions, offsets, vals, np.ones(n, np.int64)))
    assert len(operator._waiting) <= 12
    names = [step * p for p in range(5)]
    got: Counter[Any] = Counter()
    for time, cut in enumerate((1, 500, 1000), 1):
        held = partition_frontier(dict.fromkeys(names, cut))
        before = partition_frontier(dict.fromkeys(names, (0, 1, 500)[time - 1]))
        bindings = [(e, time, 1) for e in held] + [(e, time, -1) for e in before if time > 1]
        if time == 1:
            bindings = [
                (Partitions(0, U64_MAX, 0), 0, 1),
                (Partitions(0, U64_MAX, 0), 1, -1),
                *bindings,
            ]
        answer = operator.step(bindings, frontier(time + 1))
        got.update(zip(answer.vals.tolist(), answer.times.tolist(), strict=True))
    expected = Counter(
        {(val, 1 if o < 1 else 2 if o < 500 else 3): n for (o, val), n in sent.items()}
    )
    assert got == expected
    assert operator.unbound == 0


def test_columns_behind_the_source_frontier_are_refused() -> None:
    operator = ColumnReclock(0)
    operator.step(source_frontier=partition_frontier({3: 5}))
    one = np.ones(1, np.int64)
    for partition, offset, refused in ((3, 4, True), (3, 5, False), (2, 0, False)):
        at = SourceColumns(
            np.array([partition], np.uint64),
            np.array([offset], np.uint64),
            one.view(np.uint64),
            one,
        )
        if refused:
            with pytest.raises(UsageError):
                operator.step(data=at)
        else:
            operator.step(data=at)
    assert operator.unbound == 2


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
    operator: ReclockOperator[str, Any] = ReclockOperator(domain, story.as_of)
    for step in story.steps:
        announced = operator.frontier
        answer = operator.step(step.bindings, step.upper, step.data, step.source)
        assert all(announced.less_equal(time) for _, time, _ in answer.messages)
        assert announced.precedes(answer.frontier)
        if step.upper.less_equal(story.as_of):
            assert (answer.messages, answer.frontier) == ((), frontier(story.as_of))


@pytest.mark.rule("G3")
def test_g3_the_output_follows_the_slower_of_bindings_and_source() -> None:
    operator: ReclockOperator[str, Partitions] = ReclockOperator(PARTITIONED, 0)
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
    operator: ReclockOperator[str, Partitions] = ReclockOperator(PARTITIONED, 0)
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
    story = data.draw(stories(domain))
    whole: ReclockOperator[str, Any] = ReclockOperator(domain, 0)
    compacted: ReclockOperator[str, Any] = ReclockOperator(domain, to)
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
    operator: ReclockOperator[str, Partitions] = ReclockOperator(PARTITIONED, as_of)
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
    operator: ReclockOperator[str, int] = ReclockOperator(U64_TIME, 0)
    operator.step([(0, 0, 1)], frontier(1))
    for time in range(1, 200):
        moved = [(time - 1, time, -1), (time, time, 1)]
        operator.step(moved, frontier(time + 1), source_frontier=frontier(time))
        assert operator.retained_bindings <= 2


@pytest.mark.rule("G9")
def test_g9_duplicates_keep_their_multiplicity_at_once_and_after_waiting() -> None:
    operator: ReclockOperator[str, int] = ReclockOperator(U64_TIME, 0)
    data = [("a", 3, 1), ("a", 3, 1), ("a", 3, -1), ("b", 1, 2)]
    operator.step([(0, 0, 1)], frontier(1), data)
    assert operator.unbound == 4
    operator.step(data=data[:2])
    answer = operator.step([(0, 7, -1), (5, 7, 1)], frontier(8), data)
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
    operator: ReclockOperator[str, Any] = ReclockOperator(domain, 0)
    messages = operator.step(story.history, frontier(), story.data, Antichain(domain)).messages
    remap: RemapTrace[Any] = RemapTrace(domain)
    remap.insert(story.history, frontier())
    for at in (0, 1, 5, 20, U64_MAX):
        expected = twin.contents_at(domain, story.history, story.data, at)
        assert contents_at(remap, story.data, at) == expected
        reached = consolidate_updates((d, 0, n) for d, t, n in messages if t <= at)
        assert {record: n for record, _, n in reached} == expected


def test_a_closed_empty_remap_sends_everything_to_as_of() -> None:
    operator: ReclockOperator[str, Partitions] = ReclockOperator(PARTITIONED, 5)
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
    operator: ReclockOperator[str, int] = ReclockOperator(U64_TIME, 0)
    operator.step([(0, 0, 1)], frontier(5), [], frontier(3))
    with pytest.raises(UsageError):
        operator.step(data=[("a", 2, 1)])
    with pytest.raises(UsageError):
        operator.step([(9, 4, 1)])
    with pytest.raises(UsageError):
        operator.step(remap_upper=frontier(4))
    with pytest.raises(UsageError):
        operator.step(source_frontier=frontier(2))


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
