"""Which predicates carry lattices, and in which form: a column for each, or parafacts in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tidemill.datalog.dataflow.rewrites import reading_rule
from tidemill.datalog.dataflow.schema import KINDS
from tidemill.datalog.inputs import InputSchema
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import AtomForm, Constant, RuleForm, Type, Variable
from tidemill.datalog.logical.partial import merges
from tidemill.datalog.logical.plan import GIVEN, NEXT, SENT, LogicalPlan

PART = "#part:"
"""Before the number of a rule and its predicate: the groups of that rule alone."""
GIVES = {"count": Type.INT, "count_distinct": Type.INT, "average": Type.FLOAT}


def groups_apart(logical: LogicalPlan, ordered: Collection[str]) -> LogicalPlan:
    """The same plan where an aggregating rule derives its predicate alone, but for `ordered` ones.

    Beside others it derives a part, which is read from there. Cost: O(text).
    """
    checked = logical.checked
    columns, types = dict(checked.columns), dict(checked.lattice_types)
    components = []
    deriving = Counter(r.head.predicate for each in logical.components for r in each.rules)
    for component in logical.components:
        rules: list[RuleForm] = []
        parts = []
        for rule in component.rules:
            name = rule.head.predicate
            alone = name in ordered or (name not in checked.inputs and deriving[name] == 1)
            if not rule.head.aggregates or alone:
                rules.append(rule)
                continue
            part = f"{PART}{rule.number}:{name}"
            parts.append(part)
            columns[part] = checked.columns[name]
            types.update({(part, k): v for (p, k), v in checked.lattice_types.items() if p == name})
            rules.append(replace(rule, head=replace(rule.head, predicate=part)))
            rules.append(reading_rule(name, part, checked.columns[name]))
        if parts:
            names = (*parts, *component.predicates)
            component = replace(component, predicates=names, rules=tuple(rules))
        components.append(component)
    if len(columns) == len(checked.columns):
        return logical
    return logical.remade(components, replace(checked, columns=columns, lattice_types=types))


class Representation:
    """The lattices that facts of each predicate may carry, and how they stand in columns.

    `carrying` are inputs whose facts may carry any lattice; facts of `whole` keep all that they
    carry. Predicates in `ordered` have one lattice of a type. Cost: O(rules · predicates).
    """

    def __init__(
        self, logical: LogicalPlan, carrying: Collection[str], whole: Collection[str] = (),
        ordered: Mapping[str, tuple[str, Type]] | None = None,
    ) -> None:  # fmt: skip
        self._whole = whole
        self._ordered = ordered or {}
        self._checked = checked = logical.checked
        everything = frozenset(checked.vocabulary.lattices)
        self.lattices: dict[str, frozenset[str]] = {
            name: everything if name.removeprefix(GIVEN) in carrying
            else frozenset(lattice for lattice, _ in schema.lattices)
            for name, schema in checked.inputs.items()
        }  # fmt: skip
        self._rules: dict[str, list[RuleForm]] = {}
        for rule in logical.rules:
            self._rules.setdefault(rule.head.predicate, []).append(rule)
        self._looped = {n for each in logical.components if each.recursive for n in each.predicates}
        self._copied: dict[str, Sequence[AtomForm]] = {}
        self._passed_on: set[str] = set()
        self._known: dict[str, tuple[tuple[str, Type], ...] | None] = {}
        if any(self.lattices.values()) or any(rule.head.lattices for rule in logical.rules):
            self._find(logical)

    def _find(self, logical: LogicalPlan) -> None:
        """Whose facts carry which lattices, and how, where some do."""
        self._spread(logical.rules)
        found = {name: self._copied_atoms(rules) for name, rules in self._rules.items()}
        self._copied = {name: atoms for name, atoms in found.items() if atoms}
        self._passed_on = {
            atom.predicate
            for name, rules in self._rules.items()
            if name not in self._copied
            for rule in rules
            for atom in rule.atoms
            if self.passed(rule, atom)
        }
        self._find_seen(name for each in logical.components for name in each.predicates)

    def _find_seen(self, order: Iterable[str]) -> None:
        """Which predicates copy what is seen of another's lattices; each is read by later ones.

        One that does not passes parafacts on: so what it reads needs them, and what copies that.
        """
        copying: dict[str, list[str]] = {}
        for name in self._copied.keys() - self._ordered.keys():
            for atom in self._copied[name]:
                copying.setdefault(atom.predicate, []).append(name)
        for name in order:
            self._known[name] = self._seen_alone(name)
            refused = [name] if self._known[name] is None else []
            while refused:
                given_up = refused.pop()
                self._known[given_up] = None
                needed = {atom.predicate for atom in self._copied.pop(given_up, ())}
                refused += needed - self._passed_on - self._ordered.keys()
                self._passed_on |= needed
                refused += [each for each in copying.get(given_up, ()) if each in self._copied]

    def _copied_atoms(self, rules: Sequence[RuleForm]) -> Sequence[AtomForm]:
        """The atoms of which the facts of a predicate have their lattices as they are; none where
        some may have to be merged.
        """
        rule = rules[0]
        passing = [atom for atom in rule.atoms if self.passed(rule, atom)]
        names = [name for atom in passing for name in self.passed(rule, atom)]
        merged = rule.head.lattices or rule.remembers or len(names) > len({*names})
        if len(rules) > 1 or merged or not all(self._tells(rule, atom) for atom in passing):
            return ()
        return passing

    def _tells(self, rule: RuleForm, atom: AtomForm) -> bool:
        """Whether all derivations of a fact at an instant have one fact of an atom.

        The head has the arguments of the atom, and its time where several facts differ in that.
        """
        head, columns = rule.head, self._checked.columns
        known = {
            term.name: kind
            for term, (_, kind) in zip(head.terms, columns[head.predicate], strict=True)
            if isinstance(term, Variable)
        }
        for asked, (_, kind) in zip(atom.terms, columns[atom.predicate], strict=True):
            told = isinstance(asked, Variable) and known.get(asked.name) == kind
            if not (told or isinstance(asked, Constant)):
                return False
        rules = self._rules.get(atom.predicate, ())
        if len(rules) == 1 and rules[0].head.aggregates and not rules[0].head.time:
            return True
        times = [terms[0] for name, terms in atom.lattices if name == "time"]
        if any(isinstance(term, Variable) and term.name in known for term in times):
            return True
        suppressed = head.suppressed | atom.suppressed
        return len(rule.atoms) == 1 and not head.time and "time" not in suppressed

    def _spread(self, rules: Iterable[RuleForm]) -> None:
        changed = True
        while changed:
            changed = False
            for rule in rules:
                found = frozenset(name for name, _ in rule.head.lattices)
                found = found.union(*(self.passed(rule, atom) for atom in rule.atoms))
                for name in self._told_by(rule.head.predicate):
                    known = self.lattices.get(name, frozenset())
                    if not found <= known:
                        self.lattices[name] = known | found
                        changed = True

    def _told_by(self, predicate: str) -> tuple[str, ...]:
        """A predicate, and the one that has its facts in a later tick."""
        if not predicate.startswith((NEXT, SENT)):
            return (predicate,)
        base = predicate.partition(":")[2]
        return predicate, GIVEN + base if GIVEN + base in self._checked.inputs else base

    def passed(self, rule: RuleForm, atom: AtomForm) -> frozenset[str]:
        """The lattices that may be passed from a fact of an atom to the head of its rule."""
        carried = self.lattices.get(atom.predicate)
        if not carried:
            return frozenset()
        dropped = rule.head.suppressed | {name for name, _ in rule.head.lattices}
        return carried - dropped - atom.suppressed

    def seen(self, name: str) -> tuple[tuple[str, Type], ...] | None:
        """The lattices of a predicate that have a column for what is seen of each, with its type.

        None where a column with parafacts is needed: facts are merged, or passed on to be merged.
        """
        return self._known[name] if name in self._known else self._seen_alone(name)

    def _seen_alone(self, name: str) -> tuple[tuple[str, Type], ...] | None:
        """The same, from what is known of the predicates that it reads."""
        if not self.lattices.get(name):
            return ()
        if name in self._ordered:
            return (self._ordered[name],)
        rules = self._rules.get(name, ())
        if name in self._looped or name in self._passed_on or name in self._whole:
            return None
        if name in self._checked.inputs:
            return self._given(self._checked.inputs[name])
        if len(rules) != 1 or name.startswith((NEXT, SENT)):
            return None
        rule = rules[0]
        found: dict[str, Type] = {}
        for atom in self._copied.get(name, ()):
            theirs = self.seen(atom.predicate)
            if theirs is None:
                return None
            passed = self.passed(rule, atom)
            found.update((lattice, kind) for lattice, kind in theirs if lattice in passed)
        for lattice, terms in rule.head.lattices:
            kind = self.kind(rule, lattice)
            alone = len(terms) == 1 or (merges(rule) and lattice in TALLIES)
            if not alone or lattice in found or kind is None:
                return None
            found[lattice] = kind
        return tuple(found.items()) if found.keys() == self.lattices[name] else None

    def _given(self, schema: InputSchema) -> tuple[tuple[str, Type], ...] | None:
        """The values of an input's facts, if each has one of each lattice, with their types."""
        names = {name for name, _ in schema.lattices}
        if names != self.lattices[schema.name] or not names <= schema.sure:
            return None
        found = tuple((name, Type(types[0])) for name, types in sorted(schema.lattices))
        alone = all(len(types) == 1 for _, types in schema.lattices)
        return found if alone and all(kind in KINDS for _, kind in found) else None

    def kind(self, rule: RuleForm, lattice: str) -> Type | None:
        """The type of a lattice's column, None where it needs parafacts."""
        known = self._checked.lattice_types.get((rule.head.predicate, lattice))
        declared = Type(known[0]) if known else Type.ANY
        kind = GIVES.get(lattice) or declared
        given = type_of(dict(rule.head.lattices)[lattice][0], rule.types)
        if not {kind, given} <= KINDS:
            return None
        mixed = given is Type.INT and declared is Type.FLOAT
        return None if mixed and (lattice not in TALLIES or lattice == "sum") else kind
