"""Lattices that rules hand on: as values where nothing merges them, else with what they are of."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.held import Held
from tidemill.testkit.twins.pointwise import answers

UPPER = 30
GROUPS = """
total(k) @sum(v) @average(v) := e(k, v);
most(k) @max(v) := e(k, v);
last(k) @latest(t) := e(k, _) @time(t);
per(k) @count(v) @time(c - 5) @expires(c + 9) := e(k, v) @time(t) ^ clock(0, 5) @time(c)
  if t < c ^ t >= c - 5;
"""
AS_VALUES = {
    "a guard": "p(k) := total(k) @sum(s) if s > 4;",
    "a value that becomes an argument": "p(k, s) := total(k) @sum(s);",
    "a join of the group with its newest row": "p(k, v) := last(k) @latest(t) ^ e(k, v) @time(t);",
    "lattices of two groups": "p(k) := total(k) @sum(s) ^ most(k) @max(m) if s > m;",
    "one of two lattices": "p(k) := total(k) ~average;",
    "a constant": "p(v) := total(1) ^ e(_, v);",
    "groups by time, alone": "p(k) := per(k) @count(c) if c > 1;",
    "groups by time, with it": "p(k, t) := per(k) @time(t) ^ e(k, _);",
    "rule after rule": "q(k, s) := total(k) @sum(s); p(k, s) := q(k, s) if s > 2;",
}
TO_BE_MERGED = {
    "arguments that are left out": "p(k / 2) := total(k);",
    "groups by time, among others": "p(k) := per(k) ^ e(k, _);",
    "two rules": "p(k) := total(k); p(k) := total(k) if k > 1;",
    "two atoms of one lattice": "p(k) := total(k) ~average ^ total(j) ~average if j == k + 1;",
    "a group of groups": "p(k / 2) @max(s) := total(k) @sum(s);",
    "a match that outlives its facts": "p(k) @expires(25) := total(k);",
    "what is merged after it": "q(k) := total(k); p(k / 2) := q(k);",
}


def program(text: str) -> CheckedProgram:
    """The groups, and rules that read them."""
    schema = InputSchema("e", "events", (("k", "int"), ("v", "int")))
    return check(parse(GROUPS + text), InputSchemas({"e": schema}))


def events(seed: int) -> list[Presence]:
    """Events of few keys, some of which are alike but for their times."""
    rng, found = Random(seed), {}
    for _ in range(30):
        start = rng.randrange(UPPER)
        end = start + rng.randint(1, 15)
        record = Record("e", (rng.randrange(4), rng.choice([0, 1, 2, 3, None])), start, end)
        found[record.arguments, start] = Presence(record, start, end)
    return list(found.values())


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize("text", [*AS_VALUES.values(), *TO_BE_MERGED.values()])
def test_what_is_handed_on_is_what_was_merged(text: str, strategy: Strategy) -> None:
    checked = program(text)
    for seed in range(2):
        given, rng = events(seed), Random(seed)
        expected = answers(checked, {"e": given}, 0, UPPER)
        held = Held(checked, strategy=strategy, carrying=())
        held.feed({"e": given})
        for upper in sorted({*rng.sample(range(1, UPPER), 8), UPPER}):
            held.step(upper)
            for name in ("p", "total", "last"):
                assert held.texts(name) == {*expected[upper].records.get(name, ())}, (upper, name)


@pytest.mark.parametrize("text", AS_VALUES.values(), ids=AS_VALUES)
def test_what_nothing_merges_is_a_value_in_a_column(text: str) -> None:
    engine = Held(program(text), carrying=()).engine
    assert not [name for name, schema in engine.schemas.items() if schema.carrying]


@pytest.mark.parametrize("text", TO_BE_MERGED.values(), ids=TO_BE_MERGED)
def test_what_may_be_merged_keeps_what_it_is_of(text: str) -> None:
    engine = Held(program(text), carrying=()).engine
    assert engine.schemas["p"].carrying


GIVEN = {
    "a guard": ("p(k) := total(k) @sum(s) if s > 4;", False),
    "a value that becomes an argument": ("p(k, s) := total(k) @sum(s);", False),
    "a null": ("p(k) := total(k) @sum(s) if is_null(s);", False),
    "a group of values": ("p(k / 2) @max(s) := total(k) ~sum @sum(s);", False),
    "absence": ("p(k) := total(k) ~sum ^ not total(k) @sum(4);", False),
    "a group of groups": ("p(k / 2) @max(s) := total(k) @sum(s);", True),
    "arguments that are left out": ("p(k / 2) := total(k);", True),
    "recursion": ("p(k) := total(k); p(k + 1) := p(k) if k < 3;", True),
}


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize(("text", "carrying"), GIVEN.values(), ids=GIVEN)
def test_what_every_fact_of_an_input_carries_is_a_value_in_a_column(
    text: str, carrying: bool, strategy: Strategy
) -> None:
    """Another view tells one value for each key, followed by another one or by none."""
    lattices, sure = (("sum", ("int",)),), frozenset({"sum"})
    schema = InputSchema("total", "relation", (("k", "int"),), lattices=lattices, sure=sure)
    checked = check(parse(text), InputSchemas({"total": schema}))
    for seed in range(4):
        rng, given = Random(seed), list[Presence]()
        for key in range(4):
            times = sorted(rng.sample(range(UPPER), 9))
            for start, end in pairwise(times):
                if rng.random() < 0.8:
                    value = rng.choice([0, 2, 4, 5, 9, None])
                    record = Record("total", (key,), None, None, (("sum", value),))
                    given.append(Presence(record, start, end))
        expected = answers(checked, {"total": given}, 0, UPPER)
        held = Held(checked, strategy=strategy, carrying=())
        assert held.engine.schemas["total"].carrying is carrying
        held.feed({"total": given})
        for upper in sorted({*rng.sample(range(1, UPPER), 8), UPPER}):
            held.step(upper)
            assert held.texts("p") == {*expected[upper].records.get("p", ())}, (seed, upper)


@pytest.mark.parametrize(("last", "carrying"), [("", 0), ("p(k / 2) := q999(k);", 1_002)])
def test_a_long_chain_of_rules_ends_in_one_form(last: str, carrying: int) -> None:
    """A thousand rules hand a sum on: none needs contributions, or all do for the last one."""
    chain = [f"q{at}(k) := q{at - 1}(k) if k > -{at};" for at in range(1, 1_000)]
    engine = Held(
        program("q0(k) := total(k) ~average;" + "".join(chain) + last), carrying=()
    ).engine
    assert sum(schema.carrying for schema in engine.schemas.values()) == carrying
