"""Laws of recursion on the engine `dataflow`: what is taken away, ends, comes late or again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, NotInDataflow, lower
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import Record, format_record
from tidemill.datalog.state import StateRow
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.foreign import clingo
from tidemill.testkit.held import Held
from tidemill.testkit.tidelog import (
    CATALOG,
    FORMS,
    UPPER,
    Example,
    answers_from_scratch,
    inputs,
    programs,
)

LAW = drawn(150)
RULES = (
    "t(x, z) := t(x, y) ^ t(y, z);", "t(x, z) := t(x, y) ^ s(y, z);", "t(y, x) := t(x, y);",
    "t(x, z) := s(x, y) ^ t(y, z) ^ s(z, y);", "t(x, y) @time(u) := b(x, y) @time(u);",
    "t(x, z) := t(x, y) @time(u) ^ b(y, z) @time(w) if u <= w + 4;", "t(x, x) := p(x);",
    "t(x, z) := t(x, y) ^ b(y, z) ^ not r(z);", "t(x, z) ~expires := t(x, y) ^ b(y, z);",
    "t(x, z) @expires(9) := b(x, y) ^ b(y, z);", "t(1, y) := t(y, 1) ^ s(y, y);",
    "t(x, z) @time(w) := t(x, y) @time(u) ^ b(y, z) @time(w) if u <= w;",
    "p(y) := p(x) ^ s(x, y);", "p(y) := p(x) ^ t(x, y);", "p(x) := p(y) ^ t(x, y) ^ not r(y);",
    "p(x + 1) := p(x) ^ a(x) if x < 3;", "p(x) := q(x);", "q(y) := p(x) ^ b(x, y) ~time;",
    "q(x) := p(x) ^ s(x, y) if 2 / y >= 1;", "q(x + y) := q(x) ^ s(x, y) if x + y < 4;",
    "p(x) := p(y) ^ clock(y, 3) @time(u) ^ s(y, x) if u < 9;", "p(0) := q(2);", "t(x, z) := t(x, y) ~expires ^ t(y, z);",
    "p(y) := p(x) ~expires ^ b(x, y) ^ not r(y);", "q(y) := q(x) ^ b(x, y) ~expires;", "q(1) := q(1);",
    "q(y) := t(x, y) ^ t(y, x) ^ p(x);",
)  # fmt: skip
"""Rules of which many recur, through one predicate or through several."""
GIVEN = inputs(("a", "b", "r", "s"), nulls=False, rows_max=6)


def fits(checked: CheckedProgram) -> bool:
    """Whether the dataflow evaluates all of a program."""
    try:
        lower(logical_plan(checked))
    except NotInDataflow:
        return False
    return True


FOUND = programs(
    8, replace(FORMS, whole=RULES, whole_every=1, predicates=("a", "b", "r", "s", "p", "q", "t")),
    fits, rules_min=3,
)  # fmt: skip
OUTLIVING = programs(
    6, replace(FORMS, whole=(
        *(rule for rule in RULES if "~expires" in rule), "t(x, y) := s(x, y);", "p(x) := a(x);",
        "t(x, z) := t(x, y) ^ b(y, z) ~expires ^ not r(z);", "t(x, x) := t(x, y) ~expires ^ t(y, x);",
    ), whole_every=1, predicates=("a", "b", "r", "s", "p", "q", "t")), fits, rules_min=3,
)  # fmt: skip
"""Programs of which most facts may outlive others in a recursion."""


NUMBERS = (
    "p(y) @min(x) := s(x, y);", "p(y) @min(v + 1) := p(x) @min(v) ^ s(x, y) if v < 6;",
    "p(y) @min(v) := p(x) @min(v) ^ s(x, y);", "p(y) @min(v + x) := p(x) @min(v) ^ s(x, y) if v < 4;",
    "p(x) @min(y) := s(x, y);", "p(y) @min(2) := p(x) ^ s(x, y);", "p(y) := p(x) ^ s(x, y);",
    "p(1) @min(9223372036854775807 - x) := r(x);", "p(y) @min(v) := q(y) @min(v);", "q(y) := p(y);",
    "q(y) @min(v) := p(x) @min(v) ^ s(y, x);", "q(x) @min(v + 2) := q(x) @min(v) ^ r(x) if v < 9;",
    "t(x, z) @max(y) := s(x, y) ^ s(y, z);", "t(x, z) @max(v) := t(x, y) @max(v) ^ s(y, z);",
    "t(x, z) @max(v - 1) := t(y, x) @max(v) ^ s(y, z) if v > -3;", "t(x, x) @max(y) := s(x, y);",
    "t(x, y) @max(-z / 2) := s(x, y) ^ r(z);", "t(x, y) := t(y, x);", "t(x, v) := p(x) @min(v);",
    "t(x, y) := p(x) ^ s(x, y);", "q(x) := p(x) ~min ^ s(x, x);", "q(x) := t(x, _) @max(v) if v >= 1;",
    "q(x) @min(v) := p(x) @min(v) ^ not r(x);", "p(x) @min(0) := r(x);", "p(y) @min(v) := p(x) @min(v) ^ s(x, y) ^ not r(y);",
    "t(x, y) ~max ~min := p(x) @min(y);", "p(x) @min(0.5) := r(x);", "d(x) @min(w / -2.0) := s(x, w);",
    "t(x, z) @max(least(v, w)) := t(x, y) @max(v) ^ t(y, z) @max(w);", "p(x) := p(x) ^ p(y) ^ s(x, y);",
    "q(y) @min(v + w) := q(x) @min(v) ^ q(y) @min(w) ^ s(x, y) if v + w < 7;",
    "t(x, z) @max(v) := t(x, y) @max(v) ^ t(y, z) @max(w) if w >= 1;", "p(y) @min(v) := p(x) @min(v) ^ p(y) ~min ^ s(x, y);",
    "d(y) @min(v + 0.5) := d(x) @min(v) ^ s(x, y) if v < 3.0;", "d(y) := d(x) ^ s(y, x);",
)  # fmt: skip
"""Rules of recursions whose facts carry the least or the greatest of some numbers."""


@st.composite
def numbered(draw: st.DrawFn) -> Example:
    """Programs of those of some rules about numbers that fit each other."""
    text, checked = "", check(parse(""), CATALOG)
    for rule in draw(st.lists(st.sampled_from(NUMBERS), min_size=3, max_size=7)):
        try:
            checked = check(parse(text + rule), CATALOG)
        except ProgramErrors:
            continue
        text += rule
    return Example(text, checked)


@st.composite
def recursive(draw: st.DrawFn) -> Example:
    """Programs of some of the rules."""
    return draw(FOUND)


def told_by(
    example: Example, deliveries: Sequence[tuple[int, str, Presence, int]], stops: Sequence[int],
    strategy: Strategy,
) -> list[dict[str, set[str]]]:  # fmt: skip
    """The facts and errors at each instant, by the changes that are told.

    A delivery is a stop, an input, a presence and a diff. It comes before the step from there.
    """
    engine = DataflowEngine(example.checked, strategy=strategy)
    moves = []
    for lower_, upper in zip(stops, [*stops[1:], UPPER], strict=True):
        for at, name, presence, diff in deliveries:
            if at == lower_:
                engine.feed_presences(name, [presence], diff)
        for name, told in engine.step(upper).items():
            moves += [(at, name, format_record(r), diff) for at, r, diff in told.records()]
    found = []
    for at in range(UPPER):
        held: dict[tuple[str, str], int] = {}
        for instant, name, text, diff in moves:
            if instant <= at:
                held[name, text] = held.get((name, text), 0) + diff
        assert set(held.values()) <= {0, 1}
        texts = {n: set[str]() for n in example.checked.derived}
        for (name, text), count in held.items():
            if count:
                texts[name].add(text)
        texts["errors"] = {e.text for e in engine.errors() if e.start <= at < e.end}
        found.append(texts)
    return found


def answers(example: Example, given_: Presences) -> list[dict[str, set[str]]]:
    """The facts and errors at each instant."""
    return [
        {name: found[name] for name in (*example.checked.derived, "errors")}
        for found in answers_from_scratch(example, given_)[1:]
    ]


@LAW
@given(
    recursive(), GIVEN, STRATEGIES, st.sets(st.integers(1, UPPER - 1), max_size=4), st.integers(0)
)
def test_a_recursion_by_differences_is_the_recursion_found_anew(
    example: Example, given_: Presences, strategy: Strategy, inner: set[int], seed: int
) -> None:
    told_as_anew(example, given_, strategy, inner, seed)


@LAW
@given(
    numbered(), inputs(("r", "s"), nulls=True, rows_max=8), STRATEGIES,
    st.sets(st.integers(1, UPPER - 1), max_size=4), st.integers(0),
)  # fmt: skip
def test_numbers_of_a_recursion_by_differences_are_those_found_anew(
    example: Example, given_: Presences, strategy: Strategy, inner: set[int], seed: int
) -> None:
    told_as_anew(example, given_, strategy, inner, seed)


def told_as_anew(
    example: Example, given_: Presences, strategy: Strategy, inner: set[int], seed: int
) -> None:
    """Rows come at a stop, go at a later one from an instant on, and may come back after it."""
    rng, stops = Random(seed), [0, *sorted(inner)]
    deliveries: list[tuple[int, str, Presence, int]] = []
    true: dict[str, list[Presence]] = {name: [] for name in given_}
    for name, presences in given_.items():
        for each in presences:
            each = replace(each, record=replace(each.record, parafacts=()))
            come = rng.choice([stop for stop in stops if stop <= each.start])
            deliveries.append((come, name, each, 1))
            later = [stop for stop in stops if come < stop < each.end]
            if not later or rng.random() < 0.3:
                true[name].append(each)
                continue
            go = rng.choice(later)
            gone = replace(each, start=max(each.start, go) + rng.choice((0, 0, 0, 2)))
            if gone.start >= each.end:
                true[name].append(each)
                continue
            deliveries.append((go, name, gone, -1))
            if each.start < gone.start:
                true[name].append(replace(each, end=gone.start))
            again = [stop for stop in stops if stop > go]
            if again and rng.random() < 0.4:
                back = rng.choice(again)
                late = replace(gone, start=max(gone.start, back))
                if late.start < late.end:
                    deliveries.append((back, name, late, 1))
                    true[name].append(late)
    expected = answers(example, true)  # first, since examples that do not settle are left out
    assert told_by(example, deliveries, stops, strategy) == expected


@LAW
@given(recursive(), GIVEN, STRATEGIES, st.integers(1, UPPER - 1))
def test_a_recursion_begins_again_from_its_state(
    example: Example, given_: Presences, strategy: Strategy, death: int
) -> None:
    """Solutions with ends of their own live on, also those that rest on each other."""
    require_equal_after(death, example, given_, strategy)


@LAW
@given(OUTLIVING, GIVEN, STRATEGIES, st.integers(1, UPPER - 1))
def test_matches_that_outlive_facts_of_a_recursion_begin_again(
    example: Example, given_: Presences, strategy: Strategy, death: int
) -> None:
    """Most facts may outlive others, so deaths often come when only the state knows of them."""
    require_equal_after(death, example, given_, strategy)


def require_equal_after(
    death: int, example: Example, given_: Presences, strategy: Strategy
) -> None:
    """An engine that begins at an instant, from the state of another, says what the twin does."""
    given_ = {
        name: [replace(p, record=replace(p.record, parafacts=())) for p in presences]
        for name, presences in given_.items()
    }
    expected, state = answers_from_scratch(example, given_), set[StateRow]()
    for lower_, upper in ((0, death), (death, UPPER)):
        held = Held(example.checked, strategy=strategy, keeps_state=True)
        held.state = state
        held.engine.restore(sorted(state), lower_)
        first = max(lower_ - 1, 0)
        for name, presences in given_.items():
            left = [replace(p, start=max(p.start, first)) for p in presences if p.end > first]
            held.feed({name: left})
        for stop in range(lower_, upper + 1):
            held.step(stop)
            assert held.now() == expected[stop], (stop, example.text)
        state = held.state


LIVES = {
    "a fact leaves": "t(x, y) := s(x, y); t(x, z) := t(x, y) ~expires ^ b(y, z);",
    "lives of two rules": """
        t(x, y) := s(x, y); t(x, z) := t(x, y) ~expires ^ b(y, z);
        t(x, x) := t(x, y) ~expires ^ b(y, _);
    """,
    "lives rest on each other": """
        t(x, y) := s(x, y); t(x, y) := b(x, y); t(y, x) := t(x, y);
        t(x, z) := t(x, y) ~expires ^ t(y, z);
    """,
    "facts are found anew":
        "t(x, y) := s(x, y); t(x, z) := t(x, y) ~expires ^ b(y, z) ^ not r(z);",
}  # fmt: skip
"""Recursions in which `t(0, 2)` outlives `s(0, 1)`, with the time of `b(1, 2)`."""


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize("text", LIVES.values(), ids=LIVES)
def test_a_match_of_a_recursion_lives_on_after_a_death(text: str, strategy: Strategy) -> None:
    """Before the death its fact has left, so that only the state knows of it."""
    example = Example(text, check(parse(text), CATALOG))
    given_ = {
        "s": [Presence(Record("s", (0, 1)), 0, 2)],
        "b": [Presence(Record("b", (1, 2), 0), 0, END), Presence(Record("b", (0, 2), 1, 9), 1, 9)],
        "r": [Presence(Record("r", (0,)), 0, END), Presence(Record("r", (2,)), 6, 8)],
    }
    assert "t(0, 2) @time(0)" in answers_from_scratch(example, given_)[4]["t"]
    for death in (2, 3, 7, 9):
        require_equal_after(death, example, given_, strategy)


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
def test_a_match_goes_with_two_facts_of_a_recursion_that_grows(strategy: Strategy) -> None:
    """A rule outside of it joins both, which go at one instant."""
    text = """
        p(x) := a(x); p(y) := p(x) ^ t(x, y); t(x, x) := p(x);
        t(x, z) ~expires := t(x, y) ^ b(y, z); q(x) := t(x, x) ^ p(x);
    """
    held, event = Held(check(parse(text), CATALOG), strategy=strategy), Record("a", (0,), 0)
    held.update("a", event, 0, 1)
    held.step(1)
    assert held.texts("q") == {"q(0) @time(0)"}
    held.update("a", event, 1, -1)
    held.step(2)
    assert held.texts("q") == set()


def network(text: str) -> DataflowEngine:
    schema = InputSchema("e", "relation", (("", "int"), ("", "int")))
    return DataflowEngine(check(parse(text), InputSchemas({"e": schema})))


CLOSURE = "t(x, y) := e(x, y); t(x, z) := t(x, y) ^ e(y, z);"


def test_a_circle_does_not_hold_itself() -> None:
    engine = network(CLOSURE)
    edges = [Presence(Record("e", edge), 0) for edge in ((0, 1), (1, 2), (2, 1))]
    engine.feed_presences("e", edges)
    engine.step(1)
    engine.feed_presences("e", [replace(edges[0], start=1)], -1)
    told = sorted((str(record), diff) for _, record, diff in engine.step(2)["t"].records())
    assert told == [("t(0, 1)", -1), ("t(0, 2)", -1)]


@pytest.mark.parametrize("numbers", [(5,), (5, 3), (5, 2)])
def test_a_number_may_win_over_the_one_that_it_follows_from(numbers: Sequence[int]) -> None:
    """Node 2 rests on node 1, whatever its number, and gives it a better one."""
    schemas = {n: InputSchema(n, "relation", (("", "int"), ("", "int"))) for n in ("e", "seed")}
    text = "p(x) @min(y) := seed(x, y); p(y) @min(3) := p(x) ^ e(x, y);"
    engine = DataflowEngine(check(parse(text), InputSchemas(schemas)))
    seeds = [Presence(Record("seed", (1, number)), at) for at, number in enumerate(numbers)]
    engine.feed_presences("e", [Presence(Record("e", edge), 0) for edge in ((1, 2), (2, 1))])
    engine.feed_presences("seed", seeds[:1])
    engine.step(1)
    engine.feed_presences("seed", seeds[1:])
    engine.step(2)
    engine.feed_presences("seed", [replace(seed, start=2) for seed in seeds], -1)
    told = sorted((str(record), diff) for _, record, diff in engine.step(3)["p"].records())
    assert told == [(f"p(1) @min({min(3, *numbers)})", -1), ("p(2) @min(3)", -1)]


@pytest.mark.parametrize("mark", ["min", "max"])
def test_a_null_loses_to_the_worst_number(mark: str) -> None:
    """A null stays where the last number goes, and does not support what a number said."""
    schemas = {"s": InputSchema("s", "relation", (("", "int"), ("", "int")))}
    text = f"p(x) @{mark}(y) := s(x, y); p(x) @{mark}(v) := p(y) @{mark}(v) ^ s(x, y);"
    worst = (1 << 63) - 1 if mark == "min" else -(1 << 63)
    rows = [Presence(Record("s", row), at) for at, row in enumerate(((1, None), (1, worst)))]
    engine, told = DataflowEngine(check(parse(text), InputSchemas(schemas))), list[str]()
    for at, diff in ((0, 1), (1, 1), (1, -1)):
        engine.feed_presences("s", [replace(rows[at], start=len(told) // 2)], diff)
        moves = engine.step(len(told) // 2 + 1)["p"].records()
        told += [*sorted(f"{diff} {record.parafacts[0][1]}" for _, record, diff in moves), ""][:2]
    assert told == ["1 None", "", "-1 None", f"1 {worst}", f"-1 {worst}", "1 None"]


@pytest.mark.parametrize("diff", [1, -1])
def test_the_work_of_a_change_is_that_of_what_rests_on_it(diff: int) -> None:
    engine = network(CLOSURE)
    edges = [
        Presence(Record("e", (10 * tree + at, 10 * tree + at + 1)), 0)
        for tree in range(200)
        for at in range(5)
    ]
    engine.feed_presences("e", edges[: None if diff < 0 else -1])
    engine.step(1)
    assert work_of(engine, [(replace(edges[-1], start=1), diff)]) < 50


def work_of(engine: DataflowEngine, changes: Sequence[tuple[Presence, int]]) -> int:
    """Rows that the rules of `t` match and derive in a step from instant 1."""
    rules, before = engine.rules_of("t"), 0
    for rule in rules:
        before += rule.figures.rows_in + rule.figures.rows_out
    for presence, diff in changes:
        engine.feed_presences("e", [presence], diff)
    engine.step(2)
    return sum(rule.figures.rows_in + rule.figures.rows_out for rule in rules) - before


@pytest.mark.parametrize("below", ["e", "l"])
def test_a_fact_that_older_facts_derive_is_not_derived_again(below: str) -> None:
    """In a graph where all nodes reach each other an edge supports few of the pairs.

    The age of a fact of another recursion is nothing to this one.
    """
    text = "l(x, y) := e(x, y); l(x, y) := l(x, y) ^ e(y, x); " + CLOSURE.replace("e(", f"{below}(")
    engine, nodes_ = network(text), 40
    edges = [
        Presence(Record("e", (node, (node + step) % nodes_)), 0)
        for node in range(nodes_)
        for step in (1, 2, 3, 5, 8, 13)
    ]
    engine.feed_presences("e", edges)
    engine.step(1)
    assert engine.rows("t") == nodes_ * nodes_
    assert work_of(engine, [(replace(edges[7], start=1), -1)]) < 10 * nodes_


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


def on_edges(text: str) -> CheckedProgram:
    schemas = {
        "edge": InputSchema("edge", "relation", (("a", "int"), ("b", "int"))),
        "root": InputSchema("root", "relation", (("a", "int"),)),
    }
    return check(parse(text), InputSchemas(schemas))


nodes = st.integers(1, 5)
facts = st.tuples(st.just("edge"), st.tuples(nodes, nodes)) | st.tuples(
    st.just("root"), st.tuples(nodes)
)
Edges = dict[tuple[str, tuple[int, ...]], None]


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
@settings(max_examples=12, deadline=None)
@given(steps=st.lists(st.lists(facts, min_size=1, max_size=5), min_size=1, max_size=6))
def test_facts_that_are_toggled_leave_what_is_derived_of_those_there(
    text: str, strategy: Strategy, steps: list[list[tuple[str, tuple[int, ...]]]]
) -> None:
    checked = on_edges(text)
    held, present = Held(checked, strategy=strategy), Edges()
    for at, toggled in enumerate(steps):
        for fact in dict.fromkeys(toggled):
            name, row = fact
            held.update(name, Record(name, row), at, -1 if fact in present else 1)
            if fact in present:
                del present[fact]
            else:
                present[fact] = None
        held.step(at + 1)
        expected = clingo.derived(checked, [Record(*fact) for fact in present])
        for name in checked.derived:
            assert {r.arguments for r in held.records(name)} == set(expected[name])
