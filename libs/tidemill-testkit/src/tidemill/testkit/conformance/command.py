"""The conformance command: run every case of the given files and say which fail."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from tidemill.testkit.conformance.casefiles import FoundCase, Unreadable, find_cases
from tidemill.testkit.conformance.registry import Options
from tidemill.testkit.conformance.worker import CaseWorker

LIMIT_S = 60.0
LIMIT_SPARK_S = 900.0
"""Seconds for all language cases together."""


class Engine(StrEnum):
    """Engines that evaluate programs of the language.

    `ranges` is the dataflow range by range in one process, `spark` in tasks of executors.
    """

    DATAFLOW = "dataflow"
    RANGES = "ranges"
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
    """Run conformance cases; exit status 0 if none failed, else 1.

    `ranges` evaluates programs range by range, as `spark` does in tasks of executors. Spark runs
    all cases together, and the cases whose plan is one task are named.
    """
    options = Options(engine.value, strategy.value)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # cases may hold any text
    passed = failed = 0
    whole: list[str] = []
    with CaseWorker() as worker:
        for lines, reason in reports(find_cases(paths), worker, options):
            passed, failed = (passed, failed + 1) if lines else (passed + 1, failed)
            whole += [reason] if reason else []
            for line in lines:
                typer.echo(line)
    for line in whole:
        typer.echo(f"one task: {line}")
    counted = f", {len(whole)} of them as one task" if whole else ""
    typer.echo(f"{passed} passed, {failed} failed{counted}")
    raise typer.Exit(1 if failed else 0)


def reports(
    cases: Iterable[FoundCase | Unreadable], worker: CaseWorker, options: Options
) -> Iterator[tuple[list[str], str]]:
    """The lines of each case, none if it passes, and why it is one task, if it is.

    Language cases on Spark come last, and are run together.
    """
    together = []
    alone = options
    if options.engine == Engine.SPARK:
        alone = replace(options, engine=Engine.DATAFLOW.value)
    for found in cases:
        if alone is not options and isinstance(found, FoundCase) and found.covers is not None:
            together.append(found)
        else:
            yield failure(found, worker, alone), ""
    if together:
        given = [found.case for found in together]
        outcomes = worker.run_together(given, options, LIMIT_SPARK_S)
        for found, (differences, reason) in zip(together, outcomes, strict=True):
            yield _report(found, differences), reason and f"{found.name}: {reason}"


def failure(found: FoundCase | Unreadable, worker: CaseWorker, options: Options) -> list[str]:
    """Run one case; the lines that report it if it fails, none if it passes.

    A core case is reported in one line, by its first difference; a language case by what it covers
    and all its differences.
    """
    if isinstance(found, Unreadable):
        return [_one_line(f"{found.name}: {found.problem}")]
    return _report(found, worker.run(found.case, options, LIMIT_S))


def _report(found: FoundCase, differences: list[str]) -> list[str]:
    if not differences:
        return []
    if found.covers is None:
        return [_one_line(f"{found.name}: {differences[0]}")]
    return [_one_line(f"{found.name}: {found.covers}"), *differences]


def _one_line(text: str) -> str:
    return " ".join(text.split())
