"""`tidemill demo`: a year of flights from a log to exact answers, verified at the end."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidemill.errors import TidemillError, UsageError
from tidemill.runtime.clock import SystemClock
from tidemill_flights.runner import DemoRun
from tidemill_flights.scenario import QUICK, YEAR

CHECKOUT = Path(__file__).resolve().parents[4]
WIDTH_MIN = 120
"""Columns to assume where the output is no terminal, so that no table is cut."""
MARKER = "made-by-tidemill-demo"
"""Only a folder that holds this file, or nothing, is emptied."""


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Folder for everything the demo makes; emptied first.")
    ] = Path(".tidemill/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="One month instead of the year.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the server running, for questions of your own.")
    ] = False,
    examples: Annotated[Path, typer.Option(help="The resources that are applied.")] = CHECKOUT
    / "examples/flights/resources",
    jars: Annotated[
        Path, typer.Option(help="Folder with the jars of Spark's Kafka connector.")
    ] = CHECKOUT / ".cache" / "spark" / "jars",
) -> None:
    """The main job on real data: a year of flights, streamed, killed, restarted, verified.

    Exit code 0 if every answer equals what DuckDB computes from the raw files, else 1.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_MIN)
    try:
        if not examples.is_dir():
            raise UsageError(f"the resources are not in {examples}: name them with --examples")
        _make_empty(directory)
        run = DemoRun(
            QUICK if quick else YEAR, directory.resolve(), examples.resolve(), jars.resolve(),
            SystemClock(), console,
        )  # fmt: skip
        equal = asyncio.run(run.run(keep=keep))
    except TidemillError as error:
        typer.echo(f"tidemill demo: {error} (log of the server: {directory}/server.log)", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    console.print("[green]everything is equal[/green]" if equal else "[red]NOT equal[/red]")
    raise typer.Exit(0 if equal else 1)


def _make_empty(directory: Path) -> None:
    """An empty folder with the marker. Raises: UsageError if what is there is not ours to
    remove.
    """
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise UsageError(
            f"{directory} is not empty and not of an earlier demo: choose another --dir"
        )
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / MARKER).touch()
