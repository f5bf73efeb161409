"""Rewrites of a logical plan into simpler constructs: pure functions from plan to plan.

An atom under `not` that matches more than arguments and one time asks a collection of its own. An
atom that comes often in a rule is one of a copy. A constant of another type than its column is a
comparison. A column that may hold an instant without an end is one of any type.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from tidemill.datalog.dataflow.lingering import INSTANTS, WORDS
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.logical.expressions import type_of
from tidemill.datalog.logical.forms import (
    TYPE_OF,
    WIDEN,
    AbsentForm,
    AtomForm,
    Call,
    Constant,
    Expression,
    HeadForm,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    type_named,
    variables_of,
)
from tidemill.datalog.logical.plan import GIVEN, NEXT, Component, LogicalPlan

_Key = TypeVar("_Key")

ASKED, AGAIN, BASE = "#asked:", "#again:", "#base:"
ATOMS_ALIKE_MAX = 4
"""Atoms of one collection in a rule: each set of them has a delta plan."""
_COUNTED = frozenset({"count", "count_distinct", "sum", "average"})
"""Lattices whose values are always finite."""
_HANDS_ON = frozenset({"least", "greatest", "coalesce"})
"""Functions whose value may be an argument."""


def rewritten(logical: LogicalPlan) -> LogicalPlan:
    """The plan without the constructs that operators lack. Cost: O(text), its square in a loop."""
    return endless_of_any_type(_Rewrite(logical).plan())


def reading_rule(name: str, read: str, columns: Iterable[tuple[str, str]]) -> RuleForm:
    """The rule that says of one predicate what another one says."""
    types = {f"#{at}": Type(kind) for at, (_, kind) in enumerate(columns)}
    terms = tuple(map(Variable, types))
    return RuleForm(0, HeadForm(name, terms), (AtomForm(read, terms),), (), (), 0, types)


class _Rewrite:
    """Rewrites rule by rule; what a rule reads besides comes before it."""

    def __init__(self, logical: LogicalPlan) -> None:
        self._logical = logical
        self._columns = dict(logical.checked.columns)
        self._types = dict(logical.checked.lattice_types)
        self._loop: tuple[str, ...] = ()
        self._before: list[RuleForm] = []
        self._within: dict[str, RuleForm] = {}

    def plan(self) -> LogicalPlan:
        components: list[Component] = []
        for component in self._logical.components:
            self._loop = component.predicates if component.recursive else ()
            self._before, self._within = [], {}
            rules = tuple(self._rule(self._apart(rule)) for rule in component.rules)
            for rule in self._before:
                name = rule.head.predicate
                components.append(Component((name,), (rule,), False, component.stratum))
            rules += tuple(self._within.values())
            names = (*component.predicates, *self._within)
            if rules != component.rules:
                component = replace(component, predicates=names, rules=rules)
            components.append(component)
        checked = self._logical.checked
        checked = replace(checked, columns=self._columns, lattice_types=self._types)
        return self._logical.remade(components, checked)

    def _rule(self, rule: RuleForm) -> RuleForm:
        absent = tuple([self._absent(rule, *each) for each in enumerate(rule.absent)])
        atoms = self._atoms(rule)
        if atoms != rule.atoms or absent != rule.absent:
            rule = replace(rule, atoms=atoms, absent=absent)
        return self._compared(rule)

    def _apart(self, rule: RuleForm) -> RuleForm:
        """A rule of a recursion that reads nothing of it, and remembers, derives a part before."""
        remembers = rule.outlives or any(atom.is_clock for atom in rule.atoms)
        if not self._loop or not remembers or not rule.reads.isdisjoint(self._loop):
            return rule
        head = rule.head.predicate
        name = f"{BASE}{rule.number}:{head}"
        self._declare_like(name, head)
        part = replace(rule, head=replace(rule.head, predicate=name))
        self._before.append(self._rule(part))
        return reading_rule(head, name, self._columns[head])

    def _declare_like(self, name: str, predicate: str) -> None:
        """A collection has the columns and the lattices of a predicate."""
        self._columns[name] = self._columns[predicate]
        types = {k: v for (p, k), v in self._types.items() if p == predicate}
        self._types.update({(name, lattice): kinds for lattice, kinds in types.items()})

    # Atoms under `not`.

    def _absent(self, rule: RuleForm, number: int, absent: AbsentForm) -> AbsentForm:
        if absent.is_clock or (absent.by_columns and self._fit(absent)):
            return absent
        name = f"{ASKED}{rule.number}.{number}:{absent.predicate}"
        types: dict[str, Type] = {}
        asked: list[Expression] = []
        told: list[Expression] = []

        def term(given: Expression | Wildcard, kind: Type, widened: bool) -> Term:
            if isinstance(given, Constant | Wildcard):
                return given
            variable = Variable(f"#{len(types)}")
            types[variable.name] = kind
            asked.append(given)
            told.append(Call(WIDEN, (variable,)) if widened else variable)
            return variable

        kinds = self._kinds_of(absent.predicate)
        terms = tuple(
            term(given, kind, at in absent.widened)
            for at, (given, kind) in enumerate(zip(absent.terms, kinds, strict=True), 1)
        )
        lattices = []
        for lattice, given in absent.lattices:
            of = self._lattice_kinds(absent.predicate, lattice, len(given))
            found = [
                term(each, kind, _widens(each, kind, rule.types))
                for each, kind in zip(given, of, strict=True)
            ]
            lattices.append((lattice, tuple(found)))
        everything = frozenset(self._logical.checked.vocabulary.lattices) | {"time"}
        head = HeadForm(name, tuple(told), suppressed=everything)
        atom = AtomForm(absent.predicate, terms, tuple(lattices))
        self._columns[name] = tuple(("", type_of(each, types).value) for each in told)
        self._before.append(self._compared(RuleForm(0, head, (atom,), (), (), 0, types)))
        return AbsentForm(name, tuple(asked))

    def _fit(self, absent: AbsentForm) -> bool:
        kinds = self._kinds_of(absent.predicate)
        return all(map(_fits, absent.terms, kinds))

    def _kinds_of(self, predicate: str) -> list[Type]:
        return [type_named(kind) for _, kind in self._columns[predicate]]

    def _lattice_kinds(self, predicate: str, lattice: str, size: int) -> list[Type]:
        if lattice in INSTANTS or lattice == "expires":
            return [Type.INT]
        known = self._types.get((predicate, lattice))
        return [Type.ANY] * size if known is None else list(map(Type, known))

    # Atoms.

    def _atoms(self, rule: RuleForm) -> tuple[AtomForm, ...]:
        """The atoms of a rule, those of one predicate beyond a few as atoms of copies."""
        if len(rule.atoms) <= ATOMS_ALIKE_MAX:
            return rule.atoms
        seen: dict[str, int] = {}
        found = []
        for atom in rule.atoms:
            nth = seen.get(atom.predicate, 0)
            seen[atom.predicate] = nth + 1
            if not atom.is_clock and nth >= ATOMS_ALIKE_MAX:
                atom = replace(atom, predicate=self._copy(atom.predicate, nth // ATOMS_ALIKE_MAX))
            found.append(atom)
        return tuple(found)

    def _copy(self, predicate: str, nth: int) -> str:
        name = f"{AGAIN}{nth}:{predicate}"
        if name not in self._columns:
            self._declare_like(name, predicate)
            rule = reading_rule(name, predicate, self._columns[name])
            if predicate in self._loop:
                self._within[name] = rule
            else:
                self._before.append(rule)
        return name

    def _compared(self, rule: RuleForm) -> RuleForm:
        """The rule with constants that are not of the type of their column as conditions."""
        if not any(isinstance(term, Constant) for a in rule.atoms for term in a.every_term()):
            return rule
        types, conditions = dict(rule.types), list[Expression]()

        def term(given: Term, kind: Type) -> Term:
            if _fits(given, kind):
                return given
            variable = Variable(f"#given:{len(conditions)}")
            types[variable.name] = kind
            conditions.append(Call("==", (variable, given)))  # type: ignore[arg-type]
            return variable

        atoms = []
        for atom in rule.atoms:
            if not atom.is_clock:
                kinds = self._kinds_of(atom.predicate)
                terms = tuple(map(term, atom.terms, kinds))
                lattices = [
                    (lattice, tuple(map(term, given, self._seen(atom.predicate, lattice, given))))
                    for lattice, given in atom.lattices
                ]
                atom = replace(atom, terms=terms, lattices=tuple(lattices))
            atoms.append(atom)
        if not conditions:
            return rule
        return replace(
            rule, atoms=tuple(atoms), conditions=(*conditions, *rule.conditions), types=types
        )

    def _seen(self, predicate: str, lattice: str, given: tuple[Term, ...]) -> list[Type]:
        """Types of a lattice's values; where only values tell, those of the constants."""
        of = self._lattice_kinds(predicate, lattice, len(given))
        return [
            TYPE_OF.get(type(each.value), Type.ANY)
            if isinstance(each, Constant) and (kind is Type.ANY or lattice == "expires")
            else kind
            for each, kind in zip(given, of, strict=True)
        ]


