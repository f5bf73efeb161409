"""Answers to an editor about texts of rules and resources: pure functions of what is open.

Lines and columns count from 1, in letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidemill.catalog.apply.check import (
    RESOURCE_ENDINGS,
    Finding,
    check_files,
    checked_programs,
)
from tidemill.datalog import ast
from tidemill.datalog.ast import Application, Program, Span
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.vocabulary import STANDARD, Vocabulary
from tidemill.errors import UsageError
from tidemill.runtime.problems import Position
from tidemill.runtime.resources import Resource, ViewSpec, load_resources


@dataclass(frozen=True, slots=True)
class Placed:
    """A program with the places of its file, and the view that it is of.

    `checked` is None where it has mistakes.
    """

    program: Program
    checked: CheckedProgram | None
    view: Resource | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A word of a program: `says` is about it in Markdown, `defined` are places of its rules."""

    span: Span
    says: str
    defined: tuple[Position, ...] = ()


def ours(file: str, text: str) -> bool:
    """Whether a file is a program, or has resources of Tidemill."""
    return not file.endswith(RESOURCE_ENDINGS) or "tidemill.dev/" in text


def findings_in(texts: Mapping[str, str]) -> dict[str, list[Finding]]:
    """Everything that is wrong with some files, by file; resources see each other.

    Cost: that of planning all of them.
    """
    found: dict[str, list[Finding]] = {file: [] for file in texts}
    for finding in check_files(texts):
        found.setdefault(finding.position.file, []).append(finding)
    return found


def known_at(texts: Mapping[str, str], file: str, line: int, column: int) -> Known | None:
    """The word at a place of a program; None where there is none, or it cannot be read."""
    placed = [each for each in _programs(texts) if each.program.file == file]
    for each in placed:
        for rule in each.program.rules:
            if (known := _in_rule(rule, each, texts, (line, column))) is not None:
                return known
    return None


def _programs(texts: Mapping[str, str]) -> list[Placed]:
    return [Placed(*found) for found in checked_programs(texts)]


def _in_rule(
    rule: ast.Rule, placed: Placed, texts: Mapping[str, str], at: tuple[int, int]
) -> Known | None:
    heads = [rule.head.application, *(atom.application for atom in rule.atoms)]
    lattices = [*rule.head.parafacts, *(each for atom in rule.atoms for each in atom.parafacts)]
    for application in heads:
        if _covers(application.name_span, at):
            says = _about_predicate(application.name, placed)
            defined = tuple(_rules_of(application.name, placed, texts))
            return Known(application.name_span, says, defined)
    vocabulary = STANDARD if placed.checked is None else placed.checked.vocabulary
    for application in lattices:
        if _covers(application.name_span, at):
            return Known(application.name_span, _about_lattice(application.name, vocabulary))
    for expression in _expressions(rule, [*heads, *lattices]):
        for part in ast.walk(expression):
            if isinstance(part, ast.Call) and _covers(part.name_span, at):
                function = vocabulary.functions.get(part.name)
                meaning = "" if function is None else f"\n\n{function.evaluate.__doc__ or ''}"
                return Known(part.name_span, f"function `{part.name}`{meaning}")
            if isinstance(part, ast.Variable) and _covers(part.span, at):
                return Known(part.span, _about_variable(part.name, rule, placed))
    return None


def _expressions(rule: ast.Rule, applications: list[Application]) -> Iterator[ast.Expression]:
    for application in applications:
        yield from (argument.value for argument in application.arguments)
    yield from rule.guards
    yield from (each.value for each in rule.definitions)


def _about_predicate(name: str, placed: Placed) -> str:
    checked = placed.checked
    if checked is None:
        return f"`{name}`"
    columns = ", ".join(f"{column}: {kind}" for column, kind in checked.columns.get(name, ()))
    if name not in checked.strata:
        return f"`{name}`"
    lattices = " ".join(f"@{lattice}" for lattice in checked.lattices_of(name))
    what = f"`{name}({columns})`" + (f" {lattices}" if lattices else "")
    if name not in checked.derived:
        schema = checked.inputs.get(name)
        return f"{what}\n\ninput" + ("" if schema is None else f" of {schema.kind}s".rstrip("s"))
    recursive = ", recursive" if name in checked.recursive else ""
    return f"{what}\n\nderived in stratum {checked.strata[name]}{recursive}"


def _about_lattice(name: str, vocabulary: Vocabulary) -> str:
    lattice = vocabulary.lattices.get(name)
    return f"`@{name}`" + ("" if lattice is None else f"\n\n{lattice.meaning}")


def _about_variable(name: str, rule: ast.Rule, placed: Placed) -> str:
    types = {} if placed.checked is None else placed.checked.variable_types.get(rule.number, {})
    return f"`{name}: {types[name]}`" if name in types else f"`{name}`"


def _rules_of(name: str, placed: Placed, texts: Mapping[str, str]) -> Iterator[Position]:
    """Places of the rules that derive a predicate, or of the resource that an input reads."""
    own = [rule.head.application for rule in placed.program.rules]
    found = [each.name_span for each in own if each.name == name]
    if found:
        yield from (Position(placed.program.file, span.line, span.column) for span in found)
        return
    if placed.view is None or not isinstance(placed.view.spec, ViewSpec):
        return
    collection = placed.view.spec.inputs.get(name, name)
    resource, _, output = collection.partition("/")
    for other in _programs(texts) if output else []:
        if other.view is not None and other.view.name == resource:
            for rule in other.program.rules:
                head = rule.head.application
                if head.name == output:
                    yield Position(other.program.file, head.name_span.line, head.name_span.column)
            return
    for file, text in texts.items():
        if file.endswith(RESOURCE_ENDINGS):
            try:
                resources = load_resources(text, file)
            except UsageError:
                continue
            for each in resources:
                if each.name == resource and each.kind in ("Source", "Table"):
                    yield each.place("metadata", "name")


def _covers(span: Span, at: tuple[int, int]) -> bool:
    return (span.line, span.column) <= at <= (span.end_line, span.end_column)
