"""Inputs whose rows may join a tick that has run: nothing that the tick said can become wrong.

A tick lasts until the next one. A row that comes meanwhile may only add to what the tick says. So
no rule that it reaches may look for an absence, make a group, or merge lattices. Time alone must
change nothing either: a tick that goes on would see it (decision 0010).
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.datalog.ast import NextTick
from tidemill.datalog.checked import CheckedProgram, ResolvedRule
from tidemill.datalog.graphs import reached


def joining_inputs(checked: CheckedProgram) -> frozenset[str]:
    """The inputs whose rows a tick may take in after it has run. Cost: O(rules * predicates)."""
    if any(map(_timed, checked.rules)):
        return frozenset()
    ending = {name for name, schema in checked.inputs.items() if schema.kind == "events"}
    ending |= _above(ending, checked.rules, across=True)
    if any(_contradicts(rule, ending) for rule in checked.rules):
        return frozenset()
    return frozenset(name for name in checked.inputs if _only_adds(checked, name))


def _timed(rule: ResolvedRule) -> bool:
    """Whether time alone may make a match of a rule."""
    clocks = any(atom.clock for atom in rule.atoms)
    return clocks or rule.mentions("time") or rule.mentions("expires")


def _above(names: Iterable[str], rules: Iterable[ResolvedRule], across: bool) -> set[str]:
    """The predicates that are derived from some in the same tick; with `across` in any."""
    readers: dict[str, set[str]] = {}
    for rule in rules:
        for atom in rule.atoms if across or rule.deductive else ():
            readers.setdefault(atom.predicate, set()).add(rule.predicate)
    return reached(names, lambda name: readers.get(name, ()))


def _contradicts(rule: ResolvedRule, names: set[str]) -> bool:
    """Whether a match of a rule may end, or become another one, as facts come or go."""
    groups = bool(rule.aggregates)
    return any(atom.predicate in names and (groups or atom.negated) for atom in rule.atoms)


def _only_adds(checked: CheckedProgram, name: str) -> bool:
    """Whether more rows of an input only add to what is derived and sent in the tick.

    Facts that are carried to the next tick are said only then.
    """
    reached = _above({name}, checked.rules, across=False)
    if any(predicate in reached for predicate, _ in checked.lattice_types):
        return False
    if any(schema.lattices for each, schema in checked.inputs.items() if each in reached):
        return False
    telling = [rule for rule in checked.rules if not isinstance(rule.temporal, NextTick)]
    return not any(_contradicts(rule, reached) for rule in telling)
