"""Recursion on columns: the facts of the row engine, at every instant, and it is really columns that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import ColumnType, InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_presence
from tidemill.datalog.scratch import Engine
from tidemill.datalog.state import EngineState

PROGRAMS = {
    "closure": "reach(x, y) := edge(x, y); reach(x, z) := reach(x, y) ^ edge(y, z);",
    "closure of pairs": "reach(x, y) := edge(x, y); reach(x, z) := reach(x, y) ^ reach(y, z);",
    "two by turns": """
        odd(x, y) := edge(x, y);
        even(x, z) := odd(x, y) ^ edge(y, z);
        odd(x, z) := even(x, y) ^ edge(y, z);
    """,
    "guards and absence": """
        open(x, y) := edge(x, y) ^ not shut(y);
        reach(x, y) := open(x, y);
        reach(x, z) := reach(x, y) ^ open(y, z) if x != z ^ z > 0;
    """,
    "one time, ends that move": """
        route(x, y) @time(0) @expires(bucket(t, 7) + 9) := edge(x, y) @time(t);
        reach(x, y) := route(x, y);
        reach(x, z) := reach(x, y) ^ route(z, y);
        reach(x, z) := reach(x, y) ^ route(y, z);
    """,
    "values that grow": "far(x, 0) := shut(x); far(x, n + 1) := far(x, n) ^ edge(x, _) if n < 4;",
}
UPPER = 20
NUMBERS: Mapping[str, tuple[tuple[str, ColumnType], ...]] = {
    "edge": (("x", "int"), ("y", "int")),
    "shut": (("x", "int"),),
}


def checked(text: str) -> CheckedProgram:
    schemas = {name: InputSchema(name, "events", columns) for name, columns in NUMBERS.items()}
    return check(parse(text), InputSchemas({n: s for n, s in schemas.items() if f"{n}(" in text}))


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, list[Presence]]:
    nodes, starts = st.integers(0, 4), st.integers(0, UPPER - 2)
    found = {}
    for name, columns in NUMBERS.items():
        rows = st.tuples(
            st.tuples(*(nodes for _ in columns)), starts, st.integers(1, 12) | st.none()
        )
        found[name] = [
            Presence(
                Record(name, row, at, None if life is None else at + life), at,
                END if life is None else at + life,
            )
            for row, at, life in draw(st.lists(rows, min_size=1, max_size=9, unique_by=lambda r: r[:2]))
        ]  # fmt: skip
    return found


def evaluate(
    engine: Engine, given_: Mapping[str, Sequence[Presence]], borders: Sequence[int]
) -> list[set[str]]:
    """What each window holds, with errors and the state at its end."""
    state: EngineState | None = None
    found = []
    for lower, upper in pairwise(borders):
        living = {
            name: [p for p in given_[name] if p.start < upper and p.end > lower]
            for name in engine.checked.inputs
        }
        window = engine.evaluate(living, lower=lower or None, upper=upper, state=state)
        state = window.state
        seen = {
            format_presence(p.record, p.start, p.end)
            for name in engine.checked.derived
            for p in window.presences[name]
        }
        found.append(seen | {e.text for e in window.errors} | {str(row) for row in state.to_rows()})
    return found


@pytest.mark.parametrize("name", sorted(PROGRAMS))
@settings(max_examples=12, deadline=None)
@given(inputs(), st.lists(st.integers(1, UPPER - 1), max_size=2, unique=True))
def test_recursions_on_columns_derive_what_rows_derive(
    name: str, given_: dict[str, list[Presence]], cuts: list[int]
) -> None:
    program, borders = checked(PROGRAMS[name]), [0, *sorted(cuts), UPPER]
    rows, columns = Engine(program, columns_from=None), Engine(program, columns_from=0)
    assert evaluate(columns, given_, borders) == evaluate(rows, given_, borders)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_it_is_columns_that_run_the_recursion(name: str) -> None:
    """The companion of the law above: for an input that is the same in every run."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 1), (4, 0), (2, 4)]
    given_ = {
        "edge": [Presence(Record("edge", row, at), at) for at, row in enumerate(edges)],
        "shut": [Presence(Record("shut", (0,), 1), 1, 15)],
    }
    engine = Engine(checked(PROGRAMS[name]), columns_from=0)
    assert any(
        "reach(" in fact or "odd(" in fact or "far(" in fact
        for window in evaluate(engine, given_, [0, 6, UPPER])
        for fact in window
    )
    assert engine.bulk is not None
    assert engine.bulk.taken > engine.bulk.refused


def test_a_recursion_of_many_small_rounds_is_left_to_rows() -> None:
    chain = [Presence(Record("edge", (n, n + 1), 0), 0) for n in range(150)]
    start = [Presence(Record("shut", (0,), 0), 0)]
    program = checked("on(x) := shut(x); on(y) := on(x) ^ edge(x, y);")
    engine = Engine(program, columns_from=0)
    given_ = {"edge": chain, "shut": start}
    expected = evaluate(Engine(program, columns_from=None), given_, [0, 9])
    assert evaluate(engine, given_, [0, 9]) == expected
    assert engine.bulk is not None
    assert engine.bulk.deep == {"on"}
    assert evaluate(engine, given_, [0, 9]) == expected
    assert engine.bulk.taken == 0
