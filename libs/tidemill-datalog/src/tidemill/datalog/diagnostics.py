"""What is wrong with a program: where, what, and what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.datalog.ast import Span
from tidemill.time import UsageError


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake, or with a code W… one warning.

    `cycle` are the predicates on the cycle that the mistake is about, in order; `edges` say for each of
    its edges where it is written.
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
        return self.span.line

    @property
    def column(self) -> int:
        return self.span.column

    def render(self, text: str) -> str:
        """The mistake as a person reads it: place, line, underline, what to write."""
        lines = text.split("\n")
        shown = lines[self.line - 1] if self.line <= len(lines) else ""
        width = (
            self.span.end_column - self.column if self.span.end_line == self.line else len(shown)
        )
        gutter = str(self.line)
        blank = " " * len(gutter)
        parts = [
            f"{self.file}:{self.line}:{self.column}: {self.code} {self.message}",
            f" {gutter} | {shown}",
            f" {blank} | {' ' * (self.column - 1)}{'^' * max(1, width)}",
        ]
        parts += [f" {blank} | {edge}" for edge in self.edges]
        if self.hint:
            parts.append(f" {blank} = {self.hint}")
        return "\n".join(parts)


class ProgramErrors(UsageError):
    """The program cannot be loaded; `diagnostics` holds every mistake found, the first one first."""

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


def at_point(line: int, column: int, width: int = 1) -> Span:
    """A place of `width` characters on one line."""
    return Span(line, column, line, column + width)
