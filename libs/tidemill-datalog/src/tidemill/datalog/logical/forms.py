"""Rules in normal form: definitions unfolded, every column a variable, conditions in their order.

An atom holds only variables, constants and wildcards. Any other term of an atom becomes a *column
variable* (its name begins with `#`) and a condition `column == expression`. The conditions of a
rule stand in the order in which language.md 9.1 evaluates them. The first condition that is not
true, or fails, decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from typing import TypeAlias

from tidemill.datalog.nodes import dataclass
from tidemill.datalog.values import Value
from tidemill.time.typed import TYPE_NAMES

CLOCK = "clock"


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the rule."""

    name: str


WIDEN = "#widen"
"""A call that no program writes: a whole number as a float, for a column of floats."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator, by its sign (unary minus is `neg`), or a function, by its name."""

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A term that matches anything and binds nothing."""


Expression: TypeAlias = "Constant | Variable | Call"
Term: TypeAlias = "Constant | Variable | Wildcard"


class Type(Enum):
    """Type of a column or an expression; null fits each."""

    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    BOOL = "bool"
    TIMESTAMP = "timestamp"
    DATE = "date"
    DURATION = "duration"
    DECIMAL = "decimal"
    BYTES = "bytes"
    UUID = "uuid"
    JSON = "json"
    SET = "set"
    ANY = "any"

    __hash__ = object.__hash__  # each is one object; that of enumerations is a call of Python

    @classmethod
    def _missing_(cls, value: object) -> Type | None:
        """Decimal numbers of all digits are of one type."""
        return cls.DECIMAL if str(value).startswith("decimal(") else None


_NAMED = {kind.value: kind for kind in Type}


def type_named(name: str) -> Type:
    """The type of a column by its name. Cost: a look-up, not the calls of an enumeration."""
    return _NAMED.get(name) or Type(name)


TYPE_OF: Mapping[type, Type] = {
    int: Type.INT, float: Type.FLOAT, str: Type.TEXT, bool: Type.BOOL, frozenset: Type.SET,
    **{kind: Type(name) for kind, name in TYPE_NAMES.items()},
}  # fmt: skip
"""Class of a value in Python → its type."""


@dataclass(frozen=True, slots=True)
class AtomForm:
    """An atom of a body: what each column and each lattice has to be.

    `terms` are the arguments. `lattices` are the matched parafacts, `time` and `expires` among
    them, with one term for each of their values, in the order of the text. `suppressed` are the
    lattices that are not passed from it. The two arguments of a clock are expressions, kept in
    `clock`, and it has no terms.
    """

    predicate: str
    terms: tuple[Term, ...]
    lattices: tuple[tuple[str, tuple[Term, ...]], ...] = ()
    suppressed: frozenset[str] = frozenset()
    clock: tuple[Expression, Expression] | None = None

    @property
    def is_clock(self) -> bool:
        """Whether the atom matches clock events instead of facts."""
        return self.predicate == CLOCK

    def variables(self) -> Iterator[str]:
        """The names bound by a match, columns first; a name may come twice."""
        for term in self.every_term():
            if isinstance(term, Variable):
                yield term.name

    def every_term(self) -> Iterator[Term]:
        """All terms: arguments, then parafacts."""
        yield from self.terms
        for _, terms in self.lattices:
            yield from terms


@dataclass(frozen=True, slots=True)
class AbsentForm:
    """An atom under `not`: expressions over bound variables, or wildcards.

    `widened` are the positions, from 1, at which a float is asked of a column of whole numbers.
    Each whole number there is the float that it widens to, as where a fact is joined.
    """

    predicate: str
    terms: tuple[Expression | Wildcard, ...]
    lattices: tuple[tuple[str, tuple[Expression | Wildcard, ...]], ...] = ()
    widened: tuple[int, ...] = ()

    @property
    def is_clock(self) -> bool:
        """Whether the atom denies clock events instead of facts."""
        return self.predicate == CLOCK

    @property
    def by_columns(self) -> bool:
        """Whether values of key columns decide: arguments, and at most one bound time."""
        if self.is_clock or self.widened or len(self.lattices) > 1:
            return False
        return all(
            name == "time" and not isinstance(terms[0], Wildcard) for name, terms in self.lattices
        )

    def columns(self) -> list[tuple[int, Expression]]:
        """The bound columns of the key, each with its position, ascending; 0 is the time."""
        known = [
            (position, term)
            for position, term in enumerate(self.terms, 1)
            if not isinstance(term, Wildcard)
        ]
        times = [terms[0] for name, terms in self.lattices if name == "time"]
        if times and not isinstance(times[0], Wildcard):
            known.insert(0, (0, times[0]))
        return known

    def every_term(self) -> list[Expression | Wildcard]:
        """All terms: arguments, then parafacts."""
        return [*self.terms, *(term for _, terms in self.lattices for term in terms)]

    def expressions(self) -> list[Expression]:
        """All terms that are no wildcards."""
        return [term for term in self.every_term() if not isinstance(term, Wildcard)]


@dataclass(frozen=True, slots=True)
class HeadForm:
    """The fact that a solution derives.

    `time` and `expires` are the expressions written for them; `lattices` are the other
    mentioned ones; `suppressed` are the lattices of which nothing is passed.
    """

    predicate: str
    terms: tuple[Expression, ...]
    time: tuple[Expression, ...] = ()
    expires: tuple[Expression, ...] = ()
    lattices: tuple[tuple[str, tuple[Expression, ...]], ...] = ()
    suppressed: frozenset[str] = frozenset()

    @property
    def aggregates(self) -> bool:
        """Whether solutions are grouped: the head has a lattice beside time and expires."""
        return bool(self.lattices)


@dataclass(frozen=True, slots=True)
class RuleForm:
    """A rule as engines evaluate it; `number` counts from 1 in the order of the text.

    `guards` counts how many of the `conditions` at the end are guard expressions; the ones before
    them come from terms of atoms. `types` gives the type of every variable. A rule that sends to a
    node has the node as the first term of its head.
    """

    number: int
    head: HeadForm
    atoms: tuple[AtomForm, ...]
    absent: tuple[AbsentForm, ...]
    conditions: tuple[Expression, ...]
    guards: int
    types: dict[str, Type] = field(hash=False)
    has_body: bool = True
    next_tick: bool = False
    sends: bool = False

    @property
    def deductive(self) -> bool:
        """Whether the head holds in the tick of its body."""
        return not self.next_tick and not self.sends

    @property
    def reads(self) -> frozenset[str]:
        """The predicates of its atoms and of those under `not`; clocks are none."""
        positive = {atom.predicate for atom in self.atoms if not atom.is_clock}
        return frozenset(positive | {a.predicate for a in self.absent if not a.is_clock})

    @property
    def outlives(self) -> bool:
        """Whether a solution, once established, lives until its own expiry (language.md 4.3).

        Facts that are carried to another tick hold there and no longer.
        """
        own = bool(self.head.expires) or "expires" in self.head.suppressed
        return own and self.deductive

    @property
    def lingers(self) -> bool:
        """Whether the end of some matched fact does not end a solution (`~expires` in the body)."""
        return any("expires" in atom.suppressed for atom in self.atoms)

    @property
    def remembers(self) -> bool:
        """Whether solutions may live on without a fact, so that a restart needs their state."""
        return self.outlives or self.lingers


def clock_time(atom: AtomForm) -> Constant | Variable | None:
    """The first term matched against the time of a clock, None for none or a wildcard."""
    for name, terms in atom.lattices:
        if name == "time" and isinstance(terms[0], Constant | Variable):
            return terms[0]
    return None


def variables_of(expression: Expression | Wildcard) -> frozenset[str]:
    """The names of the variables in an expression."""
    if isinstance(expression, Variable):
        return frozenset((expression.name,))
    if isinstance(expression, Call):
        return frozenset().union(*(variables_of(argument) for argument in expression.arguments))
    return frozenset()


def carried_variables(form: RuleForm) -> list[str]:
    """The variables that the head, atoms under `not` and lattices name, which a state keeps."""
    head = form.head
    expressions: list[Expression] = [*head.terms, *head.time, *head.expires]
    expressions += [term for _, terms in head.lattices for term in terms]
    expressions += [term for absent in form.absent for term in absent.expressions()]
    needed = {name for each in expressions for name in variables_of(each)}
    return sorted(needed | {each.name for each in matched_variables(form)})


def matched_variables(form: RuleForm) -> list[Variable]:
    """The variables for parafacts other than the time, in the order of identities."""
    found: list[Variable] = []
    for atom in form.atoms:
        for name, terms in atom.lattices:
            if name != "time":
                found += [term for term in terms if isinstance(term, Variable)]
    return found
