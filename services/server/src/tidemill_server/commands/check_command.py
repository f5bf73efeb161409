"""`tidemill check`, `fmt` and `eval`: files, without a server."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from tidemill.catalog.apply.check import check_files, files_below, format_file
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.datalog.vocabulary import Named
from tidemill.errors import Exhausted, UsageError
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.problems import no_text
from tidemill_server.commands.evaluating import MEMORY_MB, presences_of, upper_of, warnings_of

MARK = "\ufeff"
"""The mark of some editors before a text in UTF-8; it is no part of the program."""

_ALWAYS = ("[-inf,-) ", "failed: ")

Lattices = Annotated[
    list[str] | None,
    typer.Option("--lattice", help="A lattice of another distribution for programs alone: bits@1."),
]
Functions = Annotated[
    list[str] | None,
    typer.Option("--function", help="A function of another distribution, likewise: sqrt@1."),
]
Files = Annotated[
    list[Path],
    typer.Argument(
        help="Resources (.yaml), programs (any other ending), folders, or - for a program on standard input."
    ),
]


def check(
    files: Files,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for editors.")] = False,
    inputs: Annotated[
        Literal["relations", "events"],
        typer.Option(help="What the inputs of a program without resources are."),
    ] = "relations",
    lattice: Lattices = None,
    function: Functions = None,
) -> None:
    """Say what is wrong with resources and programs: the place, and what to write.

    Resources of all files see each other, as in one apply. Exit code 0 if nothing is wrong,
    warnings aside, else 1.
    """
    texts = _texts(files)
    named = Named(tuple(lattice or ()), tuple(function or ()))
    try:
        found = check_files(texts, "events" if inputs == "events" else "relation", named)
    except UsageError as error:
        _refuse(str(error))
    errors = sum(not finding.warning for finding in found)
    if as_json:
        typer.echo(json.dumps({"findings": [finding.to_json() for finding in found]}))
    else:
        for finding in found:
            typer.echo(finding.shown)
        counts = (len(texts), "file"), (errors, "mistake"), (len(found) - errors, "warning")
        files_named, *rest = (f"{n} {what}" if n == 1 else f"{n} {what}s" for n, what in counts)
        typer.echo(f"{files_named}: {', '.join(rest)}", err=True)
    raise typer.Exit(1 if errors else 0)


def fmt(
    files: Files,
    test: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if something would change.")
    ] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Change nothing; print what would change.")
    ] = False,
) -> None:
    """Lay programs out canonically, comments included, in place; - writes to standard output.

    In files of resources, the programs that are written as blocks (`program: |`) are laid out.
    """
    changed = 0
    for file, text in _texts(files).items():
        try:
            formatted = format_file(text, file)
        except ProgramErrors as error:
            _refuse(error.render())
        except UsageError as error:
            _refuse(str(error))
        if file == "-":
            typer.echo(formatted, nl=False)
            continue
        if formatted == text:
            continue
        changed += 1
        if diff:
            before, after = text.splitlines(True), formatted.splitlines(True)
            typer.echo("".join(difflib.unified_diff(before, after, file, file)), nl=False)
        elif test:
            typer.echo(f"{file} would change")
        else:
            Path(file).write_text(formatted, encoding="utf-8")
            typer.echo(f"{file} changed")
    raise typer.Exit(1 if changed and test else 0)


def evaluate(
    file: Annotated[Path, typer.Argument(help="A program, or - for standard input.")],
    predicates: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only these, or goals such as 'path(1, x)'; all that rules derive if left out."
        ),
    ] = None,
    upper: Annotated[
        int | None,
        typer.Option(
            help="Up to which instant, in milliseconds of the timeline; by default beyond all facts.",
            min=1,
            max=(1 << 63) - 1,
        ),
    ] = None,
    lattice: Lattices = None,
    function: Functions = None,
    memory_mb: Annotated[
        int, typer.Option(help="What the evaluation may hold, by its own count, in MiB.", min=1)
    ] = MEMORY_MB,
) -> None:
    """Evaluate a program from the facts that it states: what is present, and from when to when.

    A line says [from, to) and the record; - is an end that is not before --upper, -inf a fact that
    was always there. Warnings, and before which instant times are shown, go to standard error. The
    dataflow evaluates it, or the engine on rows where that lacks a construct. The first evaluation
    after an installation compiles kernels, for some seconds.
    """
    named = Named(tuple(lattice or ()), tuple(function or ()))
    for name, text in _texts([file]).items():
        try:
            for warning in warnings_of(text, name, named):
                typer.echo(warning.render(text), err=True)
            until = upper_of(text, name) if upper is None else upper
            lines = presences_of(
                text, name, upper=until, predicates=predicates or (), named=named,
                memory_mb=memory_mb,
            )  # fmt: skip
            for line in lines:
                typer.echo(line)
            if not all(line.startswith(_ALWAYS) for line in lines):
                typer.echo(f"instants before {until} are shown; --upper shows others", err=True)
        except ProgramErrors as error:
            _refuse(error.render())
        except (UsageError, Exhausted) as error:
            _refuse(str(error))


def language_server() -> None:
    """Serve an editor on standard input and output: mistakes, types, definitions, layout.

    For programs, and for resources with programs. Editors start it by themselves.
    """
    try:
        from tidemill_server.commands.language_server import editor_server
    except ModuleNotFoundError as error:
        _refuse(f"{error.name} is not installed: pip install 'tidemill[editor]'")
    editor_server(SystemClock()).start_io()


def _texts(files: list[Path]) -> dict[str, str]:
    """The texts by the names of their files, each once."""
    texts: dict[str, str] = {}
    try:
        for path in files_below(files):
            try:
                read = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
                texts[str(path)] = read.removeprefix(MARK)
            except UnicodeDecodeError as error:
                _refuse(str(no_text(str(path), error)))
    except UsageError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"cannot read {error.filename}: {error.strerror}")
    return texts


def _refuse(message: str) -> NoReturn:
    typer.echo(f"tidemill: {message}", err=True)
    raise typer.Exit(1)
