"""A rule in two: what matches its body, and what reads that where the facts of its head are.

The first derives one fact for each match of an aggregating rule, with all that tells matches apart.
Of any other rule it derives the head, which is merged with what other ranges derive of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from tidemill.datalog.dataflow.lingering import WORDS, keyed_atom
from tidemill.datalog.dataflow.rewrites import reading_rule
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import (
    AtomForm,
    Expression,
    HeadForm,
    RuleForm,
    Term,
    Variable,
)

Columns: TypeAlias = "Mapping[str, tuple[tuple[str, ColumnType], ...]]"
Halves: TypeAlias = "tuple[RuleForm, RuleForm, tuple[tuple[str, ColumnType], ...]]"
CROSSING = "#cross:"
"""Before the number of a rule and its predicate: what it derives, before it is merged."""
COLUMNS_MAX = 48
"""Columns of the facts that stand for matches, so that a match of them has a bit for each."""


def split(rule: RuleForm, place: int, columns: Columns) -> Halves | None:
    """The two rules, and the columns of the predicate between them; None where that has no form.

    `place` is that of the rule among those of its program.
    """
    name = f"{CROSSING}{place}:{rule.head.predicate}"
    mine = columns[rule.head.predicate]
    if not rule.head.aggregates:
        part = replace(rule, head=replace(rule.head, predicate=name))
        return part, reading_rule(rule.head.predicate, name, mine), mine
    if rule.remembers or rule.head.time or "time" in rule.head.suppressed:
        return None
    return _grouped(rule, name, columns)


def _grouped(rule: RuleForm, name: str, columns: Columns) -> Halves | None:
    types = dict(rule.types)
    atoms = tuple(
        keyed_atom(f"#key:{n}", atom, columns, types) for n, atom in enumerate(rule.atoms)
    )
    head = rule.head
    values = [term for _, terms in head.lattices for term in terms]
    bound = dict.fromkeys(each for atom in atoms for each in atom.variables())
    told: list[Expression] = [*head.terms, *values, *map(Variable, bound)]
    if len(told) > COLUMNS_MAX:
        return None
    read = {f"#{at}": type_of(term, types) for at, term in enumerate(told)}
    terms: tuple[Term, ...] = tuple(map(Variable, read))
    left = iter(terms[len(head.terms) :])
    lattices = tuple((lattice, tuple(next(left) for _ in of)) for lattice, of in head.lattices)
    dropped = head.suppressed | {lattice for lattice, _ in head.lattices}
    part = replace(
        rule, head=HeadForm(name, tuple(told), suppressed=dropped), atoms=atoms, types=types
    )
    rest = RuleForm(
        rule.number, replace(head, terms=terms[: len(head.terms)], lattices=lattices),  # type: ignore[arg-type]  # variables
        (AtomForm(name, terms),), (), (), 0, read,
    )  # fmt: skip
    return part, rest, tuple(("", WORDS[kind]) for kind in read.values())
