"""Diagnostics of a program: the place, the mistake, and the correction."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.datalog.ast import Span
from tidemill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake, or with a code W… one warning; `codes.py` says what each code means.

    `cycle` are the predicates on the cycle that the mistake is about, in order; `edges` say for
    each of its edges where it is written.
    """

    code: str
    message: str
    span: Span
    file: str = "<program>"
    hint: str = ""
    cycle: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()

    @property
    def warning(self) -> bool:
        """Whether the program may run nevertheless."""
        return self.code.startswith("W")

    @property
    def line(self) -> int:
        """Line of its beginning."""
        return self.span.line

    @property
    def column(self) -> int:
        """Column of its beginning."""
        return self.span.column

    def render(self, text: str) -> str:
        """The mistake as a person reads it: place, line, underline, what to write."""
        lines = text.split("\n")
        shown = lines[self.line - 1].rstrip("\r") if self.line <= len(lines) else ""
        one_line = self.span.end_line == self.line
        end = self.span.end_column if one_line else len(shown) + 1
        before, marked = shown[: self.column - 1], shown[self.column - 1 : end - 1]
        gutter = str(self.line)
        blank = " " * len(gutter)
        parts = [
            f"{self.file}:{self.line}:{self.column}: {self.code} {self.message}",
            f" {gutter} | {shown}",
            f" {blank} | {_blank(before)}{'^' * max(1, _width(marked))}",
        ]
        parts += [f" {blank} | {edge}" for edge in self.edges]
        if self.hint:
            parts.append(f" {blank} = {self.hint}")
        return "\n".join(parts)


def _width(text: str) -> int:
    """Columns of a terminal that the text takes."""
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    marks = sum(unicodedata.combining(sign) > 0 for sign in text)
    return len(text) + wide - marks


def _blank(text: str) -> str:
    """White space as wide as the text; its tabs stay tabs."""
    return "".join("\t" if sign == "\t" else " " * _width(sign) for sign in text)


class ProgramErrors(UsageError):
    """The program cannot be loaded; `diagnostics` holds every mistake found, the first one
    first.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic], text: str) -> None:
        first = diagnostics[0]
        super().__init__(
            f"{first.file}:{first.line}:{first.column}: {first.code} {first.message}",
            reason=first.code,
        )
        self.diagnostics = tuple(diagnostics)
        self.text = text

    def render(self) -> str:
        """All mistakes as a person reads them."""
        return "\n".join(diagnostic.render(self.text) for diagnostic in self.diagnostics)
