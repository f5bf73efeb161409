"""Diagnostics of a program: the place, the mistake, and the correction."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.datalog.ast import Span
from tidemill.errors import UsageError

SHOWN_MAX = 240
"""Characters of a line that a mistake shows: its width is found character by character."""

CUT = "…"
"""Stands for the part of a line that is not shown."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake, or with a code W… one warning, as docs/reference/grammar.md lists them.

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
        """The mistake as a person reads it: place, line, underline, what to write.

        Of a long line the `SHOWN_MAX` characters around the place are shown.
        """
        return self.render_in(text.split("\n"))

    def render_in(self, lines: Sequence[str]) -> str:
        """The mistake in a text of these lines."""
        whole = lines[self.line - 1].rstrip("\r") if self.line <= len(lines) else ""
        one_line = self.span.end_line == self.line
        end = self.span.end_column if one_line else len(whole) + 1
        first = max(0, min(self.column - 1 - SHOWN_MAX // 2, len(whole) - SHOWN_MAX))
        head, tail = CUT if first else "", CUT if first + SHOWN_MAX < len(whole) else ""
        shown = f"{head}{whole[first : first + SHOWN_MAX]}{tail}"
        before = head + whole[first : self.column - 1]
        marked = whole[self.column - 1 : min(end - 1, first + SHOWN_MAX)]
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
    """The program cannot be loaded; `diagnostics` are all mistakes, the first one first."""

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
        lines = self.text.split("\n")
        return "\n".join(diagnostic.render_in(lines) for diagnostic in self.diagnostics)
