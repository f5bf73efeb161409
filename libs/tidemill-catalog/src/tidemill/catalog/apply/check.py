"""Findings about files, made without a server: about resources, programs of views and programs
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidemill.catalog.apply.documents import doubled, told_twice
from tidemill.catalog.apply.plan import plan_reader
from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import located
from tidemill.catalog.plugins import vocabulary_of
from tidemill.catalog.store import Stored
from tidemill.datalog.ast import Program, Rule
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.diagnostics import Diagnostic, ProgramErrors
from tidemill.datalog.inputs import InputKind, InputSchemas
from tidemill.datalog.layout import format_text
from tidemill.datalog.lint import warn_about_goal, warn_about_unused
from tidemill.datalog.parser import parse
from tidemill.datalog.vocabulary import NOTHING, Named
from tidemill.errors import UsageError
from tidemill.runtime.documents import laid_out
from tidemill.runtime.problems import Position, Problem
from tidemill.runtime.resources import (
    ActionSpec,
    ArrangementSpec,
    HoldSpec,
    Resource,
    SourceSpec,
    TableSpec,
    ViewSpec,
    load_resources,
)

RESOURCE_ENDINGS = (".yaml", ".yml")
CASE_ENDING = ".test.yaml"
"""Ending of cases of `tidemill test`, which lie beside the resources that they are about."""
PROGRAM = ("spec", "program")


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake, or one warning, in a file; lines and columns count from 1, 0 if nobody knows.

    `shown` is the whole as a person reads it, with the line and the place underlined where there
    are any.
    """

    position: Position
    code: str
    message: str
    shown: str
    hint: str = ""
    end: tuple[int, int] | None = None

    @property
    def warning(self) -> bool:
        """Whether the file may be applied nevertheless."""
        return self.code.startswith("W")

    def to_json(self) -> dict[str, object]:
        """The finding for an editor."""
        end_line, end_column = self.end or (self.position.line, self.position.column)
        return {
            "file": self.position.file, "line": self.position.line, "column": self.position.column,
            "endLine": end_line, "endColumn": end_column, "code": self.code,
            "severity": "warning" if self.warning else "error", "message": self.message,
            "hint": self.hint,
        }  # fmt: skip


def check_files(
    texts: Mapping[str, str], default_kind: InputKind = "relation", named: Named = NOTHING
) -> list[Finding]:
    """Everything wrong with these files, in their order. Resources see each other across files.

    A program alone may read anything: what it does not derive is an input of `default_kind`. It may
    name what is `named`. Raises: UsageError if that is not installed.
    """
    findings: list[Finding] = []
    resources: list[Resource] = []
    for file, text in texts.items():
        if file.endswith(RESOURCE_ENDINGS):
            try:
                resources += load_resources(text, file)
            except UsageError as error:
                findings += _of_problems(error)
        else:
            findings += check_program(text, file, default_kind, named)
    findings += _twice(resources)
    findings += _ResourceCheck().check(resources)
    order = {file: number for number, file in enumerate(texts)}
    return sorted(
        findings,
        key=lambda f: (order.get(f.position.file, 0), f.position.line, f.position.column),
    )


def _twice(resources: Sequence[Resource]) -> Iterator[Finding]:
    """Resources whose names are taken; of two of one kind in one file its loading says so."""
    for resource, earlier in doubled(resources):
        place = resource.place("metadata", "name")
        says = told_twice(resource, earlier)
        yield Finding(place, "resource", says, f"{place}: {says}")


def check_program(
    text: str, file: str, default_kind: InputKind = "relation", named: Named = NOTHING
) -> list[Finding]:
    """Findings about one program whose inputs are not described.

    An input without a description has rows of any width; `default_kind` says whether they are
    events.
    """
    vocabulary = vocabulary_of(named)
    try:
        inputs = InputSchemas(closed=False, default_kind=default_kind)
        checked = check(parse(text, file), inputs, vocabulary)
    except ProgramErrors as error:
        return _of_program(error.diagnostics, error.text)
    return _of_program(checked.warnings, text)


