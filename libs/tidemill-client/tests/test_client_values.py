"""Rows that users write: what is left out, what is no number; and columns that SQL takes for
one.
"""

from __future__ import annotations

import io
import json
import math
import sys
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import tidemill.client
from tidemill.arrangement.column_types import arrow_type
from tidemill.client import Client
from tidemill.client.formats import Rows
from tidemill.client.rendering import print_rows
from tidemill.client.rows import parse_row, read_rows, table_of
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


def test_sql_knows_times_decimals_uuids_and_json() -> None:
    one = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
    table = pa.table(
        {
            "u": pa.array([one.bytes], arrow_type("uuid")),
            "t": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], arrow_type("timestamp")),
            "s": pa.array([timedelta(seconds=90)], arrow_type("duration")),
            "p": pa.array([Decimal("1.50")], arrow_type("decimal(5,2)")),
            "j": pa.array(['{"a":1}'], arrow_type("json")),
        }
    )
    text = (
        f"select u, p * 2 as p, t + interval 1 day as t from orders where u = '{one}' "
        "and t > '2025-12-31T00:00:00Z' and s > interval 1 minute and j->>'a' = '1'"
    )
    (row,) = select(text, {TableName("", "orders"): table}).to_pylist()
    assert (row["u"], row["p"]) == (str(one), Decimal("3.00"))
    assert row["t"] == datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "json_value", "shown"),
    [
        ("uuid", bytes(16), "00000000-0000-0000-0000-000000000000", None),
        ("timestamp", datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z", None),
        ("duration", timedelta(seconds=90), "1m30s", None),
        ("json", '{"a":[1]}', {"a": [1]}, '{"a":[1]}'),
        ("bytes", b"\xff", "/w==", None),
        ("date", date(2026, 1, 1), "2026-01-01", None),
    ],
)
def test_typed_values_are_shown_as_text_and_json_as_it_is(
    kind: str, value: object, json_value: object, shown: str | None, capsys: Any
) -> None:
    table = pa.table({"x": pa.array([value, None], arrow_type(kind))})
    print_rows(table, Rows.json, 5, {})
    assert [row["x"] for row in json.loads(capsys.readouterr().out)["rows"]] == [json_value, None]
    if kind != "bytes":
        print_rows(table, Rows.table, 5, {})
        assert capsys.readouterr().out.split("\n")[1].strip() == (shown or json_value)


@pytest.mark.parametrize(
    "text", ["1e400", "1.0000000000000000001", '{"a":[1e-9,12345678901234567890]}']
)
def test_documents_are_written_with_the_digits_that_they_have(text: str, capsys: Any) -> None:
    table = pa.table({"x": pa.array([text], arrow_type("json"))})
    print_rows(table, Rows.json, 5, {})
    assert f'"rows": [{{"x": {text}}}]' in capsys.readouterr().out


def test_what_sql_makes_that_is_no_number_is_null_in_json(capsys: Any) -> None:
    print_rows(select("select 'nan'::double a, [1, '-inf'::double] b", {}), Rows.json, 5, {})
    assert json.loads(capsys.readouterr().out)["rows"] == [{"a": None, "b": [1.0, None]}]


def test_sql_tells_days_and_hours_in_utc_wherever_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    at = pa.array([datetime(2026, 1, 1, tzinfo=UTC)], arrow_type("timestamp"))
    try:
        text = "select date_trunc('day', t) d, t::date e, hour(t) h, t::varchar v from o"
        (row,) = select(text, {TableName("", "o"): pa.table({"t": at})}).to_pylist()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert row["d"].astimezone(UTC) == datetime(2026, 1, 1, tzinfo=UTC)
    assert (row["e"], row["h"], row["v"]) == (date(2026, 1, 1), 0, "2026-01-01 00:00:00+00")


def test_intervals_of_sql_are_durations_and_months_are_refused(capsys: Any) -> None:
    span = pa.array([timedelta(seconds=-90, days=1), None], arrow_type("duration"))
    tables = {TableName("", "o"): pa.table({"s": span})}
    print_rows(select("select s, s * 2 d, interval 1 day e from o", tables), Rows.json, 5, {})
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first == {"s": "23h58m30s", "d": "1d23h57m", "e": "1d"}
    assert second == {"s": None, "d": None, "e": "1d"}
    with pytest.raises(UsageError, match="an interval of months or years has no length"):
        select("select interval 1 month from o", tables)


def test_sums_of_whole_numbers_by_sql_are_numbers_and_decimals_are_texts(capsys: Any) -> None:
    table = pa.table(
        {"n": [1 << 62] * 4, "p": pa.array([Decimal("1.50")] * 4, arrow_type("decimal(5,2)"))}
    )
    text = "select sum(n) s, sum(p) t, sum(n) filter (n < 0) nothing, first(p) p from orders"
    print_rows(select(text, {TableName("", "orders"): table}), Rows.json, 5, {})
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row == {"s": 1 << 64, "t": "6.00", "nothing": None, "p": "1.50"}


def test_rows_of_a_table_with_other_types_are_left_to_the_server() -> None:
    columns = [ColumnInfo("p", "decimal128(5, 2)"), ColumnInfo("j", "large_string")]
    rows = read_rows(io.BytesIO(b'{"p": "1.50", "j": {"a": 1}}\n{"j": [2]}\n'), "jsonl", columns)
    assert rows.to_pylist() == [{"p": "1.50", "j": '{"a":1}'}, {"p": None, "j": "[2]"}]
    long = "12345678901234567890.123456789012345678"
    rows = read_rows(io.BytesIO(f'{{"p": {long}, "j": [{long}]}}'.encode()), "jsonl", columns)
    assert rows.to_pylist() == [{"p": Decimal(long), "j": f"[{long}]"}]
    assert table_of([parse_row(f'{{"p": {long}}}')]).to_pylist() == [{"p": Decimal(long)}]
    rows = read_rows(io.BytesIO(b"p,j\n1.50,2\n"), "csv", columns)
    assert rows.to_pylist() == [{"p": "1.50", "j": "2"}]


def test_sql_without_duckdb_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "tidemill.client.sql")
    monkeypatch.delattr(tidemill.client, "sql")
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(UsageError, match=r"duckdb is not installed: pip install 'tidemill\[sql\]'"),
    ):
        client.sql("select 1")
