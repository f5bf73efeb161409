"""Rules of which an atom only has to have a fact: the same answers without a match a pair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, lower, plan_document, plan_lines
from tidemill.datalog.dataflow.ticked_plan import given_apart
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.held import Held, delivered, lives, taken_back, with_passing, without_lattices
from tidemill.testkit.tidelog import (
    FORMS,
    UPPER,
    Example,
    accepted,
    answers_from_scratch,
    inputs,
    programs,
)

LAW = drawn(60)
FORMS_OF_WITNESSES = replace(
    FORMS,
    guards=(
        "u < w", "w < u", "w <= u", "w >= u - 3", "u - w <= 2", "2 * w <= u + 3", "w + 2 > u",
        "x < y", "y <= x", "x != y", "y != z", "x - y <= 1", "x >= 1", "y == 1", "u >= 2",
        "x + y >= 2", "u / w > 1",
    ),
    head_marks=("", "", "@time(u)", "@expires(u + 4)", "~expires", "@time(u) @expires(u + 5)"),
    atom_marks=("", "@time(u)", "@time(u)", "@time(w)", "@time(w)", "~time", "~expires"),
    clocks=(),
    definitions=(),
    whole=(
        "p(x) := b(x, _) @time(u) ^ b(x, _) @time(w) if w < u;",
        "p(x) @expires(u + 3) := b(x, _) @time(u) ^ a(x) @time(w) if w < u;",
        "q(x) @time(u) := b(x, _) @time(u) ^ b(x, _) @time(w) if w > u ^ w <= u + 4;",
        "q(x) := s(x, y) ^ s(x, z) if z < y;",
        "t(x, y) := s(x, y) ^ s(x, z) if z != y;",
        "t(x, y) := s(x, y) ^ s(_, z) if z <= y ^ z >= y - 1;",
        "p(x) := n(m, x) @time(u) ^ n(m, y) @time(w) if w <= u ^ x != y;",
        "p(x) @time(u) := b(x, _) @time(u) ^ b(x, _) @time(w) ^ a(x) @time(v) if w < u ^ v <= w;",
        "p(x) @time(u) := b(x, _) @time(u) ^ b(x, _) @time(w) ^ a(x) @time(v) if w < u ^ v < u;",
        "q(x) := b(x, _) @time(u) ^ a(x) @time(w) ^ b(x, _) @time(v) if w < u ^ v <= u ^ v >= u - 2;",
        "q(x) := s(x, y) ^ s(x, z) ^ s(x, w) ^ r(x) if z < y ^ w != y;",
        "t(x, y) := s(x, y) ^ s(_, z) ^ r(x) ^ not b(x, y) if z <= y;",
        "p(x) @expires(u + 3) := b(x, y) @time(u) ^ a(x) @time(w) ^ not s(x, y) ^ not r(y) if w < u;",
        "t(x, y) := s(x, y) ^ s(x, z) ^ not q(x) if z != y;",
        "p(x) := b(x, _) @time(u) ^ b(x, _) @time(w) ^ not a(x) @time(u) if w < u;",
        "q(x) @time(u) := a(x) @time(u) ^ b(x, y) @time(w) ^ not r(y) if w <= u;",
    ),
    whole_every=2,
    predicates=("a", "b", "n", "r", "s", "p", "q", "t", "d"),
)  # fmt: skip


def witnesses_in(checked: CheckedProgram) -> int:
    """The rules that look for a witness."""
    plan = lower(given_apart(logical_plan(checked)))
    return sum(rule.witness is not None for rule in plan.rules)


PARTS_OF_AGGREGATES = (
    ("p(x)", "q(x)", "t(x, y)", "p(1)"),
    (
        "@max(y)", "@min(y)", "@min(y) @max(y)", "@earliest(u)", "@latest(u) @earliest(y)",
        "@count_distinct(y)", "@max(u - 5)", "@set(y)",
    ),
    (
        "~expires", "@expires(u + 4)", "@expires(7)", "@time(u) ~expires", "~time ~expires",
        "@time(u) @expires(u + 3)", "@expires(u - 1)",
    ),
    (
        "b(x, y) @time(u) ^ b(x, _) @time(w)", "b(x, y) @time(u) ^ a(x) @time(w)",
        "b(x, y) @time(u) ^ b(x, z) @time(w)", "n(m, y) @time(u) ^ n(_, y) @time(w) ^ r(x)",
        "b(x, y) @time(u) ^ b(x, _) @time(w) ^ a(x) @time(v)",
        "b(x, y) @time(u) ^ a(_) @time(w) ^ not r(y)",
    ),
    (
        "w < u", "w <= u ^ w >= u - 3", "w > u ^ w <= u + 4", "w >= u - 2 ^ w <= u + 2",
        "w < u ^ y >= 1",
    ),
)  # fmt: skip
AGGREGATES = st.tuples(*map(st.sampled_from, PARTS_OF_AGGREGATES)).map(
    lambda parts: "{} {} {} := {} if {};".format(*parts)
)
AFTER = ('d("k", 0.5) := p(x) ^ not q(x);', 'd("m", 1.5) := q(_) @max(y) if y > 0;')
"""Facts that other rules read, which is after the aggregates are complete."""
EXAMPLES = st.one_of(
    programs(3, FORMS_OF_WITNESSES),
    st.tuples(
        st.lists(AGGREGATES, min_size=1, max_size=3), st.lists(st.sampled_from(AFTER), max_size=1)
    ).map(lambda drawn: accepted([*drawn[0], *drawn[1]], None, ())),
).filter(lambda example: witnesses_in(example.checked) > 0)  # fmt: skip


@LAW
@given(
    EXAMPLES, inputs(rows_max=5), STRATEGIES, st.lists(st.integers(0, UPPER - 1)), st.integers(0)
)
def test_a_witness_is_found_in_whatever_order_facts_come(
    example: Example, given_: Presences, strategy: Strategy, stops: list[int], seed: int
) -> None:
    given_ = without_lattices(given_)
    held = Held(example.checked, strategy=strategy, carrying=())
    expected = answers_from_scratch(example, given_)
    for stop in delivered(held, given_, stops, seed):
        assert held.now() == expected[stop], (stop, example.text)


@LAW
@given(EXAMPLES, inputs(rows_max=4), inputs(), STRATEGIES, st.integers(1, UPPER - 1))
def test_a_witness_that_goes_leaves_matches_to_others(
    example: Example, given_: Presences, passing: Presences, strategy: Strategy, at: int
) -> None:
    given_, passing = without_lattices(given_), without_lattices(passing)
    held = Held(example.checked, strategy=strategy, carrying=())
    expected = answers_from_scratch(example, with_passing(given_, passing, at))
    for stop in taken_back(held, given_, passing, at):
        assert held.now() == expected[stop], (stop, at, example.text)


@LAW
@given(
    EXAMPLES, inputs(rows_max=4), STRATEGIES,
    st.lists(st.integers(1, UPPER - 1), min_size=1, unique=True).map(sorted),
)  # fmt: skip
def test_a_witness_is_known_after_each_restart(
    example: Example, given_: Presences, strategy: Strategy, deaths: list[int]
) -> None:
    given_ = without_lattices(given_)
    expected = answers_from_scratch(example, given_)
    for stop, held in lives(example.checked, given_, deaths, strategy=strategy, carrying=()):
        assert held.now() == expected[stop], (stop, deaths, example.text)


CLICKS = InputSchemas(
    {
        "click": InputSchema("click", "events", (("user", "int"), ("number", "int"))),
        "pay": InputSchema("pay", "events", (("user", "int"),)),
        "send": InputSchema("send", "events", (("user", "int"),)),
        "seen": InputSchema("seen", "relation", (("user", "int"), ("number", "int"))),
    }
)
SESSIONS = """
recent(u) @expires(t + 1800001) := click(u, _) @time(t);
follows(u) @expires(t + 1) := click(u, _) @time(t) ^ recent(u) @time(s) if s < t;
session(u) @expires(t + 1) := click(u, _) @time(t) ^ not follows(u);
"""
AGAIN = "again(n) @time(t) := click(u, n) @time(t) ^ click(u, _) @time(s) if s < t ^ s >= t - 900;"
THRICE = """
third(n) @time(t) := click(u, n) @time(t) ^ click(u, _) @time(s) ^ click(u, _) @time(r)
  if s < t ^ s >= t - 900 ^ r > t ^ r <= t + 900;
