"""`tidemill test`: rules against cases, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.datalog.diagnostics import ProgramErrors
from tidemill.errors import TidemillError, UsageError
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.rng import new_rng
from tidemill_server.trials.cases import CaseFile, case_files, load_cases
from tidemill_server.trials.reports import Verdict, write_junit


def run_cases(
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
) -> None:
    """Run cases of rules: given rows, expect records, firings, corrections, reasons of absence.

    Each case runs in the given order and in others, cut into other steps, with both strategies of
    the dataflow: the answer may not change. Exit code 0 if all cases pass, else 1.
    """
    verdicts: list[Verdict] = []
    try:
        files = [load_cases(path) for path in case_files(paths)]
        for file in files:
            verdicts += _verdicts(file, seed, only)
        if not verdicts:
            raise UsageError(f"no case has {only!r} in its name", reason="case")
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


def _verdicts(file: CaseFile, seed: int, only: str) -> list[Verdict]:
    """Outcomes of the cases of a file; resources that do not fit fail each of them."""
    from tidemill_server.trials.answers import rules_of  # numba
    from tidemill_server.trials.running import differences

    clock, found = SystemClock(), []
    chosen = [(position, case) for position, case in file.cases if only in case.name]
    for position, case in chosen:
        began = clock.monotonic_s()
        try:
            wrong = differences(rules_of(file.resources), case, new_rng(seed))
        except ProgramErrors as error:
            wrong = error.render().splitlines()
        except TidemillError as error:
            wrong = str(error).splitlines()
        seconds = clock.monotonic_s() - began
        found.append(Verdict(position, case.name, wrong, seconds))
    return found
