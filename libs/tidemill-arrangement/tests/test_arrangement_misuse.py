"""Every misuse of traces and operators is an error with a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidemill.arrangement.trace import Description, ImportedTrace, SharedTrace, Spine, TableBatch
from tidemill.arrangement.updates import TIME, stamp
from tidemill.errors import BeforeSince, NotYet, UsageError
from tidemill.testkit.partial_orders import Join, Reduce, RowBatch, distinct
from tidemill.testkit.partial_orders.batcher import Batcher
from tidemill.time import U64_TIME, Antichain, frontier

MakeBatch = Callable[..., Any]


def by_row(lower: Any, upper: Any, *times: int) -> Any:
    return RowBatch.of(U64_TIME, lower, upper, [((1, 2), time, 1) for time in times])


def by_table(lower: Any, upper: Any, *times: int) -> Any:
    rows = pa.table({"key": pa.array([1] * len(times), pa.int64())})
    stamped = stamp(rows, 0).set_column(1, TIME, pa.array(times, pa.uint64()))
    return TableBatch.of(lower, upper, stamped)


both = pytest.mark.parametrize("batch", [by_row, by_table])


@both
def test_a_batch_of_no_interval_is_refused(batch: MakeBatch) -> None:
    with pytest.raises(UsageError):
        batch(frontier(), frontier())
    with pytest.raises(UsageError):
        batch(frontier(2), frontier(1))


@both
@pytest.mark.parametrize("time", [0, 2])
def test_an_update_outside_the_interval_is_refused(batch: MakeBatch, time: int) -> None:
    with pytest.raises(UsageError):
        batch(frontier(1), frontier(2), time)


@both
def test_a_batch_that_does_not_follow_is_refused_and_changes_nothing(batch: MakeBatch) -> None:
    spine: Spine[int, Any] = Spine(U64_TIME)
    spine.insert(batch(frontier(0), frontier(2), 1))
    for lower, upper in ((3, 4), (1, 4), (2, 2)):  # a hole, an overlap, nothing
        with pytest.raises(UsageError):
            spine.insert(batch(frontier(lower), frontier(upper)))
    assert (spine.upper, len(spine.batches())) == (frontier(2), 1)


@both
def test_nothing_follows_the_last_batch(batch: MakeBatch) -> None:
    spine: Spine[int, Any] = Spine(U64_TIME)
    spine.insert(batch(frontier(0), frontier(), 1))
    with pytest.raises(UsageError):
        spine.insert(batch(frontier(0), frontier(), 1))
    with pytest.raises(UsageError):
        Description(frontier(), frontier(), frontier(0))


@both
def test_a_cut_that_cannot_be_taken_is_refused(batch: MakeBatch) -> None:
    spine: Spine[int, Any] = Spine(U64_TIME)
    for lower, upper in ((0, 2), (2, 6)):
        spine.insert(batch(frontier(lower), frontier(upper), lower))
    spine.set_physical(frontier(2))
    assert spine.through(frontier(0)) == []
    with pytest.raises(UsageError):
        spine.through(frontier(1))  # before the physical frontier
    with pytest.raises(UsageError):
        spine.through(frontier(4))  # inside a batch that waits
    with pytest.raises(NotYet):
        spine.through(frontier(9))  # past the upper
    assert sum(len(one) for one in spine.through(frontier(6))) == 2
    spine.set_logical(frontier())
    with pytest.raises(UsageError):
        spine.through(frontier(6))  # released


@both
def test_a_wide_batch_without_rows_may_be_cut(batch: MakeBatch) -> None:
    spine: Spine[int, Any] = Spine(U64_TIME)
    spine.insert(batch(frontier(0), frontier(9)))
    assert spine.through(frontier(4)) == []


def test_frontiers_of_a_spine_never_go_back() -> None:
    spine: Spine[int, Any] = Spine(U64_TIME)
    spine.set_logical(frontier(5))
    spine.set_physical(frontier(5))
    for move in (spine.set_logical, spine.set_physical):
        move(frontier(5))
        with pytest.raises(UsageError):
            move(frontier(4))


def test_holds_of_a_handle_are_joined_instead() -> None:
    shared: SharedTrace[int, Any] = SharedTrace(Spine(U64_TIME))
    handle = shared.hold("reader")
    handle.set_logical(frontier(5))
    handle.set_physical(frontier(5))
    handle.set_logical(frontier(4))
    handle.set_physical(frontier(4))
    assert (handle.logical, handle.physical) == (frontier(5), frontier(5))
    handle.drop()
    for use in (handle.set_logical, handle.set_physical, handle.through):
        with pytest.raises(UsageError):
            use(frontier(6))
    with pytest.raises(UsageError):
        handle.clone("late")


@both
def test_batches_that_do_not_touch_are_not_merged(batch: MakeBatch) -> None:
    a, b = batch(frontier(0), frontier(1), 0), batch(frontier(2), frontier(3), 2)
    with pytest.raises(UsageError):
        a.begin_merge(b, frontier(0))
    empty = batch(frontier(0), frontier(1)), batch(frontier(2), frontier(3))
    with pytest.raises(UsageError):
        empty[0].merge_empty(empty[1], frontier(0))


@both
def test_a_merge_that_is_not_complete_has_no_outcome_and_enough_fuel_completes_it(
    batch: MakeBatch,
) -> None:
    a, b = batch(frontier(0), frontier(1), 0), batch(frontier(1), frontier(2), 1)
    merger = a.begin_merge(b, frontier(0))
    merger.work(1)
    with pytest.raises(UsageError):
        merger.outcome()
    merger.work(10**9)
    assert len(merger.outcome()) == 2


def test_a_batcher_never_seals_backwards() -> None:
    batcher: Batcher[Any, int] = Batcher(U64_TIME)
    batcher.seal(frontier(3))
    with pytest.raises(UsageError):
        batcher.seal(frontier(2))
    assert batcher.lower == frontier(3)


STEPS: list[Callable[[], Callable[[int, int], object]]] = [
    lambda: _row_stepper(Reduce(U64_TIME, distinct).step),
    lambda: _row_joiner(Join(U64_TIME).push),
]


def _row_stepper(step: Any) -> Callable[[int, int], object]:
    return lambda time, upper: step([((1, 2), time, 1)], frontier(upper))


def _row_joiner(push: Any) -> Callable[[int, int], object]:
    return lambda time, upper: push([((1, 2), time, 1)], [((1, 2), time, 1)], frontier(upper))


@pytest.mark.parametrize("made", STEPS)
def test_no_operator_takes_updates_or_frontiers_of_the_past(made: Any) -> None:
    step = made()
    step(3, 4)
    for time, upper in ((3, 5), (5, 5), (3, 3)):
        with pytest.raises(UsageError):
            step(time, upper)
    step(4, 5)


def test_an_import_before_the_hold_is_refused() -> None:
    shared: SharedTrace[int, Any] = SharedTrace(Spine(U64_TIME))
    handle = shared.hold("reader")
    handle.set_logical(frontier(5))
    with pytest.raises(BeforeSince):
        ImportedTrace(handle, "late", frontier(4))
    assert [holder.name for holder in shared.status().holders] == ["reader"]


def test_a_trace_without_handles_is_gone() -> None:
    shared: SharedTrace[int, Any] = SharedTrace(Spine(U64_TIME))
    shared.hold("reader").drop()
    shared.insert(by_row(frontier(0), frontier(1), 0))
    assert shared.upper == frontier(1)
    with pytest.raises(UsageError):
        shared.hold("late")
    with pytest.raises(UsageError):
        shared.insert(by_row(Antichain.minimum(U64_TIME), frontier(1), 0))
