"""The columns of the matches of one rule, and what its delta plans ask of its atoms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.arrangement.kernels import I64Array
from tidemill.datalog.dataflow.lingering import INSTANTS
from tidemill.datalog.dataflow.lowered_collections import LoweredCollections
from tidemill.datalog.dataflow.plan import MODERATE, UNIT, VALUE, MatchColumns, See
from tidemill.datalog.dataflow.schema import (
    COLUMNS_MAX,
    NUMBERED,
    NUMBERS,
    TIME,
    NotInDataflow,
    Schema,
)
from tidemill.datalog.logical.bounds import Bounds
from tidemill.datalog.logical.expressions import TypeEnvironment
from tidemill.datalog.logical.forms import (
    TYPE_OF,
    AbsentForm,
    AtomForm,
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
from tidemill.datalog.values import Value

_UNIT_ATOM = AtomForm(UNIT, ())

Cover: TypeAlias = "tuple[str, tuple[int, ...], int]"
"""The collection of which a cover keeps columns, these, and the number of the atom."""


class RuleColumns:
    """The common part of the delta plans of a rule: its atoms, and the columns of its matches.

    `own` are the columns of matched facts, by atom and column of the collection. Atoms under `not`
    are asked for the columns in `asked`; `constants` hold literals.
    """

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
        self._literals: list[tuple[int, Value, Type]] = []
        self.variables: dict[str, tuple[int, Type]] = {}
        self.constants: dict[tuple[object, Type], int] = {}
        self.own: dict[tuple[int, int], int] = {}
        self.asked: dict[tuple[int, int], int] = {}
        self.widened: dict[int, list[tuple[str, str]]] = {}
        """Whole numbers of an atom that are floats elsewhere: their variables."""
        self.typed: dict[int, list[tuple[int, str]]] = {}
        self._passes_into = -1
        self._known: dict[int, list[int]] = {}
        self._judged: dict[int, tuple[bool, frozenset[int]]] = {}
        self.ages = -1, -1
        """Columns of the age of a fact that is asked for, and of one that it is derived from.

        In the change of an ordered fact, the second has the order of what it is derived from.
        """
        self._handed: list[tuple[int, int]] = []
        self.covers: dict[str, Cover] = {}
        self._exact = self._needs_identity()
        self._allocate_all()

    def _allocate_all(self) -> None:
        for number, atom in enumerate(self.atoms):
            self._allocate(number, atom, self._exact)
        for number in range(len(self.atoms)):
            self._allocate_seen(number)
            self._allocate_handed(number)
            list(self.seen(number))  # their constants
        if any(map(self._passed, self.atoms)):
            self._passes_into = self._column()
        for number, absent in enumerate(self.rule.absent):
            if not absent.is_clock:
                self._allocate_absent(number, absent)
        if self.program.schemas[self.rule.head.predicate].aged:
            self.ages = self._column(), self._column(END_WORD)

    @property
    def in_loop(self) -> bool:
        """Whether the rule belongs to a recursion."""
        return bool(self._loop)

    def _first_match(self) -> I64Array:
        """A match with nothing but nulls; its literals are to come."""
        words = np.array([word for word, _ in self._template] + [0, END_WORD, 0], np.int64)
        nulls = sum(1 << at for at, (_, null) in enumerate(self._template) if null)
        words[-1] = nulls | 1 << (len(words) - 3)
        return words

    def moderate(self) -> TypeEnvironment:
        """The same names for numbers that can be added without overflow; clocks look at that."""
        known = Bounds(-MODERATE, MODERATE, True)
        whole = (name for name, kind in self.scope.types.items() if kind is Type.INT)
        return replace(self.scope, bounds=dict.fromkeys(whole, known))

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

    def _constant(self, value: Value, kind: Type) -> int:
        key = (value if value is None else (type(value), value), kind)
        if key not in self.constants:
            self.constants[key] = self._column(null=value is None)
            if value is not None:
                self._literals.append((self.constants[key], value, kind))
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

    def _allocate_handed(self, number: int) -> None:
        """The columns of the values that a fact passes on as they are seen."""
        head, atom = self.rule.head, self.atoms[number]
        schema = self.program.schemas[head.predicate]
        if schema.carrying or head.lattices or atom.is_clock:
            return
        passed = self.program.passed(self.rule, atom)
        for at, (name, _) in enumerate(schema.lattices, schema.expiry + 1):
            if name in passed:
                place = self.program.schemas[atom.predicate].place(name)
                assert place is not None
                column = self.own.setdefault((number, place), self._column())
                self._handed.append((column, at))

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
        if not self.program.schemas[self.rule.head.predicate].carrying:
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
        if width > COLUMNS_MAX:  # of which each has a bit for its nulls
            raise NotInDataflow(f"a rule whose matches have more than {COLUMNS_MAX} columns")
        return MatchColumns(
            dict(self.variables), tuple(facts), tuple(sorted(identity)),
            tuple(sorted(times & identity)), self._numbers(identity), width, self._first_match(),
            tuple(self._literals), self.program.values,
        )  # fmt: skip

    def _numbers(self, columns: Collection[int]) -> dict[int, Type]:
        """Those of some columns with numbers of values, each with the type of the values."""
        kinds = dict(self.variables.values())
        for (number, place), column in self.own.items():
            atom = self.atoms[number]
            if not atom.is_clock and column not in kinds:
                kinds[column] = self.program.schemas[atom.predicate].kind(place)
        return {at: kind for at, kind in kinds.items() if at in columns and kind in NUMBERS}

    def _tells(self, number: int, place: int) -> bool:
        """Whether a column of a fact says which fact it is, or what was matched of it."""
        atom = self.atoms[number]
        if atom.is_clock:
            return True
        schema = self.program.schemas[atom.predicate]
        return place < schema.expiry or (place > schema.expiry and not schema.carrying)

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

    def schema(self, predicate: str) -> Schema:
        """The columns of a collection."""
        return self.program.schemas[predicate]


def _seen_of_clock(atom: AtomForm) -> list[tuple[str, tuple[Term, ...]]]:
    """The lattices but its time that a match asks of a clock: as a fact without an end has them."""
    return [each for each in atom.lattices if atom.is_clock and each[0] != "time"]
