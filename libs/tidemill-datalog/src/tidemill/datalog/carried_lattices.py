"""Lattices that every record of a predicate carries: a null there is a value and not an absence."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.datalog.ast import Variable
from tidemill.datalog.checked import CheckedProgram, ResolvedRule

MARK = "has_"
"""Before the name of a lattice: the column that says which records carry it.

No lattice is called so.
"""

NEVER_NULL = frozenset({"count", "count_distinct", "set", "provenance"})
"""Lattices whose value is never null, so that a null in their column says that a record has none.
"""


def surely_carried(
    checked: CheckedProgram, inputs: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    """Of each predicate the lattices, other than time and expires, that all its records carry.

    `inputs` says it of what is read. A rule gives what its head mentions, and what it passes on of
    atoms that surely carry it. Cost: O(rules * lattices).
    """
    everything = frozenset(lattice for _, lattice in checked.lattice_types)
    sure = dict.fromkeys(checked.columns, everything)
    sure.update({name: inputs.get(name, frozenset()) for name in checked.inputs})
    changed = True
    while changed:
        changed = False
        for rule in checked.rules:
            kept = sure[rule.predicate] & _given(rule, sure)
            changed = changed or kept != sure[rule.predicate]
            sure[rule.predicate] = kept
    return sure


def _given(rule: ResolvedRule, sure: Mapping[str, frozenset[str]]) -> frozenset[str]:
    passed = [sure[atom.predicate] - atom.suppressed for atom in rule.positive if not atom.clock]
    return rule.aggregates | (frozenset().union(*passed) - rule.suppressed)


def matches_ends(checked: CheckedProgram) -> bool:
    """Whether some rule names the end of a fact, which may be infinite."""
    return any(
        parafact.lattice == "expires" and isinstance(parafact.terms[0], Variable)
        for rule in checked.rules
        for atom in rule.positive
        for parafact in atom.parafacts
    )


def endless_names(checked: CheckedProgram, rule: ResolvedRule) -> frozenset[str]:
    """The variables of a rule that are infinite in every match: ends of facts that never end."""
    found = set()
    for atom in rule.positive:
        schema = checked.inputs.get(atom.predicate)
        if schema is None or (schema.kind != "relation" and schema.rows_expire):
            continue
        for parafact in atom.parafacts:
            term = parafact.terms[0]
            if parafact.lattice != "expires" or not isinstance(term, Variable):
                continue
            if atom.predicate not in checked.derived:  # takes a look at every rule
                found.add(term.name)
    return frozenset(found) - rule.definitions.keys()
