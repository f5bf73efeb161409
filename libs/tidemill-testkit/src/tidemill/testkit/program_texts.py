"""Programs as canonical text, and whether two texts have the same rules."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from tidemill.datalog.ast import Program, Span
from tidemill.datalog.formatter import format_rule


def format_program(program: Program) -> str:
    """One rule after the other, on one line if it fits; unless empty, with a line break last."""
    return "".join(format_rule(rule) + "\n" for rule in program.rules)


def same_rules(one: Program, other: Program) -> bool:
    """Whether two programs are the same rules in the same order, wherever their pieces stand."""
    return _placeless(one.rules) == _placeless(other.rules)


def _placeless(piece: object) -> object:
    """A piece of a tree as nested tuples without places; numbers keep their type."""
    if isinstance(piece, tuple):
        return tuple(map(_placeless, piece))
    if is_dataclass(piece):
        values = (getattr(piece, field.name) for field in fields(piece))
        kept = (_placeless(value) for value in values if not isinstance(value, Span))
        return (type(piece).__name__, *kept)
    return (type(piece).__name__, piece)
