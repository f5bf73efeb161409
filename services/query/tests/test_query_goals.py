"""Goals over rows: they mean what they mean in programs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tidemill.arrangement.updates import DIFF
from tidemill.catalog.directory import Readable
from tidemill.datalog.goals import goal_over
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.records import Record, Value, format_value
from tidemill.errors import UsageError
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


KINDS: dict[ColumnType, pa.DataType] = {
    "int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_(),
}  # fmt: skip
VALUES: dict[ColumnType, st.SearchStrategy[Value]] = {
    "int": st.sampled_from((0, 1, 2**53, 2**53 + 1, -(2**63), None)),
    "float": st.sampled_from((0.0, 1.0, 0.5, 2.0**53, -(2.0**63), None)),
    "text": st.sampled_from(("", "a", "\u00e9", "1", None)),
    "bool": st.sampled_from((True, False, None)),
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
    columns = [pa.array([row[at] for row in held], KINDS[kind]) for at, kind in enumerate(kinds)]
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
