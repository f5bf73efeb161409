"""Rows sorted by words are in the order in which Arrow puts them, column by column."""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.row_order import ROWS_MIN, ascends, order_of
from tidemill.arrangement.updates import consolidate, stamp

FAR = [0, 1, -1, 5, 2**31, -(2**31), 2**63 - 1, -(2**63)]
CELLS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.sampled_from(FAR) | st.integers(-3, 3)),
    (pa.uint64(), st.sampled_from([0, 1, 2**64 - 1, 2**63])),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.sampled_from([0.0, -1.5, 1e300, float("inf"), float("-inf"), float("nan")])),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text("aä\U0001f600\uffff\x00", max_size=9)),
    (pa.date32(), st.dates(datetime.date(1, 1, 1), datetime.date(9999, 1, 1))),
    (pa.timestamp("us"), st.datetimes()),
]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 60))
    columns = {}
    for at in range(draw(st.integers(1, 5))):
        kind, cells = draw(st.sampled_from(CELLS))
        few = draw(st.lists(cells, min_size=1, max_size=6))
        some = st.none() | st.sampled_from(few) if draw(st.booleans()) else st.sampled_from(few)
        columns[f"c{at}"] = pa.array(draw(st.lists(some, min_size=rows, max_size=rows)), kind)
    return pa.table(columns)


def by_arrow(table: pa.Table) -> list[int]:
    keys = [(name, "ascending") for name in table.column_names]
    return pc.sort_indices(table, sort_keys=keys).to_pylist()


@settings(max_examples=300, deadline=None)
@given(tables())
def test_rows_are_in_the_order_of_arrow(table: pa.Table) -> None:
    order = order_of(table.columns)
    assert order is not None
    assert order.tolist() == by_arrow(table)


@settings(max_examples=300, deadline=None)
@given(tables(), st.booleans())
def test_rows_ascend_where_each_tuple_is_greater_than_the_one_before(
    table: pa.Table, in_order: bool
) -> None:
    if in_order:
        table = table.take(pc.unique(pa.array(by_arrow(table)))).combine_chunks()
    known = {pa.string(), pa.int64(), pa.uint64()}
    judged = all(c.type in known and not c.null_count for c in table.columns)
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    twin = judged and all(
        tuple(map(_ranked, before)) < tuple(map(_ranked, row))
        for before, row in pairwise(rows)
    )  # fmt: skip
    assert ascends(table.columns) == twin


def _ranked(cell: Any) -> Any:
    return cell.encode() if isinstance(cell, str) else cell


def test_rows_in_pieces_are_not_said_to_ascend() -> None:
    pieces = pa.chunked_array([[1, 2], [3]], pa.int64())
    assert not ascends([pieces])
    assert ascends([pa.chunked_array([pieces.combine_chunks()])])


@pytest.mark.parametrize("values", [3, 10**6, 2**63])
def test_columns_that_do_not_fit_into_a_word_are_cut_and_ties_are_broken(values: int) -> None:
    numbers = np.random.default_rng(values)
    drawn = [numbers.integers(-(values - 1), values - 1, 5_000) for _ in range(5)]
    table = pa.table({f"c{at}": column for at, column in enumerate([drawn[0] % 7, *drawn])})
    order = order_of(table.columns)
    assert order is not None
    assert order.tolist() == by_arrow(table)


def test_values_without_an_order_by_numbers_are_left_to_arrow() -> None:
    assert order_of([pa.array([b"b", b"a"])]) is None
    rows = pa.table({"x": pa.array([b"b", b"a"] * ROWS_MIN)})
    found = consolidate(stamp(rows, 3))
    assert found["x"].to_pylist() == [b"a", b"b"]
    assert found["_diff"].to_pylist() == [ROWS_MIN, ROWS_MIN]
