"""The syntax tree of a Tidelog program: what was written, with the place of every piece.

Nothing here is resolved or checked: named arguments are still named, definitions of `where` are
still aside. `tidemill.datalog.checked` holds the rules as engines see them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import NamedTuple, TypeAlias

from tidemill.datalog.nodes import dataclass
from tidemill.time.typed import Typed


class Span(NamedTuple):
    """A stretch of the text: lines and columns from 1, `end_column` after the last character."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: a value of a type that has literals, or null."""

    value: int | float | str | bool | Typed | None
    span: Span


@dataclass(frozen=True, slots=True)
class Variable:
    """A name that a match binds or a definition stands for."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Wildcard:
    """`_`: matches anything, binds nothing."""

    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    """A sign before an expression."""

    operator: str
    operand: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """Two expressions joined by an operator; `place` is where the operator stands."""

    operator: str
    left: Expression
    right: Expression
    span: Span
    place: Span


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the language applied to expressions; the place of its name is `name_span`."""

    name: str
    arguments: tuple[Expression, ...]
    span: Span
    name_span: Span


Expression: TypeAlias = "Literal | Variable | Wildcard | Unary | Binary | Call"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of an application; `name` if it was given by column name."""

    value: Expression
    span: Span
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Application:
    """A name applied to arguments: a fact pattern, or a parafact pattern."""

    name: str
    arguments: tuple[Argument, ...]
    span: Span
    name_span: Span

    @property
    def named(self) -> bool:
        """Whether its arguments are given by column names."""
        return any(argument.name is not None for argument in self.arguments)


@dataclass(frozen=True, slots=True)
class Suppression:
    """`~ lattice`: this lattice is not passed."""

    lattice: str
    span: Span


@dataclass(frozen=True, slots=True)
class Atom:
    """A pattern of the body with the parafacts it matches; `negated` under `not`."""

    application: Application
    parafacts: tuple[Application, ...]
    suppressed: tuple[Suppression, ...]
    negated: bool
    span: Span


@dataclass(frozen=True, slots=True)
class NextTick:
    """`@next`: the head holds in the tick after."""

    span: Span


@dataclass(frozen=True, slots=True)
class AsyncTo:
    """`@async(node)`: the head is sent to a node."""

    node: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Head:
    """Head of a rule: the fact that it derives."""

    application: Application
    parafacts: tuple[Application, ...]
    suppressed: tuple[Suppression, ...]
    temporal: NextTick | AsyncTo | None
    span: Span


@dataclass(frozen=True, slots=True)
class Definition:
    """`name = expression` in `where`."""

    name: str
    value: Expression
    span: Span
    name_span: Span


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `number` counts from 1 in the order of the text. A stated fact has no formula."""

    number: int
    head: Head
    atoms: tuple[Atom, ...]
    guards: tuple[Expression, ...]
    definitions: tuple[Definition, ...]
    has_formula: bool
    span: Span
    expressions: tuple[Expression, ...] = field(init=False, repr=False, compare=False)
    """Every expression that stands in it, in the order of the text."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "expressions", tuple(_expressions_of(self)))


@dataclass(frozen=True, slots=True)
class Program:
    """The rules of one text in order, with the text itself."""

    rules: tuple[Rule, ...]
    text: str
    file: str


def children(expression: Expression) -> tuple[Expression, ...]:
    """The expressions directly inside one."""
    match expression:
        case Unary():
            return (expression.operand,)
        case Binary():
            return (expression.left, expression.right)
        case Call():
            return expression.arguments
        case _:
            return ()


def walk(expression: Expression) -> Iterable[Expression]:
    """The expression and all inside it, from left to right, outer before inner."""
    if isinstance(expression, Variable | Literal | Wildcard):  # most of all
        return (expression,)
    return _walk(expression)


def _walk(expression: Expression) -> Iterator[Expression]:
    waiting = [expression]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def variables_in(expression: Expression) -> Iterator[Variable]:
    """The variables of an expression in the order of the text."""
    for part in walk(expression):
        if isinstance(part, Variable):
            yield part


def _expressions_of(rule: Rule) -> Iterator[Expression]:
    for application in (rule.head.application, *rule.head.parafacts):
        for argument in application.arguments:
            yield argument.value
    if isinstance(rule.head.temporal, AsyncTo):
        yield rule.head.temporal.node
    for atom in rule.atoms:
        for application in (atom.application, *atom.parafacts):
            for argument in application.arguments:
                yield argument.value
    yield from rule.guards
    for definition in rule.definitions:
        yield definition.value
