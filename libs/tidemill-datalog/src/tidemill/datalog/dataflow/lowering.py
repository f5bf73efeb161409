"""From the logical plan of a program to its dataflow: one function for each construct."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tidemill.arrangement.looks import let_go
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.dataflow.alike import AlikeRules
from tidemill.datalog.dataflow.lingering import MET, Lives, lives_apart
from tidemill.datalog.dataflow.lowered_collections import LoweredCollections
from tidemill.datalog.dataflow.ordering import Ordered, ordered_in
from tidemill.datalog.dataflow.plan import UNIT, CollectionPlan, DataflowPlan, RulePlan
from tidemill.datalog.dataflow.representation import Representation, groups_apart
from tidemill.datalog.dataflow.rewrites import reading_rule, rewritten
from tidemill.datalog.dataflow.schema import COLUMNS_MAX, NotInDataflow, Schema
from tidemill.datalog.dataflow.ticked_plan import plan_of
from tidemill.datalog.logical.forms import type_named
from tidemill.datalog.logical.plan import Component, LogicalPlan

TOLD = "#told:"
"""Before the name of a predicate: a copy of its facts."""


def lower(
    logical: LogicalPlan,
    carrying: Collection[str] = frozenset(),
    whole: Collection[str] = frozenset(),
) -> DataflowPlan:
    """The dataflow of a program. Facts of the inputs in `carrying` may carry any lattice.

    Facts of the predicates in `whole` keep the contributions to their tallies. It is a value, for
    any number of engines: each has it `numbered`. Raises: NotInDataflow. Cost: O(text).
    """
    logical, lives = lives_apart(logical, _bare(logical, carrying))
    logical = rewritten(logical)
    found = Representation(logical, carrying)
    ordered = ordered_in(logical, found, {*lives, *whole})
    represented = groups_apart(logical, ordered)
    if ordered or whole or represented is not logical:
        found = Representation(represented, carrying, whole, ordered)
    apart = told_apart(represented, lives, found)
    if apart is not represented:
        found = Representation(apart, carrying, whole, ordered)
    return _Lowering(apart, found, lives, ordered).plan()


def _bare(logical: LogicalPlan, carrying: Collection[str]) -> frozenset[str]:
    """The predicates of which no fact carries a lattice, where some rule has `~expires` in it."""
    if logical.checked.ticked or not any(rule.lingers for rule in logical.rules):
        return frozenset()
    found = Representation(logical, carrying).lattices
    names = {name for rule in logical.rules for name in (rule.head.predicate, *rule.reads)}
    return frozenset(name for name in names if not found.get(name))


def told_apart(
    logical: LogicalPlan, lives: Collection[str], represented: Representation
) -> LogicalPlan:  # fmt: skip
    """The same plan where no rule reads two predicates of an earlier recursion that grows.

    It reads copies of all but one. A recursion that grows tells its changes when all are made, and
    a match of what has gone from both would not be found. Cost: O(text).
    """
    loops: dict[str, tuple[str, ...]] = {}
    for component in logical.components:
        if component.recursive and grows(component, lives, represented):
            loops.update(dict.fromkeys(component.predicates, component.predicates))
    columns, types = dict(logical.checked.columns), dict(logical.checked.lattice_types)
    components = []
    for component in logical.components:
        rules = []
        for rule in component.rules:
            first: dict[tuple[str, ...], str] = {}
            atoms = []
            for atom in rule.atoms:
                name, loop = atom.predicate, loops.get(atom.predicate, component.predicates)
                if loop != component.predicates and first.setdefault(loop, name) != name:
                    atom = replace(atom, predicate=TOLD + name)
                    if TOLD + name not in columns:
                        columns[TOLD + name] = columns[name]
                        carried = {of: kinds for (n, of), kinds in types.items() if n == name}
                        types |= {(TOLD + name, of): kinds for of, kinds in carried.items()}
                        copy = reading_rule(TOLD + name, name, columns[name])
                        components.append(
                            Component((TOLD + name,), (copy,), False, component.stratum)
                        )
                atoms.append(atom)
            rules.append(replace(rule, atoms=tuple(atoms)))
        components.append(replace(component, rules=tuple(rules)))
    if len(columns) == len(logical.checked.columns):
        return logical
    checked = replace(logical.checked, columns=columns, lattice_types=types)
    return logical.remade(components, checked)


def grows(component: Component, lives: Collection[str], represented: Representation) -> bool:
    """Whether some facts of a recursion carry lattices, or some of its rules remember."""
    return any(
        name in lives or represented.seen(name) is None for name in component.predicates
    ) or any(
        (rule.outlives and not rule.head.predicate.startswith(MET))
        or any(atom.is_clock for atom in rule.atoms)
        for rule in component.rules
    )


FREED_A_LOOK = 20
"""Parts of a plan that are freed between two looks: each is some forty objects."""


def missing_in(checked: CheckedProgram) -> str | None:
    """The first construct of a program that has no operator, in words; None for none."""
    logical = plan_of(checked)
    try:
        plan = lower(logical)
    except NotInDataflow as missing:
        return missing.construct
    parts: list[object] = [*plan.rules, *plan.collections.values(), *logical.rules]
    del plan, logical
    let_go(parts, FREED_A_LOOK)  # at once they are 10 ms of a thousand rules
    return None


class _Lowering:
    """Lowers one program: its collections first, then each rule."""

    def __init__(
        self, logical: LogicalPlan, represented: Representation, lives: Mapping[str, Lives],
        ordered: Ordered,
    ) -> None:  # fmt: skip
        self._ordered = ordered
        self._lives = lives
        self._logical = logical
        self._checked = logical.checked
        self._represented = represented
        self._lowered = LoweredCollections(logical.checked, represented)
        self._plans = self._lowered.plans
        self._values = self._lowered.values

    def plan(self) -> DataflowPlan:
        checked = self._checked
        if self._logical.later:
            raise NotInDataflow("rules with @next or @async")
        deriving = {rule.head.predicate for rule in self._logical.rules}
        read = {name for rule in self._logical.rules for name in rule.reads}
        names = [n for n in (*checked.inputs, *sorted(read)) if n not in deriving]
        self._collect(UNIT, Schema(UNIT, (), self._values), 0)
        for name in dict.fromkeys(names):
            self._collect(name, self._schema(name), 0)
        rules, loops, alike = list[RulePlan](), [], AlikeRules(self._lowered)
        for component in self._logical.components:
            if not component.rules:
                continue
            if component.recursive:
                loops.append(component.predicates)
            aged = component.recursive and not grows(component, self._lives, self._represented)
            for name in component.predicates:
                self._collect(name, self._schema(name, aged), component.stratum)
            loop = component.predicates if component.recursive else ()
            rules += [alike.plan(rule, loop) for rule in component.rules]
            for name in component.predicates:  # after the covers that its rules asked for
                self._plans[name] = self._plans.pop(name)
        self._rank_covers_first(rules)
        inputs = frozenset(checked.inputs)
        return DataflowPlan(self._plans, tuple(rules), self._values, tuple(loops), inputs)

    def _collect(self, name: str, schema: Schema, stratum: int) -> None:
        if schema.columns > COLUMNS_MAX:
            raise NotInDataflow(f"{name}, which has more than {COLUMNS_MAX} columns")
        self._lowered.schemas[name] = schema
        self._plans[name] = CollectionPlan(
            schema, stratum, len(self._plans), lives=self._lives.get(name)
        )

    def _rank_covers_first(self, rules: Sequence[RulePlan]) -> None:
        """Covers, and the collections that they follow from, come before the others.

        A match that a new fact under `not` forbids is not made then.
        """
        early: set[str] = set()
        waiting = [name for name, plan in self._plans.items() if plan.cover is not None]
        sources: dict[str, set[str]] = {}
        for rule in rules if waiting else ():
            found = sources.setdefault(rule.form.head.predicate, set())
            found.update(delta.source for delta in rule.deltas)
        while waiting:
            name = waiting.pop()
            if name not in early:
                early.add(name)
                cover = self._plans[name].cover
                waiting += sources.get(name, ()) if cover is None else (cover[0],)
        ordered = sorted(self._plans.items(), key=lambda each: each[0] not in early)
        for rank, (name, plan) in enumerate(ordered):
            if plan.rank != rank:
                self._plans[name] = replace(plan, rank=rank)

    def _schema(self, name: str, aged: bool = False) -> Schema:
        kinds = tuple([type_named(kind) for _, kind in self._checked.columns.get(name, ())])
        seen = self._represented.seen(name)
        ordered = name in self._ordered
        return Schema(name, kinds, self._values, seen or (), seen is None, aged, ordered)
