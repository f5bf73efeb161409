"""Plugins: engine and twin agree on them, and their mistakes are errors of a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.dataflow import DataflowEngine, evaluate_plan
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.functions import FUNCTIONS
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lattices import LATTICES
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.logical.plan import logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.plugins import (
    PluginFunction,
    PluginLattice,
    check_function,
    check_lattice,
    function_of,
    lattice_of,
)
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import format_record, parse_record
from tidemill.datalog.vocabulary import Vocabulary
from tidemill.errors import UsageError
from tidemill.testkit.conformance.language_engines import evaluate_case
from tidemill.testkit.conformance.registry import Options
from tidemill.testkit.evaluated import Evaluation, evaluated
from tidemill.testkit.tidelog import CATALOG, DERIVED, UPPER, inputs, programs
from tidemill.testkit.twins.pointwise import answers

BITS = PluginLattice(
    version="1",
    takes=("int",),
    inject=lambda x: x,
    merge=lambda a, b: a | b,
    observe=lambda x: (x,),
)
SPAN = PluginLattice(
    version="1", takes=("int", "int"), inject=lambda low, high: [low, high],
    merge=lambda a, b: [min(a[0], b[0]), max(a[1], b[1])], observe=tuple,
)  # fmt: skip
TEENS = PluginFunction(version="1", takes=("int",), gives="int", evaluate=lambda x: [0, 1, 4, 9][x])
WORDS = Vocabulary(
    {**FUNCTIONS, "square": function_of("square", TEENS)},
    {**LATTICES, "bits": lattice_of("bits", BITS), "span": lattice_of("span", SPAN)},
)
ENGINES = [
    Options(), Options(strategy="retraction"),
]  # fmt: skip
EVENTS = InputSchema("e", "events", (("k", "text"), ("v", "int")))


def at_instants(found: Any, names: Sequence[str]) -> list[dict[str, set[str]]]:
    """The texts of records and errors at each instant."""
    return [
        {n: {format_record(p.record) for p in found.presences.get(n, ()) if p.start <= at < p.end} for n in names}
        | {"errors": {e.text for e in found.errors if e.start <= at < e.end}}
        for at in range(-1, UPPER)
    ]  # fmt: skip


def of_bits(text: str) -> str:
    """A generated program in which one lattice of whole numbers is the host's."""
    return (
        text.replace("@max(x)", "@bits(x)")
        .replace("@min(y)", "@bits(y)")
        .replace("@min(x)", "@bits(x)")
    )


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), inputs(nulls=False))
def test_every_engine_and_the_twin_agree_on_a_hosts_lattice(
    example: Any, given_: Mapping[str, Sequence[Presence]]
) -> None:
    text = of_bits(example.text)
    try:
        checked = check(parse(text), CATALOG, WORDS)
    except ProgramErrors:
        assume(False)
        raise
    try:
        found = [evaluate_case(each, checked, [(0, given_)], UPPER) for each in ENGINES]
    except LimitPassed:
        assume(False)
        raise
    wanted = [
        {name: set(each.records[name]) for name in DERIVED} | {"errors": set(each.errors)}
        for each in answers(checked, given_, 0, UPPER)
    ]
    for options, each in zip(ENGINES, found, strict=True):
        assert at_instants(each, DERIVED) == wanted, options


PROGRAM = """
all(k) @bits(v) @span(v, v + 1) := e(k, v);
kept(k) @bits(v) @expires(u + 6) := e(k, v) @time(u);
passed(k) := all(k);
both(a) @span(l, h) := all(a) @span(l, h) ^ passed(_);
squared(k, y) := e(k, v) where y = square(v);
odd(k) := e(k, v) if square(v) == 9;
none(k) := e(k, _) ^ not all(k) @bits(3);
"""
ROWS = [
    'e("a", 1) @time(1) @expires(9)',
    'e("a", 2) @time(3)',
    'e("b", 7) @time(4)',
    'e("b", 3) @time(2)',
]


def test_lattices_of_several_values_and_functions_are_the_same_on_every_engine() -> None:
    checked = check(parse(PROGRAM), InputSchemas({"e": EVENTS}), WORDS)
    given_ = {"e": [Presence(r, r.time or 0, r.expires or 10**6) for r in map(parse_record, ROWS)]}
    first, *others = [
        at_instants(evaluate_case(each, checked, [(0, given_)], UPPER), checked.derived)
        for each in ENGINES
    ]
    assert others == [first] * len(others)
    assert {line.replace(" @expires(9)", "") for line in first[6]["all"]} == {
        'all("a") @time(3) @bits(3) @span(1, 3)', 'all("b") @time(4) @bits(7) @span(3, 8)',
    }  # fmt: skip
    assert 'squared("b", 9) @time(2)' in first[6]["squared"]
    assert first[6]["errors"] == {'square raised IndexError: e("b", 7) @time(4)'}


