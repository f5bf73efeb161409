"""From text to the syntax tree.

The grammar is grammar.lark; syntax_errors.py names what it refuses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from lark import Lark

from tidemill.datalog.ast import (
    Application,
    Argument,
    AsyncTo,
    Atom,
    Binary,
    Call,
    Definition,
    Expression,
    Head,
    Literal,
    NextTick,
    Program,
    Rule,
    Span,
    Suppression,
    Unary,
    Variable,
    Wildcard,
    children,
)
from tidemill.datalog.diagnostics import Diagnostic, ProgramErrors
from tidemill.datalog.lalr import Refused, TableParser
from tidemill.datalog.syntax_errors import Mistake, explain_syntax
from tidemill.datalog.values import INT_MAX
from tidemill.errors import UsageError
from tidemill.time import MARKS_MAX, normal
from tidemill.time.typed import READ

DEPTH_MAX = 200
"""Levels of a nested expression: checks and engines walk it by recursion."""
_DIGITS_MAX = 30
"""Longer numbers are beyond 64 bits whatever their digits."""


def parse(text: str, file: str = "<program>") -> Program:
    """The rules of `text`, every piece with its place.

    Raises: ProgramErrors with the mistakes of its syntax, codes E… of the language, the first in
    the text first. Cost: O(length).
    """
    try:
        rules: tuple[Rule, ...] = _grammar().parse(text)
    except Refused as error:
        raise ProgramErrors(explain_syntax(_grammar(), text, file, error), text) from None
    except Mistake as refused:
        mistake = Diagnostic(refused.code, refused.message, refused.span, file, refused.hint)
        raise ProgramErrors([mistake], text) from None
    mistakes = [mistake for rule in rules for mistake in _oversized(rule, file)]
    if mistakes:
        raise ProgramErrors(mistakes, text)
    return Program(rules, text, file)


@cache
def _grammar() -> TableParser:
    source = files("tidemill.datalog").joinpath("grammar.lark").read_text(encoding="utf-8")
    grammar = Lark(source, parser="lalr", lexer="basic", transformer=_Construction())
    return TableParser(grammar)


def _oversized(rule: Rule, file: str) -> Iterator[Diagnostic]:
    """Whole numbers that 64 bits cannot hold, and expressions too deep to walk."""
    for outer in rule.expressions:
        if isinstance(outer, Variable):
            continue
        inside: list[tuple[Expression, int]] = [(outer, 1)]
        while inside:
            part, depth = inside.pop()
            if isinstance(part, Literal):
                yield from _beyond_range(part, file)
            elif depth > DEPTH_MAX:
                yield Diagnostic(
                    "E009", f"this expression nests deeper than {DEPTH_MAX} levels", outer.span, file,
                    "split it over several rules",
                )  # fmt: skip
                break
            inside.extend((child, depth + 1) for child in children(part))


def _beyond_range(literal: Literal, file: str) -> Iterator[Diagnostic]:
    value = literal.value
    if type(value) is int and not -INT_MAX - 1 <= value <= INT_MAX:
        yield Diagnostic(
            "E009", "a whole number has at most 64 bits", literal.span, file,
            "write a float: with a point, as in 1.0",
        )  # fmt: skip
    elif type(value) is float and math.isinf(value):
        yield Diagnostic("E009", "this float is beyond the finite ones", literal.span, file)


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPED = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HALF = re.compile("[\ud800-\udfff]")


def unescaped(body: str, span: Span) -> str:
    """Text of the characters between two quotes, in normal form C. Raises: Mistake."""
    if "\\" not in body:
        return _normal(body, span)

    def replaced(match: re.Match[str]) -> str:
        escape = match.group(1)
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        if escape not in _ESCAPED:
            raise Mistake(
                "E010",
                f"the escape \\{escape} is not known",
                span,
                'known are \\" \\\\ \\n \\t \\uXXXX',
            )
        return _ESCAPED[escape]

    whole = _PAIR.sub(
        lambda pair: pair.group().encode("utf-16", "surrogatepass").decode("utf-16"),
        _ESCAPE.sub(replaced, body),
    )
    if _HALF.search(whole):
        raise Mistake(
            "E010", "half of a surrogate pair is no character", span, "write the character itself"
        )
    return _normal(whole, span)


def _normal(text: str, span: Span) -> str:
    """The text in normal form C. Raises: Mistake."""
    try:
        return normal(text)
    except UsageError:
        raise Mistake(
            "E010",
            f"a text has at most {MARKS_MAX} combining marks in a row",
            span,
            "take away all but the first of them",
        ) from None


_FORMS: Mapping[str, str] = {
    "timestamp": 'write one such as timestamp("2026-03-01T12:00:00Z")',
    "date": 'write one such as date("2026-03-01")',
    "duration": "write days, hours, minutes, seconds, ms and us in this order, as in 1h30m or 250ms",
    "decimal": 'write one such as decimal("12.50"): 20 digits before the point, 18 behind it',
    "uuid": 'write one such as uuid("6f9619ff-8b86-d011-b42d-00c04fc964ff")',
    "bytes": 'write two hexadecimal digits for each byte: bytes("00ff")',
    "json": 'write the text of one value: json("{\\"a\\": [1, 2]}")',
}


def _typed(kind: str, written: str, span: Span) -> Literal:
    """A literal of a type, by its text. Raises: Mistake."""
    found = READ[kind](written)
    if found is None:
        raise Mistake("E015", f"this text is no {kind}", span, _FORMS[kind])
    return Literal(found, span)


def _between(first: Span, last: Span) -> Span:
    return tuple.__new__(Span, first[:2] + last[2:])  # in a third of the time of Span(…)


class _Construction:
    """Makes the syntax tree while the parser reduces: one method for each name of the grammar."""

    def start(self, rules: list[Any]) -> tuple[Rule, ...]:
        return tuple(Rule(number, *pieces) for number, pieces in enumerate(rules, 1))

    def rule(self, pieces: list[Any]) -> tuple[Any, ...]:
        head, formula, definitions, end = pieces
        atoms, guards = formula or ((), ())
        span = _between(head.span, end[1])
        return head, atoms, guards, definitions or (), formula is not None, span

    def head(self, pieces: list[Any]) -> Head:
        application, *marks = pieces
        moves = [mark for mark in marks if isinstance(mark, NextTick | AsyncTo)]
        if len(moves) > 1:
            hint = "write one of @next and @async(n)"
            raise Mistake("E004", "a head moves once", moves[1].span, hint)
        return Head(
            application,
            tuple(mark for mark in marks if isinstance(mark, Application)),
            tuple(mark for mark in marks if isinstance(mark, Suppression)),
            moves[-1] if moves else None,
            _between(application.span, pieces[-1].span),
        )

    def parafact(self, pieces: list[Any]) -> Application:
        (application,) = pieces
        return application  # type: ignore[no-any-return]  # what `target` made

    def suppression(self, pieces: list[Any]) -> Suppression:
        (name,) = pieces
        return Suppression(name[0], name[1])

    def next_tick(self, pieces: list[Any]) -> NextTick:
        return NextTick(pieces[0][1])

    def async_to(self, pieces: list[Any]) -> AsyncTo:
        word, node, end = pieces
        return AsyncTo(node, _between(word[1], end[1]))

    def formula(self, pieces: list[Any]) -> tuple[tuple[Atom, ...], tuple[Expression, ...]]:
        *atoms, guards = pieces
        return tuple(atoms), guards or ()

    def guard(self, conditions: list[Any]) -> tuple[Expression, ...]:
        return tuple(conditions)

    def positive(self, pieces: list[Any]) -> Atom:
        return self._atom(pieces, negated=False, first=pieces[0].span)

    def negated(self, pieces: list[Any]) -> Atom:
        return self._atom(pieces[1:], negated=True, first=pieces[0][1])

    def _atom(self, pieces: list[Any], *, negated: bool, first: Span) -> Atom:
        application, *marks = pieces
        return Atom(
            application,
            tuple(mark for mark in marks if isinstance(mark, Application)),
            tuple(mark for mark in marks if isinstance(mark, Suppression)),
            negated,
            _between(first, pieces[-1].span),
        )

    def definitions(self, pieces: list[Any]) -> tuple[Definition, ...]:
        return tuple(pieces)

    def definition(self, pieces: list[Any]) -> Definition:
        name, value = pieces
        return Definition(name[0], value, _between(name[1], value.span), name[1])

    def application(self, pieces: list[Any]) -> Application:
        name, at = pieces[0]
        return Application(name, tuple(pieces[2:-1]), _between(at, pieces[-1][1]), at)

    def positional(self, pieces: list[Any]) -> Argument:
        (value,) = pieces
        return Argument(value, value.span)

    def by_name(self, pieces: list[Any]) -> Argument:
        name, value = pieces
        return Argument(value, _between(name[1], value.span), name[0])

    def parenthesised(self, pieces: list[Any]) -> Any:
        """The expression inside; a composed one takes the parentheses into its place."""
        first, inside, last = pieces
        if isinstance(inside, Unary | Binary):
            return replace(inside, span=_between(first[1], last[1]))
        return inside

    def binary(self, pieces: list[Any]) -> Binary:
        left, sign, right = pieces
        return Binary(sign[0], left, right, _between(left.span, right.span), sign[1])

    def negative(self, pieces: list[Any]) -> Expression:
        """A sign before a number belongs to the number."""
        sign, operand = pieces
        span = _between(sign[1], operand.span)
        if isinstance(operand, Literal) and type(operand.value) in (int, float, timedelta):
            return Literal(-operand.value, span)  # type: ignore[operator]  # a number, as just tested
        return Unary("-", operand, span)

    def call(self, pieces: list[Any]) -> Call | Literal:
        """A type before a text is a literal of the type."""
        name, _, *arguments, end = pieces
        at = name[1]
        span = _between(at, end[1])
        if name[0] in READ and len(arguments) == 1 and isinstance(arguments[0], Literal):
            written = arguments[0].value
            if isinstance(written, str):
                return _typed(name[0], written, span)
        return Call(name[0], tuple(arguments), span, at)

    def variable(self, pieces: list[Any]) -> Variable:
        return Variable(*pieces[0])

    def wildcard(self, pieces: list[Any]) -> Wildcard:
        return Wildcard(pieces[0][1])

    def whole(self, pieces: list[Any]) -> Literal:
        digits = pieces[0][0].lstrip("0")
        value = int(digits or "0") if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX
        return Literal(value, pieces[0][1])

    def fraction(self, pieces: list[Any]) -> Literal:
        return Literal(float(pieces[0][0]), pieces[0][1])

    def span(self, pieces: list[Any]) -> Literal:
        return _typed("duration", pieces[0][0], pieces[0][1])

    def text(self, pieces: list[Any]) -> Literal:
        span = pieces[0][1]
        return Literal(unescaped(pieces[0][0][1:-1], span), span)

    def true(self, pieces: list[Any]) -> Literal:
        return Literal(True, pieces[0][1])

    def false(self, pieces: list[Any]) -> Literal:
        return Literal(False, pieces[0][1])

    def null(self, pieces: list[Any]) -> Literal:
        return Literal(None, pieces[0][1])
