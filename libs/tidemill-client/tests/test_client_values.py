"""Rows that users write: what is left out, what is no number; and columns that SQL takes for one."""

from __future__ import annotations

import io
import math

import pyarrow as pa
import pytest

from tidemill.client.rows import read_rows, table_of
from tidemill.client.sql import TableName, select
from tidemill.rpc.messages import ColumnInfo
from tidemill.time import UsageError

COLUMNS = (ColumnInfo("k", "string"), ColumnInfo("f", "double"))


def test_w3_only_an_empty_field_of_csv_is_null() -> None:
    table = read_rows(io.BytesIO(b"k,f\na,nan\nnan,\nNULL,1\n"), "csv", COLUMNS)
    assert table["k"].to_pylist() == ["a", "nan", "NULL"]
    number, nothing, one = table["f"].to_pylist()
    assert math.isnan(number)
    assert (nothing, one) == (None, 1.0)


def test_w12_rows_with_and_without_a_diff_go_together() -> None:
    table = table_of([{"k": "a"}, {"k": "b", "_diff": -1}])
    assert table.to_pylist() == [{"k": "a", "_diff": None}, {"k": "b", "_diff": -1}]


def test_w12_a_column_of_several_types_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="the column k fits no type"):
        table_of([{"k": "a"}, {"k": 1}])


def test_w12_sql_refuses_columns_that_it_cannot_tell_apart() -> None:
    table = pa.table({"a": [1], "A": [2]})
    with pytest.raises(UsageError, match="the columns a and A of t are one to SQL"):
        select('select "A" from t', {TableName("", "t"): table})
    assert select('select "a" from t', {TableName("", "t"): table.select(["A"])}).to_pylist()
