"""Rules that differ in the names of their predicates alone: one of them is lowered for all."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from tidemill.datalog.dataflow.lingering import MET
from tidemill.datalog.dataflow.lowered_collections import LoweredCollections
from tidemill.datalog.dataflow.plan import UNIT, DeltaPlan, Join, Operator, RulePlan, Subtract
from tidemill.datalog.dataflow.rule_columns import Cover
from tidemill.datalog.dataflow.rules import RuleLowering
from tidemill.datalog.logical.forms import (
    Call,
    Constant,
    Expression,
    RuleForm,
    Variable,
    Wildcard,
)

Names: TypeAlias = "Mapping[str, str]"


class AlikeRules:
    """Lowers the rules of one program as `RuleLowering` does, each form of them once."""

    def __init__(self, program: LoweredCollections) -> None:
        self._program = program
        self._known: dict[Hashable, tuple[RulePlan, Sequence[str], Mapping[str, Cover]]] = {}
        self._kinds: dict[str, Hashable] = {}

    def plan(self, rule: RuleForm, loop: Sequence[str]) -> RulePlan:
        """The plan of a rule. `loop` are the predicates of its recursion. Raises: NotInDataflow.

        Cost: O(text of the rule).
        """
        atoms = [rule.head.predicate, *(each.predicate for each in rule.atoms)]
        atoms += [each.predicate for each in rule.absent]
        names = tuple(dict.fromkeys(atoms))
        form = self._form(rule, atoms, names, loop)
        found = self._known.get(form)
        if found is None:
            lowering = RuleLowering(self._program, rule, loop)
            plan = lowering.plan()
            self._known[form] = plan, names, lowering.covers
            return plan
        plan, known, covers = found
        new = dict(zip(known, names, strict=True))
        for name, (predicate, columns, nth) in covers.items():
            new[name] = self._program.cover(new[predicate], columns, nth)
        new[UNIT] = UNIT
        again = None if plan.again is None else _renamed(plan.again, new)
        deltas, witness = tuple(_renamed(delta, new) for delta in plan.deltas), plan.witness
        if witness is not None:
            left = tuple(_renamed(delta, new) for delta in witness.left)
            sides = tuple(replace(side, right=new[side.right]) for side in witness.sides)
            witness = replace(witness, left=left, sides=sides)
        return RulePlan(
            rule, plan.scope, plan.columns, deltas, plan.head, plan.reduce, plan.exact, again,
            plan.distinct, witness,
        )  # fmt: skip

    def _form(
        self, rule: RuleForm, atoms: Sequence[str], names: Sequence[str], loop: Sequence[str]
    ) -> Hashable:
        """All that lowering asks of a rule but the names of its predicates."""
        program, head = self._program, rule.head
        collections = [(self._kind(name), name in loop) for name in names]
        passed = [program.passed(rule, a) for a in rule.atoms if not a.is_clock]
        written = (head.terms, head.time, head.expires, rule.conditions)
        carried = head.lattices if program.schemas[head.predicate].carrying else ()
        given = [
            program.lattice_type(head.predicate, lattice, at)
            for lattice, terms in carried
            for at in range(len(terms))
        ]
        return (
            tuple(map(names.index, atoms)), tuple(collections), tuple(passed), tuple(given),
            tuple(map(_spelled, written)), _lattices(head.lattices), head.suppressed,
            head.predicate.startswith(MET), tuple(rule.types.items()), rule.guards,
            rule.has_body, rule.next_tick, rule.sends,
            tuple(
                (_spelled(a.terms), _lattices(a.lattices), a.suppressed, _spelled(a.clock or ()))
                for a in rule.atoms
            ),
            tuple((_spelled(a.terms), _lattices(a.lattices), a.widened) for a in rule.absent),
        )  # fmt: skip

    def _kind(self, name: str) -> Hashable:
        """All that lowering asks of a collection but its name."""
        known = self._kinds.get(name)
        if known is None:
            schema = self._program.schemas.get(name)  # a clock has none
            known = name
            if schema is not None:
                form = schema.carrying, schema.aged, schema.ordered
                known = schema.kinds, schema.lattices, self._program.timed(name), form
            self._kinds[name] = known
        return known


def _lattices(
    lattices: Iterable[tuple[str, Sequence[Expression | Wildcard]]],
) -> Hashable:
    return tuple((name, _spelled(terms)) for name, terms in lattices)


def _spelled(terms: Iterable[Expression | Wildcard]) -> Hashable:
    """Terms so that different ones are unequal: 1, 1.0 and true are equal in Python."""
    return tuple(each.name if type(each) is Variable else _composed(each) for each in terms)


def _composed(term: Expression | Wildcard) -> Hashable:
    if isinstance(term, Call):
        return term.name, _spelled(term.arguments)
    return (type(term.value), repr(term.value), 0) if isinstance(term, Constant) else None


def _renamed(delta: DeltaPlan, names: Names) -> DeltaPlan:
    """The same operators over other collections."""
    steps = tuple(_step(each, names) for each in delta.steps)
    return DeltaPlan(names[delta.source], delta.sign, delta.begin, steps)


def _step(step: Operator, names: Names) -> Operator:
    if isinstance(step, Join):
        return Join(names[step.collection], step.shape, step.changed)
    if isinstance(step, Subtract):
        return Subtract(names[step.collection], step.columns, step.theirs)
    return step