"""
UNSEEN = """
unseen(n) @time(t) := click(u, n) @time(t) ^ click(u, _) @time(s) ^ not seen(u, n)
  if s < t ^ s >= t - 900;
"""
LATER = """
later(n) @time(t) := click(u, n) @time(t) ^ click(u, _) @time(s) if s > t ^ s <= t + 900000;
"""
NEAR = """
near(n) @time(t) := click(u, n) @time(t) ^ click(u, _) @time(s) ^ not seen(u, t)
  if s >= t - 900000 ^ s <= t + 900000;
"""
BEST = """
best(u) @max(n) @expires(t + 900) := click(u, n) @time(t) ^ click(u, _) @time(s)
  if s < t ^ s >= t - 900;
"""


def clicks(engine: DataflowEngine, first: int, last: int, life: int) -> None:
    """Clicks of one user, each of which is there for some time."""
    schema = engine.schemas["click"]
    at = np.arange(first, last) * 10
    change = np.zeros((len(at), schema.columns + 3), np.int64)
    change[:, 0] = change[:, -3] = at
    change[:, 1], change[:, 2] = 7, at
    change[:, schema.expiry] = change[:, -2] = at + life
    change[:, -1] = 1
    engine.feed("click", change)


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
@pytest.mark.parametrize("rows_each", [100, 20_000])
@pytest.mark.parametrize(
    ("text", "life"),
    [
        (SESSIONS, 1),
        (AGAIN, 1_000_000),
        (THRICE, 1_000_000),
        (UNSEEN, 1_000_000),
        (LATER, 1_000_000),
        (NEAR, 1_000_000),
        (BEST, 1_000_000),
    ],
)
def test_matches_of_one_key_are_as_many_as_its_facts(
    strategy: Strategy, rows_each: int, text: str, life: int
) -> None:
    """Counted in rows, told and looked at: pairs of these clicks would be 2·10⁸."""
    engine = DataflowEngine(check(parse(text), CLICKS), strategy=strategy, keeps_state=True)
    (number,) = [n for n, rule in enumerate(engine.plan.rules) if rule.witness is not None]
    told = 0
    for first in range(0, 20_000, rows_each):
        clicks(engine, first, first + rows_each, life)
        changes = engine.step(10 * (first + rows_each - 1) + 2)
        told += sum(len(each) for each in changes.values())
        engine.tell_state()
    rule = engine.rules_of(engine.plan.rules[number].form.head.predicate)[0]
    assert 19_998 <= rule.figures.rows_out <= 60_000
    assert told >= 19_998
    assert engine.nbytes < 60_000_000
    assert rule._witnessed is not None
    assert rule._witnessed.looked < 6_000_000


def test_a_plan_says_of_a_rule_that_it_looks_for_a_witness() -> None:
    checked = check(parse(SESSIONS), CLICKS)
    plan = lower(logical_plan(checked))
    lines = "\n".join(plan_lines(plan_document(plan, checked)))
    assert "one witness of recent for each match, of those with the nearest time" in lines


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("p(u) := click(u, _) @time(t) ^ click(u, _) @time(s) if s < t;", True),
        ("p(u) := click(u, _) @time(t) ^ click(u, _) @time(s) if s > t;", True),  # of the later
        ("p(u) @time(t) := click(u, _) @time(t) ^ click(u, _) @time(s) if s > t;", True),
        ("p(u, s) := click(u, _) @time(t) ^ click(u, _) @time(s) if s < t;", False),
        ("p(u) @count(1) := click(u, _) @time(t) ^ click(u, _) @time(s) if s < t;", False),
        ("p(u) @max(n) := click(u, n) @time(t) ^ click(u, _) @time(s) if s < t;", False),  # its end
        ("p(u) @max(n) @expires(t) := click(u, n) @time(t) ^ click(u, _) @time(s) if s < t;", True),
        ("p(u) @max(n) ~expires := seen(u, n) ^ seen(u, m) if m < n;", True),
        ("p(u) @expires(n) := seen(u, n) ^ seen(u, m) if m != n;", False),  # n may be null
        ("p(u) @count_distinct(n) ~expires := seen(u, n) ^ seen(u, m) if m < n;", True),
        ("p(u) @sum(n) ~expires := seen(u, n) ^ seen(u, m) if m < n;", False),
        ("p(u) @max(m) ~expires := seen(u, n) ^ seen(u, m) ^ seen(u, k) if m < n ^ k < n;", False),
        ("p(u) := click(u, n) @time(t) ^ click(u, m) @time(s) if s < t ^ m < n;", False),
        ("p(u) := click(u, n) @time(t) ^ click(u, m) @time(s) if s < t ^ m != n;", True),
        ("p(u) @expires(s + 9) := click(u, _) @time(t) ^ click(u, _) @time(s) if s < t;", False),
        ("p(u) := click(u, n) @time(t) ^ click(u, m) @time(s) if s < t ^ n / m > 1;", False),
        ("p(u) := click(u, n) @time(t) ^ click(u, _) @time(s) ^ not seen(u, n) if s < t;", True),
        ("p(u) := click(u, _) @time(t) ^ click(u, m) @time(s) ^ not seen(u, m) if s < t;", False),
        (
            "p(u) := click(u, n) @time(t) ^ click(u, _) @time(s) ^ not seen(u, n + 1) if s < t;",
            False,
        ),
        (
            "p(u) @time(t) := click(u, _) @time(t) ^ pay(u) @time(s) ^ send(u) @time(r)"
            " if s <= t ^ r <= t;",
            True,
        ),
        (
            "p(u) @time(t) := click(u, _) @time(t) ^ pay(u) @time(s) ^ send(u) @time(r)"
            " if s <= t ^ r <= s;",
            False,
        ),
        ("p(u) @time(t) := click(u, _) @time(t) ^ pay(u) @time(s) ^ send(u) if s <= t;", True),
        ("p(u) @time(t) := click(u, _) @time(t) ^ pay(u) ^ send(u);", False),
    ],
)
def test_a_witness_is_what_nothing_is_said_of(text: str, found: bool) -> None:
    assert witnesses_in(check(parse(text), CLICKS)) == found


def test_an_end_that_is_null_is_an_error_of_each_pair() -> None:
    text = "p(u) @max(n) @expires(n + 4) := seen(u, n) ^ seen(u, m) if m != n;"
    held = Held(check(parse(text), CLICKS), carrying=())
    held.feed({"seen": [Presence(Record("seen", (1, n)), 0) for n in (None, 2, 3)]})
    held.step(1)
    assert held.errors() == {f"wrong type: seen(1, null) ^ seen(1, {n})" for n in (2, 3)}
    assert held.texts("p") == {"p(1) @expires(6) @max(3)"}


def test_a_restored_match_of_great_numbers_is_the_one_that_is_fed() -> None:
    text = "p(u) @expires(t + 6) := click(u, _) @time(t) ^ click(u, n) @time(s) if s <= t ^ n > 0;"
    great = [Presence(Record("click", (1, 2**63 - 1), 0), 0)]
    state = set[StateRow]()
    for first in (0, 1):
        held = Held(check(parse(text), CLICKS), carrying=(), keeps_state=True)
        held.state = state
        held.engine.restore(sorted(state), first)
        held.feed({"click": great})
        held.step(1)
        state = held.state
    assert len(state) == 1


@pytest.mark.parametrize("ends", ["by itself", "early"])
def test_pairs_are_looked_for_only_while_a_great_number_lives(ends: str) -> None:
    """Each fact is matched with each, until the one that may let an expression fail has gone."""
    text = "p(n) @time(t) := click(u, n) @time(t) ^ click(u, m) if m <= n + 1 ^ m >= n;"
    held = Held(check(parse(text), CLICKS), carrying=())
    (rule,) = held.engine.rules_of("p")
    assert rule._witnessed is not None
    wild = rule._witnessed._wild
    great = Record("click", (1, 2**63 - 1), 0, 5 if ends == "by itself" else None)
    presence = Presence(great, 0, 5) if ends == "by itself" else Presence(great, 0)
    held.engine.feed_presences("click", [presence])
    held.step(3)
    assert wild.lives
    if ends == "early":
        held.engine.feed_presences("click", [Presence(great, 4)], -1)
    held.step(8)
    rule.compact(8)
    assert not wild.lives
    held.engine.feed_presences("click", [Presence(Record("click", (1, 4), 8), 8)])
    held.step(9)
    assert held.now()["p"] == {"p(4) @time(8)"}
    held.engine.feed_presences("click", [Presence(Record("click", (1, 2**63 - 1), 9), 9)])
    held.step(10)
    assert wild.lives
