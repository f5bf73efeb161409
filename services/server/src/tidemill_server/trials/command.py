"""`tidemill test`: rules against cases, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.arrangement.machine_code import told_of_compiling
from tidemill.client.reporting import reported
from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.errors import TidemillError, UsageError
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.rng import new_rng
from tidemill_server.trials import CHANGES_MAX
from tidemill_server.trials.cases import CaseFile, case_files, load_cases
from tidemill_server.trials.reports import Verdict, write_junit

if TYPE_CHECKING:
    from tidemill_server.trials.running import Evaluator


def run_cases(
    context: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(help="Case files, or folders with files *.test.yaml.")
    ],
    junit: Annotated[
        Path | None, typer.Option(help="Write the outcomes to this file, as JUnit does.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the other orders and cuts.")] = 1,
    only: Annotated[
        str, typer.Option("--only", "-k", help="Only cases whose name has this text.")
    ] = "",
    spark: Annotated[
        bool, typer.Option("--spark", help="Run each case on Spark as well; it needs Java.")
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(help="Write a case of this view of a running server into the folder instead."),
    ] = None,
    as_of: Annotated[
        str, typer.Option(help="With --record: instant of the answers.", metavar="T")
    ] = "latest",
    start: Annotated[
        str | None,
        typer.Option("--from", help="With --record: beginning of the history.", metavar="T"),
    ] = None,
    changes_max: Annotated[
        int, typer.Option(help="With --record: changes of one input at most.", min=1)
    ] = CHANGES_MAX,
) -> None:
    """Run cases of rules: given rows, expect records, firings, corrections, reasons of absence.

    Each case runs in the given order and in others, cut into other steps, with both strategies of
    the dataflow: the answer may not change. Exit code 0 if all cases pass, else 1.

    \b
        tidemill test rules/
        tidemill test --record delays --as-of 2013-02-01T06:00Z rules/
    """
    if record is not None:
        paths = _record(context, record, paths, start, as_of, changes_max)
    verdicts: list[Verdict] = []
    try:
        files = [load_cases(path) for path in case_files(paths)]
        with told_of_compiling(_say_compiling), _evaluator(spark) as elsewhere:
            for file in files:
                verdicts += _verdicts(file, seed, only, elsewhere)
        if not verdicts:
            names = ", ".join(str(file.path) for file in files)
            says = f"no case has {only!r} in its name" if only else f"no case is in {names}"
            raise UsageError(says, reason="case")
        if junit is not None:
            write_junit(verdicts, junit)
    except (UsageError, OSError) as error:
        typer.echo(f"tidemill: {error}", err=True)
        raise typer.Exit(1) from None
    for verdict in verdicts:
        if verdict.wrong:
            typer.echo(f"FAILED {verdict.position}: {verdict.name}")
            for line in verdict.wrong:
                typer.echo(f"  {line}")
    failed = sum(bool(verdict.wrong) for verdict in verdicts)
    typer.echo(f"{len(verdicts) - failed} passed, {failed} failed")
    raise typer.Exit(1 if failed else 0)


def _record(
    context: typer.Context, view: str, paths: list[Path], start: str | None, as_of: str,
    changes_max: int,
) -> list[Path]:  # fmt: skip
    """Write a case of a running server; the file, which is run next."""
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.instants import instant
        from tidemill_server.trials import recording

        if len(paths) != 1:
            raise UsageError("name one folder for the case", reason="file")
        with connect_to(context.obj) as client:
            begin = None if start is None else instant(start)
            made = recording.record(client, view, begin, instant(as_of), changes_max)
        written = made.write(view, paths[0])
        for path in written:
            typer.echo(f"{path} written")
        return written[1:]
    raise AssertionError("an error has ended the command")


def _say_compiling() -> None:
    typer.echo(
        "compiling loops, which takes up to some minutes; later runs find them compiled", err=True
    )


@contextmanager
def _evaluator(spark: bool) -> Iterator[Evaluator | None]:
    """The evaluator beside the dataflow, if one is asked for. Raises: UsageError."""
    if not spark:
        yield None
        return
    from tidemill_server.trials.by_spark import spark_evaluator

    with spark_evaluator() as found:
        yield found.evaluate


def _verdicts(file: CaseFile, seed: int, only: str, elsewhere: Evaluator | None) -> list[Verdict]:
    """Outcomes of the cases of a file; resources that do not fit fail each of them."""
    from tidemill_server.trials.answers import rules_of  # loads loops
    from tidemill_server.trials.running import differences

    clock, found = SystemClock(), []
    chosen = [(position, case) for position, case in file.cases if only in case.name]
    for position, case in chosen:
        began = clock.monotonic_s()
        try:
            wrong = differences(rules_of(file.resources), case, new_rng(seed), elsewhere)
        except ProgramErrors as error:
            wrong = error.render().splitlines()
        except TidemillError as error:
            wrong = str(error).splitlines()
        seconds = clock.monotonic_s() - began
        found.append(Verdict(position, case.name, wrong, seconds))
    return found
