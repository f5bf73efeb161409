"""The canonical text of a program. Comments and the author's line breaks are not kept.

The text parses to the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.datalog.ast import (
    Application,
    AsyncTo,
    Atom,
    Binary,
    Call,
    Definition,
    Expression,
    Head,
    Literal,
    NextTick,
    Rule,
    Suppression,
    Unary,
    Variable,
)
from tidemill.datalog.records import format_value

WIDTH = 100
_STRENGTH = {
    "||": 1, "&&": 2,
    "<": 3, "<=": 3, ">": 3, ">=": 3, "==": 3, "!=": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip
_COMPARISON, _SIGN, _OPERAND = 3, 6, 7


def format_rule(rule: Rule) -> str:
    """One rule with its `;`.

    A rule too long for a line has its atoms, guards and definitions on their own.
    """
    head = _head(rule.head)
    atoms = list(map(_atom, rule.atoms))
    guards = list(map(format_expression, rule.guards))
    definitions = list(map(_definition, rule.definitions))
    parts = [head]
    if rule.has_formula:
        parts += [":=", " ^ ".join(atoms)]
    if guards:
        parts += ["if", " ^ ".join(guards)]
    if definitions:
        parts += ["where", ", ".join(definitions)]
    line = " ".join(parts) + ";"
    if len(line) <= WIDTH:
        return line
    lines = [head + (" :=" if rule.has_formula else "")]
    lines += _stacked("", atoms, " ^")
    lines += _stacked("if ", guards, " ^")
    lines += _stacked("where ", definitions, ",")
    return "\n".join(lines) + ";"


def _stacked(word: str, parts: list[str], joint: str) -> list[str]:
    """The parts on one indented line if they fit, else one below the other."""
    if not parts:
        return []
    together = "  " + word + f"{joint} ".join(parts)
    if len(together) < WIDTH:
        return [together]
    indent = "  " + " " * len(word)
    starts = ["  " + word, *[indent] * (len(parts) - 1)]
    ends = [*[joint] * (len(parts) - 1), ""]
    return [start + part + end for start, part, end in zip(starts, parts, ends, strict=True)]


def _head(head: Head) -> str:
    marks = _marks(head.parafacts, head.suppressed)
    match head.temporal:
        case NextTick():
            marks.append("@next")
        case AsyncTo(node=node):
            marks.append(f"@async({format_expression(node)})")
        case None:
            pass
    return " ".join([_application(head.application), *marks])


def _atom(atom: Atom) -> str:
    parts = [_application(atom.application), *_marks(atom.parafacts, atom.suppressed)]
    return " ".join(["not", *parts] if atom.negated else parts)


def _marks(parafacts: Iterable[Application], suppressed: Iterable[Suppression]) -> list[str]:
    marks = [f"@{_application(parafact)}" for parafact in parafacts]
    return marks + [f"~{suppression.lattice}" for suppression in suppressed]


def _application(application: Application) -> str:
    written = [
        format_expression(argument.value)
        if argument.name is None
        else f"{argument.name}: {format_expression(argument.value)}"
        for argument in application.arguments
    ]
    return f"{application.name}({', '.join(written)})"


def _definition(definition: Definition) -> str:
    return f"{definition.name} = {format_expression(definition.value)}"


def format_expression(expression: Expression) -> str:
    """The expression with no more parentheses than it needs."""
    match expression:
        case Literal(value=float(value)):
            return _float(value)
        case Literal(value=value):
            return format_value(value)
        case Variable(name=name):
            return name
        case Unary(operator=operator, operand=operand):
            return operator + _inside(operand, _SIGN)
        case Binary(operator=operator):
            strength = _STRENGTH[operator]
            left = _inside(expression.left, strength + (strength == _COMPARISON))
            return f"{left} {operator} {_inside(expression.right, strength + 1)}"
        case Call(name=name, arguments=arguments):
            return f"{name}({', '.join(map(format_expression, arguments))})"
        case _:
            return "_"


def _inside(expression: Expression, strength: int) -> str:
    """The expression as an operand, in parentheses if it binds weaker than `strength`."""
    match expression:
        case Binary(operator=operator):
            own = _STRENGTH[operator]
        case Unary():
            own = _SIGN
        case _:
            own = _OPERAND
    written = format_expression(expression)
    return written if own >= strength else f"({written})"


def _float(value: float) -> str:
    """A float as programs write it: always with a point."""
    written = format_value(value)
    mantissa, mark, exponent = written.partition("e")
    return written if "." in mantissa else f"{mantissa}.0{mark}{exponent}"