def _widens(asked: Expression | Wildcard, kind: Type, types: Mapping[str, Type]) -> bool:
    """Whether a float is asked of a lattice of whole numbers."""
    if isinstance(asked, Wildcard):
        return False
    return kind is Type.INT and type_of(asked, types) is Type.FLOAT


def _fits(term: object, kind: Type) -> bool:
    """Whether a term is a constant that a column of a type holds as such, or none."""
    if not isinstance(term, Constant) or term.value is None:
        return True
    given = type(term.value)
    if kind is Type.ANY:
        return given not in (int, float)
    if kind is Type.FLOAT and given is int:
        return float(term.value) == term.value  # type: ignore[arg-type]
    return TYPE_OF.get(given) is kind


# Instants without an end.


def endless_of_any_type(logical: LogicalPlan) -> LogicalPlan:
    """The same plan where columns and lattices that may hold `inf` are of any type.

    So are the variables that are matched with nothing else. Cost: O(text), for each such column.
    """
    checked = logical.checked
    if _is_typed(logical):
        return logical
    columns = {n: [type_named(kind) for _, kind in of] for n, of in checked.columns.items()}
    lattices = {key: list(map(type_named, kinds)) for key, kinds in checked.lattice_types.items()}
    carried: dict[str, list[str]] = {}
    for name, lattice in lattices:
        carried.setdefault(name, []).append(lattice)
    # A fact that is handed on is the same words, also where a recursion reads it apart.
    handed = {n: n.removeprefix(NEXT) for n in columns if n.startswith(NEXT)}
    handed |= {GIVEN + n: n for n in handed.values() if GIVEN + n in columns}
    columns |= {n: columns[base] for n, base in handed.items()}
    lattices |= {(n, of): lattices[handed[n], of] for n, of in lattices if n in handed}
    rules = {id(rule): rule for rule in logical.rules}
    changed = True
    while changed:
        changed = False
        for key, rule in rules.items():
            types = _types_of(rule, columns, lattices)
            rules[key] = replace(rule, types=types) if types != rule.types else rule
            changed |= _spread(rules[key], columns, lattices, carried)
    if all(new is old for new, old in zip(rules.values(), logical.rules, strict=True)):
        return logical
    components = [
        replace(each, rules=tuple(rules[id(rule)] for rule in each.rules))
        for each in logical.components
    ]
    named = {
        name: tuple((each, kinds_[at]) for at, (each, _) in enumerate(checked.columns[name]))
        for name, kinds_ in _values(columns).items()
    }
    kept = {key: tuple(kinds_) for key, kinds_ in _values(lattices).items()}
    return replace(
        logical,
        checked=replace(checked, columns=named, lattice_types=kept),
        rules=tuple(rules.values()),
        components=tuple(components),
    )


