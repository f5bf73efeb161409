"""Goals: one atom that is asked, or bound to an action that runs once for each matching event.

Source: language.md 8.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tidemill.datalog import ast
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.column_types import literal_type, never_equal
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.inputs import ColumnType
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import END
from tidemill.datalog.records import Record, Value, typed_of
from tidemill.datalog.values import equal
from tidemill.errors import UsageError
from tidemill.time import normal
from tidemill.time.typed import TYPE_NAMES, write_typed


@dataclass(frozen=True, slots=True)
class Goal:
    """A pattern of records of one predicate.

    `terms` and `parafacts` hold literals, variables and wildcards; `name` is what the user calls
    it, by default its text.
    """

    name: str
    text: str
    predicate: str
    terms: tuple[ast.Expression, ...]
    parafacts: tuple[tuple[str, tuple[ast.Expression, ...]], ...] = ()

    def bindings(self, record: Record) -> dict[str, Value] | None:
        """The values of the goal's variables in a record that matches it, None if it does not."""
        if record.predicate != self.predicate:
            return None
        bound: dict[str, Value] = {}
        if not _match(self.terms, record.arguments, bound):
            return None
        for lattice, terms in self.parafacts:
            values = _values_of(record, lattice)
            if values is None or not _match(terms, values, bound):
                return None
        return bound


def compile_goal(text: str, checked: CheckedProgram, name: str | None = None) -> Goal:
    """The goal that `text` writes: one atom over a derived or an input predicate.

    Arguments may be named by columns; those left out match anything. Raises: ProgramErrors for text
    that is no atom, UsageError for an atom that does not fit the program.
    """
    return goal_over(text, checked.columns, name, checked.lattice_types)


def goal_over(
    text: str,
    predicates: Mapping[str, Sequence[tuple[str, ColumnType]]],
    name: str | None = None,
    lattices: Mapping[tuple[str, str], Sequence[ColumnType]] = MappingProxyType({}),
) -> Goal:
    """The goal of a text, over predicates with these columns: (name, type) each.

    `lattices` are the types of the parafacts, by predicate and lattice. Raises: as `compile_goal`.
    """
    rules = _parsed(text)
    rule = rules[0]
    if len(rules) != 1 or len(rule.atoms) != 1 or rule.guards or rule.definitions:
        raise UsageError(f"goal refused: {text!r} is not one atom", reason="InvalidGoal")
    atom = rule.atoms[0]
    if atom.negated or atom.suppressed:
        raise UsageError(f"goal refused: {text!r} is not a plain atom", reason="InvalidGoal")
    predicate = atom.application.name
    columns = predicates.get(predicate)
    if columns is None:
        known = ", ".join(sorted(predicates))
        raise UsageError(
            f"goal refused: no predicate {predicate!r}; there are {known}", reason="InvalidGoal"
        )
    parafacts = tuple((p.name, tuple(a.value for a in p.arguments)) for p in atom.parafacts)
    terms = _positional(atom.application, [column for column, _ in columns])
    for term in (*terms, *(term for _, each in parafacts for term in each)):
        if not isinstance(term, ast.Literal | ast.Variable | ast.Wildcard):
            raise UsageError(
                f"goal refused: {text!r} holds an expression; write a literal, a variable or _",
                reason="InvalidGoal",
            )
    typed = [*zip(terms, (kind for _, kind in columns), strict=True)]
    for lattice, each in parafacts:
        times: Sequence[ColumnType] = ("int",) if lattice in ("time", "expires") else ()
        typed += zip(each, lattices.get((predicate, lattice), times), strict=False)
    _refuse_types(text, typed)
    return Goal(text if name is None else name, text, predicate, terms, parafacts)


def _refuse_types(text: str, typed: Iterable[tuple[ast.Expression, ColumnType]]) -> None:
    """Raises: UsageError for a literal or a double variable whose types never agree."""
    known: dict[str, ColumnType] = {}
    for term, kind in typed:
        if isinstance(term, ast.Literal):
            mistake = never_equal(kind, literal_type(term.value))
        elif isinstance(term, ast.Variable):
            mistake = never_equal(known.setdefault(term.name, kind), kind)
        else:
            continue
        if mistake is not None:
            raise UsageError(f"goal refused: {text!r}: {mistake}", reason="InvalidGoal")


