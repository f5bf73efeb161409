"""Steps of the dataflow: what comes and goes, groups, limits, and what a change costs."""

from __future__ import annotations

import time
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputKind, InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.errors import Corrupt
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.held import Held
from tidemill.testkit.tidelog import (
    CATALOG,
    UPPER,
    Example,
    answers_from_scratch,
    inputs,
    programs,
)
from tidemill.testkit.twins.pointwise import answers

LAW = drawn(80)
STRATEGY = pytest.mark.parametrize("strategy", ["strata", "retraction"])


def program(text: str, **columns: str) -> CheckedProgram:
    """A program over relations of whole numbers, or over those that are stated."""
    schemas = {
        name: InputSchema(name, "relation", tuple((f"c{i}", k) for i, k in enumerate(kinds.split())))  # type: ignore[misc]
        for name, kinds in columns.items()
    }  # fmt: skip
    return check(parse(text), InputSchemas(schemas, closed=bool(schemas)))


@LAW
@given(programs(), inputs(), inputs(), STRATEGIES, st.integers(0, UPPER - 1), st.integers(0))
def test_what_comes_and_goes_at_one_instant_was_never_there(
    example: Example, given_: Presences, passing: Presences, strategy: Strategy, at: int, seed: int
) -> None:
    """In whatever order rules and atoms stand: only errors name facts in that of the text."""
    rng = Random(seed)
    rules = tuple(rng.sample(example.checked.rules, len(example.checked.rules)))
    held = Held(replace(example.checked, rules=rules), strategy=strategy)
    held.feed(given_)
    for diff in (1, -1):
        for name, presences in passing.items():
            for presence in presences:
                held.update(name, presence.record, at, diff)
    for instant, expected in enumerate(answers_from_scratch(example, given_), -1):
        held.step(instant + 1)
        assert held.now() == expected, (instant, example.text)


@STRATEGY
def test_a_ring_that_is_cut_keeps_nothing_that_stands_on_itself(strategy: Strategy) -> None:
    """Cyclic support: what can only be derived from itself goes, what has another way stays."""
    size = 30
    text = "reach(y) := start(y);\nreach(y) := reach(x) ^ edge(x, y);"
    held = Held(program(text), strategy=strategy)
    ring = [(i, (i + 1) % size) for i in range(size)]
    held.update("start", Record("start", (0,)), 0, 1)
    for edge in (*ring, *((b, a) for a, b in ring)):
        held.update("edge", Record("edge", edge), 0, 1)
    held.step(1)
    assert len(held.records("reach")) == size
    for edge in ((9, 10), (10, 9)):
        held.update("edge", Record("edge", edge), 1, -1)
    held.step(2)
    assert len(held.records("reach")) == size
    for edge in ((19, 20), (20, 19)):
        held.update("edge", Record("edge", edge), 2, -1)
    held.step(3)
    reached = {record.arguments[0] for record in held.records("reach")}
    assert reached == {*range(10), *range(20, size)}


@STRATEGY
def test_a_shortest_path_grows_when_its_edge_goes_and_shrinks_when_one_comes(
    strategy: Strategy,
) -> None:
    text = "dist(x) @min(0) := start(x);\ndist(y) @min(d + w) := dist(x) @min(d) ^ edge(x, y, w);"
    held = Held(program(text), strategy=strategy)
    held.update("start", Record("start", (0,)), 0, 1)
    for edge in ((0, 1, 1), (1, 2, 1), (2, 1, 0), (0, 2, 5)):
        held.update("edge", Record("edge", edge), 0, 1)
    held.update("edge", Record("edge", (0, 1, 1)), 1, -1)
    held.update("edge", Record("edge", (0, 1, 3)), 2, 1)
    lengths = []
    for upper in (1, 2, 3):
        held.step(upper)
        lengths.append({r.arguments[0]: r.parafacts[0][1] for r in held.records("dist")})
    assert lengths == [{0: 0, 1: 1, 2: 2}, {0: 0, 1: 5, 2: 5}, {0: 0, 1: 3, 2: 4}]


def test_an_expiry_that_does_not_come_bounds_no_clock() -> None:
    text = "p(y) @time(u) := clock(0, 3) @time(u) ^ r(y) @expires(w) if u <= w;"
    held = Held(check(parse(text), CATALOG))
    held.update("r", Record("r", (0,)), 2, 1)
    held.step(9)
    assert held.texts("p") == {f"p(0) @time({at})" for at in (0, 3, 6)}


