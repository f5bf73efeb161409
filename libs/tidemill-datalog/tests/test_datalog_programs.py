"""Two thousand random programs: the dataflow gives their answers at every instant.

Each program goes through one of the ways in which a view can come to its answer. Together they hit
every form of the language that a rule can have, which is counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.datalog import ast
from tidemill.datalog.checked import CheckedProgram, ResolvedAtom, ResolvedRule
from tidemill.datalog.limits import Limits
from tidemill.datalog.presence import Presence
from tidemill.datalog.strategy import Strategy
from tidemill.testkit.held import Held
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import UPPER, Example, answers_from_scratch, inputs, programs

PROGRAMS = int(os.environ.get("PROGRAMS", "2000"))
SEED = int(os.environ.get("LAW_SEED", "1"))
Inputs: TypeAlias = "Mapping[str, Sequence[Presence]]"
LIMITS = Limits(rounds=500)
WAYS = ("as they are", "in pieces", "shuffled", "come and gone", "restarted", "compacted")


def stepped(
    checked: CheckedProgram, given_: Inputs, strategy: Strategy, way: str, rng: Random
) -> Iterator[dict[str, set[str]]]:
    """The facts and errors at each instant, when the dataflow comes there in one of the `WAYS`."""
    if way == "shuffled":
        rules = rng.sample(checked.rules, len(checked.rules))
        checked = replace(checked, rules=tuple(rules))
    held = Held(checked, strategy=strategy, limits=LIMITS, keeps_state=True)
    waiting = [(name, p) for name, found in given_.items() for p in found]
    if way in ("shuffled", "in pieces"):
        rng.shuffle(waiting)
    if way == "come and gone":
        passing = [(name, p, rng.randrange(UPPER)) for name, p in waiting]
        for diff in (1, -1):
            for name, presence, at in passing:
                held.update(name, presence.record, at, diff)
    for at in range(-1, UPPER):
        later = []
        for name, presence in waiting:
            if way != "in pieces" or presence.start <= at or rng.randrange(2):
                held.feed({name: [presence]})
            else:
                later.append((name, presence))
        waiting = later
        held.step(at + 1)
        yield held.now()
        if way in ("restarted", "compacted") and rng.randrange(4) == 0:
            held = begun_again(held, strategy, given_, at, way == "compacted")


def begun_again(before: Held, strategy: Strategy, given_: Inputs, at: int, compacted: bool) -> Held:
    """An engine that begins at the stop of another, from its state and the kept inputs.

    Compacted inputs no longer tell when what is present now began.
    """
    checked = before.engine.checked
    again = Held(checked, strategy=strategy, limits=LIMITS, keeps_state=True)
    again.engine.restore(sorted(before.state), at + 1)
    for name, presences in given_.items():
        alive = [p for p in presences if p.end > at]
        if compacted:
            alive = [replace(p, start=max(p.start, at)) for p in alive]
        again.feed({name: alive})
    again.state = before.state
    again.step(at + 1)
    again.state = before.state  # what the first step tells of it is not news
    return again


def forms_of(checked: CheckedProgram) -> set[str]:
    """Every form that the rules of a program have, by name."""
    found = {"recursion"} if checked.recursive & set(checked.derived) else set()
    for rule in checked.rules:
        found |= set(forms_of_rule(checked, rule))
    return found


def forms_of_rule(checked: CheckedProgram, rule: ResolvedRule) -> Iterator[str]:
    component = next(c for c in checked.components if rule.predicate in c)
    inside = any(atom.predicate in component for atom in rule.positive)
    yield "stated" if not rule.atoms else "joined" if len(rule.positive) > 1 else "single"
    yield from (f"head @{p.lattice}" for p in rule.parafacts)
    yield from (f"head ~{lattice}" for lattice in rule.suppressed)
    if inside and rule.aggregates & {"min", "max", "set"}:
        yield "recursion through a lattice"
    if rule.mentions("time") and rule.mentions("expires"):
        yield "head @time @expires"
    if rule.guards:
        yield "guard"
    if rule.definitions:
        yield "where"
    for atom in rule.atoms:
        yield from forms_of_atom(atom)
    names = Counter(
        term.name for atom in rule.positive for term in atom.terms if isinstance(term, ast.Variable)
    )
    if max(names.values(), default=0) > 1:
        yield "shared variable"
    for expression in (*rule.guards, *rule.definitions.values()):
        for part in ast.walk(expression):
            match part:
                case ast.Binary(operator=operator):
                    yield f"operator {operator}"
                case ast.Unary():
                    yield "operator minus"
                case ast.Call(name=name):
                    yield f"function {name}"


def forms_of_atom(atom: ResolvedAtom) -> Iterator[str]:
    where = "not " if atom.negated else ""
    yield where + ("clock" if atom.clock else "atom")
    yield from (f"{where}atom @{p.lattice}" for p in atom.parafacts)
    yield from (f"atom ~{lattice}" for lattice in atom.suppressed)
    for term in atom.terms:
        match term:
            case ast.Literal(value=str() | float()):
                yield where + "literal"
                yield f"a {type(term.value).__name__}"
            case ast.Wildcard() | ast.Literal():
                yield where + type(term).__name__.lower()
            case ast.Binary() | ast.Call():
                yield "computed term"


EVERY_FORM = frozenset((
    "stated", "single", "joined", "shared variable", "literal", "wildcard", "computed term", "guard",
    "a str", "a float",
    "where", "recursion", "recursion through a lattice", "atom", "not atom", "clock", "not clock",
    "not wildcard", "not literal", "not atom @time", "not atom @count",
    "head @time", "head @expires", "head ~expires", "head @time @expires", "head @count", "head @sum",
    "head @average", "head @count_distinct", "head @min", "head @max", "head @set", "head @provenance",
    "head @earliest", "head @latest", "head @extent", "head ~count", "head ~provenance",
    "atom @time", "atom @expires", "atom @count", "atom @min", "atom @max", "atom @set", "atom @sum",
    "atom @average", "atom @provenance", "atom @extent", "atom @earliest", "atom @latest",
    "atom ~time", "atom ~expires", "atom ~provenance", "atom ~extent",
    "operator <", "operator <=", "operator ==", "operator !=", "operator >=", "operator >",
    "operator &&", "operator ||", "operator +", "operator -", "operator *", "operator /",
    "operator %", "operator minus", "function is_null", "function least", "function greatest",
    "function coalesce", "function bucket", "function length", "function lower", "function upper",
    "function contains", "function starts_with", "function ends_with", "function substring",
    "function concat", "function int", "function float", "function text", "function abs",
    "function floor", "function ceil", "function round", "function regex_match", "function split",
    "function hash", "function format", "function root",
))  # fmt: skip


@pytest.mark.timeout(1200)  # forty seconds on an idle machine
def test_two_thousand_programs_say_what_they_mean_and_hit_every_form() -> None:
    seen: Counter[str] = Counter()

    @settings(
        max_examples=PROGRAMS, backend=seeded_backend(SEED), deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    @given(
        programs(6, rules_min=2),
        inputs(),
        st.sampled_from(["strata", "retraction"]),
        st.sampled_from(WAYS),
        st.integers(0, 999),
    )
    def agree(example: Example, given_: Inputs, strategy: Strategy, way: str, seed: int) -> None:
        expected = answers_from_scratch(example, given_)
        answers = stepped(example.checked, given_, strategy, way, Random(seed))
        for at, (found, wanted) in enumerate(zip(answers, expected, strict=True), -1):
            assert found == wanted, (at, way, example.text)
        seen.update(forms_of(example.checked))
        seen[way] += 1

    agree()
    if PROGRAMS >= 2000:  # the rarest form comes about twenty times
        assert sum(seen[way] for way in WAYS) >= 0.9 * PROGRAMS
        assert {way for way in WAYS if seen[way] < PROGRAMS / 20} == set()
        assert {form for form in EVERY_FORM if seen[form] < 3} == set()
