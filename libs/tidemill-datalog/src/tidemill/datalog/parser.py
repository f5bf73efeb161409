"""From text to the syntax tree. Mistakes are found by the parser's tables and named in syntax_errors.py."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

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
)
from tidemill.datalog.diagnostics import Diagnostic, ProgramErrors
from tidemill.datalog.syntax_errors import explain_unexpected

INT_MAX = (1 << 63) - 1


def parse(text: str, file: str = "<program>") -> Program:
    """The rules of `text`, every piece with its place.

    Raises: ProgramErrors with the first mistake, a code E… of the language. Cost: O(length).
    """
    try:
        tree = _grammar().parse(text)
    except (UnexpectedToken, UnexpectedCharacters) as error:
        raise ProgramErrors([explain_unexpected(_grammar(), text, file, error)], text) from None
    except UnexpectedInput as error:
        raise ProgramErrors([explain_unexpected(_grammar(), text, file, error)], text) from None
    return _Builder(text, file).program(tree)


@cache
def _grammar() -> Lark:
    source = files("tidemill.datalog").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(source, parser="lalr", propagate_positions=True, maybe_placeholders=True)


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPED = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def _span(tree: Tree[Any] | Token) -> Span:
    place = tree.meta if isinstance(tree, Tree) else tree
    return Span(place.line or 1, place.column or 1, place.end_line or 1, place.end_column or 1)


def _between(first: Span, last: Span) -> Span:
    return Span(first.line, first.column, last.end_line, last.end_column)


class _Builder:
    """Turns lark's trees into ours and refuses what the grammar takes too much."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file

    def program(self, tree: Tree[Any]) -> Program:
        rules = tuple(self._rule(number, child) for number, child in enumerate(tree.children, 1))
        return Program(rules, self._text, self._file)

    def _refuse(self, code: str, message: str, span: Span, hint: str) -> NoReturn:
        raise ProgramErrors([Diagnostic(code, message, span, self._file, hint)], self._text)

    def _rule(self, number: int, tree: Tree[Any]) -> Rule:
        head_tree, formula, where = tree.children
        head = self._head(head_tree)
        atoms: list[Atom] = []
        guards: list[Expression] = []
        if formula is not None:
            for child in formula.children:
                if child is None:
                    continue
                if child.data == "atom":
                    atoms.append(self._atom(child))
                else:
                    guards.extend(self.expression(part) for part in child.children)
        definitions = () if where is None else tuple(map(self._definition, where.children))
        return Rule(
            number, head, tuple(atoms), tuple(guards), definitions, formula is not None, _span(tree)
        )

    def _head(self, tree: Tree[Any]) -> Head:
        application = self._application_of(tree.children[0])
        parafacts: list[Application] = []
        suppressed: list[Suppression] = []
        temporal: NextTick | AsyncTo | None = None
        for mark in tree.children[1:]:
            if mark.data == "parafact":
                parafacts.append(self._parafact(mark))
            elif mark.data == "suppress":
                suppressed.append(self._suppression(mark))
            elif mark.data == "next_tick":
                temporal = NextTick(_span(mark))
            else:
                temporal = AsyncTo(self.expression(mark.children[1]), _span(mark))
        return Head(application, tuple(parafacts), tuple(suppressed), temporal, _span(tree))

    def _atom(self, tree: Tree[Any]) -> Atom:
        negation, pattern, *marks = tree.children
        parafacts = tuple(self._parafact(mark) for mark in marks if mark.data == "parafact")
        suppressed = tuple(self._suppression(mark) for mark in marks if mark.data == "suppress")
        return Atom(
            self._application_of(pattern), parafacts, suppressed, negation is not None, _span(tree)
        )

    def _suppression(self, tree: Tree[Any]) -> Suppression:
        token = tree.children[0]
        return Suppression(str(token), _span(token))

    def _application_of(self, pattern: Tree[Any]) -> Application:
        """The application that stands as an atom or a head; anything else is refused."""
        inner = _unwrapped(pattern.children[0])
        if inner.data == "application":
            return self._application(inner)
        span = _span(inner)
        if inner.data in ("binary", "negative"):
            self._refuse(
                "E012", "an infix application is no atom", span,
                "put the condition into the guard: … if " + self._written(span),
            )  # fmt: skip
        return self._refuse(
            "E006", "an atom is a name with arguments", span, f"write {self._written(span)}(…)"
        )

    def _parafact(self, mark: Tree[Any]) -> Application:
        inner = _unwrapped(mark.children[0].children[0])
        if inner.data == "application":
            return self._application(inner)
        span = _span(inner)
        written = self._written(span)
        if inner.data in ("binary", "negative"):
            self._refuse(
                "E012", "an infix application is no parafact", span,
                "match the value with a variable and compare it in the guard: @time(t) … if t > …",
            )  # fmt: skip
        return self._refuse(
            "E004", "`@` needs a lattice with its value in parentheses", span,
            f"write @time({written})",
        )  # fmt: skip

    def _application(self, tree: Tree[Any]) -> Application:
        name, arguments = tree.children
        given = () if arguments is None else tuple(map(self._argument, arguments.children))
        return Application(str(name), given, _span(tree), _span(name))

    def _argument(self, tree: Tree[Any]) -> Argument:
        if tree.data == "by_name":
            name, value = tree.children
            return Argument(self.expression(value), _span(tree), str(name))
        return Argument(self.expression(tree.children[0]), _span(tree))

    def _definition(self, tree: Tree[Any]) -> Definition:
        name, value = tree.children
        return Definition(str(name), self.expression(value), _span(tree), _span(name))

    def expression(self, tree: Tree[Any]) -> Expression:
        """An expression of the language; depth is bounded only by the text."""
        span = _span(tree)
        match tree.data:
            case "binary":
                left, operator, right = tree.children
                return Binary(
                    str(operator), self.expression(left), self.expression(right), span,
                    _span(operator),
                )  # fmt: skip
            case "negative":
                return self._negative(self.expression(tree.children[1]), span)
            case "parenthesised":
                return self.expression(tree.children[0])
            case "name":
                return Variable(str(tree.children[0]), span)
            case "wildcard":
                return Wildcard(span)
            case "application":
                return self._call(tree, span)
            case _:
                return self._literal(tree, span)

    def _negative(self, operand: Expression, span: Span) -> Expression:
        if isinstance(operand, Literal) and type(operand.value) in (int, float):
            return Literal(-operand.value, span)  # type: ignore[operator]  # a number, as just tested
        return Unary("-", operand, span)

    def _call(self, tree: Tree[Any], span: Span) -> Call:
        application = self._application(tree)
        for argument in application.arguments:
            if argument.name is not None:
                self._refuse(
                    "E009", "a function takes its arguments by position", argument.span,
                    f"write {application.name}(…) without column names",
                )  # fmt: skip
        values = tuple(argument.value for argument in application.arguments)
        return Call(application.name, values, span, application.name_span)

    def _literal(self, tree: Tree[Any], span: Span) -> Literal:
        written = str(tree.children[0])
        match tree.data:
            case "int":
                return Literal(self._whole(written, span), span)
            case "float":
                return Literal(float(written), span)
            case "string":
                return Literal(self._string(written[1:-1], span), span)
            case "true":
                return Literal(True, span)
            case "false":
                return Literal(False, span)
            case _:
                return Literal(None, span)

    def _whole(self, written: str, span: Span) -> int:
        value = int(written)
        if value > INT_MAX + 1:
            self._refuse(
                "E009",
                "a whole number has at most 64 bits",
                span,
                "write a float: " + written + ".0",
            )
        return value

    def _string(self, body: str, span: Span) -> str:
        def replaced(match: re.Match[str]) -> str:
            escape = match.group(1)
            if len(escape) == 5:
                return chr(int(escape[1:], 16))
            if escape not in _ESCAPED:
                self._refuse(
                    "E010", f"the escape \\{escape} is not known", span,
                    'known are \\" \\\\ \\n \\t \\uXXXX',
                )  # fmt: skip
            return _ESCAPED[escape]

        return unicodedata.normalize("NFC", _ESCAPE.sub(replaced, body))

    def _written(self, span: Span) -> str:
        """The text of a place, shortened to its line."""
        line = self._text.split("\n")[span.line - 1]
        end = span.end_column - 1 if span.end_line == span.line else len(line)
        return line[span.column - 1 : end]


def _unwrapped(tree: Tree[Any]) -> Tree[Any]:
    """The tree inside any number of parentheses."""
    while tree.data == "parenthesised":
        tree = tree.children[0]
    return tree
