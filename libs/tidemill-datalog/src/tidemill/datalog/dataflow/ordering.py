"""Predicates whose facts carry one number, the least or the greatest of their derivations.

The derivation with the number that comes first is the fact, as of ends the last one is. So numbers
stand in a column as they are, and a recursion keeps facts instead of groups. This needs facts
without times and ends, which would be merged of all derivations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tidemill.arrangement.interval_updates import BEGIN_WORD, Change
from tidemill.datalog.dataflow.representation import Representation
from tidemill.datalog.dataflow.schema import Schema
from tidemill.datalog.logical.forms import RuleForm, Type
from tidemill.datalog.logical.plan import NEXT, SENT, Component, LogicalPlan

Ordered = Mapping[str, tuple[str, Type]]
"""Predicates with the lattice that their facts carry and its type."""


def ordered_in(
    logical: LogicalPlan, represented: Representation, apart: Collection[str]
) -> Ordered:  # fmt: skip
    """The predicates of a plan that are ordered, `apart` not among them.

    A rule of a recursion says the number, or it passes on that of one fact. Cost: O(rules ·
    predicates).
    """
    one = {name for name, of in represented.lattices.items() if len(of) == 1}
    if not one:
        return {}
    lasting = _lasting(logical, represented)
    found: dict[str, tuple[str, Type]] = {}
    for component in logical.components:
        for name in component.predicates:
            if name in one and name in lasting and name not in apart:
                (lattice,) = represented.lattices[name]
                known = logical.checked.lattice_types.get((name, lattice), ())
                given = name in logical.checked.inputs or name.startswith((NEXT, SENT))
                if lattice in ("min", "max") and known in (("int",), ("float",)) and not given:
                    found[name] = lattice, Type(known[0])
    before = -1
    while before != len(found):
        before = len(found)
        refused = {
            name
            for component in logical.components
            for name in _refused(component, represented, found)
        }
        passed = {
            atom.predicate
            for rule in logical.rules
            for atom in rule.atoms
            if represented.passed(rule, atom) and rule.head.predicate not in found
        }
        found = {name: each for name, each in found.items() if name not in refused | passed}
    return found


def _refused(
    component: Component, represented: Representation, found: Ordered
) -> Collection[str]:  # fmt: skip
    """The predicates of a component with a rule that does not keep them ordered."""
    names = component.predicates
    refused = {
        rule.head.predicate
        for rule in component.rules
        if rule.head.predicate in found and not _keeps(rule, component, represented, found)
    }
    if component.recursive and (refused or len({found.get(name) for name in names}) > 1):
        return names
    return refused


def _keeps(
    rule: RuleForm, component: Component, represented: Representation, found: Ordered
) -> bool:  # fmt: skip
    name = rule.head.predicate
    lattice, kind = found[name]
    passing = [atom.predicate for atom in rule.atoms if represented.passed(rule, atom)]
    if not rule.head.lattices:
        return len(passing) == 1 and found.get(passing[0]) == (lattice, kind)
    return (
        component.recursive
        and not passing
        and len(rule.head.lattices) == 1
        and represented.kind(rule, lattice) is kind
    )


def _lasting(logical: LogicalPlan, represented: Representation) -> set[str]:
    """Predicates whose facts have no time and no end."""
    checked = logical.checked
    found = {name for name, schema in checked.inputs.items() if schema.kind == "relation"}
    found -= {name for name in checked.inputs if represented.lattices[name]}
    for component in logical.components:
        names = {*component.predicates}
        sound = all(
            not (rule.head.time or rule.head.expires)
            and all(atom.predicate in found or atom.predicate in names for atom in rule.atoms)
            for rule in component.rules
        )
        if sound and component.rules and not names & checked.inputs.keys():
            found |= names
    return found


def put_in_order(schema: Schema, rows: Change) -> None:
    """Write the words by which the facts of an ordered predicate are compared. Cost: O(rows)."""
    place = schema.expiry + 1
    lattice, kind = schema.lattices[0]
    words = rows[:, place]
    if kind is Type.FLOAT:
        words = words ^ ((words >> 63) & ~BEGIN_WORD)
    if lattice == "min":
        words = ~words
    none = (rows[:, schema.nulls] >> place & 1).astype(np.bool_)
    rows[:, schema.order] = np.where(none, BEGIN_WORD, words)