def _parsed(text: str) -> Sequence[ast.Rule]:
    """The rule whose body is the goal. Raises: ProgramErrors with places in the goal's own text."""
    before = "goal() :=\n"
    try:
        return parse(f"{before}{text}\n;", "<goal>").rules
    except ProgramErrors as error:
        last = text.count("\n") + 1
        end = len(text.rsplit("\n", 1)[-1]) + 1
        moved = []
        for each in error.diagnostics:
            line = each.span.line - 1
            if line > last:  # our own `;`: the mistake is that the text ends
                span = ast.Span(last, end, last, end + 1)
                message = each.message.replace("before `;`", "at the end")
                message = message.replace("instead of `;`", "at the end")
            else:
                to = min(each.span.end_line - 1, last)
                span = ast.Span(line, each.span.column, to, each.span.end_column)
                message = each.message
            moved.append(replace(each, span=span, message=message))
        raise ProgramErrors(moved, text) from None


def _positional(application: ast.Application, names: Sequence[str]) -> tuple[ast.Expression, ...]:
    if not application.named:
        if len(application.arguments) != len(names):
            raise UsageError(
                f"goal refused: {application.name} has {len(names)} column{'s' * (len(names) != 1)}, not "
                f"{len(application.arguments)}; write {application.name}({', '.join(names)})",
                reason="InvalidGoal",
            )
        return tuple(argument.value for argument in application.arguments)
    given: dict[str, ast.Expression] = {}
    for argument in application.arguments:
        if argument.name is None or argument.name not in names:
            raise UsageError(
                f"goal refused: {application.name} has no column {argument.name!r}; it has "
                f"{', '.join(names)}",
                reason="InvalidGoal",
            )
        given[argument.name] = argument.value
    return tuple(given.get(name, ast.Wildcard(application.span)) for name in names)


def _match(
    terms: Sequence[ast.Expression], values: Sequence[Value], bound: dict[str, Value]
) -> bool:
    if len(terms) != len(values):
        return False
    for term, value in zip(terms, values, strict=True):
        if isinstance(term, ast.Literal):
            if not equal(term.value, value):
                return False
        elif isinstance(term, ast.Variable):
            if term.name in bound and not equal(bound[term.name], value):
                return False
            bound[term.name] = value
    return True


def _values_of(record: Record, lattice: str) -> tuple[Value, ...] | None:
    """The value of a lattice that a record carries, as a tuple; None without one."""
    if lattice == "time":
        return None if record.time is None else (record.time,)
    if lattice == "expires":
        return (END if record.expires is None else record.expires,)
    for name, value in record.parafacts:
        if name == lattice:
            return value if isinstance(value, tuple) else (value,)
    return None


ACTION_KEY_VERSION = 1


def action_key(goal_name: str, record: Record) -> str:
    """The identity of one firing: the same on every machine and in every release.

    SHA-256 over a version, the goal's name, the predicate, the typed arguments and the time; other
    parafacts are not in it. Arguments of a float column have to be floats, as evaluation makes
    them.
    """
    parts = [
        f"tidemill action {ACTION_KEY_VERSION}".encode(),
        normal(goal_name).encode(),
        record.predicate.encode(),
        _encoded_sequence([encode_value(value) for value in record.arguments]),
        encode_value(record.time),
    ]
    return hashlib.sha256(_encoded_sequence(parts)).hexdigest()


def encode_value(value: Value) -> bytes:
    """A value as bytes, one form for each value: tag, then text in UTF-8, decimal digits or IEEE
    bits. A value of a type with a name is that name and its canonical text.
    """
    if value is None:
        return b"n"
    if value is True or value is False:
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return b"i" + str(value).encode()
    if isinstance(value, float):
        return b"f" + struct.pack(">d", value + 0.0)  # minus zero plus zero is zero
    if isinstance(value, str):
        return b"t" + normal(value).encode()
    if (typed := typed_of(value)) is not None:
        return b"v" + f"{TYPE_NAMES[type(typed)]} {write_typed(typed)}".encode()
    assert isinstance(value, frozenset)
    return b"s" + _encoded_sequence(sorted(encode_value(element) for element in value))


def _encoded_sequence(parts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)
