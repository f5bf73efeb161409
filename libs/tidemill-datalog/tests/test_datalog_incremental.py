"""Laws of the engine `incremental`: at every instant it answers as `scratch`, however its input was delivered."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.incremental import (
    FactChange,
    IncrementalEngine,
    Strategy,
    follows,
    presences_of_changes,
)
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.scratch import Engine, evaluate
from tidemill.datalog.state import EngineState
from tidemill.errors import UsageError
from tidemill.testkit.tidelog import (
    CATALOG,
    DERIVED,
    UPPER,
    Example,
    answers_from_scratch,
    inputs,
    programs,
)

EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "80"))
LAW = settings(
    max_examples=EXAMPLES,
    derandomize="LAW_EXAMPLES"
    not in os.environ,  # `make laws` looks for new examples, a test run does not
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Inputs = Mapping[str, Sequence[Presence]]
STRATEGIES: st.SearchStrategy[Strategy] = st.sampled_from(["strata", "retraction"])


def held(engine: IncrementalEngine) -> dict[str, set[str]]:
    """What the engine has maintained."""
    found = {name: set(map(format_record, engine.records(name))) for name in DERIVED}
    return {**found, "errors": {text for text, _ in engine.errors()}}


def fed(example: Example, given_: Inputs, strategy: Strategy) -> IncrementalEngine:
    """An engine that knows all inputs and has done nothing yet."""
    engine = IncrementalEngine(example.checked, strategy=strategy)
    for name, presences in given_.items():
        engine.feed(name, presences)
    return engine


def texts_at(presences: Sequence[Presence], at: int) -> set[str]:
    return {format_record(p.record) for p in presences if p.start <= at < p.end}


def program(text: str) -> CheckedProgram:
    return check(parse(text), InputSchemas(closed=False))


@LAW
@given(programs(), inputs(), STRATEGIES)
def test_it_holds_at_every_instant_what_scratch_finds(
    example: Example, given_: Inputs, strategy: Strategy
) -> None:
    engine = fed(example, given_, strategy)
    for at, expected in enumerate(answers_from_scratch(example, given_), -1):
        engine.advance(at + 1)
        assert held(engine) == expected, (at, example.text)


@LAW
@given(programs(), inputs(), STRATEGIES, st.lists(st.integers(0, UPPER - 1)), st.integers(0, 999))
def test_neither_steps_nor_the_time_of_delivery_nor_the_order_of_rules_have_a_meaning(
    example: Example, given_: Inputs, strategy: Strategy, stops: list[int], seed: int
) -> None:
    rng = Random(seed)
    rules = tuple(rng.sample(example.checked.rules, len(example.checked.rules)))
    engine = IncrementalEngine(replace(example.checked, rules=rules), strategy=strategy)
    waiting = [(rng.randint(0, p.start), name, p) for name, found in given_.items() for p in found]
    facts: list[FactChange] = []
    for stop in sorted({*stops, UPPER}):
        rng.shuffle(waiting)
        late = [each for each in waiting if each[0] >= stop]
        for _, name, presence in waiting:
            if (_, name, presence) not in late:
                engine.feed(name, [presence])
        waiting = late
        facts += engine.advance(stop).facts
    drawn = presences_of_changes(facts)
    for at, expected in enumerate(answers_from_scratch(example, given_), -1):
        for name in DERIVED:
            assert texts_at(drawn.get(name, ()), at) == expected[name], (at, example.text)


@LAW
@given(programs(), inputs(), inputs(), STRATEGIES, st.integers(0, UPPER - 1))
def test_what_comes_and_goes_at_one_instant_was_never_there(
    example: Example, given_: Inputs, passing: Inputs, strategy: Strategy, at: int
) -> None:
    engine = fed(example, given_, strategy)
    for name, presences in passing.items():
        for diff in (1, -1):
            for presence in presences:
                engine.update(name, presence.record, at, diff)
    for instant, expected in enumerate(answers_from_scratch(example, given_), -1):
        engine.advance(instant + 1)
        assert held(engine) == expected, (instant, example.text)


@LAW
@given(programs(), inputs(), STRATEGIES, st.integers(1, UPPER - 1))
def test_a_restart_from_the_state_and_the_facts_alive_changes_nothing(
    example: Example, given_: Inputs, strategy: Strategy, cut: int
) -> None:
    expected = answers_from_scratch(example, given_)
    engine = fed(example, given_, strategy)
    engine.advance(cut)
    rows = engine.state().to_rows()
    again = IncrementalEngine(
        example.checked, strategy=strategy, begin=cut - 1, state=EngineState.from_rows(rows)
    )
    for name, presences in given_.items():
        again.feed(name, [p for p in presences if p.end >= cut])
    for at in range(cut - 1, UPPER):
        again.advance(at + 1)
        assert held(again) == expected[at + 1], (at, cut, example.text)


@LAW
@given(programs(), inputs(), st.integers(1, UPPER - 1))
def test_changes_of_the_state_add_up_to_the_state(
    example: Example, given_: Inputs, cut: int
) -> None:
    assume(follows(example.checked))
    engine = fed(example, given_, "strata")
    rows: set[tuple[int, str, str]] = set()
    answers_from_scratch(example, given_)
    for upper in (cut, UPPER):
        engine.advance(upper)
        gone, come = engine.take_state_changes()
        assert rows.issuperset(gone.to_rows())
        rows = rows.difference(gone.to_rows()).union(come.to_rows())
        assert rows == set(engine.state().to_rows())


def test_a_ring_that_is_cut_keeps_nothing_that_stands_on_itself() -> None:
    """Cyclic support: what can only be derived from itself goes, what has another way stays."""
    size = 30
    text = "reach(y) := start(y);\nreach(y) := reach(x) ^ edge(x, y);"
    for strategy in ("strata", "retraction"):
        engine = IncrementalEngine(program(text), strategy=strategy)  # type: ignore[arg-type]
        ring = [(i, (i + 1) % size) for i in range(size)]
        engine.update("start", Record("start", (0,)), 0, 1)
        for edge in (*ring, *((b, a) for a, b in ring)):
            engine.update("edge", Record("edge", edge), 0, 1)
        engine.advance(1)
        assert len(engine.records("reach")) == size
        for edge in ((9, 10), (10, 9)):
            engine.update("edge", Record("edge", edge), 1, -1)
        engine.advance(2)
        assert len(engine.records("reach")) == size
        for edge in ((19, 20), (20, 19)):
            engine.update("edge", Record("edge", edge), 2, -1)
        engine.advance(3)
        reached = {record.arguments[0] for record in engine.records("reach")}
        assert reached == {*range(10), *range(20, size)}


def test_a_shortest_path_grows_when_its_edge_goes_and_shrinks_when_one_comes() -> None:
    text = "dist(x) @min(0) := start(x);\ndist(y) @min(d + w) := dist(x) @min(d) ^ edge(x, y, w);"
    engine = IncrementalEngine(program(text))
    engine.update("start", Record("start", (0,)), 0, 1)
    for edge in ((0, 1, 1), (1, 2, 1), (2, 1, 0), (0, 2, 5)):
        engine.update("edge", Record("edge", edge), 0, 1)
    engine.update("edge", Record("edge", (0, 1, 1)), 1, -1)
    engine.update("edge", Record("edge", (0, 1, 3)), 2, 1)
    lengths = []
    for upper in (1, 2, 3):
        engine.advance(upper)
        lengths.append({r.arguments[0]: r.parafacts[0][1] for r in engine.records("dist")})
    assert lengths == [{0: 0, 1: 1, 2: 2}, {0: 0, 1: 5, 2: 5}, {0: 0, 1: 3, 2: 4}]


def test_an_expiry_that_does_not_come_bounds_no_clock() -> None:
    text = "p(y) @time(u) := clock(0, 3) @time(u) ^ r(y) @expires(w) if u <= w;"
    example = Example(text, check(parse(text), CATALOG))
    given_ = {"r": [Presence(Record("r", (0,)), 2)]}
    engine = fed(example, given_, "strata")
    engine.advance(9)
    assert {str(record) for record in engine.records("p")} == {
        f"p(0) @time({at})" for at in (0, 3, 6)
    }


def test_a_solution_is_noticed_although_its_head_is_withheld_beyond_what_is_definite() -> None:
    text = "p(y) @time(u + 2) := clock(0, 3) @time(u) ^ r(y) ~expires;"
    example = Example(text, check(parse(text), CATALOG))
    engine = fed(example, {"r": [Presence(Record("r", (0,)), 0, 10)]}, "strata")
    for upper in (10, 12):  # the clock of 9 comes while r is there, its head when r has gone
        engine.advance(upper)
    assert {str(record) for record in engine.records("p")} == {
        f"p(0) @time({at})" for at in (2, 5, 8, 11)
    }


def test_an_input_taken_away_too_often_is_refused() -> None:
    engine = IncrementalEngine(program("p(x) := r(x);"))
    engine.update("r", Record("r", (1,)), 3, -1)
    with pytest.raises(UsageError) as refused:
        engine.advance(10)
    assert refused.value.details["at"] == 3
    with pytest.raises(UsageError):
        IncrementalEngine(program("p(x) := r(x);"), begin=5).update("r", Record("r", (1,)), 3, 1)


@pytest.mark.parametrize("limit", [Limits(rows=50), Limits(rounds=5), Limits(set_values=3)])
def test_passing_a_limit_stops_without_an_answer(limit: Limits) -> None:
    text = """
        path(x, y) := r(x, y);
        path(x, z) := path(x, y) ^ r(y, z);
        all() @set(x) := r(x, _);
    """
    engine = IncrementalEngine(program(text), limits=limit)
    for i in range(20):
        engine.update("r", Record("r", (i, i + 1)), 0, 1)
    with pytest.raises(LimitPassed):
        engine.advance(1)


def test_a_unit_runs_once_at_an_instant_and_not_without_work() -> None:
    """The scheduled bit, and levels in order: a diamond above one input runs each unit once."""
    text = "b(x) := a(x);\nc(x) := a(x);\nd(x) := b(x) ^ c(x);\ne(x) := r(x) ^ not d(x);"
    engine = IncrementalEngine(program(text))
    engine.advance(0)
    begun = {unit.component[0]: unit.runs for unit in engine.units}
    engine.update("a", Record("a", (1,)), 5, 1)
    engine.update("a", Record("a", (2,)), 5, 1)
    engine.advance(10)
    runs = {unit.component[0]: unit.runs - begun[unit.component[0]] for unit in engine.units}
    assert runs == {"b": 1, "c": 1, "d": 1, "e": 1}
    engine.update("r", Record("r", (1,)), 12, 1)
    engine.advance(20)
    later = {unit.component[0]: unit.runs - begun[unit.component[0]] for unit in engine.units}
    assert later == {"b": 1, "c": 1, "d": 1, "e": 2}


GROWING = {
    "a keyed join": "p(k, v, w) := r(k, v) ^ s(k, w);",
    "absence": "p(k) := r(k, _) ^ not s(k, _);",
    "one fact with many supports": "p(1) := r(_, _);",
    "one group": "p() @count(v) @sum(v) @min(v) @max(v) := r(_, v);",
    "a clock": "p(k) @time(t) := e(k) @time(u) ^ clock(0, 10) @time(t) if u < t ^ t <= u + 10;",
    "own expiry": "p() @expires(u + 1000) := e(_) @time(u);",
    "recursion": "p(k, v) := r(k, v);\np(k, w) := p(k, v) ^ r(v, w);",
}


@pytest.mark.parametrize("name", GROWING)
def test_the_cost_of_a_change_does_not_grow_with_the_state(name: str) -> None:
    small, large = (lines_of_a_change(GROWING[name], size) for size in (60, 3_000))
    assert large <= 1.5 * small, (small, large)


def lines_of_a_change(text: str, size: int) -> int:
    """How many lines run while a few rows come and go beside `size` others."""
    kinds = {"r": 2, "s": 2, "e": 1}
    columns = {n: tuple((f"c{i}", "int") for i in range(k)) for n, k in kinds.items()}
    schemas = {
        n: InputSchema(n, "events" if n == "e" else "relation", c)  # type: ignore[arg-type]
        for n, c in columns.items()
    }
    engine = IncrementalEngine(check(parse(text), InputSchemas(schemas)))
    for i in range(size):
        engine.update("r", Record("r", (2 * i, 2 * i + 1)), 5, 1)
        engine.update("s", Record("s", (2 * i, i)), 5, 1)
        engine.update("e", Record("e", (i,), 5 + i, 90_000 + i), 5, 1)
    engine.advance(1_000)
    found = []
    for round_ in range(3):  # the first plans and compiles
        at = 10_000 + 10 * round_
        for i, row in enumerate([(-2, -3), (-4, -5), (-6, -7)]):
            engine.update("r", Record("r", row), at + i, 1)
            engine.update("s", Record("s", row), at + i + 1, 1)
            engine.update("r", Record("r", row), at + i + 2, -1)
            engine.update("s", Record("s", row), at + i + 2, -1)
            event = Record("e", (row[0],), at + i, at + i + 4)
            engine.update("e", event, at + i, 1)
            engine.update("e", event, at + i + 4, -1)
        found.append(lines_run(lambda upper=at + 9: engine.advance(upper)))  # type: ignore[misc]
    return min(found)


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of Python an action runs: a measure of work that no busy machine disturbs."""
    count = 0

    def trace(frame: object, event: str, _: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@LAW
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), min_size=20, max_size=40),
    STRATEGIES,
)
def test_a_fact_with_many_supports_ends_with_the_last_of_them(
    lives: list[tuple[int, int]], strategy: Strategy
) -> None:
    text = "p(1) @time(0) := a(x) @time(u);\nq(1) @time(0) @expires(u + 3) := a(x) @time(u);"
    example = Example(text, check(parse(text), CATALOG))
    given_: Inputs = {
        "a": [
            Presence(Record("a", (x,), start, start + length), start, start + length)
            for x, (start, length) in enumerate(lives)
        ]
    }
    engine = fed(example, given_, strategy)
    for at in range(UPPER):
        engine.advance(at + 1)
        evaluation = Engine(example.checked).evaluate(given_, upper=UPPER)
        for name in ("p", "q"):
            expected = texts_at(evaluation.presences[name], at)
            assert set(map(format_record, engine.records(name))) == expected


PASSED = ("min", "max", "set", "count", "count_distinct", "sum", "average", "latest", "provenance")


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize("lattice", PASSED)
def test_values_that_are_passed_round_a_cycle_settle_and_go_with_their_rows(
    lattice: str, strategy: Strategy
) -> None:
    """Groups outside the recursion whose values go round in it: nothing stays that only stands on itself."""
    text = f"p(y) := p(x) ^ s(x, y);\np(x) @{lattice}(y) := s(x, y);"
    engine = IncrementalEngine(program(text), strategy=strategy, limits=Limits(rounds=50))
    rng = Random(1)
    rows: set[tuple[int, int]] = set()
    for at in range(40):
        row = (rng.randrange(3), rng.randrange(3))
        engine.update("s", Record("s", row), at, -1 if row in rows else 1)
        rows ^= {row}
        engine.advance(at + 1)
        given_ = {"s": [Presence(Record("s", row)) for row in rows]}
        expected = evaluate(program(text), given_, upper=at + 1).presences["p"]
        assert set(map(str, engine.records("p"))) == {str(p.record) for p in expected}