def _is_typed(logical: LogicalPlan) -> bool:
    """Whether every column has a type and no atom looks at a lattice: all values have an end."""
    checked = logical.checked
    return not (
        any(kind == "any" for of in checked.columns.values() for _, kind in of)
        or any("any" in kinds for kinds in checked.lattice_types.values())
        or any(Type.ANY in rule.types.values() for rule in logical.rules)
        or any(atom.lattices for rule in logical.rules for atom in rule.atoms)
    )


def _values(kinds: Mapping[_Key, list[Type]]) -> dict[_Key, list[ColumnType]]:
    return {key: [WORDS[kind] for kind in each] for key, each in kinds.items()}


_Columns = Mapping[str, list[Type]]
_Lattices = Mapping[tuple[str, str], list[Type]]


def _types_of(rule: RuleForm, columns: _Columns, lattices: _Lattices) -> dict[str, Type]:
    """The types of variables, ANY for those that only places without a type bind."""
    typed, free, ends = set[str](), set[str](), set[str]()

    def bind(terms: Iterable[Term], kinds: Iterable[Type], loose: set[str] = free) -> None:
        for term, kind in zip(terms, kinds, strict=True):
            if isinstance(term, Variable):
                (loose if kind is Type.ANY else typed).add(term.name)

    for atom in rule.atoms:
        if not atom.is_clock:
            bind(atom.terms, columns[atom.predicate])
        for lattice, terms in atom.lattices:
            unknown = [Type.ANY] * len(terms)
            known = lattices.get((atom.predicate, lattice), unknown)
            bind(terms, [Type.INT] if lattice in INSTANTS else known, ends)
    free = (free | ends - _limited(rule, ends)) - typed
    return {name: Type.ANY if name in free else kind for name, kind in rule.types.items()}


