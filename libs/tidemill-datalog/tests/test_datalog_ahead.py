"""Rules with `~expires` on all of their body and an end of their own: established ahead."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, lower, lowering
from tidemill.datalog.dataflow.ticked_plan import given_apart
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.logical.partial import plan_in
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.placement import placement_of
from tidemill.datalog.placement.shares import shares_of
from tidemill.datalog.state import AHEAD, LINGERING, StateRow
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.drawing import STRATEGIES, Presences, drawn
from tidemill.testkit.held import Held, delivered, taken_back, with_passing, without_lattices
from tidemill.testkit.tidelog import (
    FORMS,
    UPPER,
    Example,
    answers_from_scratch,
    inputs,
    programs,
)

LAW = drawn(40)
FORMS_AHEAD = replace(
    FORMS,
    head_marks=(
        "", "~expires", "@expires(u + 4)", "@time(u + 2) @expires(u + 5)", "@time(3) @expires(6)",
        "@time(u + 3) @expires(w + 4)", "~time @expires(u + 3)", "@time(w) @expires(u + 2)",
    ),
    atom_marks=("@time(u) ~expires", "@time(w) ~expires", "~expires", "@time(u)", "~time ~expires"),
    clocks=(),
    definitions=(),
    whole=(
        "p(x) @time(u + 2) @expires(u + 4) := b(x, _) @time(u) ~expires;",
        "q(x) @time(u + 1) @expires(u + 6) := a(x) @time(u) ~expires ^ b(x, y) ~expires if y > 0;",
        "t(x, y) @time(9 / x) @expires(u + 6) := s(x, y) @time(u) ~expires;",
        "q(x / y) @expires(u + 3) := s(x, y) @time(u) ~expires;",
        "p(x) @time(u + 2) @expires(u + 4) := s(x, y) @time(u) ~expires if x / y > 0;",
        "d(m, 1.5) @time(u + 2) @expires(u + 5) := n(m, _) @time(u) ~expires ^ a(_) ~time ~expires;",
    ),
    whole_every=2,
    predicates=("a", "b", "n", "r", "s", "p", "q", "t", "d"),
)  # fmt: skip


def ahead_in(checked: CheckedProgram) -> int:
    """The rules whose solutions are established before their time."""
    plan = lower(given_apart(logical_plan(checked)))
    return sum(rule.head.ahead for rule in plan.rules)


EXAMPLES = programs(3, FORMS_AHEAD).filter(lambda example: ahead_in(example.checked) > 0)
DEATHS = st.lists(st.integers(1, UPPER - 1), min_size=1, unique=True).map(sorted)


def feed(held: Held, given_: Presences, since: int) -> None:
    for name, presences in given_.items():
        left = [p for p in presences if p.end > since]
        held.feed({name: [replace(p, start=max(p.start, since)) for p in left]})


@LAW
@given(
    EXAMPLES, inputs(rows_max=5), STRATEGIES, st.lists(st.integers(0, UPPER - 1)), st.integers(0)
)
def test_a_solution_is_seen_from_its_time_whatever_has_ended(
    example: Example, given_: Presences, strategy: Strategy, stops: list[int], seed: int
) -> None:
    given_ = without_lattices(given_)
    held = Held(example.checked, strategy=strategy, carrying=())
    expected = answers_from_scratch(example, given_)
    for stop in delivered(held, given_, stops, seed):
        assert held.now() == expected[stop], (stop, example.text)


@LAW
@given(EXAMPLES, inputs(rows_max=4), inputs(rows_max=3), STRATEGIES, st.integers(1, UPPER - 1))
def test_facts_that_are_taken_away_leave_what_was_established(
    example: Example, given_: Presences, passing: Presences, strategy: Strategy, at: int
) -> None:
    given_, passing = without_lattices(given_), without_lattices(passing)
    held = Held(example.checked, strategy=strategy, carrying=())
    expected = answers_from_scratch(example, with_passing(given_, passing, at))
    for stop in taken_back(held, given_, passing, at):
        assert held.now() == expected[stop], (stop, at, example.text)


@LAW
@given(EXAMPLES, inputs(rows_max=4), STRATEGIES, DEATHS, st.booleans())
def test_solutions_ahead_of_their_time_survive_restarts(
    example: Example, given_: Presences, strategy: Strategy, deaths: list[int], older: bool
) -> None:
    """The state of the first process may have the form that has a row for each life."""
    given_, state, since = without_lattices(given_), set[StateRow](), 0
    expected = answers_from_scratch(example, given_)
    for number, (death, until) in enumerate(pairwise([0, *deaths, UPPER])):
        checked = example.checked
        with pytest.MonkeyPatch.context() as patch:
            if older and not number:
                checked = replace(checked)  # with a plan of its own
                patch.setattr(lowering, "_bare", lambda *_: frozenset())
            held = Held(checked, strategy=strategy, carrying=(), keeps_state=True)
        held.state = state
        held.engine.restore(sorted(state), death)
        feed(held, given_, since)
        for stop in range(death, until + 1):
            held.step(stop)
            assert held.now() == expected[stop], (stop, deaths, example.text)
        state, since = held.state, until - 1


CLICKS = InputSchemas({"click": InputSchema("click", "events", (("user", "text"), ("n", "int")))})
DUE = "due(u, n) @time(t + 500) @expires(t + 501) := click(u, n) @time(t) ~expires;"


def fed(engine: DataflowEngine, first: int, last: int) -> None:
    schema, at = engine.schemas["click"], np.arange(first, last)
    change = np.zeros((len(at), schema.columns + 3), np.int64)
    change[:, 0] = change[:, 2] = change[:, -3] = at
    change[:, 1] = engine.texts.number("Zürich")
    change[:, schema.expiry] = change[:, -2] = at + 1
    change[:, -1] = 1
    engine.feed("click", change)


def test_what_is_ahead_is_a_row_a_step_and_is_forgotten() -> None:
    """The form before it had a row for each click, for ever."""
    engine = DataflowEngine(check(parse(DUE), CLICKS), keeps_state=True)
    state, told, most = set[StateRow](), 0, 0
    for first in range(0, 20_000, 1000):
        fed(engine, first, first + 1000)
        told += sum(len(each) for each in engine.step(first + 1000).values())
        gone, come = engine.tell_state()
        state = state.difference(gone).union(come)
        most = max(most, engine.nbytes)
        assert {kind for _, kind, _ in state} == {AHEAD}
        assert len(state) <= 2
    assert told >= 2 * 19_000
    assert most < 8_000_000


def older_state(checked: CheckedProgram, monkeypatch: pytest.MonkeyPatch) -> list[StateRow]:
    """The state of a thousand clicks, as processes wrote it that knew no solutions ahead."""
    with monkeypatch.context() as patch:
        patch.setattr(lowering, "_bare", lambda *_: frozenset())
        older = DataflowEngine(replace(checked), keeps_state=True)  # with a plan of its own
    fed(older, 0, 1000)
    older.step(1000)
    _, rows = older.tell_state()
    assert sum(kind == LINGERING for _, kind, _ in rows) == 1000
    return rows


def test_each_row_of_an_older_state_goes_from_one_range(monkeypatch: pytest.MonkeyPatch) -> None:
    checked, ranges = check(parse(DUE), CLICKS), 3
    rows, (fragment,) = older_state(checked, monkeypatch), placement_of(checked).fragments
    assert any(kind != LINGERING for _, kind, _ in rows)
    gone, begun, in_ranges = list[StateRow](), list[object](), 0
    for number in range(ranges):
        engine = DataflowEngine(checked, plan=plan_in(fragment.plan, number), keeps_state=True)
        engine.restore(rows, 1000, shares_of(fragment, number, ranges))
        told = engine.step(1010)["due"].records()
        left, come = engine.tell_state()
        gone += left
        begun += [at for at, _, diff in told if diff > 0 and at >= 1000]
        in_ranges += bool(come)
    assert sorted(gone) == sorted(rows)
    assert sorted(begun) == [*range(1000, 1010)]
    assert in_ranges == ranges


def test_an_older_state_is_written_anew_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = check(parse(DUE), CLICKS)
    rows = older_state(checked, monkeypatch)
    engine = DataflowEngine(checked, keeps_state=True)
    engine.restore(rows, 1000)
    told = engine.step(1010)["due"]
    gone, come = engine.tell_state()
    assert sorted(gone) == sorted(rows)
    assert {kind for _, kind, _ in come} == {AHEAD}
    begun = sorted(at for at, _, diff in told.records() if diff > 0 and at >= 1000)
    assert begun == list(range(1000, 1010))
    again = DataflowEngine(checked, keeps_state=True)
    again.restore(come, 1010)
    moves = [(at, diff) for at, _, diff in again.step(1600)["due"].records()]
    assert sum(diff > 0 and at >= 1010 for at, diff in moves) == 490
    assert again.tell_state()[1] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DUE, 1),
        ("p(u) @time(t + 5) := click(u, _) @time(t) ~expires;", 0),
        ("p(u) @time(t + 5) ~expires := click(u, _) @time(t) ~expires;", 0),
        ("p(u) @count(n) @expires(t + 5) := click(u, n) @time(t) ~expires;", 0),
        ("p(u) @expires(t + 5) := click(u, _) @time(t) ~expires ^ click(u, _);", 0),
        ("p(u) @expires(t + 5) := click(u, _) @time(t) ~expires ^ not click(u, 7);", 0),
        ("p(u) @expires(t + 5) := click(u, _) @time(t) ~expires ^ p(u) ~expires;", 0),
    ],
)
def test_only_its_own_end_may_end_a_solution(text: str, found: int) -> None:
    assert ahead_in(check(parse(text), CLICKS)) == found
