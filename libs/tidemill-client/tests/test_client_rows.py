"""Rows in and rows out, and SQL over them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tidemill.client.following import changes_written
from tidemill.client.formats import Rows
from tidemill.client.multiplicity import plain_rows, shown_rows
from tidemill.client.proofs import drawn
from tidemill.client.rendering import aligned, cell
from tidemill.client.rows import (
    INSERT_BYTES,
    INSERT_ROWS,
    format_of,
    parse_row,
    read_rows,
    steps,
    table_of,
)
from tidemill.client.sql import TableName, select, tables_named
from tidemill.datalog.proofs import Kind
from tidemill.datalog.why_not import Cause
from tidemill.errors import UsageError
from tidemill.rpc.messages import Changes, ColumnInfo, Json, Progress, rows_of_insert
from tidemill.time import frontier

FLIGHTS = TableName("", "flights")


def test_rows_come_as_often_as_their_multiplicity_says() -> None:
    table = pa.table({"a": ["x", "y", "z"], "_diff": [2, 1, 0]})
    assert plain_rows(table).to_pydict() == {"a": ["x", "x", "y"]}
    assert plain_rows(table.slice(1, 1)).to_pydict() == {"a": ["y"]}
    assert plain_rows(table.slice(0, 0)).to_pydict() == {"a": []}


def test_negative_multiplicities_are_shown_and_have_no_plain_form() -> None:
    table = pa.table({"a": ["x", "y"], "_diff": [1, -1]})
    assert shown_rows(table) is table
    with pytest.raises(UsageError):
        plain_rows(table)


def test_a_fact_without_arguments_stays_a_row() -> None:
    table = pa.table({"_diff": [1]})
    assert shown_rows(table) is table


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("select 1", []),
        ("select * from flights f join flights g using (a)", [FLIGHTS]),
        ("from flights", [FLIGHTS]),
        ('select * from "delays/late"', [TableName("", "delays/late")]),
        ("select * from delays.late where a in (select a from flights)",
         [TableName("delays", "late"), FLIGHTS]),
        ("with x as (select * from flights) select * from x", [FLIGHTS]),
        ("with flights as (select * from flights) select * from flights", [FLIGHTS]),
        ("with X as (select 1) select * from x", []),
        ("with recursive r as (select 1 n union all select n + 1 from r where n < 3) from r", []),
        ("select a from flights union all select a from late", [FLIGHTS, TableName("", "late")]),
    ],
)  # fmt: skip
def test_a_select_names_the_collections_it_reads(text: str, names: list[TableName]) -> None:
    assert tables_named(text) == names


@pytest.mark.parametrize(
    "text", ["drop table flights", "select 1; select 2", "copy flights to 'x'", "select from where"]
)
def test_only_one_select_is_taken(text: str) -> None:
    with pytest.raises(UsageError):
        tables_named(text)


def test_a_select_sees_the_tables_and_nothing_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    flights = pa.table({"a": [1, 2, 3]})
    tables = {FLIGHTS: flights, TableName("delays", "late"): flights}
    answer = select("select sum(f.a) s from flights f join delays.late l using (a)", tables)
    assert answer.to_pydict() == {"s": [6]}
    for text in (f"from '{secret}'", f"from read_csv('{secret}')", "select b from flights"):
        with pytest.raises(UsageError):
            select(text, tables)
    secret_table = flights
    with pytest.raises(UsageError):
        select("from secret_table", {})
    assert secret_table is flights


COLUMNS = (ColumnInfo("a", "string"), ColumnInfo("n", "double"), ColumnInfo("l", "list<item: x>"))


def test_files_are_read_as_the_types_of_the_table() -> None:
    csv = io.BytesIO(b"a,n\n007,1\n,2\n")
    assert read_rows(csv, "csv", COLUMNS).to_pydict() == {"a": ["007", ""], "n": [1.0, 2.0]}
    jsonl = io.BytesIO(b'{"a": "007", "n": 1}\n{"n": 2}\n')
    assert read_rows(jsonl, "jsonl", COLUMNS).to_pydict() == {"a": ["007", None], "n": [1.0, 2.0]}
    parquet = io.BytesIO()
    pa.parquet.write_table(pa.table({"a": ["x"]}), parquet)
    parquet.seek(0)
    assert read_rows(parquet, "parquet", COLUMNS).to_pydict() == {"a": ["x"]}


@pytest.mark.parametrize("format_name", ["csv", "jsonl", "parquet", "arrow", "avro"])
def test_a_file_that_is_not_of_its_format_is_refused(format_name: str) -> None:
    with pytest.raises(UsageError):
        read_rows(io.BytesIO(b'{"a": \x00,,\nno'), format_name, COLUMNS[:2])


def test_the_ending_says_the_format() -> None:
    assert [format_of(Path(name)) for name in ("a.csv", "b.json", "c.parquet")] == [
        "csv", "jsonl", "parquet",
    ]  # fmt: skip
    with pytest.raises(UsageError):
        format_of(Path("flights"))


def test_rows_are_json_objects() -> None:
    assert table_of([parse_row('{"a": 1}')]).to_pydict() == {"a": [1]}
    for text in ("[1]", "{a: 1}"):
        with pytest.raises(UsageError):
            parse_row(text)


def test_columns_line_up_whatever_their_signs_are_as_wide_as() -> None:
    lines = list(aligned([["name", "é", "日本"], ["n", "7", "100"]], [False, True]))
    assert lines == ["name    n", "é       7", "日本  100"]
    assert list(aligned([["a"], ["b"]], [False, False])) == ["a  b"]


@given(rows=st.lists(st.tuples(st.text("ab日é", max_size=6), st.text("ab日é", max_size=6))))
@settings(max_examples=50, deadline=None)
def test_every_line_ends_at_the_same_column_if_the_last_one_is_to_the_right(
    rows: list[tuple[str, str]],
) -> None:
    columns = [[left for left, _ in rows], [right for _, right in rows]]
    lines = list(aligned(columns, [False, True]))
    assert len(lines) == len(rows)
    assert len({cell_len(line) for line in lines}) <= 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [("a\nb", "a\\nb"), ("\x1b[31mred", "\\x1b[31mred"), ("naïve 日", "naïve 日"), ("", "")],
)
def test_a_value_never_drives_the_terminal(value: str, shown: str) -> None:
    assert cell(value) == shown


def test_progress_is_said_at_first_after_changes_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    change = Changes(pa.table({"a": [1], "_time": [5], "_diff": [1]}))
    with changes_written(Rows.table) as write:
        for upper in (3, 4, 5):
            write(Progress(frontier(upper)))
        write(change)
        for upper in (6, 7, 8):
            write(Progress(frontier(upper)))
    said = capsys.readouterr()
    assert said.out == "5  +1  a=1\n"
    assert said.err == "".join(f"-- complete before {upper}\n" for upper in (3, 6, 8))


def test_a_node_of_a_proof_shows_the_rule_by_its_text() -> None:
    leaf: Json = {"fact": "edge(1, 2)", "rule": None, "kind": "input", "text": "", "children": []}
    tree: Json = {
        "fact": "reach(1, 2)", "rule": 1, "kind": "derived", "text": "reach(x, y) := edge(x, y);",
        "children": [leaf, "not closed(1, _)"], "since": 5,
    }  # fmt: skip
    console = Console(width=100)
    with console.capture() as captured:
        console.print(drawn("", tree, 9))
    assert captured.get().splitlines() == [
        "reach(1, 2)   by reach(x, y) := edge(x, y);   since: 5",
        "├── edge(1, 2)   input",
        "└── not closed(1, _)",
    ]


def test_c3_reasons_and_borders_are_said_in_words_for_people() -> None:
    """C3: what programs call `values_differ` is not what people read."""
    tree: Json = {
        "fact": "late(1)", "rule": None, "children": [
            {"fact": "rule 1: no fact agrees with a(1)", "kind": "values_differ", "children": []},
            {"fact": "b(1)", "kind": "view", "view": "c1", "children": []},
        ],
    }  # fmt: skip
    console = Console(width=100)
    with console.capture() as captured:
        console.print(drawn("", tree, 9))
    assert captured.get().splitlines() == [
        "late(1)",
        "├── rule 1: no fact agrees with a(1)   other values",
        "└── b(1)   of another view   view: c1",
    ]
    causes = set(get_args(Cause)) | set(get_args(Kind))
    shown = [drawn("", {"fact": "f", "kind": cause, "children": ["x"]}, 9) for cause in causes]
    with console.capture() as captured:
        for each in shown:
            console.print(each)
    assert "_" not in captured.get()


def test_rows_that_come_too_often_stay_with_their_multiplicities() -> None:
    table = pa.table({"n": [1], "_diff": [2**31]})
    assert shown_rows(table) is table
    with pytest.raises(UsageError, match="2147483647 plain rows"):
        plain_rows(table)


def test_v2_dictionaries_of_a_caller_are_sent_as_their_values() -> None:
    sent = table_of(pa.table({"t": pa.array(["a", None, "a"]).dictionary_encode()}))
    assert sent.schema.field("t").type == pa.string()
    assert sent["t"].to_pylist() == ["a", None, "a"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(60.0, "60.0"), (-2.0, "-2.0"), (0.5, "0.5"), (60, "60"), (1e300, "1e+300")],
)
def test_c3_a_float_shows_that_it_is_one(value: float, shown: str) -> None:
    assert cell(value) == shown


def test_rows_without_a_column_are_refused() -> None:
    with pytest.raises(UsageError, match="name no column"):
        table_of([{}, {}])
    assert table_of([]).num_rows == 0


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (b'{"at": null}\n\xff\xfe\n', "line 2 is not UTF-8 text"),
        (b"[" * 20_000, "line 1: the row '\\[\\["),
        (b'{"at": ' + b"9" * 5_000 + b"}\n", "line 1: the row .*Exceeds the limit"),
        (b'\n\n{"at": 1', "line 3: the row '{\"at\": 1' is not JSON"),
        (b"[1]\n", "line 1: the row .* is no object"),
    ],
)
def test_a_line_of_a_typed_table_that_is_no_row_is_named(lines: bytes, says: str) -> None:
    columns = [ColumnInfo("at", "timestamp[us, tz=UTC]", nullable=True)]
    with pytest.raises(UsageError, match=says) as refused:
        read_rows(io.BytesIO(lines), "jsonl", columns)
    assert len(str(refused.value)) < 500
    marked = read_rows(io.BytesIO(b'\xef\xbb\xbf{"at": "2026-01-01"}\r\n'), "jsonl", columns)
    assert marked.to_pydict() == {"at": ["2026-01-01"]}


@pytest.mark.parametrize("columns", [1, 166, 167, 1_024, 5_000])
def test_the_steps_of_an_insert_are_all_its_rows_and_none_is_too_wide(columns: int) -> None:
    rows = pa.table({"n": pa.nulls(450_001, pa.int8())})
    found = steps(rows, columns)
    assert [first for first, _ in found] == [
        sum(n for _, n in found[:at]) for at in range(len(found))
    ]
    assert sum(count for _, count in found) == rows.num_rows
    most = max(count for _, count in found)
    assert most == min(INSERT_ROWS, rows_of_insert(columns))
    assert (most < INSERT_ROWS) == (columns > 166)


def test_the_steps_of_long_rows_fit_into_a_message() -> None:
    texts = ["x" * 1_000_000] * 100 + ["y"] * 1_000 + ["z" * (INSERT_BYTES + 1)]
    rows = pa.table({"t": texts})
    found = steps(rows, 1)
    assert sum(count for _, count in found) == rows.num_rows
    sent = [rows.slice(first, count) for first, count in found]
    assert pa.concat_tables(sent).equals(rows)
    assert all(piece.nbytes <= INSERT_BYTES or piece.num_rows == 1 for piece in sent)
    assert len(sent) < 20
    assert steps(rows.slice(0, 0), 1) == []