def checked_programs(
    texts: Mapping[str, str],
) -> Iterator[tuple[Program, CheckedProgram | None, Resource | None]]:
    """Each program of some files that can be read, with the places of its file.

    Beside it what the checker makes of it, None where it has mistakes, and the view that it is of.
    Cost: that of `check_files`.
    """
    resources: list[Resource] = []
    for file, text in texts.items():
        if file.endswith(RESOURCE_ENDINGS):
            with suppress(UsageError):
                resources += load_resources(text, file)
            continue
        with suppress(ProgramErrors):
            program = parse(text, file)
            yield program, _checked(program), None
    planned = _ResourceCheck()
    planned.check(resources)
    for resource in resources:
        spec, begin = resource.spec, resource.blocks.get(PROGRAM)
        if isinstance(spec, ViewSpec) and begin is not None:
            with suppress(ProgramErrors):
                yield (
                    parse(laid_out(spec.program, begin), begin.file),
                    planned.program_of(resource.name),
                    resource,
                )


def _checked(program: Program) -> CheckedProgram | None:
    try:
        return check(program, InputSchemas(closed=False))
    except ProgramErrors:
        return None


class _ResourceCheck:
    """Plans resources without stores, as an apply would; a source may be known by name alone."""

    def __init__(self) -> None:
        self._catalog = Catalog()
        self._unknown: set[str] = set()
        self._findings: list[Finding] = []

    def check(self, resources: Sequence[Resource]) -> list[Finding]:
        """Findings about resources that are applied together; an empty list means that they fit."""
        readers: list[Stored] = []
        for resource in resources:
            spec, stored = resource.spec, Stored(resource, 0)
            if isinstance(spec, SourceSpec) and not spec.columns:
                self._unknown.add(resource.name)
            elif isinstance(spec, SourceSpec | TableSpec):
                self._catalog.plan(stored)
            elif isinstance(spec, ViewSpec | ActionSpec):
                readers.append(stored)
        self._check_readers(readers)
        for resource in resources:
            if isinstance(resource.spec, ArrangementSpec | HoldSpec):
                self._check_reader(resource, resource.spec)
        return self._findings

    def program_of(self, view: str) -> CheckedProgram | None:
        """The program of a view that was checked; None if it does not fit."""
        try:
            return self._catalog.planned(view).program
        except UsageError:
            return None

    def _check_readers(self, readers: list[Stored]) -> None:
        """Views and actions after what they read; those that never fit say why."""
        while readers:
            refused: list[tuple[Stored, list[Finding]]] = []
            for stored in readers:
                if self._reads_unknown(stored.resource):
                    self._forget(stored.resource)
                    continue
                if wrong := self._planned(stored):
                    refused.append((stored, wrong))
            if len(refused) == len(readers):
                for stored, wrong in refused:
                    self._forget(stored.resource)
                    self._findings += wrong
                return
            readers = [stored for stored, _ in refused]

    def _forget(self, resource: Resource) -> None:
        """Note that nothing is known of a view, nor of what it derives."""
        self._unknown |= {resource.name, *(rule.head.application.name for rule in _rules(resource))}

    def _planned(self, stored: Stored) -> list[Finding]:
        resource = stored.resource
        try:
            view = plan_reader(stored, self._catalog)
        except UsageError as error:
            return list(_of_refusal(error, resource.position))
        begin, spec = resource.blocks.get(PROGRAM), resource.spec
        if isinstance(spec, ActionSpec):
            self._warn_about_goal(resource, spec)
        if view is not None and begin is not None:
            assert isinstance(spec, ViewSpec)
            self._warn(laid_out(spec.program, begin), begin.file, resource.name, spec.outputs)
        return []

    def _warn(self, text: str, file: str, view: str, outputs: Sequence[str]) -> None:
        """Add warnings about rules of a view that are likely mistakes, at their places in the
        file.
        """
        inputs = InputSchemas(self._catalog.inputs_of(view))
        program = check(parse(text, file), inputs, self._catalog.planned(view).program.vocabulary)
        unused = warn_about_unused(program, outputs) if outputs else ()
        self._findings += _of_program([*program.warnings, *unused], text)

    def _warn_about_goal(self, resource: Resource, spec: ActionSpec) -> None:
        program = self._catalog.planned(spec.view).program
        place = resource.place("spec", "goal")
        for each in warn_about_goal(program, spec.goal.partition("(")[0].strip()):
            shown = f"{place}: {resource}: {each.code} {each.message}; {each.hint}"
            self._findings.append(Finding(place, each.code, each.message, shown, each.hint))

    def _check_reader(self, resource: Resource, spec: ArrangementSpec | HoldSpec) -> None:
        """Findings about a resource that names one collection: an arrangement or a hold."""
        if spec.collection.partition("/")[0] in self._unknown:
            return
        try:
            if isinstance(spec, ArrangementSpec):
                self._catalog.plan(Stored(resource, 0))
                return
            with located(resource, "spec", "collection"):
                self._catalog.named(spec.collection)
        except UsageError as error:
            self._findings += _of_refusal(error, resource.position)

    def _reads_unknown(self, resource: Resource) -> bool:
        """Whether it reads a source whose columns only its rows tell, or what rests on one."""
        spec = resource.spec
        if isinstance(spec, ActionSpec):
            return spec.view in self._unknown
        assert isinstance(spec, ViewSpec)
        rules = _rules(resource)
        derived = {rule.head.application.name for rule in rules}
        read = {atom.application.name for rule in rules for atom in rule.atoms} - derived
        named = {spec.inputs.get(predicate, predicate).partition("/")[0] for predicate in read}
        return bool(named & self._unknown)


