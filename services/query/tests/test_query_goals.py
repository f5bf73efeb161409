"""Goals over rows: they mean what they mean in programs."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tidemill.arrangement.column_types import arrow_type
from tidemill.arrangement.updates import DIFF
from tidemill.catalog.directory import Readable
from tidemill.datalog.goals import goal_over
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.records import Record, Value, format_value
from tidemill.errors import UsageError
from tidemill.time.typed import EPOCH, Json
from tidemill_query.goals import row_goal, split_name


def test_w12_a_goal_over_columns_that_the_language_lacks_rounds_nothing() -> None:
    """W12: a float was cut to the whole number of a column before the two were compared."""
    rows = pa.table(
        {
            "n": pa.array([1, 2, None], pa.uint64()),
            "t": pa.array([1, 2, 3], pa.date32()),
            DIFF: [1, 1, 1],
        }
    )
    readable = Readable("r", "r", (("n", "any"), ("t", "any")), 2, lambda table: [])
    found = {text: row_goal(f"r({text}, _)", readable).select(rows).num_rows for text in GOALS}
    assert found == GOALS
    for text in ('r("x", _)', "r(-1, _)", "r(_, 1.5)", 'r(_, "x")'):
        with pytest.raises(UsageError, match="goal refused"):
            row_goal(text, readable).select(rows)


LONG = Decimal("12345678901234567890.12")
LONGER = Decimal("12345678901234567890.120000000000000001")
KINDS: dict[ColumnType, pa.DataType] = {
    each: arrow_type(each)
    for each in (
        "int", "float", "text", "bool", "timestamp", "date", "duration", "decimal(22,2)",
        "decimal(38,18)", "bytes", "uuid", "json",
    )
}  # fmt: skip
VALUES: dict[ColumnType, st.SearchStrategy[Value]] = {
    "int": st.sampled_from((0, 1, 2**53, 2**53 + 1, -(2**63), None)),
    "float": st.sampled_from((0.0, 1.0, 0.5, 2.0**53, -(2.0**63), None)),
    "text": st.sampled_from(("", "a", "\u00e9", "1", None)),
    "bool": st.sampled_from((True, False, None)),
    "timestamp": st.sampled_from((EPOCH, EPOCH - timedelta(microseconds=1), None)),
    "date": st.sampled_from((date(1, 1, 1), date(2026, 3, 1), None)),
    "duration": st.sampled_from((timedelta(0), timedelta(seconds=-90), None)),
    "decimal(22,2)": st.sampled_from((Decimal(0), LONG, None)),
    "decimal(38,18)": st.sampled_from((Decimal(0), LONG, LONGER, None)),
    "bytes": st.sampled_from((b"", b"\x00\xff", None)),
    "uuid": st.sampled_from((UUID(int=0), UUID(int=1), None)),
    "json": st.sampled_from((Json("null"), Json('{"a":[1]}'), Json("1"), None)),
}


@given(st.lists(st.sampled_from(tuple(KINDS)), min_size=1, max_size=3), st.data())
def test_w12_a_goal_over_rows_says_what_it_says_of_their_facts(
    kinds: list[ColumnType], data: st.DataObject
) -> None:
    """W12: questions compared as Arrow does, actions and programs as the language does."""
    held = data.draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), max_size=6))
    terms = [
        data.draw(st.sampled_from("xy_") | st.one_of(*VALUES.values()).map(format_value))
        for _ in kinds
    ]
    names = [f"c{at}" for at in range(len(kinds))]
    columns = [
        pa.array([_stored(row[at]) for row in held], KINDS[kind]) for at, kind in enumerate(kinds)
    ]
    rows = pa.table([*columns, pa.array(range(len(held)), pa.int64())], names=[*names, DIFF])
    readable = Readable("r", "r", tuple(zip(names, kinds, strict=True)), len(kinds), lambda _: [])
    text = f"r({', '.join(terms)})"
    try:
        goal, mine = goal_over(text, {"r": readable.columns}), row_goal(text, readable)
    except UsageError:
        reject()
    found = mine.select(rows)[DIFF].to_pylist()
    assert found == [
        at for at, row in enumerate(held) if goal.bindings(Record("r", row)) is not None
    ]
    if (where := mine.where) is not None:  # what stores leave out of it is in no answer
        assert mine.select(rows.filter(where))[DIFF].to_pylist() == found


def _stored(value: Value) -> object:
    own = value.bytes if isinstance(value, UUID) else value
    return own.text if isinstance(own, Json) else own


@pytest.mark.parametrize("kind", KINDS)
def test_a_literal_of_each_type_finds_its_rows(kind: ColumnType) -> None:
    some = [Decimal(0), LONG] if kind.startswith("decimal") else _some(kind)
    column = pa.array([_stored(each) for each in some], KINDS[kind])
    rows = pa.table([column, column, range(len(some))], names=["a", "b", DIFF])
    readable = Readable("r", "r", (("a", kind), ("b", kind)), 2, lambda _: [])
    assert row_goal(f"r({format_value(some[0])}, _)", readable).select(rows)[DIFF].to_pylist() == [
        0
    ]
    assert row_goal("r(x, x)", readable).select(rows)[DIFF].to_pylist() == [*range(len(some))]


def _some(kind: ColumnType) -> list[Value]:
    known: dict[ColumnType, list[Value]] = {
        "int": [1, 2], "float": [0.5, 1.0], "text": ["a", ""], "bool": [True, False],
        "timestamp": [EPOCH, EPOCH - timedelta(microseconds=1)], "uuid": [UUID(int=0), UUID(int=1)],
        "date": [date(1, 1, 1), date(2026, 3, 1)], "bytes": [b"", b"\x00\xff"],
        "duration": [timedelta(0), timedelta(seconds=-90)], "json": [Json("1"), Json("null")],
    }  # fmt: skip
    return known[kind]


def test_decimals_of_two_columns_are_equal_by_all_their_digits() -> None:
    rows = pa.table(
        {
            "a": pa.array([LONG, LONG, None], KINDS["decimal(22,2)"]),
            "b": pa.array([LONG, LONGER, None], KINDS["decimal(38,18)"]),
            DIFF: [0, 1, 2],
        }
    )
    columns = (("a", "decimal(22,2)"), ("b", "decimal(38,18)"))
    readable = Readable("r", "r", columns, 2, lambda _: [])
    assert row_goal("r(x, x)", readable).select(rows)[DIFF].to_pylist() == [0, 2]
    for none in ("0.001", "12345678901234567890.999"):
        goal = row_goal(f'r(decimal("{none}"), _)', readable)
        assert goal.never
        assert goal.select(rows).num_rows == 0


GOALS = {"1": 1, "1.0": 1, "1.5": 0, "null": 1, "n": 3}


@pytest.mark.parametrize(
    "goal", ["select c0 from late", 'SELECT max(c1)\nfrom "v/late"', "with a as (select 1) from a"]
)
def test_a_question_in_sql_is_told_where_sql_is_asked(goal: str) -> None:
    with pytest.raises(UsageError, match="`tidemill sql` asks in SQL"):
        split_name(goal)


def test_a_predicate_may_have_the_name_of_a_word_of_sql() -> None:
    for goal, name in (("select(x)", "select"), ("with (x, y)", "with"), ("select", "select")):
        assert split_name(goal)[0] == name
