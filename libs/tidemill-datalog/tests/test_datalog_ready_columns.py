"""What is made ready for columns: expressions as code over arrays, and columns of many types in one matrix."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog import values
from tidemill.datalog.columnar import Column, Texts
from tidemill.datalog.columnar.blocks import Block
from tidemill.datalog.columnar.columns import absent_times
from tidemill.datalog.columnar.formulas import formula, limit, over
from tidemill.datalog.columns.column import Unsuited
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.lattices import LATTICES
from tidemill.datalog.logical.expressions import Scope
from tidemill.datalog.logical.forms import Call, Constant, Expression, Type, Variable
from tidemill.datalog.logical.ranges import Bounds
from tidemill.testkit.seeded_backend import seeded_backend

LAW = settings(
    max_examples=300,
    backend=seeded_backend(1),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": values.add, "-": values.subtract, "*": values.multiply, "/": values.divide, "<": values.less,
    "<=": values.less_equal, ">": values.greater, ">=": values.greater_equal, "==": values.equal,
    "!=": values.differ, "&&": operator.and_, "||": operator.or_,
}  # fmt: skip
KINDS = {
    "a": Type.INT, "b": Type.INT, "x": Type.FLOAT, "y": Type.FLOAT, "s": Type.TEXT, "t": Type.TEXT,
    "p": Type.BOOL,
}  # fmt: skip
whole = st.integers(-5, 5) | st.sampled_from([0, 3, 1 << 40, values.INT_MAX, values.INT_MIN])
floats = st.sampled_from([-0.0, 0.0, 0.1, 2.5, -3.0, 0.3, 1e300])
VALUES: Mapping[Type, st.SearchStrategy[Any]] = {
    Type.INT: whole, Type.FLOAT: floats, Type.TEXT: st.sampled_from("uvw"), Type.BOOL: st.booleans(),
}  # fmt: skip


def expressions() -> st.SearchStrategy[Expression]:
    numbers: st.SearchStrategy[Expression] = st.recursive(
        st.sampled_from("abxy").map(Variable) | (st.integers(-9, 9) | floats).map(Constant),
        lambda inner: st.builds(Call, st.sampled_from("+-*/"), st.tuples(inner, inner)),
        max_leaves=4,
    )
    texts = st.sampled_from("st").map(Variable)
    tests: st.SearchStrategy[Expression] = st.one_of(
        st.builds(Call, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), st.tuples(numbers, numbers)),
        st.builds(Call, st.sampled_from(["<", "<=", ">", ">="]), st.tuples(*[st.sampled_from("ab").map(Variable)] * 2)),
        st.builds(Call, st.sampled_from(["==", "!="]), st.tuples(texts, texts)),
        st.just(Variable("p")),
    )  # fmt: skip
    joined = st.builds(Call, st.sampled_from(["&&", "||"]), st.tuples(tests, tests))
    return numbers | tests | joined


def value_of(expression: Expression, row: Mapping[str, Any]) -> Any:
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, Variable):
        return row[expression.name]
    left, right = (value_of(argument, row) for argument in expression.arguments)
    return OPERATORS[expression.name](left, right)


def signs_of(expression: Expression) -> set[str]:
    if not isinstance(expression, Call):
        return set()
    return {expression.name}.union(*map(signs_of, expression.arguments))


def test_code_over_arrays_says_what_the_language_says_of_each_row() -> None:
    coded: set[str] = set()

    @LAW
    @given(expressions(), st.lists(st.fixed_dictionaries({n: VALUES[k] for n, k in KINDS.items()}), min_size=1, max_size=4))  # fmt: skip
    def law(expression: Expression, rows: list[dict[str, Any]]) -> None:
        texts = Texts()
        columns = {
            name: Column.of_values(kind, [row[name] for row in rows], texts)
            for name, kind in KINDS.items()
        }
        bounds = {name: column.bounds() for name, column in columns.items()}
        ready = formula(expression, Scope(KINDS, bounds, FUNCTIONS, LATTICES))
        if ready.code is None:
            return
        assert all(columns[name].kind is kind for _, name, kind in ready.variables)
        given_ = {python: columns[name].values for python, name, _ in ready.variables}
        found = over(ready.code, given_).tolist()
        expected = [value_of(expression, row) for row in rows]
        assert [(type(v), v, math.copysign(1, v)) for v in found] == [
            (type(v), v, math.copysign(1, v)) for v in expected
        ]
        coded.update(signs_of(expression))

    law()
    assert coded == OPERATORS.keys() - {"/"}


@pytest.mark.parametrize("value", [values.INT_MAX, None])
def test_what_may_fail_or_be_null_is_not_written_as_code(value: int | None) -> None:
    column = Column.of_values(Type.INT, [1, value], Texts())
    scope = Scope({"a": Type.INT}, {"a": column.bounds()}, FUNCTIONS, LATTICES)
    ready = formula(Call("+", (Variable("a"), Constant(1))), scope)
    assert (ready.code is None) is (value is not None)  # of nulls the columns tell at the time


def sources() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["v0", "v1", "v0", "v1", "(3)", "(1024)"])
    return st.recursive(
        leaves,
        lambda inner: (
            st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner)
            | st.builds(
                "({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.sampled_from("27")
            )
            | st.builds("(-({}))".format, inner)
        ),
        max_leaves=6,
    )


def test_a_limit_over_arrays_is_what_whole_numbers_without_end_would_say() -> None:
    outcomes: set[bool] = set()
    large = st.integers(0, 61).flatmap(lambda bits: st.integers(-(1 << bits), 1 << bits))

    @LAW
    @given(sources(), st.lists(st.tuples(large, large), min_size=2, max_size=6))
    def law(source: str, rows: list[tuple[int, int]]) -> None:
        bounds = {
            name: Bounds(min(values_), max(values_), nullable=False)
            for name, values_ in zip("ab", zip(*rows, strict=True), strict=True)
        }
        scope = Scope(KINDS, bounds, FUNCTIONS, LATTICES, {"a": "v0", "b": "v1"})
        ready = limit(source, scope, (0, 0))
        outcomes.add(ready is not None)
        if ready is None:
            return
        with np.errstate(over="ignore"):
            columns = dict(zip(("v0", "v1"), np.array(rows, np.int64).T, strict=True))
            found = np.broadcast_to(over(ready.code, columns), len(rows)).tolist()
        assert found == [eval(source, {}, {"v0": a, "v1": b}) for a, b in rows]

    law()
    assert outcomes == {True, False}


def rows_of(kinds: Sequence[Type]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*[VALUES[kind] | st.none() for kind in kinds]), max_size=5)


def block_of(rows: Sequence[tuple[Any, ...]], kinds: Sequence[Type], texts: Texts) -> Block:
    columns = [Column.of_values(k, [row[at] for row in rows], texts) for at, k in enumerate(kinds)]
    if all(row[0] is None for row in rows):
        columns[0] = absent_times(len(rows))
    return Block.of(columns, len(rows))


def seen(block: Block, kinds: Sequence[Type], texts: Texts) -> list[tuple[Any, ...]]:
    columns = block.columns(0, len(kinds))
    assert [column.kind for column in columns] == list(kinds)
    return list(zip(*(map(repr, column.python(texts)) for column in columns), strict=True))


@LAW
@given(st.data(), st.lists(st.sampled_from([*VALUES]), max_size=3))
def test_rows_of_a_block_are_those_of_its_columns(data: st.DataObject, others: list[Type]) -> None:
    kinds, texts = [Type.INT, *others], Texts()
    rows, more = data.draw(rows_of(kinds)), data.draw(rows_of(kinds))
    both = block_of(rows, kinds, texts).followed_by(block_of(more, kinds, texts))
    rows = [*rows, *more]
    assert seen(both, kinds, texts) == [tuple(map(repr, row)) for row in rows]
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    taken = both.take(np.array(chosen, np.int64))
    assert seen(taken, kinds, texts) == [tuple(map(repr, rows[at])) for at in chosen]
    first = data.draw(st.integers(0, len(kinds)))
    words = both.telling(first, np.arange(len(rows)))
    lines = list(zip(*(line.tolist() for line in words), strict=True)) or [()] * len(rows)
    for a, mine in enumerate(rows):
        for b, theirs in enumerate(rows):
            assert (lines[a] == lines[b]) is (mine[first:] == theirs[first:])
    assert seen(both.first(first), kinds[:first], texts) == (
        [tuple(map(repr, row[:first])) for row in rows] if first else []
    )


def test_blocks_of_other_types_do_not_follow_each_other() -> None:
    texts = Texts()
    with pytest.raises(Unsuited):
        block_of([(1,)], [Type.INT], texts).followed_by(block_of([(0.5,)], [Type.FLOAT], texts))