def _limited(rule: RuleForm, endless: set[str]) -> set[str]:
    """The variables that a condition says to be less than something finite."""
    found = set()
    for condition in rule.conditions:
        if isinstance(condition, Call) and condition.name in ("<", "<=", ">", ">="):
            less, more = condition.arguments[:: 1 if "<" in condition.name else -1]
            if isinstance(less, Variable) and not variables_of(more) & endless:
                found.add(less.name)
    return found & {name for name in endless if rule.types.get(name) is Type.INT}


def _may_be_endless(term: Expression, endless: Container[str]) -> bool:
    """Whether a term hands on the value of a variable that may have no end."""
    if isinstance(term, Call) and term.name in _HANDS_ON:
        return any(_may_be_endless(each, endless) for each in term.arguments)
    return isinstance(term, Variable) and term.name in endless


def _spread(
    rule: RuleForm, columns: _Columns, lattices: _Lattices, carried: Mapping[str, list[str]]
) -> bool:
    """Note which columns and lattices a rule gives values without an end; whether any is new."""
    endless = {name for name, kind in rule.types.items() if kind is Type.ANY}
    changed = False

    def note(kinds: list[Type], at: int) -> None:
        nonlocal changed
        changed |= kinds[at] is Type.INT
        kinds[at] = Type.ANY if kinds[at] is Type.INT else kinds[at]

    head = rule.head
    for at, term in enumerate(head.terms):
        if _may_be_endless(term, endless):
            note(columns[head.predicate], at)
    mentioned = head.suppressed | {name for name, _ in head.lattices}
    for lattice, terms in head.lattices:
        for at, term in enumerate(terms):
            if (
                _may_be_endless(term, endless)
                and lattice not in _COUNTED
                and (head.predicate, lattice) in lattices
            ):
                note(lattices[head.predicate, lattice], at)
    for atom in rule.atoms:
        for lattice in carried.get(atom.predicate, ()):
            if lattice not in mentioned | atom.suppressed:
                kinds = lattices[atom.predicate, lattice]
                mine = lattices.get((head.predicate, lattice), [])
                for at, (kind, _) in enumerate(zip(kinds, mine, strict=False)):
                    if kind is Type.ANY:
                        note(mine, at)
    return changed