def test_state_with_a_hosts_lattice_is_kept_in_values_of_the_language() -> None:
    checked = check(parse(PROGRAM), InputSchemas({"e": EVENTS}), WORDS)
    rows = [Presence(r, r.time or 0, r.expires or 10**6) for r in map(parse_record, ROWS)]
    whole = at_instants(evaluated(checked, {"e": rows}, upper=UPPER), checked.derived)
    half = DataflowEngine(checked, keeps_state=True)
    half.feed_presences("e", [p for p in rows if p.start < 5])
    half.step(5)
    _, state = half.tell_state()
    assert state
    found, errors = evaluate_plan(
        logical_plan(checked), {"e": [p for p in rows if p.end > 5]}, upper=UPPER,
        told=checked.derived, lower=4, state=state,
    )  # fmt: skip
    rest = Evaluation({name: found.get(name, ()) for name in checked.derived}, errors)
    assert at_instants(rest, checked.derived)[6:] == whole[6:]


def test_programs_are_checked_against_the_declared_types() -> None:
    for text in (
        "p() @bits(k) := e(k, _);",
        "p(square(k)) := e(k, _);",
        "p(lower(square(v))) := e(_, v);",
    ):
        with pytest.raises(ProgramErrors, match="S120"):
            check(parse(text), InputSchemas({"e": EVENTS}), WORDS)


def lattice(**changes: Any) -> PluginLattice:
    return PluginLattice(**{**vars(BITS), **changes})


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (lattice(merge=lambda a, b: a + b), "merge is not idempotent"),
        (lattice(merge=lambda a, b: a), "merge is not commutative"),
        (lattice(merge=lambda a, b: a if a == b else (a + b) // 2), "merge is not associative"),
        (lattice(observe=lambda x: (x // 2,)), "injected shows another value"),
        (lattice(observe=lambda x: x), "shows no"),
        (lattice(merge=lambda a, b: 1 // 0), "merge fails"),
        (lattice(inject=lambda x: 1 // 0), "declare samples"),
        (lattice(samples=lambda rng: [(rng.random(),)]), "shows no"),
        (lattice(takes=("any",)), "declares the type 'any'"),
        (lattice(version=""), "needs a version"),
    ],
)
def test_a_lawless_lattice_is_refused(plugin: PluginLattice, says: str) -> None:
    check_lattice("bits", BITS, Random(1))
    check_lattice("span", SPAN, Random(1))
    with pytest.raises(UsageError, match=says):
        check_lattice("bits", plugin, Random(1))


def test_a_lawless_function_is_refused() -> None:
    counted = iter(range(10**6))
    check_function("square", TEENS, Random(1))
    for evaluate, says in (
        (lambda x: next(counted), "and then"), (str, "is no int"), (lambda: 1, "is no int"),
    ):  # fmt: skip
        plugin = PluginFunction(version="1", takes=("int",), gives="int", evaluate=evaluate)
        with pytest.raises(UsageError, match=says):
            check_function("f", plugin, Random(1))
    with pytest.raises(UsageError, match="cannot be named so"):
        check_function("neg", TEENS, Random(1))


def test_w5_no_lattice_is_called_as_the_mark_of_another_one() -> None:
    with pytest.raises(UsageError, match="cannot be named so"):
        check_lattice("has_max", BITS, Random(1))
    check_function("has_max", TEENS, Random(1))


def test_c2_the_largest_value_of_a_plugin_is_one_of_the_language() -> None:
    """C2: what one process takes and another one refuses would be two answers."""
    given_ = {"e": [Presence(parse_record('e("a", 1) @time(1)'), 1)]}
    for values, reasons in ((100_000, []), (100_001, ["overflow"])):
        plugin = PluginFunction(
            version="1",
            takes=("int",),
            gives="set",
            evaluate=lambda _, n=values: frozenset(range(n)),
        )
        checked = check(
            parse("p(length(f(v))) := e(_, v);"), InputSchemas({"e": EVENTS}),
            Vocabulary({**FUNCTIONS, "f": function_of("f", plugin)}),
        )  # fmt: skip
        found = evaluated(checked, given_, upper=5)
        assert [p.record.arguments for p in found.presences["p"]] == [(values,)] * (not reasons)
        assert [error.text.split(":")[0] for error in found.errors] == reasons


@given(st.floats() | st.integers() | st.text() | st.none() | st.frozensets(st.integers()))
def test_what_a_plugin_gives_is_a_value_of_its_type_or_an_error(value: Any) -> None:
    plugin = PluginFunction(version="1", takes=("int",), gives="float", evaluate=lambda _: value)
    checked = check(
        parse("p(f(v)) := e(_, v);"), InputSchemas({"e": EVENTS}),
        Vocabulary({**FUNCTIONS, "f": function_of("f", plugin)}),
    )  # fmt: skip
    given_ = {"e": [Presence(parse_record('e("a", 1) @time(1)'), 1)]}
    found = evaluated(checked, given_, upper=5)
    kinds = {type(p.record.arguments[0]) for p in found.presences["p"]}
    assert kinds <= {float, type(None)}
    assert bool(kinds) != bool(found.errors)
