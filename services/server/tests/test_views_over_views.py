"""A program that is cut into two views says what it says in one piece, whatever rides beside its
facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from tidemill.catalog.entry import CatalogEntry
from tidemill.catalog.record_rows import row_of, shape_of_output, table_of
from tidemill.datalog.ast import Program, Rule
from tidemill.datalog.carried_lattices import surely_carried
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END, Presence
from tidemill.datalog.records import format_presence, parse_record
from tidemill.testkit.conformance.language_engines import Answer, by_instant, evaluate_case
from tidemill.testkit.conformance.registry import Options
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import CATALOG, FORMS, Example, programs
from tidemill.testkit.tidelog import UPPER as RANDOM_UPPER
from tidemill.testkit.tidelog import inputs as facts_of_inputs

UPPER = 100
LOST = frozenset({"count", "count_distinct", "sum", "average"})
"""Lattices whose values lose their contributions in an output, so merges of them differ."""
PROGRAMS = {
    "sets merge and are looked into": (
        "n(k) @set(v) := r(k, v); m(k) @set(w) := r(k, v) where w = v + 10;",
        "both(k) := n(k) ^ m(k); has(k) ~set := n(k) @set(s) if contains(s, 1); of(s) := n(_) @set(s);",
    ),
    "sets as arguments": (
        "n(k) @set(v) := r(k, v); s(k, x) ~set := n(k) @set(x);",
        "size(k, length(x)) := s(k, x); alike(x) := s(_, x) ^ s(_, x);",
    ),
    "sets of texts that need quotes": (
        'n(k) @set(t) := r(k, v) ^ r(w, v) where t = concat(w, concat("\\"},{", text(v)));',
        "of(k, length(s)) := n(k) @set(s);",
    ),
    "a lattice of three values": (
        "e(k) @extent(v, v, w) := r(k, v) ^ r(w, v);",
        "passed(k) := e(k); low(a) ~extent := e(k) @extent(a, _, _); who(s) ~extent := e(_) @extent(_, _, s);",
    ),
    "values that are counted": (
        "d(k) @count_distinct(v) := r(k, v); c(k) @count(v) := r(k, v);",
        "w(k, n) := d(k) @count_distinct(n); x(k, n) := c(k) @count(n); y(k) := c(k) ^ d(k);",
    ),
    "sums, extremes and means": (
        "s(k) @sum(v) := r(k, v); x(k) @max(v) @min(v) := r(k, v); a(k) @average(v) := r(k, v);",
        "p(k, t) := s(k) @sum(t); q(k) := x(k); z(k) := s(k) ^ x(k); mean(k, m) := a(k) @average(m);",
    ),
    "nulls that some facts carry": (
        'm(k) @max(v) @min(t) := r(k, v) where t = text(v); m("z") := r(_, _); m("c") @max(v) := r("b", v);',
        "x(k, a) := m(k) @max(a); none(k) ~max ~min := m(k) @max(a) if is_null(a); on(k) := m(k); "
        "few(k, a) := m(k) @min(a); lack(k) := on(k) ^ not few(k, _);",
    ),
    "whence": (
        "f(k) @provenance(src) := r(k, v) ^ r(w, v) where src = concat(w, text(v));",
        "g(1) := f(_); h(k, s) := f(k) @provenance(s);",
    ),
}
ROWS = [
    'r("a", 1) @time(1)',
    'r("a", 2) @time(5)',
    'r("b", 2) @time(7) @expires(20)',
    'r("b", 3) @time(9)',
    'r("c", null) @time(11)',
]
R = InputSchema("r", "events", (("k", "text"), ("v", "int")))


def shown(found: Answer, names: Sequence[str]) -> list[str]:
    return sorted(
        format_presence(p.record, p.start, p.end) for name in names for p in found.presences[name]
    )


Facts: TypeAlias = Mapping[str, Sequence[Presence]]


def handed_over(
    lower: CheckedProgram, presences: Facts
) -> tuple[dict[str, InputSchema], dict[str, Sequence[Presence]]]:
    """The outputs of a view, written and read back, and the inputs as which others know them."""
    inputs: dict[str, InputSchema] = {}
    handed: dict[str, Sequence[Presence]] = {}
    for predicate in lower.derived:
        shape = shape_of_output(lower, predicate)
        named = CatalogEntry(f"below/{predicate}", "c", "default", "View", shape)
        inputs[predicate] = named.as_input(predicate)
        found = presences[predicate]
        table = table_of([row_of(shape)(p.record) for p in found], shape.schema)
        records = named.readable().records(table)
        assert list(records) == [p.record for p in found]
        handed[predicate] = [replace(p, record=r) for p, r in zip(found, records, strict=True)]
    return inputs, handed


def ends_are_columns(lower: CheckedProgram, presences: Facts) -> bool:
    """Whether no timeless fact has an end of its own: only events have a column for it."""
    timeless = [name for name in lower.derived if name not in lower.carries_time]
    return not any(p.record.expires for name in timeless for p in presences[name])


def predicates_read(rules: Sequence[Rule]) -> set[str]:
    return {atom.application.name for rule in rules for atom in rule.atoms}


def compare(
    lower: CheckedProgram,
    upper: CheckedProgram,
    in_two: Answer,
    whole: CheckedProgram,
    in_one: Answer,
) -> list[str]:
    """The answer of the second view, if it is that of the whole program, in the same columns."""
    read = {p: shape_of_output(lower, p).sure for p in lower.derived if p in upper.inputs}
    sure = surely_carried(upper, read)
    found = shown(in_two, upper.derived)
    assert found == shown(in_one, upper.derived)
    for predicate in upper.derived:
        assert shape_of_output(upper, predicate, sure) == shape_of_output(whole, predicate)
    return found


@pytest.mark.parametrize(
    "options", [Options("dataflow"), Options("dataflow", "retraction")], ids=repr
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_views_say_what_one_program_says(name: str, options: Options) -> None:
    below, above = PROGRAMS[name]
    rows = {"r": [Presence(r, r.time or 0, r.expires or END) for r in map(parse_record, ROWS)]}
    lower = check(parse(below), InputSchemas({"r": R}))
    written = evaluate_case(options, lower, by_instant(rows), UPPER)
    inputs, handed = handed_over(lower, written.presences)
    program = parse(above)
    read = sorted(predicates_read(program.rules) & inputs.keys())
    upper = check(program, InputSchemas({name: inputs[name] for name in read}))
    whole = check(parse(below + above), InputSchemas({"r": R}))
    in_two = evaluate_case(options, upper, by_instant(handed), UPPER)
    in_one = evaluate_case(options, whole, by_instant(rows), UPPER)
    assert compare(lower, upper, in_two, whole, in_one)


def without_contributions(checked: CheckedProgram) -> bool:
    return not any(LOST.intersection(checked.lattices_of(name)) for name in checked.derived)


def cut(example: Example, drawn: Facts, data: st.DataObject) -> dict[str, Sequence[Presence]]:
    """Compare a program with the same one in two views; what the first of them hands over."""
    whole = example.checked
    derived = [component for component in whole.components if set(component) - whole.inputs.keys()]
    assume(len(derived) > 1)
    facts = {  # as sources give them: with nothing but a time and an expiry
        name: [replace(p, record=replace(p.record, parafacts=())) for p in presences]
        for name, presences in drawn.items()
    }
    at = len(derived) - data.draw(st.integers(1, len(derived) - 1))
    first = {name for component in derived[:at] for name in component}

    def part(below: bool, catalog: InputSchemas) -> CheckedProgram:
        rules = [r.source for r in whole.rules if (r.predicate in first) == below]
        rules = [replace(rule, number=number) for number, rule in enumerate(rules, 1)]
        read = predicates_read(rules)
        inputs = {name: schema for name, schema in catalog.schemas.items() if name in read}
        return check(Program(tuple(rules), example.text, "<cut>"), InputSchemas(inputs))

    def answer(checked: CheckedProgram, known: Facts) -> Answer:
        given_facts = {name: known.get(name, ()) for name in checked.inputs}
        try:
            return evaluate_case(
                Options("dataflow"), checked, by_instant(given_facts), RANDOM_UPPER
            )
        except LimitPassed:
            reject()

    lower = part(True, CATALOG)
    written = answer(lower, facts).presences
    assume(ends_are_columns(lower, written))
    inputs, handed = handed_over(lower, written)
    upper = part(False, InputSchemas({**CATALOG.schemas, **inputs}))
    compare(lower, upper, answer(upper, {**facts, **handed}), whole, answer(whole, facts))
    return handed


LAW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@LAW
@given(programs(6, fits=without_contributions), facts_of_inputs(), st.data())
def test_a_random_program_says_the_same_wherever_it_is_cut(
    example: Example, drawn: Facts, data: st.DataObject
) -> None:
    cut(example, drawn, data)


NULLS = replace(
    FORMS,
    head_marks=(
        "", "@max(x)", "@min(y)", "@max(h)", "@min(m)", "@max(m)", "@earliest(x)", "@extent(x, y, m)",
        "@max(x) @min(h)", "@set(x)", "~max", "~min ~max",
    ),
    atom_marks=("", "", "", "@max(x)", "@max(y)", "@min(m)", "@min(h)", "@earliest(z)", "~max", "@set(_)"),
    guards=("is_null(x)", "is_null(y)", "is_null(m)", "is_null(h)", "x <= y", "coalesce(x, 1) == 1"),
    whole=(
        "p(1) @max(x) := r(x);", "p(0) @min(y) := s(_, y);", "q(x) @max(h) := f(x, h);",
        "t(x, 1) @max(y) := s(x, y);", "t(0, 1) @min(m) := n(m, _);", "d(m, 0.5) @earliest(x) := n(m, x);",
        "q(x) ~max := p(x) @max(y) if is_null(y);", "q(x) := t(x, _);", "d(\"k\", 0.5) := q(_) @max(h);",
    ),
    whole_every=2,
)  # fmt: skip
"""Rules about values that are null beside some facts, and not there beside others."""


def emptied(drawn: Facts) -> Facts:
    """The same facts, every other one with nulls behind its first argument."""
    return {
        name: [
            replace(p, record=replace(p.record, arguments=(first, *(None for _ in rest))))
            if number % 2 == 0
            else p
            for number, p in enumerate(presences)
            for first, *rest in [p.record.arguments]
        ]
        for name, presences in drawn.items()
    }


def test_w5_a_random_program_over_nulls_says_the_same_wherever_it_is_cut() -> None:
    met = 0

    @settings(LAW, backend=seeded_backend(1), database=None)
    @given(
        programs(8, NULLS, without_contributions, rules_min=3),
        facts_of_inputs(rows_min=2),
        st.data(),
    )
    def law(example: Example, drawn: Facts, data: st.DataObject) -> None:
        nonlocal met
        handed = cut(example, emptied(drawn), data)
        carried = [dict(p.record.parafacts) for found in handed.values() for p in found]
        met += any(None in each.values() for each in carried) and not all(carried)

    law()
    assert met > 10, met
