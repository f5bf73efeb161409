"""Kernels on update tables compared with their twins, which add up lists."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import (
    accumulate,
    advance,
    between,
    concatenate,
    consolidate,
    data_schema,
    empty_updates,
    negate,
    overdrawn,
    stamp,
    update_schema,
)
from tidemill.errors import UsageError
from tidemill.testkit.twins.collections import accumulated, consolidated
from tidemill.time import U64_MAX, U64_TIME, frontier

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("count", pa.int64()),
        pa.field("share", pa.float64()),
        pa.field("seen", pa.bool_()),
    ]
)
Row = tuple[str | None, int | None, float | None, bool | None]

rows = st.tuples(
    st.sampled_from([None, "", "a", "ä", "\U0001f30a"]),
    st.sampled_from([None, -(2**63), 0, 2**63 - 1]),
    st.sampled_from([None, -1.5, 0.0, math.inf]),
    st.sampled_from([None, True, False]),
)
times = st.sampled_from([0, 1, 2, 5, U64_MAX - 1, U64_MAX])
updates = st.lists(st.tuples(rows, times, st.integers(-2, 2)), max_size=25)


def table_of(listed: list[tuple[Row, int, int]]) -> pa.Table:
    columns = [[row[at] for row, _, _ in listed] for at in range(4)]
    columns += [[time for _, time, _ in listed], [diff for _, _, diff in listed]]
    schema = update_schema(SCHEMA)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


@given(updates)
@settings(max_examples=100, deadline=None)
def test_consolidate_sums_the_diffs_of_equal_records_and_times(
    listed: list[tuple[Row, int, int]],
) -> None:
    table = consolidate(table_of(listed))
    assert table.schema == update_schema(SCHEMA)
    assert rows_of(table) == sorted(rows_of(table), key=_order)
    found = {(tuple(row[:4]), row[4]): row[5] for row in rows_of(table)}
    assert found == consolidated(listed)
    assert len(found) == table.num_rows


def _order(row: tuple[object, ...]) -> tuple[tuple[bool, object], ...]:
    return tuple((value is None, b"" if value is None else _bytes(value)) for value in row)


def _bytes(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


@given(updates, st.sampled_from([0, 2, U64_MAX]))
@settings(max_examples=60, deadline=None)
def test_advance_keeps_every_accumulation_beyond_since(
    listed: list[tuple[Row, int, int]], since: int
) -> None:
    table = table_of(listed)
    advanced = advance(table, frontier(since))
    for as_of in (since, since + 3 if since < U64_MAX - 3 else since, U64_MAX):
        assert accumulate(advanced, as_of) == accumulate(table, as_of)
    assert all(time >= since for time in advanced.column("_time").to_pylist())
    assert advance(table, frontier()) == consolidate(table)


@given(updates, times)
@settings(max_examples=60, deadline=None)
def test_accumulate_gives_multiplicities(listed: list[tuple[Row, int, int]], as_of: int) -> None:
    table = accumulate(table_of(listed), as_of)
    found = {tuple(row[:4]): row[4] for row in rows_of(table)}
    assert found == accumulated(U64_TIME, listed, as_of)


@given(updates)
@settings(max_examples=60, deadline=None)
def test_overdrawn_are_the_updates_behind_which_a_record_is_there_less_than_not_at_all(
    listed: list[tuple[Row, int, int]],
) -> None:
    """Twin: accumulation at each time of an update."""
    found = {(tuple(row[:4]), row[4]) for row in rows_of(overdrawn(table_of(listed)))}
    wrong = {
        (row, time)
        for row, time in consolidated(listed)
        if accumulated(U64_TIME, listed, time).get(row, 0) < 0
    }
    assert found == wrong


def test_accumulating_the_cuts_is_accumulating_the_whole() -> None:
    table = table_of([(("a", 1, 0.5, True), time, 1) for time in (0, 3, 7, U64_MAX)])
    assert between(table, 3, 7).column("_time").to_pylist() == [3]
    assert between(table, 0, None) is table
    assert between(table, 4, None).column("_time").to_pylist() == [7, U64_MAX]
    assert between(table, 8, 8).num_rows == 0
    parts = [between(table, 0, 3), between(table, 3, 8), between(table, 8, None)]
    assert consolidate(concatenate(parts)) == consolidate(table)


def test_a_table_without_data_columns_is_one_record() -> None:
    nothing = pa.schema([])
    table = pa.table({"_time": [1, 1, 2], "_diff": [2, 3, -5]}, schema=update_schema(nothing))
    assert consolidate(table).to_pylist() == [{"_time": 1, "_diff": 5}, {"_time": 2, "_diff": -5}]
    assert accumulate(table, 1).to_pylist() == [{"_diff": 5}]
    assert overdrawn(table).num_rows == 0
    assert accumulate(table, 2).num_rows == 0
    assert accumulate(table, 0).num_rows == 0


def test_empty_tables_stay_empty_with_their_schema() -> None:
    table = empty_updates(SCHEMA)
    assert consolidate(table).schema == advance(table, frontier(9)).schema == table.schema
    assert accumulate(table, 5).schema == pa.schema([*SCHEMA, pa.field("_diff", pa.int64())])
    assert between(table, 1, 2).num_rows == 0
    assert data_schema(table.schema) == SCHEMA


def test_an_overflowing_sum_is_refused_and_a_fitting_one_is_exact() -> None:
    big = 2**63 - 1
    table = pa.table(
        {"x": ["a", "a", "a"], "_time": pa.array([1, 1, 1], pa.uint64()), "_diff": [big, 1, -1]}
    )
    assert consolidate(table).column("_diff").to_pylist() == [big]
    for diffs in ([big, 1, 0], [-big, -big, 0], [big, big, big]):
        with pytest.raises(UsageError):
            consolidate(table.set_column(2, "_diff", pa.array(diffs)))
    least = table.set_column(2, "_diff", pa.array([-big, -1, 0]))
    assert consolidate(least).column("_diff").to_pylist() == [-big - 1]


def test_equal_values_are_one_record_however_they_are_written() -> None:
    table = pa.table(
        {
            "x": pa.array([0.0, -0.0, math.nan, -math.nan, None, None]),
            "_time": pa.array([1] * 6, pa.uint64()),
            "_diff": [1] * 6,
        }
    )
    found = consolidate(table)
    assert found.column("_diff").to_pylist() == [2, 2, 2]
    assert math.copysign(1.0, found.column("x")[0].as_py()) == 1.0


@pytest.mark.parametrize(
    "column",
    [
        pa.nulls(3),
        pa.array([[2, 1], None, [2, 1]]),
        pa.array([{"k": 1}, {"k": None}, {"k": 1}]),
        pa.array(["b", "a", "b"]).dictionary_encode(),
        pa.array([3, 1, 3], pa.timestamp("ms")),
        pa.array([b"\xff", b"", b"\xff"]),
        pa.array([2**64 - 1, 0, 2**64 - 1], pa.uint64()),
    ],
)
def test_columns_of_any_type_are_compared(column: pa.Array) -> None:
    table = pa.table({"x": column, "_time": pa.array([1] * 3, pa.uint64()), "_diff": [1] * 3})
    diffs = consolidate(table).column("_diff").to_pylist()
    assert sorted(diffs) == ([3] if pa.types.is_null(column.type) else [1, 2])
    assert consolidate(table).schema == table.schema


def test_chunks_do_not_matter() -> None:
    one = table_of([(("a", 1, None, True), 4, 1), ((None, 1, None, True), 4, 1)])
    many = consolidate(pa.concat_tables([one, one, one]))
    assert many.column("_diff").to_pylist() == [3, 3]


@given(st.lists(st.tuples(rows, times, st.integers(-2, 2)), min_size=2, max_size=2))
@settings(max_examples=300, deadline=None)
def test_two_updates_have_the_order_of_many(pair: list[tuple[Row, int, int]]) -> None:
    table = table_of(pair).select(["name", "count", "_time", "_diff"])
    last = table_of([(("\U0010ffff", 0, None, None), 0, 1)]).select(table.column_names)
    among = consolidate(concatenate([table, last]))
    greatest = among.column("name").to_pylist().index("\U0010ffff")
    others = [at for at in range(among.num_rows) if at != greatest]
    assert rows_of(consolidate(table)) == rows_of(among.take(pa.array(others, pa.int64())))
    assert consolidate(table).schema == table.schema


def test_stamping_and_negating() -> None:
    rows = pa.table({"x": [1, 2]})
    table = stamp(rows, U64_MAX)
    assert table.schema == update_schema(rows.schema)
    assert consolidate(concatenate([table, negate(table)])).num_rows == 0
    with pytest.raises(UsageError):
        negate(stamp(rows, 0, -(2**63)))
