"""Rows that users write: what is left out, what is no number; and columns that SQL takes for
one.
"""

from __future__ import annotations

import io
import math
import sys

import pyarrow as pa
import pytest

import tidemill.client
from tidemill.client import Client
from tidemill.client.rows import read_rows, table_of
from tidemill.client.sql import TableName, select, tables_named
from tidemill.errors import Exhausted, UsageError
from tidemill.rpc.messages import ColumnInfo

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


def test_w12_sql_refuses_collections_that_it_cannot_tell_apart() -> None:
    """W12: two names that differ by case ended in an error of DuckDB, and one name was read as
    another.
    """
    one, two = pa.table({"a": [1]}), pa.table({"a": [2]})
    for text in ('select * from "v/Late", "v/late"', "select * from v.Late, V.late"):
        names = tables_named(text)
        assert len(names) == 2
        with pytest.raises(UsageError, match=r"the collections \S+ and \S+ are one to SQL"):
            select(text, dict(zip(names, (one, two), strict=True)))
    text = "select p.a - q.a from p, _snapshot0 q, __Snapshot1 r"
    p, q, r = tables_named(text)
    assert select(text, {p: one, q: two, r: two}).column(0).to_pylist() == [-1]


def test_s9_sql_that_wants_more_memory_than_it_may_is_refused_and_says_so() -> None:
    """A cross join that is sorted does not fit in 50 MB; one that is counted holds nothing."""
    table = pa.table({"x": pa.array(range(10_000), pa.int64())})
    name = TableName("", "t")
    with pytest.raises(Exhausted, match="--memory") as caught:
        select("select a.x, b.x y from t a, t b order by a.x * b.x, y", {name: table}, "50MB")
    assert caught.value.setting == "--memory"
    counted = select("select count(*) n from t a, t b", {name: table}, "50MB")
    assert counted.column("n").to_pylist() == [100_000_000]
    with pytest.raises(UsageError, match="no size"):
        select("select 1", {}, "much")


def test_sql_without_duckdb_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "tidemill.client.sql")
    monkeypatch.delattr(tidemill.client, "sql")
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(UsageError, match=r"duckdb is not installed: install tidemill-client\[sql\]"),
    ):
        client.sql("select 1")