def test_a_solution_is_noticed_although_its_head_is_withheld_beyond_what_is_definite() -> None:
    text = "p(y) @time(u + 2) := clock(0, 3) @time(u) ^ r(y) ~expires;"
    held = Held(check(parse(text), CATALOG))
    held.feed({"r": [Presence(Record("r", (0,)), 0, 10)]})
    for upper in (10, 12):  # the clock of 9 comes while r is there, its head when r has gone
        held.step(upper)
    assert held.texts("p") == {f"p(0) @time({at})" for at in (2, 5, 8, 11)}


@STRATEGY
def test_a_life_whose_fact_comes_and_goes_within_a_step_goes_on(strategy: Strategy) -> None:
    """Its rest is asked before it is cut: else each cut makes the next one, for ever."""
    held = Held(program("p(x) ~expires := r(x) ~expires;"), strategy=strategy)
    held.feed({"r": [Presence(Record("r", (1,)), 7, 12)]})
    held.step(20)
    assert held.texts("p") == {"p(1)"}


@STRATEGY
def test_a_life_that_begins_and_ends_within_a_step_is_in_no_state(strategy: Strategy) -> None:
    checked = check(parse("p(x) := r(x) ^ a(x) ~expires;"), CATALOG)
    held = Held(checked, strategy=strategy, keeps_state=True)
    held.step(1)
    held.feed({"r": [Presence(Record("r", (1,)), 3, 7)]})
    held.feed({"a": [Presence(Record("a", (1,), time=3, expires=5), 3, 5)]})
    held.step(20)
    assert held.state == set()
    held.feed({"r": [Presence(Record("r", (1,)), 23, 27)]})
    held.feed({"a": [Presence(Record("a", (1,), time=23, expires=25), 23, 25)]})
    held.step(26)
    assert len(held.state) == 1
    held.step(40)
    assert held.state == set()


def test_an_input_taken_away_too_often_is_refused() -> None:
    held = Held(program("p(x) := r(x);"))
    held.update("r", Record("r", (1,)), 3, -1)
    with pytest.raises(Corrupt, match="input r: a row is taken away more often") as refused:
        held.step(10)
    assert refused.value.details["reason"] == "NegativeMultiplicity"


@STRATEGY
@pytest.mark.parametrize("limit", [Limits(rows=50), Limits(rounds=5), Limits(set_values=3)])
def test_passing_a_limit_stops_without_an_answer(limit: Limits, strategy: Strategy) -> None:
    text = """
        path(x, y) := r(x, y);
        path(x, z) := path(x, y) ^ r(y, z);
        all() @set(x) := r(x, _);
    """
    held = Held(program(text), limits=limit, strategy=strategy)
    for i in range(20):
        held.update("r", Record("r", (i, i + 1)), 0, 1)
    with pytest.raises(LimitPassed):
        held.step(1)


GROWING = {
    "a keyed join": "p(k, v, w) := r(k, v) ^ s(k, w);",
    "absence": "p(k) := r(k, _) ^ not s(k, _);",
    "one fact with many supports": "p(1) := r(_, _);",
    "one group": "p() @count(v) @sum(v) := r(_, v);",
    "a clock": "p(k) @time(t) := e(k) @time(u) ^ clock(0, 10) @time(t) if u < t ^ t <= u + 10;",
    "own expiry": "p() @expires(u + 1000) := e(_) @time(u);",
    "recursion": "p(k, v) := r(k, v);\np(k, w) := p(k, v) ^ r(v, w);",
}


@pytest.mark.parametrize("name", GROWING)
def test_the_cost_of_a_change_does_not_grow_with_the_state(name: str) -> None:
    """Fifty times as many facts alive: a change that reads them all takes tens of times as long."""
    small, large = (seconds_of_a_change(GROWING[name], size) for size in (600, 30_000))
    assert large <= 4 * small, (small, large)


