"""Rows that are contributions as they are: groups take from them what they take of matches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.datalog.check import check
from tidemill.datalog.dataflow import DataflowEngine
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.testkit.drawing import drawn

LAW = drawn(60)
COLUMNS = (("c0", "int"), ("c1", "int"), ("c2", "int"))
SCHEMAS = InputSchemas(
    {
        "r": InputSchema("r", "relation", COLUMNS),
        "e": InputSchema("e", "events", COLUMNS),
    }
)
STRAIGHT = [
    "t(x) @count(y) := r(x, y, _);",
    "t(x) @sum(z) := e(x, _, z);",
    "t(y, x) @average(z) @count(z) := e(x, y, z);",
    "t(x) @max(z) := e(x, _, z);",
    "t(x) @min(y) @sum(z) := r(x, y, z);",
    "t() @sum(z) := e(_, _, z);",
]
MATCHED = [
    "t(x) @count(y) @time(u) := e(x, y, _) @time(u);",
    "t(x) @sum(z) := r(x, x, z);",
    "t(x) @sum(z) := r(x, 1, z);",
    "t(x) @sum(z + 1) := r(x, _, z);",
    "t(x + 1) @count(y) := r(x, y, _);",
    "t(x) @count(y) := r(x, y, z) if z > 1;",
    "t(x) @count(y) := r(x, y, z) ^ r(z, _, _);",
    "t(x) @count(y) @time(time + 1) := e(x, y, _) @time(time);",
    "t(x) @count(y) @expires(time + 3) := e(x, y, _) @time(time);",
    "t(x) @count(y) := r(x, y, _) ^ not e(x, _, _);",
]


def engine_of(text: str) -> DataflowEngine:
    return DataflowEngine(check(parse(text), SCHEMAS))


WORDS = st.integers(0, 2**62) | st.integers(-3, 3)


@LAW
@given(st.sampled_from(STRAIGHT), st.data())
def test_rows_contribute_what_their_matches_contribute(text: str, data: st.DataObject) -> None:
    engine = engine_of(text)
    (rule,) = engine.rules_of("t")
    (delta,) = rule.plan.deltas
    assert rule.reduction is not None
    sources = rule.reduction.straight(delta)
    assert sources is not None
    schema = engine.schemas[delta.source]
    row = st.lists(WORDS, min_size=schema.columns, max_size=schema.columns)
    change = np.zeros((data.draw(st.integers(0, 6)), schema.columns + 3), np.int64)
    for at in range(len(change)):
        nulls = data.draw(st.integers(0, (1 << schema.expiry) - 1))
        words = data.draw(row)
        change[at, :-3] = [0 if nulls >> c & 1 else word for c, word in enumerate(words)]
        change[at, schema.expiry] = data.draw(st.integers(5, 9) | st.just(END_WORD))
        change[at, schema.nulls] = nulls
        change[at, -3:] = data.draw(st.tuples(st.integers(0, 4), st.integers(5, 9), st.just(1)))
    matches = rule.matches.solutions(delta, change, {})
    made = rule.reduction.contributed(matches)
    taken = rule.reduction.contributed(change, sources)
    np.testing.assert_array_equal(taken, made)


@pytest.mark.parametrize("text", MATCHED)
def test_rows_that_are_judged_completed_or_changed_are_matched_first(text: str) -> None:
    for rule in engine_of(text).rules_of("t"):
        assert rule.reduction is not None
        assert all(rule.reduction.straight(delta) is None for delta in rule.plan.deltas)
