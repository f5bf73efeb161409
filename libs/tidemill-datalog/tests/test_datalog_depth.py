"""Depth: chains beyond counters of sixteen bits, proofs deeper than any stack, far reasons."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidemill.datalog.check import check
from tidemill.datalog.check_safety import ATOMS_MAX
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.column_types import _Expressions
from tidemill.datalog.dataflow import NotInDataflow
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import InputKind, InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.proofs import DEPTH_MAX, Proof
from tidemill.datalog.records import Record
from tidemill.datalog.strategy import Strategy
from tidemill.datalog.why import why
from tidemill.datalog.why_not import Reason, why_not
from tidemill.testkit.held import Held

REACH = "reach(x) := start(x);\nreach(y) := reach(x) ^ edge(x, y);"
CHAIN = 70_000
DEPTH = 3_000
"""Depth of proofs that are looked at kind by kind: three times the nesting of functions."""

Inputs = dict[str, list[Presence]]


def program(text: str, **inputs: tuple[InputKind, int]) -> CheckedProgram:
    schemas = {
        name: InputSchema(name, kind, tuple((f"c{i}", "int") for i in range(arity)))
        for name, (kind, arity) in inputs.items()
    }
    return check(parse(text), InputSchemas(schemas))


def reaching() -> CheckedProgram:
    return program(REACH, start=("relation", 1), edge=("relation", 2))


def rows(name: str, arguments: Sequence[tuple[int, ...]], end: float = float("inf")) -> Inputs:
    return {name: [Presence(Record(name, row), 0, end) for row in arguments]}


def chain(length: int) -> Inputs:
    return {**rows("start", [(0,)]), **rows("edge", [(i, i + 1) for i in range(length)])}


def depth_of(proof: Proof) -> int:
    """The longest way down."""
    depth = {}
    waiting = [proof]
    while waiting:
        part = waiting[-1]
        missing = [each for each in part.premises() if id(each) not in depth]
        waiting += missing
        if not missing:
            waiting.pop()
            depth[id(part)] = 1 + max((depth[id(each)] for each in part.premises()), default=0)
    return depth[id(proof)]


@pytest.mark.parametrize("strategy", ["strata", "retraction"])
def test_a_chain_of_seventy_thousand_facts_is_followed_to_its_end_and_back(
    strategy: Strategy,
) -> None:
    held = Held(reaching(), strategy=strategy)
    held.feed(chain(CHAIN))
    assert held.step(1) == CHAIN + 1
    held.update("edge", Record("edge", (CHAIN // 2, CHAIN // 2 + 1)), 1, -1)
    assert held.step(2) == CHAIN // 2
    assert len(held.records("reach")) == CHAIN // 2 + 1


def test_a_chain_of_seventy_thousand_updates_one_at_a_time_ends_as_the_whole_does() -> None:
    held = Held(program("top() @max(x) @count(x) := at(x);", at=("relation", 1)))
    for step in range(CHAIN):
        held.update("at", Record("at", (step,)), step, 1)
        if step >= 3:
            held.update("at", Record("at", (step - 3,)), step, -1)
    held.step(CHAIN)
    assert held.texts("top") == {f"top() @count(3) @max({CHAIN - 1})"}


def test_a_proof_seventy_thousand_deep_is_found_and_drawn() -> None:
    proof = why(reaching(), chain(CHAIN), Record("reach", (CHAIN,)), 3)
    assert proof is not None
    assert depth_of(proof) == CHAIN + 2
    assert len(proof.leaves()) == CHAIN + 1
    lines = proof.render().split("\n")
    assert len(lines) > 2 * CHAIN
    assert max(map(len, lines)) < 10 * DEPTH_MAX
    assert lines[0].startswith(f"reach({CHAIN})  [at 3, rule 2:")
    assert sum(" (goes on at [" in line for line in lines) == CHAIN // DEPTH_MAX


def test_what_goes_on_elsewhere_is_drawn_under_its_number() -> None:
    length = DEPTH_MAX + 20
    proof = why(reaching(), chain(length), Record("reach", (length,)), 3)
    assert proof is not None
    lines = proof.render().split("\n")
    (left,) = (line for line in lines if line.endswith("(goes on at [1])"))
    label = left.split("─ ")[1].removesuffix(" (goes on at [1])")
    assert [line for line in lines if line.startswith("[1] ")] == [f"[1] {label}"]
    assert lines[-1] == "└─ edge(19, 20)  [input]"


def test_a_proof_through_least_values_is_as_deep_and_leaves_cycles_out() -> None:
    checked = program(
        "far(x) @min(0) := start(x);\nfar(y) @min(d + 1) := far(x) @min(d) ^ edge(x, y);",
        start=("relation", 1), edge=("relation", 2),
    )  # fmt: skip
    inputs = chain(DEPTH)
    inputs["edge"] += rows("edge", [(3, 1), (2, 2), (4, 3)])["edge"]
    proof = why(checked, inputs, Record("far", (DEPTH,)), 3)
    assert proof is not None
    assert depth_of(proof) == DEPTH + 2
    assert str(proof.record) == f"far({DEPTH}) @min({DEPTH})"
    assert proof.leaves() == {"start(0)", *(f"edge({i}, {i + 1})" for i in range(DEPTH))}


def test_a_proof_through_one_large_cycle_ends() -> None:
    """Every fact leads to every other: there are more ways without a cycle than can be tried."""
    size = 40
    checked = program(
        "far(x) @min(0) := start(x);\nfar(y) @min(d + 1) := far(x) @min(d) ^ edge(x, y);",
        start=("relation", 1), edge=("relation", 2),
    )  # fmt: skip
    every = [(i, j) for i in range(size) for j in range(size) if i != j]
    inputs = {**rows("start", [(0,)]), **rows("edge", every)}
    proof = why(checked, inputs, Record("far", (size - 1,)), 3)
    assert proof is not None
    assert {"start(0)", f"edge(0, {size - 1})"} <= proof.leaves()
    above: set[str] = set()
    part = proof
    while part.kind == "derived":
        assert part.text not in above
        above.add(part.text)
        part = next(each for each in part.premises() if each.text not in above)


def chained(last: str) -> str:
    """A chain of `DEPTH` facts, and a rule about its end."""
    return f"{REACH}\n{last}"


KINDS: Mapping[str, tuple[str, Record, set[str]]] = {
    "an aggregate": (
        "many() @count(x) @sum(x) := reach(x);",
        Record("many"),
        {"start(0)", f"edge({DEPTH - 1}, {DEPTH})"},
    ),
    "absence": (
        "end(x) := reach(x) ^ not edge(x, _);",
        Record("end", (DEPTH,)),
        {f"not edge({DEPTH}, _)", "edge(0, 1)"},
    ),
    "an expired fact": (
        "seen(x) @expires(1000) := reach(x) ^ flash(x);",
        Record("seen", (DEPTH,)),
        {f"flash({DEPTH}) @time(5)", "edge(0, 1)"},
    ),
    "a late fact": (
        "seen(x) := reach(x) ^ slow(x) @time(u) if u == 2;",
        Record("seen", (DEPTH,)),
        {f"slow({DEPTH}) @time(2)", "edge(0, 1)"},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_why_looks_through_every_kind_of_rule_at_depth(kind: str) -> None:
    last, record, leaves = KINDS[kind]
    checked = program(
        chained(last),
        start=("relation", 1), edge=("relation", 2), flash=("events", 1), slow=("events", 1),
    )  # fmt: skip
    inputs = chain(DEPTH)
    inputs["flash"] = [Presence(Record("flash", (DEPTH,), 5, 6), 5, 6)]
    inputs["slow"] = [Presence(Record("slow", (DEPTH,), 2, 90), 40, 90)]  # present when corrected
    proof = why(checked, inputs, record, 50)
    assert proof is not None
    assert depth_of(proof) >= DEPTH
    assert leaves <= proof.leaves()


def reasons(text: str, record: Record, inputs: Inputs, **late: list[Record]) -> list[Reason]:
    checked = program(
        chained(text),
        start=("relation", 1), edge=("relation", 2), a=("events", 1), b=("events", 1),
    )  # fmt: skip
    letters = late.get("late", [])
    return why_not(checked, {**chain(DEPTH), **inputs}, record, 50, upper=100, letters=letters)


def event(name: str, start: int, end: int) -> Inputs:
    return {name: [Presence(Record(name, (DEPTH,), start, end), start, end)]}


def test_why_not_finds_each_of_the_six_reasons_at_depth() -> None:
    end = Record("end", (DEPTH,))
    (reason,) = reasons("end(x) := reach(x) ^ a(x);", end, {})
    assert (reason.reason, reason.atom) == ("no_match", 2)
    (reason,) = reasons("end(x) := reach(x) ^ a(x);", end, rows("a", [(7,)]))
    assert (reason.reason, reason.atom) == ("values_differ", 2)
    together = {**event("a", 10, 20), **event("b", 30, 90)}
    (reason,) = reasons("end(x) := reach(x) ^ a(x) ^ b(x);", end, together)
    assert reason.reason == "not_together"
    assert reason.facts[1:] == (
        f"[10,20) a({DEPTH}) @time(10)", f"[30,90) b({DEPTH}) @time(30)",
    )  # fmt: skip
    (reason,) = reasons("end(x) := reach(x) if x < 5;", end, {})
    assert (reason.reason, reason.values) == ("guard_false", {"x": DEPTH})
    (reason,) = reasons("end(x) := reach(x) ^ not edge(_, x);", end, {})
    assert (reason.reason, reason.by) == ("blocked", f"edge({DEPTH - 1}, {DEPTH})")
    letter = Record("a", (DEPTH,), 3, 90)
    (reason,) = reasons("end(x) := reach(x) ^ a(x);", end, {}, late=[letter])
    assert (reason.reason, reason.letter) == ("late", str(letter))


def test_what_is_not_sealed_yet_is_said_so_before_anything_is_looked_at() -> None:
    (reason,) = why_not(reaching(), chain(DEPTH), Record("reach", (-1,)), 50, upper=50)
    assert (reason.reason, reason.upper) == ("not_definite", 50)


def test_a_reason_deep_in_a_recursion_names_the_link_that_is_missing() -> None:
    inputs = chain(DEPTH)
    gap = DEPTH - 10
    del inputs["edge"][gap]
    proof = why(reaching(), inputs, Record("reach", (gap,)), 3)
    assert proof is not None
    assert depth_of(proof) == gap + 2
    found = why_not(reaching(), inputs, Record("reach", (gap + 1,)), 3, upper=10)
    assert [(each.rule, each.reason) for each in found] == [
        (1, "values_differ"), (2, "values_differ"),
    ]  # fmt: skip


def wide(atoms: int) -> CheckedProgram:
    """A rule of so many atoms, with all that nests: failures, an absence, its own expiry."""
    names = [f"x{number}" for number in range(atoms)]
    joined = " ^ ".join(f"at({name})" for name in names)
    same = " ^ ".join(f"10 / {b} == 10 / {a}" for a, b in itertools.pairwise(names))
    head = f"p(10 / {names[-1]}) @time(10 / x0) @expires(t + 10 / x0)"
    text = f"{head} := {joined} ^ late(x0) @time(t) ^ not at({names[-1]} + 5) if {same};"
    return program(text, at=("relation", 1), late=("event", 1))


def repeated(atoms: int) -> CheckedProgram:
    """A rule of so many atoms over sixteen variables."""
    names = [f"x{number % 16}" for number in range(atoms)]
    joined = " ^ ".join(f"at({name})" for name in names)
    same = " ^ ".join(f"{b} == {a}" for a, b in itertools.pairwise(names[:16]))
    text = f"p(x0) := {joined} ^ not gone(x0) if {same};"
    return program(text, at=("relation", 1), gone=("relation", 1))


def test_a3_a_rule_matches_as_many_atoms_as_it_may() -> None:
    """One atom more is refused at its place; so many are evaluated, proved and missed."""
    inputs = rows("at", [(1,), (2,)]) | rows("gone", [(1,)])
    checked, found = repeated(ATOMS_MAX), Record("p", (2,))
    held = Held(checked)
    held.feed(inputs)
    held.step(7)
    assert held.texts("p") == {"p(2)"}
    proof = why(checked, inputs, found, 6)
    assert proof is not None
    assert sum(1 for _ in proof.premises()) == ATOMS_MAX + 1  # and what is absent
    missed = why_not(checked, inputs, Record("p", (9,)), 6, upper=20)
    assert [reason.rule for reason in missed] == [1]
    with pytest.raises(ProgramErrors, match="S128 this is one atom more than the 64"):
        repeated(ATOMS_MAX + 1)
    with pytest.raises(ProgramErrors, match="S128 this is one atom more than the 64"):
        wide(ATOMS_MAX)


def test_a_match_of_more_columns_than_a_row_may_have_is_refused_by_name() -> None:
    """An expression that may fail names all columns of its facts: they are too many here."""
    with pytest.raises(NotInDataflow, match="a rule whose matches have more than 60 columns"):
        Held(wide(ATOMS_MAX - 1))


def test_a3_the_type_of_a_long_sum_is_found_once_for_each_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was found twice for each part of each part."""
    found, asked = _Expressions._found, [0]

    def counted(self: _Expressions, expression: Any) -> Any:
        asked[0] += 1
        assert asked[0] < 10_000
        return found(self, expression)

    monkeypatch.setattr(_Expressions, "_found", counted)
    check(
        parse(f"p(y) := q(x) where y = x{' + 1' * 150};"),
        InputSchemas({"q": InputSchema("q", "relation", (("a", "int"),))}),
    )
    assert asked[0] > 300