def seconds_of_a_change(text: str, size: int) -> float:
    """The time of the processor while a few rows come and go beside `size` others."""
    kinds: dict[str, tuple[InputKind, int]] = {
        "r": ("relation", 2), "s": ("relation", 2), "e": ("events", 1),
    }  # fmt: skip
    schemas = {
        n: InputSchema(n, kind, tuple((f"c{i}", "int") for i in range(arity)))
        for n, (kind, arity) in kinds.items()
    }
    held = Held(check(parse(text), InputSchemas(schemas)))
    held.feed(
        {
            "r": [Presence(Record("r", (2 * i, 2 * i + 1)), 5) for i in range(size)],
            "s": [Presence(Record("s", (2 * i, i)), 5) for i in range(size)],
            "e": [
                Presence(Record("e", (i,), 5, 90_000 + i), 5, 90_000 + i) for i in range(size)
            ],
        }
    )  # fmt: skip
    held.step(1_000)
    found = []
    for round_ in range(30):
        at = 10_000 + 10 * round_
        for i, row in enumerate([(-2, -3), (-4, -5), (-6, -7)]):
            for kind, since in (("r", at + i), ("s", at + i + 1)):
                held.feed({kind: [Presence(Record(kind, row), since, at + i + 2)]})
            event = Record("e", (row[0],), at + i, at + i + 4)
            held.feed({"e": [Presence(event, at + i, at + i + 4)]})
        began = time.process_time()
        held.step(at + 9)
        found.append(time.process_time() - began)
    return min(found)


FOLDED = {
    "sums with guards": "total(g) @sum(v) @max(v) := seen(g, v) if v != 7;",
    "what fails fails for its fact":
        "total(g) @average(6 / v) @count(1) := seen(g, v) if 12 / (v - 3) != 5;",
    "sums of all": "total(0) @sum(v) := seen(_, v); most(g) @max(h) := total(g) @sum(h);",
    "two rules into one record": "total(g) @sum(v) := seen(g, v); total(v) @sum(g) := seen(g, v);",
    "times, ends and what rides along": """
        total(g) @sum(v) @earliest(t) := seen(g, v) @time(t);
        last(g) @latest(t) @set(v) @count_distinct(v) := seen(g, v) @time(t);
        again(g) @sum(n) := total(g) @sum(n) if n > 2;
    """,
    "floats and nulls": """
        total(g) @sum(float(v)) @min(v) := seen(g, v); none(g) @sum(v) := seen(g, v) if v == null;
    """,
}  # fmt: skip


def seen_program(text: str) -> CheckedProgram:
    columns = (("g", "int"), ("v", "int"))
    return check(parse(text), InputSchemas({"seen": InputSchema("seen", "events", columns)}))


def seen_by(random: Random) -> list[Presence]:
    found = []
    for _ in range(random.randrange(1, 25)):
        start, value = random.randrange(12), random.choice((0, 1, 3, 7, -2, None))
        end = random.choice((END, start + random.randrange(1, 6)))
        expires = None if end == END else int(end)
        record = Record("seen", (random.randrange(3), value), random.randrange(3), expires)
        found.append(Presence(record, start, end))
    return found


@STRATEGY
@pytest.mark.parametrize("text", FOLDED.values(), ids=FOLDED)
@settings(max_examples=12, deadline=None)
@given(random=st.randoms(use_true_random=False))
def test_groups_hold_what_the_program_says(text: str, strategy: Strategy, random: Random) -> None:
    checked, seen = seen_program(text), seen_by(random)
    held = Held(checked, strategy=strategy)
    held.feed({"seen": seen})
    for at, expected in enumerate(answers(checked, {"seen": seen}, 0, 20)[1:]):
        held.step(at + 1)
        for name in checked.derived:
            assert held.texts(name) == set(expected.records[name]), (at, name)
        assert held.errors() == set(expected.errors)


def test_a_fact_that_comes_and_goes_leaves_nothing_behind() -> None:
    held = Held(seen_program(FOLDED["what fails fails for its fact"]))
    for at in range(6):
        for value in (0, 3, 5):
            held.update("seen", Record("seen", (1, value), 0), at, -1 if at % 2 else 1)
        held.step(at + 1)
        assert len(held.errors()) == (0 if at % 2 else 2)
        assert len(held.records("total")) == (0 if at % 2 else 1)


@STRATEGY
def test_large_groups_follow_their_extremes_through_retractions(strategy: Strategy) -> None:
    held = Held(seen_program("most(g) @max(v) @min(v) := seen(g, v);"), strategy=strategy)
    values = list(range(5_000))
    Random(3).shuffle(values)
    held.feed({"seen": [Presence(Record("seen", (1, value), 0), 0) for value in values]})
    held.step(1)
    for at, value in enumerate([*range(4_999, 4_900, -1), *range(99)], 1):
        held.update("seen", Record("seen", (1, value), 0), at, -1)
        held.step(at + 1)
    assert held.texts("most") == {"most(1) @time(0) @max(4900) @min(99)"}
