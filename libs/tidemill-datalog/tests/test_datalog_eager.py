"""Goals that may fire before their events are definite: refusals, and the law of the others."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, evaluate_plan
from tidemill.datalog.dataflow.evaluating import undeclared
from tidemill.datalog.eager import CODE, eager_refusal, inputs_below
from tidemill.datalog.goals import compile_goal
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence, normalise
from tidemill.datalog.records import Record
from tidemill.datalog.state import StateRow
from tidemill.testkit.drawing import Presences
from tidemill.testkit.evaluated import evaluated
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import FORMS, UPPER, Example, accepted, inputs, programs

EXAMPLES = int(os.environ.get("PROGRAMS", "2000")) // 10
SEED = int(os.environ.get("LAW_SEED", "1"))

CATALOG = InputSchemas(
    {
        "e": InputSchema("e", "events", (("k", "text"), ("v", "int"))),
        "f": InputSchema("f", "events", (("k", "text"),)),
        "t": InputSchema("t", "relation", (("k", "text"), ("v", "int")), "default"),
    }
)
UNFIT = {"t": "a table, of which rows are taken back"}

REFUSED = {
    "absence": ("p(k) := e(k, _) ^ «not f(k);", "p(k)"),
    "absence below": ("q(k) := e(k, _) ^ «not f(k); p(k) := q(k);", "p(k)"),
    "a count": ("p(k) @«count(v) := e(k, v);", "p(k)"),
    "a minimum below": ("q(k) @«min(v) := e(k, v); p(k) := q(k) @min(v) if v < 3;", "p(k)"),
    "where they come from": ('p(k) @«provenance("e") := e(k, _);', "p(k)"),
    "an expiry that is matched": ("p(k) @expires(u + 1) := e(k, _) @«expires(u);", "p(k)"),
    "a clock": ("p(k, t) := e(k, _) ^ «clock(0, 10) @time(t);", "p(k, t)"),
    "the next tick": ("p(k) @«next := e(k, _);", "p(k)"),
    "ticks of others": ("p(k) := e(k, _); q(k) @«next := f(k);", "p(k)"),
    "a message": ("p(k) @«async(0) := e(k, _);", "p(k)"),
    "a table": ("p(k) := e(k, v) ^ «t(k, v);", "p(k)"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_goal_that_more_events_may_refute_is_not_eager_and_its_rule_is_named(why: str) -> None:
    marked, goal = REFUSED[why]
    before, _, after = marked.partition("«")
    program = check(parse(before + after), CATALOG)
    found = eager_refusal(program, compile_goal(goal, program), UNFIT)
    assert found is not None, "accepted"
    assert found.code == CODE
    assert found.column in (len(before), len(before) + 1), found.render(before + after)
    assert found.hint


@pytest.mark.parametrize("goal", ["p(k) @expires(u)", "p(k)\n @expires(9)", "p(k) @count(n)"])
def test_a_goal_that_asks_for_what_more_events_change_is_not_eager(goal: str) -> None:
    program = check(parse("p(k) := e(k, _);"), CATALOG)
    found = eager_refusal(program, compile_goal(goal, program), UNFIT)
    assert found is not None
    assert (found.code, found.file, found.line) == (CODE, "<goal>", 1)


ACCEPTED = {
    "a join": ("p(k) := e(k, _) ^ f(k);", "p(k)"),
    "times": ("p(k) @time(t + 5) := e(k, _) @time(t) ^ f(k) @time(u) if t < u;", "p(k) @time(9)"),
    "expiries": ("p(k) @expires(t + 5) := e(k, _) @time(t); q(k) ~expires := p(k);", "q(k)"),
    "a recursion": ("p(k) := f(k); p(k) := p(k) ^ e(k, 1);", "p(k)"),
    "facts": ('p("a"); p(k) := f(k);', "p(k)"),
    "others that may not": ("p(k) := e(k, _); q(k) := e(k, _) ^ not f(k); r(k) := t(k, _);", "p(k)"),
}  # fmt: skip


@pytest.mark.parametrize("why", ACCEPTED)
def test_a_goal_to_which_more_events_only_add_is_eager(why: str) -> None:
    text, goal = ACCEPTED[why]
    program = check(parse(text), CATALOG)
    assert eager_refusal(program, compile_goal(goal, program), UNFIT) is None


def test_an_eager_goal_reads_only_what_is_below_it() -> None:
    program = check(parse("p(k) := q(k); q(k) := f(k); r(k) := e(k, _);"), CATALOG)
    assert inputs_below(program, "p") == ["f"]
    assert inputs_below(program, "r") == ["e"]


def _eager(checked: CheckedProgram) -> bool:
    """Whether each goal over the program may be eager, if all its rows are events."""
    goals = (
        compile_goal(f"{p}({', '.join('_' * len(checked.columns[p]))})", checked)
        for p in checked.derived
    )
    return all(eager_refusal(checked, goal, {}) is None for goal in goals)


MONOTONE = replace(
    FORMS, clocks=(), whole=(),
    head_marks=("", "", "~expires", "@expires(u + 3)", "@time(u + 1)", "@time(u)", "~time"),
    atom_marks=("", "", "", "@time(u)", "@time(w)", "~expires"),
)  # fmt: skip
NOT_MONOTONE = replace(
    MONOTONE, whole_every=1, predicates=("a", "b", "p", "q", "t"),
    whole=(
        "q(x) := a(x) ^ not b(x, _);", "p(x) := b(x, _) ^ not a(x);", "t(x, y) := b(x, y) ^ not b(y, x);",
        "p(0) @count(x) := a(x);", "q(x) @max(y) := b(x, y);", "t(x, 1) := b(x, y) ^ not q(y);",
        "q(1) @time(u) := a(x) @time(u) ^ not b(_, x);",
    ),
)  # fmt: skip
CHAINS = st.sampled_from(
    (
        ["t(x, z) := b(x, y) ^ b(y, z);", "t(x, z) := t(x, y) ^ t(y, z);", "p(x) := t(x, x);"],
        ["p(x) @expires(u + 4) := a(x) @time(u);", "q(y) := p(x) ^ b(x, y);", "t(x, y) := p(x) ^ q(y);"],
        ["q(x) ~expires := a(x) ^ b(x, _);", "p(x) := q(x) ^ a(y) if x < y;"],
    )
).map(accepted)  # fmt: skip
Begins = dict[tuple[object, ...], list[tuple[float, float]]]


def _begins(presences: Iterable[Presence]) -> Begins:
    """For each key when it is there."""
    found: Begins = {}
    for each in presences:
        found.setdefault(each.record.key, []).append((each.start, each.end))
    return {key: normalise(stretches) for key, stretches in found.items()}


def state_before(
    checked: CheckedProgram, known: Presences, upper: int, carrying: set[str]
) -> list[StateRow]:
    """The solutions that outlive facts, as a view that is definite up to `upper` keeps them."""
    engine = DataflowEngine(
        checked, limits=Limits(rounds=500), keeps_state=True, carrying=carrying
    )  # fmt: skip
    for name, presences in known.items():
        engine.feed_presences(name, presences)
    engine.step(upper)
    return engine.tell_state()[1]


def unfounded(
    checked: CheckedProgram, known: Presences, whole: Presences, upper: int
) -> Counter[str]:
    """Facts of a part of the inputs, `known`, whole before `upper`, that begin there or later.

    Founded is what begins in the whole as well, at `upper` or later, and no later.
    """
    plan, limits, seen = logical_plan(checked), Limits(rounds=500), Counter[str]()
    carrying = undeclared(checked, whole)
    living = {n: [p for p in rows if p.end > upper - 1] for n, rows in known.items()}
    every = evaluated(checked, whole, upper=UPPER + 9, limits=limits).presences
    part, _ = evaluate_plan(
        plan, living, upper=UPPER + 9, told=checked.derived, limits=limits, lower=upper - 1,
        state=state_before(checked, whole, upper, carrying), carrying=carrying,
    )  # fmt: skip
    for predicate in checked.derived:
        all_of_it = _begins(every[predicate])
        for key, stretches in _begins(part.get(predicate, ())).items():
            start = stretches[0][0]
            if start > upper - 1:
                begins = [at for at, _ in all_of_it.get(key, ()) if upper <= at <= start]
                seen["founded" if begins else "unfounded"] += 1
    return seen


def found_early(examples: st.SearchStrategy[Example]) -> Counter[str]:
    """Facts that parts of events derive, of random programs, and how many of them early."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES, backend=seeded_backend(SEED), deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(examples, inputs(rows_min=2, rows_max=4), st.integers(1, UPPER - 1), st.data())
    def early(example: Example, given_: Presences, upper: int, data: st.DataObject) -> None:
        known = {
            name: [p for p in rows if p.start < upper or data.draw(st.booleans())]
            for name, rows in given_.items()
        }
        try:
            found = unfounded(example.checked, known, given_, upper)
        except LimitPassed:
            assume(False)
        missing = sum(map(len, given_.values())) > sum(map(len, known.values()))
        seen.update(found)
        seen["founded while some are missing"] += found["founded"] * missing
        seen[f"unfounded in {example.text}"] += found["unfounded"]

    early()
    return +seen


