"""On what they have in common, the dataflow answers as clingo, and as DatalogMTL by MeTeoR."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog.checked import CheckedProgram, ResolvedRule
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.drawing import STRATEGIES, Presences
from tidemill.testkit.foreign import clingo, metric
from tidemill.testkit.held import Held
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import UPPER, Example, inputs, programs

Forms = Mapping[str, Callable[[CheckedProgram, ResolvedRule], bool]]
INSTANTS = range(-1, UPPER)
SEED = int(os.environ.get("LAW_SEED", "1"))
EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "200"))
PROGRAMS = settings(
    max_examples=EXAMPLES, backend=seeded_backend(SEED), deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip


def recursive(checked: CheckedProgram, rule: ResolvedRule) -> bool:
    """Whether the rule reads what it derives."""
    component = next(c for c in checked.components if rule.predicate in c)
    return any(a.predicate in component and not a.negated for a in rule.atoms)


def present(given_: Presences, at: int) -> list[Record]:
    return [p.record for found in given_.values() for p in found if p.start <= at < p.end]


def answers(checked: CheckedProgram, given_: Presences) -> list[dict[str, frozenset[str]]]:
    """The records of each predicate at each instant."""
    held, found = Held(checked), []
    held.feed(given_)
    for at in INSTANTS:
        held.step(at + 1)
        found.append({name: frozenset(held.texts(name)) for name in checked.derived})
    return found


def forms_that_matter(example: Example, given_: Presences, forms: Forms) -> set[str]:
    """The forms without whose rules the answer would be another one."""
    checked, whole = example.checked, None
    mattering = set()
    for form, has in forms.items():
        rest = tuple(rule for rule in checked.rules if not has(checked, rule))
        if len(rest) < len(checked.rules):
            whole = whole or answers(checked, given_)
            if answers(replace(checked, rules=rest), given_) != whole:
                mattering.add(form)
    return mattering


def counted(seen: Counter[str], aims: Mapping[str, int]) -> None:
    """Every form has mattered as often as it is to: 200 programs give five times as many."""
    assert EXAMPLES < 200 or {form: seen[form] for form in aims if seen[form] < aims[form]} == {}


def test_at_any_instant_the_facts_and_aggregates_are_those_of_clingo() -> None:
    seen: Counter[str] = Counter()
    forms: Forms = {
        "recursion": recursive,
        "negation": lambda _, rule: any(atom.negated for atom in rule.atoms),
        "aggregate": lambda _, rule: bool(rule.aggregates),
        "matched aggregate": lambda _, rule: any(a.parafacts for a in rule.positive),
        "guard": lambda _, rule: bool(rule.guards),
        "definition": lambda _, rule: bool(rule.definitions),
    }

    @PROGRAMS
    @given(
        programs(9, clingo.FORMS, clingo.fits, 4),
        inputs(("r", "s"), nulls=False, rows_min=2, rows_max=6),
        STRATEGIES,
        st.sets(st.sampled_from(INSTANTS), min_size=3, max_size=3),
    )
    def agree(example: Example, given_: Presences, strategy: Strategy, instants: set[int]) -> None:
        held = Held(example.checked, strategy=strategy)
        held.feed(given_)
        for at in sorted(instants):
            held.step(at + 1)
            expected = clingo.derived(example.checked, present(given_, at))
            for name in ("p", "q", "t"):
                shown = {r.arguments: dict(r.parafacts) for r in held.records(name)}
                assert shown == expected[name], (at, name, example.text)
        seen.update(forms_that_matter(example, given_, forms))
        seen["programs"] += 1

    agree()
    counted(
        seen,
        {"programs": 200, "recursion": 16, "negation": 12, "aggregate": 18, "matched aggregate": 2,
         "guard": 11, "definition": 7},
    )  # fmt: skip


def test_at_every_instant_the_facts_are_those_of_datalog_with_metric_operators() -> None:
    seen: Counter[str] = Counter()
    forms: Forms = {
        "recursion": recursive,
        "intervals met": lambda _, rule: len(rule.atoms) > 1,
        "own expiry": lambda _, rule: rule.mentions("expires"),
        "no expiry": lambda _, rule: "expires" in rule.suppressed,
    }

    @PROGRAMS
    @given(
        programs(9, metric.FORMS, metric.fits, 4),
        inputs(("a", "b", "r", "s"), nulls=False, late=False, rows_min=1, rows_max=4),
        STRATEGIES,
    )
    def agree(example: Example, given_: Presences, strategy: Strategy) -> None:
        held = Held(example.checked, strategy=strategy)
        held.feed(given_)
        expected = metric.derived(example.checked, given_, INSTANTS)
        for at, facts in zip(INSTANTS, expected, strict=True):
            held.step(at + 1)
            for name in ("p", "q", "t"):
                shown = {r.arguments for r in held.records(name)}
                assert shown == facts[name], (at, name, example.text)
        ends = any(p.end < UPPER for found in given_.values() for p in found)
        seen.update(forms_that_matter(example, given_, forms))
        seen["expiry of inputs"] += ends
        seen["programs"] += 1

    agree()
    counted(
        seen,
        {"programs": 200, "recursion": 15, "intervals met": 23, "own expiry": 9, "no expiry": 12,
         "expiry of inputs": 36},
    )  # fmt: skip
