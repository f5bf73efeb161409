"""Recursions kept by rounds: at every instant what an evaluation from scratch finds, whatever came and went."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.incremental import IncrementalEngine, Strategy
from tidemill.datalog.incremental.changes import FactBlock, Numbering
from tidemill.datalog.incremental.explaining import explain_analysis, explain_plan
from tidemill.datalog.incremental.looped import LoopedUnit
from tidemill.datalog.incremental.owing import OwingTable
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.scratch import Engine

PROGRAMS = {
    "closure": "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ edge(y, z);",
    "closure by itself": "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ path(y, z);",
    "same generation": """
        same(x, y) := edge(x, p) ^ edge(y, p);
        below(x, q) := same(p, q) ^ edge(x, p);
        same(x, y) := below(x, q) ^ edge(y, q);
    """,
    "reached from a root": "reach(y) := root(y); reach(y) := reach(x) ^ edge(x, y);",
    "constants and repeated variables": """
        odd(x, 1) := edge(x, x);
        odd(2, y) := odd(x, 1) ^ edge(y, x);
        odd(x, y) := odd(y, x);
        odd(4, 4) := odd(x, x) ^ edge(x, 3);
    """,
    "two that read each other": """
        left(x, y) := edge(x, y);
        right(y, x) := left(x, y);
        left(x, z) := right(y, x) ^ edge(y, z);
        far(x) := left(x, _) ^ not root(x);
    """,
    "three atoms in one rule": """
        same(x, y) := edge(x, p) ^ edge(y, p);
        same(x, y) := edge(x, a) ^ same(a, b) ^ edge(y, b);
    """,
    "three atoms of which the first two share nothing": """
        same(x, x) := root(x);
        same(x, y) := edge(x, a) ^ edge(y, b) ^ same(a, b);
    """,
    "atoms that share two variables": """
        path(x, y) := edge(x, y);
        path(x, z) := path(x, y) ^ edge(y, z) ^ edge(z, x);
        back(x, y) := path(y, x) ^ edge(x, y);
        path(x, x) := path(x, _) ^ back(_, x) ^ root(x);
        path(y, 3) := path(x, y) ^ path(y, x) ^ edge(x, x);
    """,
    "a long chain with constants and wildcards": """
        far(x, y) := edge(x, y);
        far(x, v) := edge(x, y) ^ far(y, z) ^ edge(z, 2) ^ edge(w, w) ^ far(z, w) ^ edge(w, v);
        far(x, v) := edge(x, y) ^ far(y, z) ^ edge(z, 2) ^ far(z, w) ^ edge(w, w) ^ edge(w, v);
    """,
    "an input that is also derived": "edge(x, z) := edge(x, y) ^ edge(y, z);",
}
STRATEGIES: tuple[Strategy, ...] = ("strata", "retraction")
Pair = tuple[int, int]
Edges = dict[tuple[str, tuple[int, ...]], None]


def program(text: str) -> CheckedProgram:
    schemas = {
        "edge": InputSchema("edge", "relation", (("a", "int"), ("b", "int"))),
        "root": InputSchema("root", "relation", (("a", "int"),)),
    }
    return check(parse(text), InputSchemas(schemas))


def scratch(checked: CheckedProgram, present: Edges) -> dict[str, set[str]]:
    inputs: dict[str, list[Presence]] = {name: [] for name in checked.inputs}
    for name, row in present:
        if name in inputs:
            inputs[name].append(Presence(Record(name, row), 0, END))
    evaluation = Engine(checked).evaluate(inputs, lower=0, upper=1)
    return {name: {str(p.record) for p in evaluation.presences[name]} for name in checked.derived}


nodes = st.integers(1, 5)
facts = st.tuples(st.just("edge"), st.tuples(nodes, nodes)) | st.tuples(
    st.just("root"), st.tuples(nodes)
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
@settings(max_examples=12, deadline=None)
@given(steps=st.lists(st.lists(facts, min_size=1, max_size=5), min_size=1, max_size=6))
def test_rounds_hold_what_scratch_finds(
    text: str, strategy: Strategy, steps: list[list[tuple[str, tuple[int, ...]]]]
) -> None:
    checked = program(text)
    engine = IncrementalEngine(checked, strategy=strategy)
    assert any(isinstance(unit, LoopedUnit) for unit in engine.units)
    present: Edges = {}
    found: dict[str, set[str]] = {name: set() for name in checked.derived}
    for at, toggled in enumerate(steps):
        for fact in dict.fromkeys(toggled):
            name, row = fact
            gone = fact in present
            engine.update(name, Record(name, row), at, -1 if gone else 1)
            if gone:
                del present[fact]
            else:
                present[fact] = None
        for change in engine.advance(at + 1).facts:
            records = found[change.record.predicate]
            (records.add if change.diff > 0 else records.remove)(str(change.record))
        assert found == scratch(checked, present)
        assert found == {
            name: {str(record) for record in engine.records(name)} for name in checked.derived
        }


@pytest.mark.parametrize(
    "text",
    [
        "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ edge(y, z) if x < z;",
        "path(x, y) @min(1) := edge(x, y); path(x, z) @min(d + 1) := path(x, y) @min(d) ^ edge(y, z);",
        "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ edge(y, z) ^ not root(z);",
        "path(x, y) := edge(x, y); path(x, z) := path(x, z) ^ root(y) ^ edge(y, y);",
        "path(x, y) := edge(x, y); path(x, z) := path(x, y) ^ path(y, z) ^ path(z, w) ^ path(w, x);",
        "path(x, y, 1) := edge(x, y); path(x, z, 1) := path(x, y, 1) ^ edge(y, z);",
    ],
    ids=["guard", "lattice", "absence", "a product", "three variables at once", "three columns"],
)
def test_what_computes_more_is_kept_by_matches(text: str) -> None:
    units = IncrementalEngine(program(text)).units
    assert not any(isinstance(unit, LoopedUnit) for unit in units)


@settings(max_examples=8, deadline=None)
@given(random=st.randoms(use_true_random=False), asked=st.booleans())
def test_what_is_owed_is_what_rows_would_be(random: Random, asked: bool) -> None:
    table, numbering, present = OwingTable("p", ("int", "int")), Numbering("int"), set[Pair]()
    for value in range(6):
        numbering.number(-value)
    for at in range(random.randrange(5_000)):
        toggled = {(random.randrange(6), random.randrange(6)) for _ in range(random.choice((1, 3)))}
        numbers = np.array(sorted(toggled), np.uint64).T
        diffs = np.array([-1 if pair in present else 1 for pair in sorted(toggled)])
        table.owe(FactBlock(at, "p", (numbering, numbering), tuple(numbers), diffs))
        present ^= toggled
        if asked and random.random() < 0.01:
            paid = table.pay()
            assert all((table.get(key) is None) != (old is None) for key, old in paid)
    assert len(table) == len(present)
    assert table.size_bytes() < 2_000_000
    assert {row[4:] for row in table.rows} == {(None, -a, -b) for a, b in present}


def test_limits_stop_rounds() -> None:
    checked = program(PROGRAMS["closure"])
    for limits, passed in ((Limits(rounds=3), "rounds"), (Limits(rows=3), "rows")):
        engine = IncrementalEngine(checked, limits=limits)
        for at in range(9):
            engine.update("edge", Record("edge", (at, at + 1)), 0, 1)
        with pytest.raises(LimitPassed) as failed:
            engine.advance(1)
        assert failed.value.details["limit"] == passed


def test_explain_says_how_a_recursion_is_followed() -> None:
    engine = IncrementalEngine(program(PROGRAMS["closure"]), timer=lambda: 0.0)
    engine.update("edge", Record("edge", (1, 2)), 0, 1)
    engine.advance(1)
    assert any("by differences of its rounds" in line for line in explain_plan(engine))
    assert any(
        line.split()[:4] == ["stratum", "0:", "path", "1"] for line in explain_analysis(engine)
    )