def test_what_some_of_the_events_derive_early_is_derived_of_all_of_them() -> None:
    """From any definite instant on, with any part of later events, keys begin in the whole."""
    seen = found_early(st.one_of(programs(7, MONOTONE, _eager, rules_min=4), CHAINS))
    assert not seen["unfounded"], [text for text in seen if text.startswith("unfounded in")]
    assert seen["founded while some are missing"] > EXAMPLES // 4, seen


def test_what_refused_programs_derive_early_is_not_always_derived_of_all() -> None:
    """The companion: of programs with absences and aggregates, some fact is never definite."""
    refused = programs(5, NOT_MONOTONE, rules_min=3).filter(lambda each: not _eager(each.checked))
    assert found_early(refused)["unfounded"] > EXAMPLES // 40


def test_what_is_refused_could_fire_what_is_never_definite() -> None:
    """The least of them: the absence of a later event derives a fact that the whole has not."""
    example = accepted(["q(x) := a(x) ^ not b(x, _);"], derived=("q",))
    known = {"a": [Presence(Record("a", (1,), 6, 20), 6, 20)], "b": []}
    whole = {**known, "b": [Presence(Record("b", (1, 5), 5, 30), 5, 30)]}
    assert unfounded(example.checked, known, whole, 3) == Counter(unfounded=1)
    assert not _eager(example.checked)
