"""The conformance command: run every case of the given files and say which fail."""

from __future__ import annotations

import sys
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from tidemill.testkit.conformance.casefiles import FoundCase, Unreadable, find_cases
from tidemill.testkit.conformance.registry import Options
from tidemill.testkit.conformance.worker import CaseWorker

LIMIT_S = 60.0
LIMIT_SPARK_S = 300.0


class Engine(StrEnum):
    """Engines that evaluate programs of the language."""

    DATAFLOW = "dataflow"
    SPARK = "spark"


class Strategy(StrEnum):
    """Ways in which the dataflow keeps recursive results right."""

    STRATA = "strata"
    RETRACTION = "retraction"


def conformance(
    paths: Annotated[list[Path], typer.Argument(help="Case files, or folders with case files.")],
    engine: Annotated[Engine, typer.Option(help="Evaluates the language cases.")] = (
        Engine.DATAFLOW
    ),
    strategy: Annotated[Strategy, typer.Option(help="Maintains recursion.")] = Strategy.STRATA,
) -> None:
    """Run conformance cases; exit status 0 if none failed, else 1."""
    options = Options(engine.value, strategy.value)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # cases may hold any text
    passed = failed = 0
    with CaseWorker() as worker:
        for found in find_cases(paths):
            lines = failure(found, worker, options)
            passed, failed = (passed, failed + 1) if lines else (passed + 1, failed)
            for line in lines:
                typer.echo(line)
    typer.echo(f"{passed} passed, {failed} failed")
    raise typer.Exit(1 if failed else 0)


def failure(found: FoundCase | Unreadable, worker: CaseWorker, options: Options) -> list[str]:
    """Run one case; the lines that report it if it fails, none if it passes.

    A core case is reported in one line, by its first difference; a language case by what it covers
    and all its differences.
    """
    if isinstance(found, Unreadable):
        return [_one_line(f"{found.name}: {found.problem}")]
    language = found.covers is not None
    limit_s = LIMIT_SPARK_S if language and options.engine == Engine.SPARK else LIMIT_S
    differences = worker.run(found.case, options, limit_s)
    if not differences:
        return []
    if not language:
        return [_one_line(f"{found.name}: {differences[0]}")]
    return [_one_line(f"{found.name}: {found.covers}"), *differences]


def _one_line(text: str) -> str:
    return " ".join(text.split())
