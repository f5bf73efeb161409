"""A program laid out canonically with its comments where they were.

A rule with a comment inside it stays as its author wrote it; all others are printed by the
formatter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.datalog.formatter import format_rule
from tidemill.datalog.parser import parse

_COMMENT = r"//[^\n]*|/\*.*?\*/"
_PIECE = re.compile(rf'{_COMMENT}|"(?:\\.|[^"\\]++)*+"?|;|\s+|[^\s;"/]+|/', re.DOTALL)
_GAP = re.compile(rf"{_COMMENT}|\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The text of one rule up to its `;`, and what stands before it; the last has no rule."""

    before: str
    rule: str
    commented: bool


def format_text(text: str, file: str = "<program>") -> str:
    """The same rules in canonical text, with every comment; formatting it again changes nothing.

    At most one empty line stays between two rules. Raises: ProgramErrors for text that is no
    program.
    """
    rules = parse(text, file).rules
    lines: list[str] = []
    for stretch, rule in zip(_stretches(text), [*rules, None], strict=True):
        _take_gap(stretch.before, lines)
        if rule is not None:
            lines += _kept(stretch.rule) if stretch.commented else format_rule(rule).split("\n")
    while lines and not lines[-1]:
        lines.pop()
    return "".join(line + "\n" for line in lines)


def _stretches(text: str) -> Iterator[_Stretch]:
    """The rules of a text that parses, and the rest at its end."""
    before = rule = ""
    commented = False
    for found in _PIECE.finditer(text.replace("\r\n", "\n")):
        piece = found[0]
        comment = piece.startswith(("//", "/*"))
        if not rule and (comment or piece.isspace()):
            before += piece
            continue
        rule += piece
        commented = commented or comment
        if piece == ";":
            yield _Stretch(before, rule, commented)
            before, rule, commented = "", "", False
    yield _Stretch(before, "", False)


def _take_gap(gap: str, lines: list[str]) -> None:
    """Add the comments between two rules; one on the line where a rule ended stays on it."""
    ends = 0 if lines else 1
    for found in _GAP.finditer(gap):
        if found[0] == "\n":
            ends += 1
            continue
        comment = [line.rstrip() for line in found[0].split("\n")]
        if ends == 0:
            lines[-1] += "  " + comment[0]
            lines += comment[1:]
        else:
            _separate(ends, lines)
            lines += comment
        ends = 0
    _separate(ends, lines)


def _separate(ends: int, lines: list[str]) -> None:
    if ends > 1 and lines and lines[-1]:
        lines.append("")


def _kept(rule: str) -> list[str]:
    """A rule as it was written, without white space at the ends of its lines."""
    return [line.rstrip() for line in rule.split("\n")]
