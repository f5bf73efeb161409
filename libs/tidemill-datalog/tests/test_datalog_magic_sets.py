"""Magic sets: a plan for the values of a question answers as the whole program."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.magic_sets import MAGIC, magic_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import ANY, Record
from tidemill.datalog.relevance import fits
from tidemill.testkit.drawing import Presences
from tidemill.testkit.evaluated import Evaluation, evaluated
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import DERIVED, UPPER, Example, accepted, inputs, programs

EXAMPLES = int(os.environ.get("PROGRAMS", "2000")) // 14
SEED = int(os.environ.get("LAW_SEED", "1"))
LIMITS = Limits(rounds=500)
EDGES = InputSchemas(
    {
        "edge": InputSchema("edge", "relation", (("a", "int"), ("b", "int"))),
        "mark": InputSchema("mark", "relation", (("a", "int"),)),
    }
)


CHAINS = st.sampled_from(
    (
        ["t(x, z) := s(x, y) ^ t(y, z);"],
        ["t(x, z) := b(x, y) ^ t(y, z);", "p(x) := t(x, 1);", "q(y) := t(0, y);"],
        ["p(x) := a(x) if x > 0;", "q(x) := r(x) ^ p(x);", "t(x, y) := b(x, y) ^ not q(y) ^ p(x);"],
        ["t(x, z) := s(x, y) ^ t(y, z);", "q(x) @count(y) := t(x, y);", "p(x) := q(x) ^ t(x, _);"],
        ["p(y) := p(x) ^ s(x, y);", "t(x, y) @expires(u + 4) := b(x, y) @time(u) ^ p(x);"],
    )
).map(accepted)
"""Programs in which what is asked for is handed on from rule to rule."""


def test_a_bound_question_is_a_filter_of_the_full_answer_on_random_programs() -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES, backend=seeded_backend(SEED), deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(
        st.one_of(programs(5, rules_min=2), programs(5, rules_min=2), CHAINS), inputs(rows_min=1),
        st.sampled_from(DERIVED),
        st.lists(st.sampled_from((0, 1, 2, ANY)), min_size=2, max_size=2),
    )  # fmt: skip
    def agree(example: Example, given_: Presences, asked: str, values: list[object]) -> None:
        checked = example.checked
        pattern = tuple(values[: len(checked.columns[asked])])
        plan = magic_plan(logical_plan(checked), asked, pattern)
        try:
            whole = evaluated(checked, given_, upper=UPPER, limits=LIMITS).presences.get(asked, ())
            wanted = [p for p in whole if fits(p.record.arguments, (pattern,))]
            bound = evaluated(plan.checked, given_, upper=UPPER, limits=LIMITS, plan=plan)
            found = bound.presences.get(asked, ())
        except LimitPassed:
            assume(False)
            raise
        fitting = [p for p in found if fits(p.record.arguments, (pattern,))]
        assert shown(fitting) == shown(wanted), (asked, pattern, example.text)
        magic = [rule for rule in plan.rules if rule.head.predicate.startswith(MAGIC)]
        seen["restricted"] += bool(magic)
        seen["passed on"] += any(rule.atoms for rule in magic)
        seen["answered"] += bool(wanted) and bool(magic)

    agree()
    assert seen["restricted"] > EXAMPLES / 10  # of one in two
    assert seen["passed on"] > EXAMPLES / 30  # of one in six
    assert seen["answered"] > EXAMPLES / 40  # of one in seven


def shown(presences: Sequence[Presence]) -> set[tuple[str, float, float]]:
    return {(str(p.record), p.start, p.end) for p in presences}


def tree(nodes: int) -> dict[str, list[Presence]]:
    """A random tree: an edge from each node to its children, and every third node marked."""
    random = Random(42)
    edges = [(random.randrange(node), node) for node in range(1, nodes)]
    return {
        "edge": [Presence(Record("edge", edge)) for edge in edges],
        "mark": [Presence(Record("mark", (node,))) for node in range(0, nodes, 3)],
    }


def rows(
    checked: CheckedProgram, asked: str, pattern: tuple[object, ...], given_: Presences
) -> tuple[int, int]:
    """Rows that the whole program derives, and rows of the bound one with its magic facts."""
    whole = evaluated(checked, given_, upper=1)
    plan = magic_plan(logical_plan(checked), asked, pattern)
    few = evaluated(plan.checked, given_, upper=1, plan=plan)
    derived = {rule.head.predicate for rule in plan.rules}
    wanted = {r for r in records(whole, asked) if fits(r.arguments, (pattern,))}
    assert {r for r in records(few, asked) if fits(r.arguments, (pattern,))} == wanted
    return (
        sum(len(whole.presences[name]) for name in checked.derived),
        sum(len(few.presences[name]) for name in derived),
    )


def records(evaluation: Evaluation, name: str) -> list[Record]:
    return [presence.record for presence in evaluation.presences[name]]


PATHS = "p(x, y) := edge(x, y); p(x, z) := "


@pytest.mark.parametrize(
    ("text", "asked", "pattern", "share"),
    [
        (PATHS + "p(x, y) ^ edge(y, z);", "p", (5, ANY), 0.05),
        (PATHS + "edge(x, y) ^ p(y, z);", "p", (5, ANY), 0.1),
        (PATHS + "edge(x, y) ^ p(y, z);", "p", (ANY, 150), 0.05),
        (PATHS + "p(x, y) ^ edge(y, z);", "p", (5, 150), 0.05),
        (PATHS + "p(x, y) ^ p(y, z);", "p", (5, ANY), 0.1),
        ("s(x, x) := edge(_, x); s(x, y) := edge(u, x) ^ s(u, v) ^ edge(v, y);", "s", (150, ANY), 0.1),
        ("d(x, x) @min(0) := edge(x, _); d(x, z) @min(n + 1) := d(x, y) @min(n) ^ edge(y, z);",
         "d", (5, ANY), 0.1),
        (PATHS + "edge(x, y) ^ p(y, z); n(x) @count(y) := p(x, y); big(x) := n(x) @count(c) if c > 4; "
         "q(x, y) := p(x, y) ^ mark(y) ^ not big(y);", "q", (5, ANY), 0.1),
    ],
)  # fmt: skip
def test_a_bound_question_derives_a_small_part_of_the_rows(
    text: str, asked: str, pattern: tuple[object, ...], share: float
) -> None:
    whole, few = rows(check(parse(text), EDGES), asked, pattern, tree(300))
    assert few <= share * whole, few / whole


def test_a_wish_crosses_strata_and_not_only_through_inputs_where_it_would_read_itself() -> None:
    text = "p(x, y) := edge(x, y); q(x) := p(x, y) ^ not r(y); r(x) := edge(x, y) ^ mark(y);"
    plan = magic_plan(logical_plan(check(parse(text), EDGES)), "q", (1,))
    assert {rule.head.predicate: len(rule.head.terms) for rule in plan.rules} == {
        "p": 2, "q": 1, "r": 1, "#ask:q": 1, "#ask:p": 1, "#ask:r": 1,
    }  # fmt: skip
    reading = {
        name for rule in plan.rules if rule.head.predicate == "#ask:r" for name in rule.reads
    }
    assert reading == {"#ask:q", "p"}
    # r is asked of what p says, and p reads r: magic facts of r may only come from inputs.
    text = "p(x, y) := edge(x, y) ^ not r(x); q(x) := p(x, y) ^ not r(y); r(x) := edge(x, y) ^ mark(y);"
    plan = magic_plan(logical_plan(check(parse(text), EDGES)), "q", (1,))
    assert not any(
        name == "p" for rule in plan.rules if rule.head.predicate == "#ask:r" for name in rule.reads
    )
