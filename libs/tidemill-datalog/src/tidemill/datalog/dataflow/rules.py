"""Lowering of one rule: the columns of its matches, its delta plans, its head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Protocol, TypeAlias

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.datalog.dataflow.carried import NumberedValues
from tidemill.datalog.dataflow.deltas import Steps, pairs
from tidemill.datalog.dataflow.lingering import INSTANTS, MET
from tidemill.datalog.dataflow.plan import (
    MODERATE,
    UNIT,
    VALUE,
    Begin,
    DeltaPlan,
    Head,
    MatchColumns,
    Passes,
    Reduce,
    RulePlan,
    See,
)
from tidemill.datalog.dataflow.schema import (
    COLUMNS_MAX,
    KINDS,
    NUMBERED,
    TIME,
    NotInDataflow,
    Schema,
)
from tidemill.datalog.lattices import TALLIES
from tidemill.datalog.logical.bounds import Bounds
from tidemill.datalog.logical.expressions import TypeEnvironment, type_of
from tidemill.datalog.logical.forms import (
    TYPE_OF,
    WIDEN,
    AbsentForm,
    AtomForm,
    Call,
    Constant,
    Expression,
    RuleForm,
    Term,
    Type,
    Variable,
    Wildcard,
    clock_time,
    variables_of,
)
from tidemill.datalog.logical.partial import COUNTED, LOWER, UPPER, kind_of, merges

_UNIT_ATOM = AtomForm(UNIT, ())
_SUMS = frozenset({"sum", "average", UPPER, LOWER})

Cover: TypeAlias = "tuple[str, tuple[int, ...], int]"
"""The collection of which a cover keeps columns, these, and the number of the atom."""


class LoweredCollections(Protocol):
    """The collections of the program, as rules are lowered one after the other."""

    schemas: dict[str, Schema]
    values: NumberedValues

    def cover(self, predicate: str, columns: tuple[int, ...], nth: int) -> str:
        """The collection that says when a fact with given values in some columns is present.

        Atoms of one rule have different collections, by `nth`: they change one after the other.
        """
        ...

    def scope(self, rule: RuleForm) -> TypeEnvironment:
        """Types and bounds of the variables of a rule."""
        ...

    def word(self, value: object, kind: Type) -> tuple[int, bool]:
        """The word of a literal, and whether it is null."""
        ...

    def passed(self, rule: RuleForm, atom: AtomForm) -> frozenset[str]:
        """The lattices that may be passed from a fact of an atom to the head of its rule."""
        ...

    def lattice_type(self, predicate: str, lattice: str, at: int = 0) -> Type:
        """The declared type of a lattice's values."""
        ...

    def timed(self, predicate: str) -> bool:
        """Whether facts of a collection may have a time."""
        ...


