"""The columnar mapping and the live operator answer as the generic ones do."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import UsageError
from tidemill.reclock import (
    UNBOUND,
    Bindings,
    LiveReclock,
    RemapTrace,
    map_offsets,
    rows_of_bindings,
    target_times,
)
from tidemill.testkit.generators import partition_histories, remap_histories
from tidemill.testkit.twins.reclock_operator import ReclockOperator
from tidemill.testkit.twins.reclocking import bindings_of_history
from tidemill.time import PARTITIONED, U64_MAX, Antichain, Partitions, frontier, partition_frontier

laws = settings(max_examples=80, deadline=None)
PAYLOAD = pa.schema([pa.field("x", pa.string())])

places = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.integers(0, 9), st.just(U64_MAX))), max_size=12
)


@given(
    remap_histories(PARTITIONED, latest=U64_MAX - 1),
    places,
    st.sampled_from([0, 3, 20]),
    st.integers(0, 22),
)
@laws
def test_offsets_map_as_single_source_times_do(
    history: Any, listed: list[tuple[int, int]], since: int, upper: int
) -> None:
    remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED, since)
    remap.insert(bindings_of_history(history), frontier(upper))
    partitions = np.array([p for p, _ in listed], dtype=np.int64)
    offsets = np.array([o for _, o in listed], dtype=np.uint64)
    expected = target_times(remap, [Partitions(p, p, o) for p, o in listed])
    rows = rows_of_bindings(bindings_of_history(history))
    bindings = Bindings.of_rows(rows, since, frontier(upper))
    assert map_offsets(bindings, partitions, offsets).tolist() == [
        UNBOUND if time is None else time for time in expected
    ]
    again = pickle.loads(pickle.dumps(bindings))  # noqa: S301  # as in closures of Spark
    assert map_offsets(again, partitions, offsets).tolist() == (
        map_offsets(bindings, partitions, offsets).tolist()
    )


def test_overlapping_ranges_bind_up_to_the_least_of_them() -> None:
    remap: RemapTrace[Partitions] = RemapTrace(PARTITIONED)
    before, after = Partitions(0, U64_MAX, 0), [Partitions(0, 5, 3), Partitions(3, 9, 2)]
    remap.insert(
        [(before, 0, 1), (before, 7, -1), *[(element, 7, 1) for element in after]], frontier()
    )
    partitions = np.array([0, 3, 3, 9, 10], dtype=np.int64)
    offsets = np.array([2, 1, 2, 1, U64_MAX], dtype=np.uint64)
    targets = map_offsets(Bindings.of_trace(remap), partitions, offsets)
    assert targets.tolist() == [7, 7, UNBOUND, 7, 7]


@st.composite
def live_steps(draw: st.DrawFn) -> list[tuple[Any, Any, Any, Any]]:
    """Bindings, upper, rows and source frontier of each step."""
    bindings = bindings_of_history(draw(remap_histories(PARTITIONED, latest=U64_MAX - 1)))
    progress = draw(partition_histories())
    steps = []
    source, upper = Antichain.minimum(PARTITIONED), 0
    for reached in progress:
        closed = upper + draw(st.integers(0, 9))
        due = [b for b in bindings if upper <= b[1] < closed]
        rows = [
            (p, o, draw(st.sampled_from("ab")), draw(st.integers(-1, 2)))
            for p, o in draw(places)
            if source.less_equal(Partitions(p, p, o))
        ]
        steps.append((due, frontier(closed), rows, reached))
        source, upper = reached, closed
    steps.append(([b for b in bindings if b[1] >= upper], frontier(), [], source))
    return steps


def table_of(rows: list[tuple[int, int, str, int]]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([row[0] for row in rows], pa.int64()),
            "offset": pa.array([row[1] for row in rows], pa.uint64()),
            "x": pa.array([row[2] for row in rows], pa.string()),
            "_diff": pa.array([row[3] for row in rows], pa.int64()),
        }
    )


@given(live_steps(), st.sampled_from([0, 0, 6]))
@laws
def test_live_reclocking_answers_as_the_operator_does(steps: Any, as_of: int) -> None:
    live = LiveReclock(PAYLOAD, as_of)
    operator: ReclockOperator[str, Partitions] = ReclockOperator(PARTITIONED, as_of)
    for bindings, upper, rows, source in steps:
        data = [(x, Partitions(p, p, o), diff) for p, o, x, diff in rows]
        expected = operator.step(bindings, upper, data, source)
        answer = live.step(table_of(rows), bindings, upper, source)
        assert answer.frontier == expected.frontier == live.frontier
        assert live.unbound == operator.unbound
        assert live.retained_bindings == operator.retained_bindings
        assert answer.table.column_names == ["x", "_time", "_diff"]
        found = Counter(tuple(row.values()) for row in answer.table.to_pylist())
        assert found == Counter(expected.messages)


def test_rows_without_partition_and_diff_are_inserts_of_partition_0() -> None:
    live = LiveReclock(PAYLOAD, 0, offset_column="line")
    moved = bindings_of_history([(0, partition_frontier({})), (5, partition_frontier({0: 2}))])
    rows = pa.table({"x": ["a", "b", "c"], "line": pa.array([0, 1, 2], pa.uint64())})
    answer = live.step(rows, moved, frontier(6))
    assert answer.table.to_pylist() == [
        {"x": "a", "_time": 5, "_diff": 1},
        {"x": "b", "_time": 5, "_diff": 1},
    ]
    assert live.unbound == 1
    assert live.step().table.schema.names == ["x", "_time", "_diff"]


def test_rows_behind_the_source_frontier_are_refused() -> None:
    live = LiveReclock(PAYLOAD, 0)
    live.step(source_frontier=partition_frontier({1: 4}))
    with pytest.raises(UsageError):
        live.step(table_of([(0, 0, "a", 1), (1, 3, "a", 1)]))
    with pytest.raises(UsageError):
        live.step(source_frontier=partition_frontier({1: 3}))
    live.step(table_of([(0, 0, "a", 1), (1, 4, "a", 1)]))
    assert live.unbound == 2


def test_a_batch_is_mapped_row_by_row_and_never_by_its_highest_offset() -> None:
    live = LiveReclock(PAYLOAD, 0)
    history = [(0, partition_frontier({}))]
    history += [(t, partition_frontier({0: t})) for t in range(1, 1001)]
    n = 100_000
    rows = pa.table(
        {
            "partition": pa.array(np.zeros(n, dtype=np.int64)),
            "offset": pa.array(np.arange(n, dtype=np.uint64) // 100),
            "x": pa.array(["a"] * n),
        }
    )
    answer = live.step(rows, bindings_of_history(history), frontier(1001))
    times = answer.table.column("_time").to_numpy()
    assert (times == np.arange(n, dtype=np.uint64) // 100 + 1).all()
