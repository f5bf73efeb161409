"""The engine beside its laws: limits, state as rows, plugins, kept tables, deep proofs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow import DataflowEngine, evaluate_plan
from tidemill.datalog.functions import FUNCTIONS, ScalarFunction
from tidemill.datalog.goals import Goal, compile_goal
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.lattices import LATTICES, Lattice
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.logical.plan import logical_plan, plan_below
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_presence
from tidemill.datalog.state import StateRow
from tidemill.datalog.vocabulary import Vocabulary
from tidemill.datalog.why import why
from tidemill.datalog.why_not import why_not
from tidemill.errors import Corrupt
from tidemill.testkit.evaluated import evaluated


def relation(name: str, *columns: str) -> InputSchema:
    return InputSchema(name, "relation", tuple((f"c{i}", kind) for i, kind in enumerate(columns)))  # type: ignore[misc]


def events(name: str, *columns: str) -> InputSchema:
    return InputSchema(name, "events", tuple((f"c{i}", kind) for i, kind in enumerate(columns)))  # type: ignore[misc]


def checked(text: str, *inputs: InputSchema) -> CheckedProgram:
    return check(parse(text), InputSchemas({schema.name: schema for schema in inputs}))


def rows(name: str, *arguments: tuple[object, ...]) -> dict[str, list[Presence]]:
    return {name: [Presence(Record(name, row), 0) for row in arguments]}  # type: ignore[arg-type]


def event(name: str, row: tuple[object, ...], time: int, expires: int | None = None) -> Presence:
    end = float("inf") if expires is None else expires
    return Presence(Record(name, row, time, expires), time, end)  # type: ignore[arg-type]


def lines(presences: Sequence[Presence]) -> list[str]:
    return sorted(format_presence(p.record, p.start, p.end) for p in presences)


def test_a_recursion_that_passes_the_limit_of_rounds_gives_no_answer() -> None:
    program = checked("n(x) := start(x); n(x + 1) := n(x) if x < 1000;", relation("start", "int"))
    with pytest.raises(LimitPassed) as refused:
        evaluated(program, rows("start", (0,)), upper=5, limits=Limits(rounds=100))
    assert refused.value.limit == "rounds"


def test_a_predicate_that_passes_the_limit_of_rows_gives_no_answer() -> None:
    program = checked("pair(x, y) := r(x) ^ r(y);", relation("r", "int"))
    with pytest.raises(LimitPassed) as refused:
        evaluated(program, rows("r", *((i,) for i in range(20))), upper=5, limits=Limits(rows=399))
    assert refused.value.predicate == "pair"


def test_a_set_that_passes_the_limit_of_values_gives_no_answer() -> None:
    program = checked("s() @set(x) := r(x);", relation("r", "int"))
    with pytest.raises(LimitPassed) as refused:
        evaluated(program, rows("r", (1,), (2,), (3,)), upper=5, limits=Limits(set_values=2))
    assert refused.value.limit == "set_values"


def test_a_rule_may_have_more_atoms_than_python_nests_loops() -> None:
    body = " ^ ".join(f"r(x{i}, x{i + 1})" for i in range(40))
    program = checked(
        f"far(x0, x40) := {body} ^ not s(x39) if 10 / x0 >= 1;",
        relation("r", "int", "int"), relation("s", "int"),
    )  # fmt: skip
    inputs = {**rows("r", *((i, i + 1) for i in range(50))), **rows("s", (41,))}
    evaluation = evaluated(program, inputs, upper=5)
    expected = [f"[0,-) far({i}, {i + 40})" for i in (*range(3, 11), 1)]
    assert lines(evaluation.presences["far"]) == sorted(expected)
    (error,) = evaluation.errors
    assert error.text.startswith("division by zero: r(0, 1) ^ r(1, 2) ^")


def test_a_recursion_of_many_rounds_ends() -> None:
    program = checked("n(x) := start(x); n(x + 1) := n(x) if x < 5000;", relation("start", "int"))
    evaluation = evaluated(program, rows("start", (0,)), upper=5)
    assert len(evaluation.presences["n"]) == 5001


def test_the_state_is_rows_that_stay_while_solutions_live() -> None:
    program = checked(
        "hold(x) @expires(t + 100) := e(x) @time(t);"
        "open(x, y) := e(x) ^ f(y) ~time ~expires;"
        "n(k) @count(v) @sum(v) @expires(1000) := g(k, v);"
        "keep(k) ~expires := n(k);",
        events("e", "text"), events("f", "int"), relation("g", "text", "float"),
    )  # fmt: skip
    inputs = {
        "e": [event("e", ("a",), 5, 20)],
        "f": [event("f", (1,), 6, 8)],
        **rows("g", ("k", 1.5), ("k", 2.0)),
    }
    engine = DataflowEngine(program, keeps_state=True)
    for name, presences in inputs.items():
        engine.feed_presences(name, presences)
    engine.step(10)
    gone, kept = engine.tell_state()
    assert not gone
    assert {rule for rule, _, _ in kept} == {1, 2, 3, 4}
    engine.step(15)
    assert engine.tell_state() == ([], [])
    found, _ = evaluate_plan(
        logical_plan(program), {}, upper=200, told=program.derived, lower=15, state=kept
    )
    assert lines(found["hold"]) == ['[15,105) hold("a") @time(5) @expires(105)']
    assert "open" not in found
    assert lines(found["keep"]) == ['[15,-) keep("k") @count(2) @sum(3.5)']
    with pytest.raises(Corrupt):
        engine.restore([(1, "unknown", "[]")], 20)


def test_only_what_the_wanted_predicates_need_is_evaluated() -> None:
    program = checked("a(x) := r(x); b(x) := a(x); c(1 / x) := r(x);", relation("r", "int"))
    plan = plan_below(logical_plan(program), {"b"})
    found, errors = evaluate_plan(plan, rows("r", (0,)), upper=5, told=program.derived)
    assert {name: lines(presences) for name, presences in found.items()} == {
        "a": ["[0,-) a(0)"], "b": ["[0,-) b(0)"],
    }  # fmt: skip
    assert errors == []


def test_a_host_registers_functions_and_lattices() -> None:
    functions = {**FUNCTIONS, "twice": ScalarFunction("twice", 1, 1, lambda x: x * 2)}
    longest = Lattice(
        "longest", 1, lambda text: text, lambda a, b: max(a, b, key=lambda t: (len(t), t)),
        lambda text: (text,),
    )  # fmt: skip
    catalog = InputSchemas({"r": relation("r", "text", "int")})
    program = check(
        parse("top(y) @longest(x) := r(x, n) where y = twice(n);"),
        catalog,
        Vocabulary(functions, {**LATTICES, "longest": longest}),
    )
    evaluation = evaluated(program, rows("r", ("a", 1), ("bcd", 1), ("xy", 1), ("z", 2)), upper=5)
    assert lines(evaluation.presences["top"]) == [
        '[0,-) top(2) @longest("bcd")',
        '[0,-) top(4) @longest("z")',
    ]


def test_a_badly_ordered_body_costs_no_more_than_a_well_ordered_one() -> None:
    program = checked(
        "hit(x) := big(_, y) ^ big(z, _) ^ key(x) ^ big(x, y) ^ link(x, z);",
        relation("big", "int", "int"), relation("key", "int"), relation("link", "int", "int"),
    )  # fmt: skip
    inputs = {
        **rows("big", *((i, i + 1) for i in range(3000))),
        **rows("key", (7,)),
        **rows("link", *((i, i + 2) for i in range(3000))),
    }
    evaluation = evaluated(program, inputs, upper=5)
    assert lines(evaluation.presences["hit"]) == ["[0,-) hit(7)"]


def test_a_proof_may_be_thousands_of_facts_deep() -> None:
    program = checked(
        "path(x) := start(x); path(y) := path(x) ^ edge(x, y);",
        relation("start", "int"), relation("edge", "int", "int"),
    )  # fmt: skip
    inputs = {**rows("start", (0,)), **rows("edge", *((i, i + 1) for i in range(4000)))}
    proof = why(program, inputs, Record("path", (4000,)), 3)
    assert proof is not None
    assert len(proof.leaves()) == 4001
    assert proof.render().count("\n") >= 8000


def test_a_proof_reads_only_facts_that_the_record_can_depend_on() -> None:
    program = checked(
        "slow(p) @expires(t + 100) := leg(p, d) @time(t) if d > 10;"
        "alarm(p, d) := slow(p) ^ leg(p, d) if d > 50;",
        events("leg", "text", "int"),
    )
    legs = [event("leg", (f"p{i % 500}", i % 60), i, i + 50) for i in range(20_000)]
    at = 19_858
    proof = why(program, {"leg": legs}, Record("alarm", ("p358", 58), at), at)
    assert proof is not None
    assert all('"p358"' in leaf for leaf in proof.leaves())
    assert proof.render().splitlines()[0].startswith('alarm("p358", 58) @time(19858)')


def answer(
    program: CheckedProgram, goal: Goal, facts: Mapping[str, Iterable[Record]], at: int,
    state: Sequence[StateRow] = (),
) -> list[Record]:  # fmt: skip
    """The records that match a goal, from the inputs of one instant and the state before."""
    plan = plan_below(logical_plan(program), [goal.predicate])
    found, errors = evaluate_plan(
        plan, {name: [Presence(record) for record in records] for name, records in facts.items()},
        upper=at + 1, told=[goal.predicate], lower=at, state=state,
    )  # fmt: skip
    assert not errors
    presences = found.get(goal.predicate, ())
    matching = [each.record for each in presences if goal.bindings(each.record) is not None]
    return sorted(matching, key=str)


def test_an_ad_hoc_question_is_answered_from_the_facts_of_one_instant() -> None:
    program = checked(
        "far(x, n) := hop(x, n) if n > 1; hop(x, 0) := start(x);"
        "hop(y, n + 1) := hop(x, n) ^ edge(x, y) if n < 9; other(1 / x) := start(x);"
        "held(x) @expires(t + 10) := e(x) @time(t);",
        relation("start", "int"), relation("edge", "int", "int"), events("e", "int"),
    )  # fmt: skip
    facts = {
        "start": [Record("start", (0,))],
        "edge": [Record("edge", (i, i + 1)) for i in range(3)],
    }
    goal = compile_goal("far(x, n)", program)
    assert answer(program, goal, facts, 5) == [Record("far", (2, 2)), Record("far", (3, 3))]
    engine = DataflowEngine(program, keeps_state=True)
    engine.feed_presences("e", [event("e", (7,), 2, 3)])
    engine.step(5)
    _, before = engine.tell_state()
    held = compile_goal("held(x)", program)
    assert [str(found) for found in answer(program, held, {}, 5, before)] == [
        "held(7) @time(2) @expires(12)"
    ]
    assert answer(program, held, {}, 12, before) == []


def test_reasons_for_absence_are_sentences() -> None:
    program = checked(
        "ok(x) := a(x) ^ b(x) if x > 5; ok(x) := a(x) ^ not c(x);",
        relation("a", "int"), relation("b", "int"), relation("c", "int"),
    )  # fmt: skip
    inputs: Mapping[str, Sequence[Presence]] = {
        **rows("a", (1,)), **rows("b", (1,)), **rows("c", (1,)),
    }  # fmt: skip
    reasons = why_not(program, inputs, Record("ok", (1,)), 3, upper=10)
    assert [reason.render() for reason in reasons] == [
        "rule 1: the guard is false for x = 1",
        "rule 2: blocked by c(1)",
    ]
    assert why_not(program, inputs, Record("ok", (1,)), 10, upper=10)[0].render() == (
        "not yet definite: upper is 10"
    )
    assert why_not(program, inputs, Record("a", (1,)), 3, upper=10)[0].reason == "present"
