"""`tidemill demo`: a year of flights from a log to exact answers, verified at the end."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidemill.runtime.clock import SystemClock
from tidemill.time import TidemillError
from tidemill_embedded.demo.runner import DemoRun
from tidemill_embedded.demo.scenario import QUICK, YEAR

CHECKOUT = Path(__file__).resolve().parents[5]


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Folder for everything the demo makes.")
    ] = Path(".tidemill/demo"),
    quick: Annotated[bool, typer.Option(help="One month instead of the year.")] = False,
    keep: Annotated[bool, typer.Option(help="Go on in the folder as it is.")] = False,
    examples: Annotated[Path, typer.Option(help="The resources that are applied.")] = CHECKOUT
    / "examples"
    / "flights",
    jars: Annotated[
        Path, typer.Option(help="Folder with the jars of Spark's Kafka connector.")
    ] = CHECKOUT / ".cache" / "spark" / "jars",
) -> None:
    """The main job on real data: a year of flights, streamed, killed, restarted, verified."""
    console = Console()
    if not examples.is_dir():
        typer.echo(
            f"tidemill demo: the resources are not in {examples}: name them with --examples",
            err=True,
        )
        raise typer.Exit(1)
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)
    run = DemoRun(
        QUICK if quick else YEAR, directory.resolve(), examples.resolve(), jars.resolve(),
        SystemClock(), console,
    )  # fmt: skip
    try:
        equal = asyncio.run(run.run())
    except TidemillError as error:
        typer.echo(f"tidemill demo: {error}", err=True)
        raise typer.Exit(1) from None
    console.print("[green]everything is equal[/green]" if equal else "[red]NOT equal[/red]")
    raise typer.Exit(0 if equal else 1)
