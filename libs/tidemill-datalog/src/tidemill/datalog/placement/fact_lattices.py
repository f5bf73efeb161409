"""The lattices of facts: which facts cannot leave their range, for what they carry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from tidemill.datalog.dataflow.lingering import lives_apart
from tidemill.datalog.dataflow.representation import Representation
from tidemill.datalog.dataflow.rewrites import rewritten
from tidemill.datalog.dataflow.schema import KINDS
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import AtomForm, RuleForm, Type
from tidemill.datalog.logical.plan import LogicalPlan
from tidemill.datalog.placement.division import head_keys

SIMPLE = frozenset({"min", "max", "earliest", "latest", "set", "provenance", "extent"})
"""Lattices that are merged by what is seen of them."""
PORTABLE = SIMPLE | TALLIES
"""Lattices that facts take along to another fragment; of tallies all contributions."""
SEEN = PORTABLE | {"count_distinct"}
"""Lattices of which what is seen can be put in again; those of a host may have other forms."""


class FactLattices:
    """The lattices of a plan's facts. Facts of the inputs in `carrying` may carry any."""

    def __init__(self, plan: LogicalPlan, carrying: Collection[str]) -> None:
        self._plan, self._inputs = plan, carrying
        self._derived = {rule.head.predicate for rule in plan.rules}
        self._represented = Representation(plan, carrying)

    def lattices(self, predicate: str) -> frozenset[str]:
        """The lattices that facts of a predicate may carry."""
        return self._represented.lattices.get(predicate, frozenset())

    def read_in_place(self, rule: RuleForm, atom: AtomForm) -> frozenset[str]:
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

    def merged_by_sight(self, rule: RuleForm) -> bool:
        """Whether what a rule derives is merged by what is seen of it, each value as it is.

        So may a range merge its own part first, and others may hear of it several times.
        """
        names, passed = [name for name, _ in rule.head.lattices], frozenset[str]()
        for atom in rule.atoms:
            if not atom.is_clock:
                passed |= self._represented.passed(rule, atom)
        kinds = [self._types.get((rule.head.predicate, name), ("any",)) for name in names]
        known = not any("any" in each for each in kinds) and len({*names}) == len(names)
        return known and {*names} | passed <= SIMPLE and not (names and passed)

    @property
    def _types(self) -> Mapping[tuple[str, str], tuple[ColumnType, ...]]:
        return self._plan.checked.lattice_types

    @cached_property
    def _lowered(self) -> LogicalPlan:
        """The plan as an engine has it, with the types that values have there."""
        return rewritten(lives_apart(self._plan)[0])

    @cached_property
    def _forms(self) -> dict[int, RuleForm]:
        return {rule.number: rule for rule in self._lowered.rules if rule.head.aggregates}

    @cached_property
    def _seen(self) -> Representation:
        """The form of lattices where another fragment may merge all that is passed on."""
        found = Representation(self._lowered, self._inputs)
        passed = {a.predicate for r in self._lowered.rules for a in r.atoms if found.passed(r, a)}
        return Representation(self._lowered, self._inputs, passed)

    def kinds(self, predicate: str, lattice: str) -> tuple[ColumnType, ...]:
        """The types of a lattice's values; of a part of a group they are whole numbers."""
        return self._lowered.checked.lattice_types.get((predicate, lattice), ("int",))

    def whole_groups(self, rule: RuleForm) -> str:
        """Why no range has a part of the groups of an aggregating rule; empty if each has one."""
        head, names = rule.head, [name for name, _ in rule.head.lattices]
        if rule.remembers or head.time or "time" in head.suppressed:
            return "its facts have times or ends of their own"
        if any(self._represented.passed(rule, a) for a in rule.atoms if not a.is_clock):
            return "its atoms pass values on"
        if len(set(names)) < len(names):
            return "it names a lattice twice"
        found = [name for name in names if name in SIMPLE]
        if found and head_keys(rule):  # measured: twice the time for two rows a group
            return f"@{found[0]} over groups by a variable, which may be small, costs each row"
        form = self._forms[rule.number]
        for name, terms in form.head.lattices:
            kind = type_of(terms[0], form.types)
            if name in TALLIES or name == "count_distinct":
                if not self._seen.seen(head.predicate):
                    return f"@{name} is passed on (~{name} ends that), or other rules add to it"
                if kind not in KINDS or (name in ("sum", "average") and kind is not Type.INT):
                    return f"@{name} of values of type {kind.value} needs each of them"
            elif name not in SIMPLE:
                return f"@{name} is of a host"
            elif "any" in self._lowered.checked.lattice_types.get((head.predicate, name), ("any",)):
                return f"@{name} has values of any type"
        return ""
