"""From a plan and its drafts to fragments: each with a plan of its own, which reads by place."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tidemill.datalog.dataflow.rewrites import endless_of_any_type
from tidemill.datalog.inputs import ColumnType, InputSchema
from tidemill.datalog.logical.forms import AbsentForm, AtomForm, RuleForm
from tidemill.datalog.logical.partial import PARTIAL
from tidemill.datalog.logical.plan import Component, LogicalPlan
from tidemill.datalog.placement.drafts import Draft
from tidemill.datalog.placement.fact_lattices import FactLattices
from tidemill.datalog.placement.pieces import Pieces
from tidemill.datalog.placement.places import FIRST, Fragment, Place, Placement, Read

AT = "#at:"
"""Before a place and a predicate: its facts as a fragment reads them there."""


def undivided(plan: LogicalPlan, reason: str, advice: str) -> Placement:
    """The placement of a program that is one task."""
    reads = tuple(Read(name, name, FIRST) for name in plan.checked.inputs)
    placed = dict.fromkeys((n for each in plan.components for n in each.predicates), FIRST)
    keys = ((),) * len(plan.rules)
    return Placement(plan, (Fragment(0, "one task", plan, reads, placed, keys, reason, advice),))


def cut(
    plan: LogicalPlan, drafts: Sequence[Draft], pieces: Sequence[Pieces],
    carrying: Collection[str],
) -> Placement:  # fmt: skip
    """The fragments of drafts, whose components are those of the plan in their order.

    Each draft has pieces of heavy keys.
    """
    plan = endless_of_any_type(plan)
    lattices = FactLattices(plan, carrying)
    whole = {a.predicate for rule in plan.rules for a in rule.atoms if lattices.hands_on(rule, a)}
    left, fragments = list(plan.components), []
    for number, (draft, finer) in enumerate(zip(drafts, pieces, strict=True)):
        mine, left = left[: len(draft.components)], left[len(draft.components) :]
        fragments.append(_Cut(plan, lattices, draft, finer, mine).fragment(number))
    placement = Placement(plan, tuple(fragments))
    found = [replace(each, whole=placement.crossing(each) & whole) for each in fragments]
    return replace(placement, fragments=tuple(found))


class _Cut:
    """One fragment, whose atoms read under names that say the place."""

    def __init__(
        self, plan: LogicalPlan, lattices: FactLattices, draft: Draft, pieces: Pieces,
        components: Sequence[Component],
    ) -> None:  # fmt: skip
        self._plan = plan
        self._lattices = lattices
        self._draft = draft
        self._pieces = pieces
        self._components = components
        self._derived = draft.predicates
        self._reads: dict[str, Read] = {}

    def fragment(self, number: int) -> Fragment:
        """The fragment."""
        state = self._draft.states[0]
        finer = self._pieces.rules or (None,) * len(state.rules)
        divided = zip(state.rules, finer, strict=True)
        components = []
        keys: list[tuple[str, ...]] = []
        for component in self._components:
            rules = []
            for rule in component.rules:
                if self._draft.way == "one task":
                    atoms: tuple[Place | None, ...] = (FIRST,) * len(rule.atoms)
                    absent: tuple[Place | None, ...] = (FIRST,) * len(rule.absent)
                    keys.append(())
                else:
                    way, other = next(divided)
                    atoms, absent = way.atoms, way.absent
                    if other is not None and other.spots:
                        finer_at = partial(_finer_at, other.spots)
                        atoms = tuple(map(finer_at, atoms, other.way.atoms))
                        absent = tuple(map(finer_at, absent, other.way.absent))
                    keys.append(tuple(sorted(way.variables)))
                rules.append(self._rule(rule, atoms, absent))
            recursive = component.recursive and self._draft.way != "rounds"
            components.append(replace(component, rules=tuple(rules), recursive=recursive))
        placed = {name: Place(positions) for name, positions in state.placed.items()}
        if self._draft.way == "one task":
            placed = dict.fromkeys(self._derived, FIRST)
        plan = self._own_plan(components)
        reads, draft = tuple(self._reads.values()), self._draft
        return Fragment(
            number, draft.way, plan, reads, placed, tuple(keys), draft.reason, draft.advice,
            heavy=self._pieces.keys, undivided=self._pieces.undivided,
        )  # fmt: skip

    def _rule(
        self, rule: RuleForm, atoms: Sequence[Place | None], absent: Sequence[Place | None]
    ) -> RuleForm:
        return replace(
            rule,
            atoms=tuple(map(self._atom, rule.atoms, atoms)),
            absent=tuple(map(self._absent, rule.absent, absent)),
        )

    def _atom(self, atom: AtomForm, place: Place | None) -> AtomForm:
        return atom if atom.is_clock else replace(atom, predicate=self._name(atom, place))

    def _absent(self, atom: AbsentForm, place: Place | None) -> AbsentForm:
        return atom if atom.is_clock else replace(atom, predicate=self._name(atom, place))

    def _name(self, atom: AtomForm | AbsentForm, place: Place | None) -> str:
        predicate = atom.predicate
        if predicate in self._derived - self._draft.returning:
            return predicate
        assert place is not None
        at = "all" if place.everywhere else ",".join(map(str, place.positions))
        if place.heavy:
            at += "/" + ",".join(map(str, place.pieces))
        read = Read(f"{AT}{at}:{predicate}", predicate, place)
        while self._reads.setdefault(read.name, read).place != place:  # of other heavy keys
            at += "'"
            read = Read(f"{AT}{at}:{predicate}", predicate, place)
        return read.name

    def _own_plan(self, components: Sequence[Component]) -> LogicalPlan:
        checked = self._plan.checked
        columns, types = dict(checked.columns), dict(checked.lattice_types)
        for component in components:
            for rule in component.rules:
                name, head = rule.head.predicate, rule.head
                if name.startswith(PARTIAL):  # other columns are what it carries
                    columns[name] = columns[name][: len(head.terms)]
        inputs = {}
        for name, read in self._reads.items():
            columns[name] = self._plan.checked.columns.get(read.predicate, ())
            known = self._types(read.predicate)
            types.update({(name, lattice): kinds for lattice, kinds in known.items()})
            source = checked.inputs.get(read.predicate)
            inputs[name] = InputSchema(
                name, "relation" if source is None else source.kind, columns[name],
                lattices=tuple(
                    (lattice, known.get(lattice, ("any",)))
                    for lattice in self._carried(read.predicate)
                ),
            )  # fmt: skip
        checked = replace(checked, inputs=inputs, columns=columns, lattice_types=types)
        return self._plan.remade(components, checked)

    def _carried(self, predicate: str) -> list[str]:
        """The lattices that facts carry where they are read."""
        if predicate.startswith(PARTIAL):
            return []
        return sorted(self._lattices.lattices(predicate))

    def _types(self, predicate: str) -> Mapping[str, tuple[ColumnType, ...]]:
        known = self._plan.checked.lattice_types
        return {lattice: kinds for (name, lattice), kinds in known.items() if name == predicate}


def _finer_at(spots: frozenset[int], place: Place | None, other: Place | None) -> Place | None:
    """A place, for facts whose keys have some spots that of another way."""
    if place is None or other is None or not place.positions:
        return place
    return replace(place, heavy=spots, pieces=other.positions)
