"""Laws of the evaluator over random programs: it equals its twin, and only facts count."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.goals import compile_goal
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence, fact_text
from tidemill.datalog.proofs import Proof
from tidemill.datalog.records import Value, format_record
from tidemill.datalog.why import why
from tidemill.testkit.drawing import Presences, drawn
from tidemill.testkit.evaluated import Evaluation, evaluated
from tidemill.testkit.seeded_backend import seeded_backend
from tidemill.testkit.tidelog import (
    CATALOG,
    DERIVED,
    UPPER,
    Example,
    inputs,
    programs,
)
from tidemill.testkit.twins.pointwise import answers

LAW = drawn(60)


def settled(checked: CheckedProgram, given_: Presences) -> Evaluation:
    """The whole history; programs that never settle are no examples."""
    try:
        return evaluated(checked, given_, upper=UPPER)
    except LimitPassed:
        assume(False)
        raise


def at_instant(evaluation: Evaluation, at: int) -> dict[str, set[str]]:
    """The texts of records at an instant, by predicate, and of errors."""
    found = {
        name: {
            format_record(p.record)
            for p in evaluation.presences.get(name, ())
            if p.start <= at < p.end
        }
        for name in DERIVED
    }
    found["errors"] = {e.text for e in evaluation.errors if e.start <= at < e.end}
    return found


@LAW
@given(programs(), inputs())
def test_the_engine_answers_as_its_twin_at_every_instant(
    example: Example, given_: Presences
) -> None:
    evaluation = settled(example.checked, given_)
    for at, expected in enumerate(answers(example.checked, given_, 0, UPPER), -1):
        wanted = {name: set(expected.records[name]) for name in DERIVED}
        assert at_instant(evaluation, at) == {**wanted, "errors": set(expected.errors)}, at


@LAW
@given(programs(), inputs(), st.integers(0, 1000))
def test_the_order_of_rules_and_inputs_has_no_meaning(
    example: Example, given_: Presences, seed: int
) -> None:
    rng = Random(seed)
    rules = example.text.splitlines()
    rng.shuffle(rules)
    shuffled = {name: rng.sample(list(found), len(found)) for name, found in given_.items()}
    evaluation = settled(example.checked, given_)
    other = settled(check(parse("\n".join(rules)), CATALOG), shuffled)
    for at in range(-1, UPPER):
        assert at_instant(evaluation, at) == at_instant(other, at), at


@LAW
@given(programs(), inputs(), st.integers(0, 1000))
def test_the_order_of_atoms_decides_the_text_of_errors_and_nothing_else(
    example: Example, given_: Presences, seed: int
) -> None:
    rng = Random(seed)
    rules = tuple(
        replace(rule, atoms=tuple(rng.sample(rule.atoms, len(rule.atoms))))
        for rule in example.checked.rules
    )
    evaluation = settled(example.checked, given_)
    other = settled(replace(example.checked, rules=rules), given_)
    for at in range(-1, UPPER):
        found, shuffled = at_instant(evaluation, at), at_instant(other, at)
        assert {**found, "errors": set()} == {**shuffled, "errors": set()}, at


@LAW
@given(programs(), inputs(), st.integers(1, UPPER - 1))
def test_presence_delivered_in_pieces_or_twice_is_the_same_presence(
    example: Example, given_: Presences, cut: int
) -> None:
    pieces = {
        name: [
            piece
            for p in found
            for piece in (
                [Presence(p.record, p.start, cut), Presence(p.record, cut, p.end), p]
                if p.start < cut < p.end
                else [p, p]
            )
        ]
        for name, found in given_.items()
    }
    evaluation = settled(example.checked, given_)
    other = settled(example.checked, pieces)
    for at in range(-1, UPPER):
        assert at_instant(evaluation, at) == at_instant(other, at), at


@LAW
@given(programs(), inputs(), st.integers(0, UPPER - 1), st.integers(0, 1000))
def test_every_record_has_a_proof_without_a_fact_above_itself(
    example: Example, given_: Presences, at: int, seed: int
) -> None:
    evaluation = settled(example.checked, given_)
    present = [
        p.record for n in DERIVED for p in evaluation.presences.get(n, ()) if p.start <= at < p.end
    ]
    for record in Random(seed).sample(present, min(3, len(present))):
        proof = why(example.checked, given_, record, at)
        assert proof is not None
        assert proof.record is not None
        assert proof.record.key == record.key
        assert nothing_stands_above_itself(proof)
        assert proof.render()
        if " not " not in example.text:
            leaves = proof.leaves()
            only = {
                name: [
                    p
                    for p in found
                    if fact_text(name, (p.record.time, *p.record.arguments)) in leaves
                ]
                for name, found in given_.items()
            }
            again = settled(example.checked, only)
            assert any(
                p.record.key == record.key and p.start <= at < p.end
                for p in again.presences[record.predicate]
            )


def nothing_stands_above_itself(proof: Proof) -> bool:
    """Whether no fact at one instant is proved from itself."""
    path: list[tuple[str, float]] = []
    walk = [(proof, iter(list(proof.premises())))]
    path.append((proof.text, proof.at))
    while walk:
        below = next(walk[-1][1], None)
        if below is None:
            walk.pop()
            path.pop()
        elif below.kind == "derived":
            if (below.text, below.at) in path:
                return False
            path.append((below.text, below.at))
            walk.append((below, iter(list(below.premises()))))
    return True


def test_every_step_of_a_proof_follows_from_what_stands_below_it_alone() -> None:
    """Each rule is evaluated over the premises of its step alone; absences are looked for."""
    seen: Counter[str] = Counter()
    examples = int(os.environ.get("LAW_EXAMPLES", "25"))

    @settings(
        LAW, max_examples=examples, derandomize=False, backend=seeded_backend(9), database=None
    )
    @given(
        programs(12, rules_min=6),
        inputs(rows_min=2, rows_max=8),
        st.integers(0, UPPER - 1),
        st.integers(0, 1000),
    )
    def law(example: Example, given_: Presences, at: int, seed: int) -> None:
        held = {**given_, **settled(example.checked, given_).presences}
        found = [p.record for n in DERIVED for p in held.get(n, ()) if p.start <= at < p.end]
        for record in Random(seed).sample(found, min(8, len(found))):
            proof = why(example.checked, given_, record, at)
            assert proof is not None
            for part in proof.every_part():
                seen[part.kind] += 1
                if part.kind == "derived":
                    assert follows(example, part), (part.text, part.at, example.text)
                elif part.kind == "absent" and "clock" not in part.text:
                    goal = compile_goal(part.text.removeprefix("not "), example.checked)
                    there = [p.record for p in held[goal.predicate] if p.start <= part.at < p.end]
                    assert not any(goal.bindings(each) is not None for each in there), part.text

    law()
    assert seen["derived"] > 4 * examples
    assert seen["absent"] > 0


def follows(example: Example, part: Proof) -> bool:
    """Whether the rule of a step, alone and over its premises, derives the fact at its instant.

    A fact that outlived its antecedents is proved by them as they were, up to the instant.
    """
    assert part.rule is not None
    assert part.record is not None
    program = parse(example.text.split("\n")[part.rule - 1])
    (rule,) = program.rules
    head = replace(rule.head, application=replace(rule.head.application, name="step"))
    checked = example.checked
    premises: dict[str, list[Presence]] = {
        atom.application.name: [] for atom in rule.atoms if atom.application.name != "clock"
    }
    for each in part.premises():
        if each.record is not None and each.kind in ("input", "stated", "derived"):
            until = max(each.at, part.at) + 1
            presence = Presence(each.record, each.at, until)
            if presence not in premises[each.record.predicate]:
                premises[each.record.predicate].append(presence)
    catalog = {
        name: InputSchema(
            name, "events" if name in checked.carries_time else "relation", checked.columns[name]
        )
        for name in premises
    }
    alone = check(replace(program, rules=(replace(rule, head=head),)), InputSchemas(catalog))
    derived = evaluated(alone, premises, upper=UPPER).presences["step"]
    wanted = (part.record.time, *map(widened, part.record.arguments))
    return any(
        (p.record.time, *map(widened, p.record.arguments)) == wanted
        for p in derived
        if p.start <= part.at < p.end
    )


def widened(value: Value) -> Value:
    """Whole numbers as floats: another rule may have made the column one of floats."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
