"""Laws of the engine `dataflow`: at every instant it says what the program says."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import (
    DataflowEngine,
    NotInDataflow,
    analysis_document,
    analysis_lines,
    lower,
    plan_document,
    plan_dot,
    plan_lines,
)
from tidemill.datalog.dataflow.ticked_plan import given_apart
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lattices import LATTICES, inject_given, tally
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.strategy import Strategy
from tidemill.errors import UsageError
from tidemill.testkit.conformance.casefiles import FoundCase, find_cases
from tidemill.testkit.conformance.registry import Options, run_case
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.held import Held, delivered, lives, taken_back, with_passing
from tidemill.testkit.tidelog import (
    UPPER,
    Example,
    answers_from_scratch,
    inputs,
    programs,
)

LAW = drawn(80)


EVENTS = frozenset({"a", "b", "n"})
CARRYING = st.sampled_from([frozenset(), EVENTS])
"""Inputs of which the records carry lattices."""


def fits(checked: CheckedProgram) -> bool:
    """Whether the dataflow evaluates all of a program, whatever its inputs carry."""
    try:
        for carrying in (frozenset[str](), EVENTS):
            lower(given_apart(logical_plan(checked)), carrying)
    except NotInDataflow:
        return False
    return True


def carried_by(names: Collection[str], given_: Presences) -> Presences:
    """The same presences without lattices that ride beside them, but for those of some inputs."""
    return {
        name: presences if name in names
        else [replace(each, record=replace(each.record, parafacts=())) for each in presences]
        for name, presences in given_.items()
    }  # fmt: skip


@LAW
@given(programs(fits=fits), inputs(), STRATEGIES, CARRYING)
def test_it_holds_at_every_instant_what_the_program_says(
    example: Example, given_: Presences, strategy: Strategy, carrying: frozenset[str]
) -> None:
    given_ = carried_by(carrying, given_)
    held = Held(example.checked, strategy=strategy, carrying=carrying)
    held.feed(given_)
    for at, expected in enumerate(answers_from_scratch(example, given_), -1):
        held.step(at + 1)
        assert held.now() == expected, (at, example.text)


@LAW
@given(
    programs(fits=fits), inputs(), STRATEGIES, CARRYING, st.lists(st.integers(0, UPPER - 1)),
    st.integers(0),
)  # fmt: skip
def test_neither_steps_nor_deliveries_have_a_meaning(
    example: Example, given_: Presences, strategy: Strategy, carrying: frozenset[str],
    stops: list[int], seed: int,
) -> None:  # fmt: skip
    given_ = carried_by(carrying, given_)
    held = Held(example.checked, strategy=strategy, carrying=carrying)
    expected = answers_from_scratch(example, given_)
    for stop in delivered(held, given_, stops, seed):
        assert held.now() == expected[stop], (stop, example.text)


@LAW
@given(programs(fits=fits), inputs(), inputs(), STRATEGIES, CARRYING, st.integers(0, UPPER - 1))
def test_what_is_taken_back_from_an_instant_on_was_there_before(
    example: Example, given_: Presences, passing: Presences, strategy: Strategy,
    carrying: frozenset[str], at: int,
) -> None:  # fmt: skip
    given_, passing = carried_by(carrying, given_), carried_by(carrying, passing)
    held = Held(example.checked, strategy=strategy, carrying=carrying)
    expected = answers_from_scratch(example, with_passing(given_, passing, at))
    for stop in taken_back(held, given_, passing, at):
        assert held.now() == expected[stop], (stop, at, example.text)


@LAW
@given(
    programs(fits=fits), inputs(), STRATEGIES, CARRYING,
    st.lists(st.integers(1, UPPER - 1), min_size=1, unique=True).map(sorted),
)  # fmt: skip
def test_an_engine_that_begins_again_from_its_state_goes_on(
    example: Example, given_: Presences, strategy: Strategy, carrying: frozenset[str],
    deaths: list[int],
) -> None:  # fmt: skip
    """It has its inputs from just before each death on, and the rows of its state."""
    given_ = carried_by(carrying, given_)
    expected = answers_from_scratch(example, given_)
    for stop, held in lives(example.checked, given_, deaths, strategy=strategy, carrying=carrying):
        assert held.now() == expected[stop], (stop, deaths, example.text)


def program(text: str) -> CheckedProgram:
    return check(parse(text), InputSchemas(closed=False))


def test_a_step_does_not_go_back() -> None:
    engine = DataflowEngine(program("p(x) := e(x);"))
    engine.step(10)
    with pytest.raises(UsageError, match="step refused: 9 is below the upper 10"):
        engine.step(9)


def test_the_work_of_each_operator_is_told() -> None:
    schemas = {"e": InputSchema("e", "relation", (("", "int"), ("", "int")))}
    text = "p(x) := e(x, y) if y > 1;"
    engine = DataflowEngine(
        check(parse(text), InputSchemas(schemas)), timer=itertools.count().__next__
    )
    engine.feed_presences("e", [Presence(Record("e", (x, x % 3)), 0) for x in range(30)])
    engine.step(1)
    lines = analysis_lines(analysis_document(engine))
    figures = {line[:18].strip(): line[18:].split() for line in lines[1:]}
    assert figures["stratum 0: e"][:3] == ["30", "30", "30"]
    assert figures["stratum 0: p"][:3] == ["10", "10", "10"]
    assert figures["rule 1"][:2] == ["30", "10"]
    assert float(figures["rule 1"][-1]) > 0


@pytest.mark.parametrize("body", ["not r(x) ^ not r(y)", "not q(x) ^ not r(y)"])
@pytest.mark.parametrize("strategy", ["strata", "retraction"])
def test_facts_forbid_a_match_together_as_one_by_one(strategy: Strategy, body: str) -> None:
    text = f"q(x) := r(x); p(x) := s(x, y) ^ {body};"
    held = Held(program(text), strategy=strategy)
    held.engine.feed_presences("s", [Presence(Record("s", (0, 1)), 0)])
    held.step(1)
    both = [Presence(Record("r", (x,)), 0) for x in (0, 1)]
    for at, diff in ((1, 1), (2, -1), (3, 1)):
        held.engine.feed_presences("r", [replace(each, start=at) for each in both], diff)
        held.step(at + 1)
        assert held.now()["p"] == ({"p(0)"} if diff < 0 else set())


def test_a_match_that_a_fact_of_the_same_step_forbids_is_not_made() -> None:
    engine = DataflowEngine(program("told(x) := heard(x, _); p(x) := a(x) ^ not told(x);"))
    engine.feed_presences("a", [Presence(Record("a", (x,)), 0) for x in range(100)])
    engine.feed_presences("heard", [Presence(Record("heard", (x, 0)), 0) for x in range(1, 100)])
    engine.step(1)
    assert [rule.figures.rows_out for rule in engine.rules_of("p")] == [1]


def test_a_plan_names_the_columns_of_each_operator() -> None:
    """The text, the document and the drawing say the same."""
    pay = InputSchema("pay", "events", (("id", "int"), ("amount", "int")))
    schemas = {
        "order": InputSchema("order", "events", (("id", "int"), ("who", "text"))), "pay": pay,
    }  # fmt: skip
    text = """
        paid(id, a) := order(id, "x") @time(t) ^ pay(id, a) @time(u) if u >= t ^ u < t + 1000;
        open(id) := order(id, who) ^ not pay(id, _);
        most(who) @max(a) := order(id, who) ^ paid(id, a);
        near(a, b) := paid(a, b);
        near(a, c) := near(a, b) ^ paid(b, c);
    """
    checked = check(parse(text), InputSchemas(schemas))
    document = plan_document(lower(logical_plan(checked)), checked)
    lines = [line.strip() for line in plan_lines(document)]
    late = "join pay by (id) where (t <= u) -> filter where (u < t + 1000)"
    assert f'order -> select by (who = "x") -> {late}' in lines
    assert "order -> subtract not pay (id) by (id)" in lines
    assert "less not pay (id) -> join order by (id)" in lines
    assert "keeps groups of @max" in lines
    assert "stratum 0: near (c0, c1), recursive" in lines
    named = {each["name"]: each for each in document["collections"]}
    assert named["order"]["input"]
    (rule,) = named["most"]["rules"]
    assert [delta["from"] for delta in rule["deltas"]] == ["order", "paid"]
    assert rule["deltas"][1]["operators"] == [
        {"operator": "join", "with": "order", "same": False, "by": ["id"], "where": []}
    ]
    drawn = plan_dot(document)
    assert '"not pay (id)" -> "rule 2" [label="join order by (id)", style=dashed];' in drawn


def test_what_has_ended_takes_no_memory() -> None:
    columns = {"e": ("int", "int"), "f": ("int",)}
    schemas = {
        name: InputSchema(name, "events" if name == "e" else "relation", tuple(("", k) for k in ks))
        for name, ks in columns.items()
    }
    text = "p(x) @count(y) @time(u) := e(x, y) @time(u) ^ f(y);"
    engine = DataflowEngine(check(parse(text), InputSchemas(schemas)))
    engine.feed_presences("f", [Presence(Record("f", (0,)))])
    sizes = []
    for round_ in range(8):
        found = [
            Presence(Record("e", (at % 7, 0), at, at + 5), at, at + 5)
            for at in range(round_ * 1_000, (round_ + 1) * 1_000)
        ]
        engine.feed_presences("e", found)
        engine.step((round_ + 1) * 1_000)
        sizes.append(engine.nbytes)
    assert sizes[-1] <= 1.5 * sizes[2]


def test_values_of_lattices_that_have_ended_take_no_memory() -> None:
    schemas = {"e": InputSchema("e", "events", (("", "int"), ("", "int")))}
    engine = DataflowEngine(check(parse("p(x) @set(y) := e(x, y);"), InputSchemas(schemas)))
    most = 0
    for at in range(1_500):
        engine.feed_presences("e", [Presence(Record("e", (at % 7, at), at, at + 5), at, at + 5)])
        told = engine.step(at + 1)
        shown = sorted((d, format_record(r)) for _, r, d in told["p"].records())
        assert shown[-1] == (1, f"p({at % 7}) @time({at}) @expires({at + 5}) @set({{{at}}})")
        assert len(shown) == (1 if at < 5 else 2)
        most = max(most, len(engine.plan.values))
    assert most <= 1_100


def test_a_clock_without_a_limit_ticks_when_the_frontier_reaches_it() -> None:
    schema = InputSchema("e", "relation", (("", "int"),))
    engine = DataflowEngine(
        check(parse("p(x) := e(x) ^ clock(x, 10) @time(t);"), InputSchemas({"e": schema}))
    )
    engine.feed_presences("e", [Presence(Record("e", (5,)), 0), Presence(Record("e", (6,)), 0, 20)])
    seen = []
    for upper in (5, 16, 40):
        told = engine.step(upper).values()
        seen.append(sorted((at, str(r), diff) for each in told for at, r, diff in each.records()))
    assert seen == [
        [],
        [(5, "p(5) @time(5)", 1), (6, "p(6) @time(6)", 1), (15, "p(5) @time(15)", 1)],
        [(16, "p(6) @time(16)", 1), (20, "p(6) @time(16)", -1), (20, "p(6) @time(6)", -1),
         (25, "p(5) @time(25)", 1), (35, "p(5) @time(35)", 1)],
    ]  # fmt: skip


def test_a_recursion_takes_what_comes_before_what_goes_in_one_step() -> None:
    schema = InputSchema("e", "relation", (("", "int"), ("", "int")))
    text = "t(x, y) := e(x, y); t(x, z) := t(x, y) ^ e(y, z);"
    engine = DataflowEngine(check(parse(text), InputSchemas({"e": schema})))
    engine.feed_presences("e", [Presence(Record("e", edge), 0) for edge in ((1, 2), (5, 6))])
    engine.step(1)
    engine.feed_presences("e", [Presence(Record("e", (2, 3)), 2)])
    engine.feed_presences("e", [Presence(Record("e", (5, 6)), 7)], -1)
    told = sorted((at, str(record), diff) for at, record, diff in engine.step(9)["t"].records())
    assert told == [(2, "t(1, 3)", 1), (2, "t(2, 3)", 1), (7, "t(5, 6)", -1)]


CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
def test_each_case_of_our_own_is_answered(strategy: Strategy) -> None:
    wrong = {}
    for case in find_cases(CASES):
        assert isinstance(case, FoundCase), case
        differences = run_case(case.case, Options("dataflow", strategy))
        if differences:
            wrong[case.name] = differences
    assert wrong == {}


def test_equal_counts_of_different_facts_have_different_hashes() -> None:
    records = [Record("e", (x,), parafacts=(("count", 5),)) for x in range(100)]
    given_ = [dict(inject_given(each, LATTICES) or ())["count"] for each in records]
    assert len({hash(each) for each in given_}) == 100
    again = tally("count", dict(given_[0].members))
    assert again == given_[0]
    assert hash(again) == hash(given_[0])


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("q(x) := e(x) ^ not m(x) @max(x); m(x) @max(y) := e(x) ^ e(y);", "q(1)"),
        ("q(x) := e(x) ^ not e(_) @time(_);", "q(1) q(2)"),
        ("q(x) := e(x) ^ clock(0, 9) @time(u) @min(_);", ""),
        ("q(x, w) := e(x) @expires(w); r(w) := q(_, w) if w > 5;", "q(1, inf) q(2, inf) r(inf)"),
        (
            "q(w) := clock(u, 3) @time(w) ^ clock(0, 2) @time(u) if w < 5;",
            "q(0) @time(0) q(2) @time(2) q(3) @time(3) q(4) @time(4)",
        ),
        ("q(x) := e(x) ^ not clock(x, 2);", "q(1) q(1) q(2) q(2)"),
        ("q(x) := e(x) ^ e(a) ^ e(b) ^ e(c) ^ e(d) ^ e(f) if a == x ^ f > x;", "q(1)"),
    ],
)
def test_rare_constructs_are_rewritten(text: str, holds: str) -> None:
    schemas = InputSchemas({"e": InputSchema("e", "relation", (("", "int"),))})
    checked = check(parse(text), schemas)
    engine = DataflowEngine(checked, told=("q", "r"))
    engine.feed_presences("e", [Presence(Record("e", (x,)), 0) for x in (1, 2)])
    found = sorted(str(r) for told in engine.step(5).values() for _, r, _ in told.records())
    assert " ".join(found) == holds


@pytest.mark.parametrize(
    ("kind", "stays", "goes"),
    [
        ("int", 1_800_000_000_000_000_001, 1_800_000_000_000_000_002),
        ("int", 2**53, 2**53 + 1),
        ("int", -(2**63), 2**63 - 1),
        ("float", 0.3, 0.1 + 0.2),
    ],
)
def test_a_fact_beside_its_nearest_neighbour_goes_alone(
    kind: str, stays: float, goes: float
) -> None:
    schemas = InputSchemas({"at": InputSchema("at", "relation", (("k", kind), ("v", "int")))})
    held = Held(check(parse("q(k) := at(k, _);"), schemas))
    for value in (stays, goes):
        held.update("at", Record("at", (value, 1)), 0, 1)
    held.step(2)
    held.update("at", Record("at", (goes, 1)), 3, -1)
    held.step(4)
    assert held.texts("q") == {f"q({stays})"}
