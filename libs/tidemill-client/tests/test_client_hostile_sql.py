"""SQL that asks for what no answer can hold: refused with a remedy, and never told as another
value.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tidemill.client.formats import Rows
from tidemill.client.rendering import print_rows
from tidemill.client.sql import TableName, select, tables_named
from tidemill.errors import Exhausted, UsageError

TABLE = pa.table({"a": [1, 2, 3]})


def asked(text: str, memory: str = "4GB") -> pa.Table:
    return select(text, dict.fromkeys(tables_named(text), TABLE), memory)


@pytest.mark.parametrize(
    "value",
    [
        "340282366920938463463374607431768211455::uhugeint",
        "md5_number('x')",
        "[md5_number('x')]",
        "{'b': map {1: md5_number('x')}}",
        "'12:00:00+02'::timetz",
        "time_ns '10:00:00.123456789'",
        "1::bignum",
        "'101'::bit",
    ],
)
def test_a_value_that_arrow_would_tell_as_another_is_refused_with_the_cast(value: str) -> None:
    """The largest number of 128 bits came back as -1."""
    with pytest.raises(UsageError, match=r"the column v has values .* select them ::varchar"):
        asked(f"select {value} v")
    assert asked(f"select ({value})::varchar v").num_rows == 1


def test_two_columns_of_one_name_are_both_in_an_answer_of_json(capsys: Any) -> None:
    """JSON has one value for a name: the first column was lost."""
    print_rows(asked("select 1 a, 2 a, 3 a_1, 4 a"), Rows.json, 5, {})
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row == {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}


@pytest.mark.parametrize("written", [Rows.json, Rows.table])
@pytest.mark.parametrize(
    "value", ["date 'infinity'", "timestamp '-infinity'", "[timestamptz '294246-12-31']"]
)
def test_an_instant_without_a_year_of_ours_is_refused_with_the_cast(
    value: str, written: Rows
) -> None:
    with pytest.raises(UsageError, match="::varchar, or ask for --format arrow"):
        print_rows(asked(f"select {value} v"), written, 5, {})


def test_an_interval_of_too_many_days_is_refused() -> None:
    with pytest.raises(UsageError, match="999,999,999 days"):
        asked("select to_days(2147483647)")


def test_an_answer_counts_among_what_a_select_may_hold() -> None:
    """The limit was DuckDB's alone: ten million rows came back from a SELECT that may hold 50
    MB.
    """
    with pytest.raises(Exhausted, match="--memory"):
        asked("select range + 1 from range(10_000_000)", "50MB")
    assert asked("select range + 1 from range(1_000_000)", "50MB").num_rows == 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "select 1" + "+1" * 990,
        "select " + "not " * 990 + "true",
        "select * from " + "(select * from " * 600 + "t" + ")" * 600,
        "select * from " + ",".join(f"t{number}" for number in range(1_500)),
    ],
)
def test_a_select_that_is_too_deep_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the SELECT is too deep"):
        tables_named(text)


@pytest.mark.parametrize("schema", ["temp", "system", "information_schema", "pg_catalog"])
def test_a_view_with_a_name_that_sql_keeps_is_read_in_quotes(schema: str) -> None:
    with pytest.raises(UsageError, match=f'write "{schema}/late" with its quotes'):
        asked(f"select * from {schema}.late")
    assert asked(f'select * from "{schema}/late"').num_rows == 3


@pytest.mark.parametrize("at", [5, 9_000])
def test_an_error_of_any_row_is_one_of_the_caller(at: int) -> None:
    with pytest.raises(UsageError, match="boom"):
        asked(f"select case when range = {at} then error('boom') else 1 end from range(10_000)")


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_blob('/etc/hosts')",
        "select * from glob('/*')",
        "select * from sniff_csv('/etc/passwd')",
        "select * from parquet_scan('x.parquet')",
        "select * from duckdb_secrets()",
        "select * from query('select * from read_text(''/etc/passwd'')')",
        "select getenv('HOME')",
        "copy (select 1) to '/tmp/x'",
        "attach '/tmp/x.db'",
        "install httpfs",
        "load httpfs",
        "pragma database_list",
        "set memory_limit = '10GB'",
        "explain analyze select 1",
    ],
)
def test_nothing_but_collections_can_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        asked(text)


def test_a_file_in_place_of_a_table_is_the_name_of_a_collection() -> None:
    assert tables_named("select * from '/etc/passwd'") == [TableName("", "/etc/passwd")]
