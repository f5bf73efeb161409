"""Which facts cannot leave their range, for what they carry."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.datalog.dataflow.representation import Representation
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.forms import AtomForm, RuleForm
from tidemill.datalog.logical.plan import LogicalPlan

SIMPLE = frozenset({"min", "max", "earliest", "latest", "set", "provenance", "extent"})
"""Lattices that are merged by what is seen of them."""
PORTABLE = SIMPLE | TALLIES
"""Lattices that facts take along to another fragment; of tallies all contributions."""
SEEN = PORTABLE | {"count_distinct"}
"""Lattices of which what is seen can be put in again; those of a host may have other forms."""


class Carrying:
    """The lattices of a plan's facts. Facts of the inputs in `carrying` may carry any."""

    def __init__(self, plan: LogicalPlan, carrying: Collection[str]) -> None:
        self._derived = {rule.head.predicate for rule in plan.rules}
        self._represented = Representation(plan, carrying)

    def lattices(self, predicate: str) -> frozenset[str]:
        """The lattices that facts of a predicate may carry."""
        return self._represented.lattices.get(predicate, frozenset())

    def held(self, rule: RuleForm, atom: AtomForm) -> frozenset[str]:
        """The lattices for which a rule reads the facts of an atom only where they are derived."""
        if atom.is_clock or atom.predicate not in self._derived:
            return frozenset()
        passed = self._represented.passed(rule, atom) - PORTABLE
        return passed | (self.lattices(atom.predicate) - SEEN)

    def hands_on(self, rule: RuleForm, atom: AtomForm) -> bool:
        """Whether a rule passes contributions to tallies on from the facts of an atom."""
        return not (atom.is_clock or self._represented.passed(rule, atom) <= SIMPLE)

    def tells_apart(self, rule: RuleForm) -> bool:
        """Whether what ranges derive by a rule may be merged by what is seen of it."""
        found: frozenset[str] = frozenset()
        for atom in rule.atoms:
            if not atom.is_clock:
                found |= self._represented.passed(rule, atom)
        return found <= PORTABLE
