"""A program that is cut into two views says what it says in one piece, whatever rides beside its facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tidemill.datalog.arrival import event_presence
from tidemill.datalog.catalog import Catalog, InputSchema
from tidemill.datalog.check import check
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import format_presence, parse_record
from tidemill.testkit.conformance.language_engines import Answer, by_instant, evaluate_case
from tidemill.testkit.conformance.registry import Options
from tidemill_compute.views.record_rows import row_of, shape_of_output, table_of
from tidemill_embedded.resources.shapes import Named

UPPER = 100
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
]
R = InputSchema("r", "events", (("k", "text"), ("v", "int")))


def shown(found: Answer, names: Sequence[str]) -> list[str]:
    return sorted(
        format_presence(p.record, p.start, p.end) for name in names for p in found.presences[name]
    )


@pytest.mark.parametrize("options", [Options("scratch"), Options("columns"), Options()])
@pytest.mark.parametrize("name", PROGRAMS)
def test_two_views_say_what_one_program_says(name: str, options: Options) -> None:
    below, above = PROGRAMS[name]
    given = {"r": [event_presence(r, r.time or 0) for r in map(parse_record, ROWS)]}
    lower = check(parse(below), Catalog({"r": R}))
    written = evaluate_case(options, lower, by_instant(given), UPPER)
    inputs: dict[str, InputSchema] = {}
    handed: dict[str, list[Presence]] = {}
    for predicate in lower.derived:
        shape = shape_of_output(lower, predicate)
        named = Named(f"below/{predicate}", "c", "default", "View", shape)
        inputs[predicate] = named.as_input(predicate)
        presences = written.presences[predicate]
        table = table_of([row_of(shape)(p.record) for p in presences], shape.schema)
        records = named.readable().records(table)
        assert list(records) == [p.record for p in presences]
        handed[predicate] = [replace(p, record=r) for p, r in zip(presences, records, strict=True)]
    program = parse(above)
    read = {atom.application.name for rule in program.rules for atom in rule.atoms}
    upper = check(program, Catalog({name: inputs[name] for name in sorted(read)}))
    whole = check(parse(below + above), Catalog({"r": R}))
    in_two = evaluate_case(options, upper, by_instant(handed), UPPER)
    in_one = evaluate_case(options, whole, by_instant(given), UPPER)
    assert shown(in_two, upper.derived) == shown(in_one, upper.derived) != []
    for predicate in upper.derived:
        assert shape_of_output(upper, predicate) == shape_of_output(whole, predicate)