class RuleLowering:
    """Lowers one rule: its columns, a delta plan for each change, its head."""

    def __init__(
        self, program: LoweredCollections, rule: RuleForm, loop: Sequence[str] = ()
    ) -> None:
        """`loop` are the predicates of the recursion that the rule belongs to."""
        self.program = program
        self._loop = loop
        self.rule = rule
        self.scope = program.scope(rule)
        atoms = rule.atoms
        ends = [each for atom in atoms for each in _seen_of_clock(atom)]
        if ends or all(atom.is_clock for atom in atoms):
            atoms = (replace(_UNIT_ATOM, lattices=tuple(ends)), *atoms)
        self.atoms = atoms
        self._template: list[tuple[int, bool]] = []
        self.variables: dict[str, tuple[int, Type]] = {}
        self.constants: dict[tuple[object, Type], int] = {}
        self.own: dict[tuple[int, int], int] = {}
        self.asked: dict[tuple[int, int], int] = {}
        self.widened: dict[int, list[tuple[str, str]]] = {}
        self.typed: dict[int, list[tuple[int, str]]] = {}
        self._passes_into = -1
        self._known: dict[int, list[int]] = {}
        self._judged: dict[int, tuple[bool, frozenset[int]]] = {}
        self.ages = -1, -1
        self._number = -1
        self.covers: dict[str, Cover] = {}

    def plan(self) -> RulePlan:
        full = self._needs_identity()
        for number, atom in enumerate(self.atoms):
            self._allocate(number, atom, full)
        for number in range(len(self.atoms)):
            self._allocate_seen(number)
            self._allocate_number(number)
            list(self.seen(number))  # their constants
        if any(map(self._passed, self.atoms)):
            self._passes_into = self._column()
        for number, absent in enumerate(self.rule.absent):
            if not absent.is_clock:
                self._allocate_absent(number, absent)
        aged = self.program.schemas[self.rule.head.predicate].aged
        if aged:
            self.ages = self._column(), self._column(END_WORD)
        head_plan, reduce = self._head(), self._reduce()
        columns = self._columns()
        if columns.width > COLUMNS_MAX:
            raise NotInDataflow(f"a rule whose matches have more than {COLUMNS_MAX} columns")
        again = self._again(head_plan) if aged else None
        exact = full or any(
            name not in INSTANTS for atom in self.atoms for name, _ in atom.lattices
        )
        return RulePlan(
            self.rule, self.scope, columns, tuple(self._deltas()), head_plan, reduce, exact, again,
            self._tells_apart(head_plan),
        )  # fmt: skip

    def _tells_apart(self, head: Head) -> bool:
        """Whether no two matches derive one fact at an instant: it has the keys of all of theirs.

        A time is that of the fact only where it comes from one atom alone.
        """
        if head.outlives or head.time or head.asked or any(each.is_clock for each in self.atoms):
            return False
        known = {*head.copies[0].tolist(), *self.constants.values()}
        for number, atom in enumerate(self.atoms):
            if atom.predicate == UNIT:
                continue
            key = self.program.schemas[atom.predicate].key[1:]
            if any(self.own.get((number, place), -1) not in known for place in key):
                return False
            alone = len(self.atoms) == 1 and head.timed and "time" not in atom.suppressed
            if self.program.timed(atom.predicate) and not alone:
                return False
        return True

    def moderate(self) -> TypeEnvironment:
        """The same names for numbers that can be added without overflow; clocks look at that."""
        known = Bounds(-MODERATE, MODERATE, True)
        whole = (name for name, kind in self.scope.types.items() if kind is Type.INT)
        return replace(self.scope, bounds=dict.fromkeys(whole, known))

    # Columns of matches.

    def _needs_identity(self) -> bool:
        rule = self.rule
        expressions: list[Expression] = [*rule.conditions, *rule.head.terms, *rule.head.time]
        expressions += rule.head.expires
        expressions += [term for _, terms in rule.head.lattices for term in terms]
        expressions += [each for absent in rule.absent for each in absent.expressions()]
        clocks: list[Sequence[Expression | Wildcard]]
        clocks = [atom.clock for atom in rule.atoms if atom.clock is not None]
        clocks += [absent.terms[:2] for absent in rule.absent if absent.is_clock]
        if any(not isinstance(each, Constant) for clock in clocks for each in clock):
            return True
        return (
            rule.outlives
            or self.program.schemas[rule.head.predicate].carrying
            or bool(rule.head.time or rule.head.expires)
            or any(self.scope.fallible(expression) for expression in expressions)
        )

    def _column(self, word: int = 0, null: bool = False) -> int:
        self._template.append((word, null))
        return len(self._template) - 1

    def _constant(self, value: object, kind: Type) -> int:
        key = (value if value is None else (type(value), value), kind)
        if key not in self.constants:
            self.constants[key] = self._column(*self.program.word(value, kind))
        return self.constants[key]

    def places(self, number: int) -> list[tuple[int, Term, Type]]:
        """The columns of an atom's facts with their terms: (column, term, type)."""
        atom = self.atoms[number]
        schema = self.program.schemas[atom.predicate]
        found: list[tuple[int, Term, Type]] = [
            (at, term, schema.kinds[at - 1]) for at, term in enumerate(atom.terms, 1)
        ]
        for name, terms in atom.lattices:
            if name in INSTANTS:
                found.append((TIME, terms[0], Type.INT))
                continue
            place = schema.place(name)
            if place is not None:
                found.append((place, terms[0], schema.kind(place)))
        return found

    def named(self, number: int) -> Sequence[int]:
        """The columns of an atom's terms but for wildcards, once all columns are allocated."""
        if number not in self._known:
            self._known[number] = [
                self.own[number, place]
                for place, term, _ in self.places(number)
                if not isinstance(term, Wildcard)
            ]
        return self._known[number]

    def judged(self, at: int) -> tuple[bool, frozenset[int]]:
        """Whether a condition may fail, and the columns of its variables."""
        if at not in self._judged:
            condition = self.rule.conditions[at]
            columns = frozenset(self.variables[name][0] for name in variables_of(condition))
            self._judged[at] = self.scope.fallible(condition), columns
        return self._judged[at]

    def _allocate(self, number: int, atom: AtomForm, full: bool) -> None:
        if atom.is_clock:
            for at in range(3):
                self.own[number, at] = self._column()
            time = clock_time(atom)
            if isinstance(time, Variable):
                self.variables.setdefault(time.name, (self.own[number, 0], Type.INT))
                self.own[number, 0] = self.variables[time.name][0]
            elif isinstance(time, Constant):
                self.own[number, 0] = self._constant(time.value, Type.INT)
            return
        for place, term, kind in self.places(number):
            if isinstance(term, Variable):
                column = self._named(number, place, term.name, kind)
                self.own.setdefault((number, place), column)
            elif isinstance(term, Constant):
                self.own.setdefault((number, place), self._constant(term.value, kind))
        if full and atom.predicate != UNIT:
            schema = self.program.schemas[atom.predicate]
            timed = self.rule.outlives or self.program.timed(atom.predicate)
            for place in schema.key if timed else schema.key[1:]:
                if (number, place) not in self.own:
                    self.own[number, place] = self._column()

    def _named(self, number: int, place: int, name: str, kind: Type) -> int:
        """The column of a place with a variable.

        A whole number that is a float, and a value of any type, have another one.
        """
        wanted = self.rule.types.get(name, kind)
        if wanted is Type.FLOAT and kind is Type.INT:
            raw = f"#whole:{number}.{place}"
            self.variables[raw] = self._column(), kind
            self._variable(name, wanted)
            self.widened.setdefault(number, []).append((raw, name))
            return self.variables[raw][0]
        if kind is Type.ANY and wanted not in NUMBERED:
            self._variable(name, wanted)
            self.typed.setdefault(number, []).append((self._column(), name))
            return self.typed[number][-1][0]
        return self._variable(name, wanted)

    def _variable(self, name: str, kind: Type) -> int:
        """The one column of a variable."""
        if name not in self.variables:
            self.variables[name] = self._column(), kind
        return self.variables[name][0]

    def _allocate_seen(self, number: int) -> None:
        """The columns of lattices of an atom's fact, and of what is seen of them."""
        atom = self.atoms[number]
        if atom.is_clock:
            return
        schema = self.program.schemas[atom.predicate]
        if schema.carrying and (self._passed(atom) or self._seen_of(atom)):
            self.own[number, schema.carried] = self._column()
        for name, terms in self._seen_of(atom):
            if name == "expires":
                self.own.setdefault((number, schema.expiry), self._column())
            for term in terms:
                if isinstance(term, Variable) and term.name not in self.variables:
                    kind = self.rule.types.get(term.name, Type.ANY)
                    kind = Type.ANY if name == "expires" else kind
                    self.variables[term.name] = self._column(), kind

    def _allocate_number(self, number: int) -> None:
        """The column of the number that a fact passes on to an ordered head."""
        head, atom = self.rule.head, self.atoms[number]
        ordered = self.program.schemas[head.predicate].ordered
        if ordered and not head.lattices and not atom.is_clock:
            for name in self.program.passed(self.rule, atom):
                place = self.program.schemas[atom.predicate].place(name)
                assert place is not None
                self._number = self.own.setdefault((number, place), self._column())

    def _seen_of(self, atom: AtomForm) -> list[tuple[str, tuple[Term, ...]]]:
        """The lattices of an atom of which something is seen that is no column of its facts."""
        if atom.is_clock:
            return []
        schema = self.program.schemas[atom.predicate]
        return [
            (name, terms)
            for name, terms in atom.lattices
            if name not in INSTANTS and schema.place(name) is None
        ]

    def _passed(self, atom: AtomForm) -> bool:
        """Whether lattices are passed as such from the facts of an atom to the head."""
        if self.program.schemas[self.rule.head.predicate].ordered:
            return False
        return not atom.is_clock and bool(self.program.passed(self.rule, atom))

    def seen(self, number: int) -> Iterable[See]:
        """The steps that follow a match with an atom: what is seen of its lattices."""
        atom = self.atoms[number]
        for raw, variable in self.typed.get(number, ()):
            yield See(VALUE, raw, ((*self.variables[variable], False),))
        for name, terms in self._seen_of(atom):
            schema = self.program.schemas[atom.predicate]
            place = schema.expiry if name == "expires" else schema.carried
            found: list[tuple[int, Type]] = []
            for term in terms:
                if isinstance(term, Wildcard):
                    found.append((-1, Type.ANY))
                elif isinstance(term, Variable):
                    found.append(self.variables[term.name])
                else:
                    kind = TYPE_OF.get(type(term.value), Type.ANY)
                    found.append((self._constant(term.value, kind), kind))
            carried = name == "expires" or schema.carrying
            source = self.own[number, place] if carried else -1
            yield See(name, source, tuple((*each, False) for each in found))

    def _allocate_absent(self, number: int, absent: AbsentForm) -> None:
        schema = self.program.schemas[absent.predicate]
        for place, term in absent.columns():
            kind = schema.kind(place)
            if isinstance(term, Variable) and self.rule.types.get(term.name) is kind:
                self.asked[number, place] = self.variables[term.name][0]
            elif isinstance(term, Constant):
                self.asked[number, place] = self._constant(term.value, kind)
            else:
                self.asked[number, place] = self._column()

    def _columns(self) -> MatchColumns:
        facts = []
        for number, atom in enumerate(self.rule.atoms):
            number += len(self.atoms) - len(self.rule.atoms)
            size = 3 if atom.is_clock else len(self.program.schemas[atom.predicate].key)
            facts.append(tuple(self.own.get((number, at), -1) for at in range(size)))
        fixed = set(self.constants.values())
        times = set()
        for number, atom in enumerate(self.atoms):
            if not atom.is_clock:
                times.add(self.own.get((number, TIME), -1))
            elif atom.clock is not None:
                given = zip((1, 2), atom.clock, strict=True)
                fixed |= {self.own[number, at] for at, e in given if isinstance(e, Constant)}
        identity = {c for (number, at), c in self.own.items() if self._tells(number, at)}
        identity |= {column for column, _ in self.variables.values()}
        identity -= fixed
        width = len(self._template) + 3
        return MatchColumns(
            dict(self.variables), tuple(facts), tuple(sorted(identity)),
            tuple(sorted(times & identity)), width, self.program.values,
        )  # fmt: skip

    def _tells(self, number: int, place: int) -> bool:
        """Whether a column of a fact says which fact it is, or what was matched of it."""
        atom = self.atoms[number]
        if atom.is_clock:
            return True
        schema = self.program.schemas[atom.predicate]
        return place < schema.expiry or (place > schema.expiry and not schema.carrying)

    # Delta plans.

    def _deltas(self) -> Iterable[DeltaPlan]:
        occurrences: dict[str, list[int]] = {}
        for number, atom in enumerate(self.atoms):
            if not atom.is_clock:
                occurrences.setdefault(atom.predicate, []).append(number)
        for predicate, numbers in occurrences.items():
            for size in range(1, len(numbers) + 1):
                for changed in combinations(numbers, size):
                    sign = 1 if size % 2 else -1
                    yield self._delta(predicate, sign, changed, None)
        for number, absent in enumerate(self.rule.absent):
            if not absent.is_clock:
                yield self._delta(self.cover(number, absent), -1, (), number)

    def recurs(self, number: int) -> bool:
        """Whether the facts of an atom are of the recursion that the rule belongs to."""
        return self.atoms[number].predicate in self._loop

    def cover(self, number: int, absent: AbsentForm) -> str:
        """The collection that an atom under `not` asks."""
        asked = [
            (each.predicate, tuple(place for place, _ in each.columns()))
            for each in (*self.rule.absent[:number], absent)
        ]
        found = (*asked[-1], asked.count(asked[-1]))
        name = self.program.cover(*found)
        self.covers[name] = found
        return name

    def _delta(
        self, source: str, sign: int, changed: tuple[int, ...], absent: int | None
    ) -> DeltaPlan:
        steps = Steps(self, absent)
        steps.begin_with(changed, absent)
        return self._followed(source, sign, steps, changed)

    def _again(self, head: Head) -> DeltaPlan:
        """From facts of the head to the matches that derive them."""
        steps = Steps(self, None)
        ends = self.program.schemas[self.rule.head.predicate].expiry
        copies = [(column, place) for column, place in head.copies.T.tolist() if place < ends]
        if len(head.time) == 1 and isinstance(head.time[0], Variable):
            column, kind = self.variables[head.time[0].name]
            copies += [(column, TIME)] if kind is Type.INT else []
        steps.begin_with_head(copies)
        return self._followed(self.rule.head.predicate, 1, steps, ())

    def _followed(
        self, source: str, sign: int, steps: Steps, changed: tuple[int, ...]
    ) -> DeltaPlan:
        """The delta plan that begins so: the atoms of most known columns first.

        Of those alike, an atom outside of the recursion comes first.
        """
        waiting = [
            number
            for number, atom in enumerate(self.atoms)
            if not atom.is_clock and number not in changed[:1]
        ]

        def choice(number: int) -> tuple[int, bool, int]:
            return steps.bound_places(number), not self.recurs(number), -number

        while waiting:
            chosen = max(waiting, key=choice)
            waiting.remove(chosen)
            steps.join(chosen, chosen in changed)
        steps.finish()
        assert steps.begin is not None
        words = np.array([word for word, _ in self._template] + [0, END_WORD, 0], np.int64)
        nulls = sum(1 << at for at, (_, null) in enumerate(self._template) if null)
        words[-1] = nulls | 1 << (len(words) - 3)
        return DeltaPlan(source, sign, Begin(words, steps.begin), tuple(steps.steps))

    # Heads.

    def _head(self) -> Head:
        head = self.rule.head
        schema = self.program.schemas[head.predicate]
        asked = head.predicate.startswith(MET)
        copies, computed = [], []
        terms = list(enumerate(zip(head.terms, schema.kinds, strict=True), 1))
        if schema.ordered and head.lattices:
            terms.append((schema.expiry + 1, (head.lattices[0][1][0], schema.lattices[0][1])))
        elif schema.ordered:
            copies.append((self._number, schema.expiry + 1))
        if schema.ordered and schema.aged:
            copies.append((self.ages[1], schema.age))
        for at, (term, kind) in terms:
            known = self.variables.get(term.name) if isinstance(term, Variable) else None
            if isinstance(term, Constant) and kind in KINDS:
                copies.append((self._constant(term.value, kind), at))
            elif known is not None and known[1] is kind:
                copies.append((known[0], at))
            else:
                widened = kind is Type.FLOAT and type_of(term, self.rule.types) is Type.INT
                computed.append((at, Call(WIDEN, (term,)) if widened else term, kind))
        if self._passes_into >= 0 and not head.aggregates:
            copies.append((self._passes_into, schema.carried))
        return Head(
            copies=pairs(copies),
            computed=tuple(computed),
            time=head.time,
            expires=head.expires,
            timed="time" not in head.suppressed,
            expiring="expires" not in head.suppressed,
            outlives=self.rule.outlives and not asked,
            asked=asked,
            passes=self._passes(),
        )

    def _passes(self) -> Passes | None:
        if self._passes_into < 0:
            return None
        sources = []
        for number, atom in enumerate(self.atoms):
            if self._passed(atom):
                schema = self.program.schemas[atom.predicate]
                head = self.rule.head
                dropped = atom.suppressed | head.suppressed | {name for name, _ in head.lattices}
                sources.append((self.own[number, schema.carried], dropped))
        return Passes(self._passes_into, tuple(sources))

    def _reduce(self) -> Reduce | None:
        head = self.rule.head
        if not head.aggregates or self.program.schemas[head.predicate].ordered:
            return None
        if self.program.schemas[head.predicate].carrying:
            return self._reduce_carried()
        types = self.rule.types
        linear = all(
            kind_of(name) in ("count", COUNTED)
            or (kind_of(name) in _SUMS and type_of(terms[0], types) is Type.INT)
            for name, terms in head.lattices
        )
        kinds = tuple(type_of(term, types) for _, terms in head.lattices for term in terms)
        by_time, merging = bool(head.time), merges(self.rule)
        timed = not by_time and self.program.timed(head.predicate)
        return Reduce(head.lattices, kinds, by_time, linear, merges=merging, timed=timed)

    def _reduce_carried(self) -> Reduce:
        """The lattices of a head, with whole numbers among floats as such."""
        head = self.rule.head
        assert not (merges(self.rule) and any(name in TALLIES for name, _ in head.lattices))
        lattices = []
        for name, terms in head.lattices:
            found = []
            for at, term in enumerate(terms):
                kind = self.program.lattice_type(head.predicate, name, at)
                widened = kind is Type.FLOAT and type_of(term, self.rule.types) is not Type.FLOAT
                found.append(Call(WIDEN, (term,)) if widened and name not in TALLIES else term)
            lattices.append((name, tuple(found)))
        floats = {
            name for name, _ in head.lattices
            if name == "sum" and self.program.lattice_type(head.predicate, name) is Type.FLOAT
        }  # fmt: skip
        return Reduce(tuple(lattices), (), bool(head.time), False, True, bool(floats))

    def schema(self, predicate: str) -> Schema:
        """The columns of a collection."""
        return self.program.schemas[predicate]


def _seen_of_clock(atom: AtomForm) -> list[tuple[str, tuple[Term, ...]]]:
    """The lattices but its time that a match asks of a clock: as a fact without an end has them."""
    return [each for each in atom.lattices if atom.is_clock and each[0] != "time"]