def _rules(resource: Resource) -> Sequence[Rule]:
    """The rules of a view; none of one that cannot be read, nor of an action."""
    spec = resource.spec
    if not isinstance(spec, ViewSpec):
        return ()
    try:
        return parse(spec.program).rules
    except ProgramErrors:
        return ()


def _of_program(diagnostics: Sequence[Diagnostic], text: str) -> list[Finding]:
    return [
        Finding(
            Position(each.file, each.line, each.column), each.code, each.message,
            each.render(text), each.hint, (each.span.end_line, each.span.end_column),
        )
        for each in diagnostics
    ]  # fmt: skip


def _of_problems(error: UsageError) -> Iterator[Finding]:
    problems = error.details.get("problems", ())
    assert isinstance(problems, tuple)
    for problem in problems:
        assert isinstance(problem, Problem)
        field = f"{problem.field}: " if problem.field else ""
        yield Finding(
            problem.position, "resource", f"{field}{problem.says}", str(problem), problem.hint
        )


def _of_refusal(error: UsageError, position: Position) -> Iterator[Finding]:
    """The mistakes of a program that a resource holds, or the one of the resource."""
    program = error.details.get("program")
    if isinstance(program, ProgramErrors):
        yield from _of_program(program.diagnostics, program.text)
        return
    place = error.details.get("position")
    found = place if isinstance(place, Position) else position
    yield Finding(found, "resource", str(error).removeprefix(f"{found}: "), str(error))


def format_file(text: str, file: str) -> str:
    """The file with its programs in canonical layout. Raises: UsageError, ProgramErrors.

    In a file of resources only programs written as blocks (`|`) change, line by line.
    """
    if not file.endswith(RESOURCE_ENDINGS):
        return format_text(text, file)
    lines = text.split("\n")
    for resource in reversed(load_resources(text, file)):
        begin, spec = resource.blocks.get(PROGRAM), resource.spec
        if begin is None or not isinstance(spec, ViewSpec):
            continue
        try:
            formatted = format_text(spec.program, file)
        except ProgramErrors:
            parse(laid_out(spec.program, begin), file)  # refused once more, with places in the file
            raise
        margin = " " * (begin.column - 1)
        first = begin.line - 1
        last = first + len(spec.program.rstrip("\n").split("\n"))
        lines[first:last] = [
            margin + line if line else "" for line in formatted.rstrip("\n").split("\n")
        ]
    return "\n".join(lines)


def files_below(paths: Sequence[Path]) -> list[Path]:
    """Files as they are named; of folders all resources and programs in them.

    Raises: UsageError.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(
            p
            for p in path.rglob("*")
            if p.suffix in (*RESOURCE_ENDINGS, ".tidelog", ".tl")
            and not p.name.endswith(CASE_ENDING)
        )
        if not inside:
            raise UsageError(f"the folder {path} has no .yaml or .tidelog file", reason="file")
        found += inside
    return found
