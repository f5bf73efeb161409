"""`tidemill init`: a sample to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.errors import UsageError
from tidemill_server.samples import GENERATOR, Sample, write


def init(
    sample: Annotated[Sample, typer.Argument(help="What to begin with.")],
    folder: Annotated[
        Path | None, typer.Argument(help="Where to; a folder of that name if left out.")
    ] = None,
) -> None:
    """Write resources, cases and a generator of rows into a folder, to begin with.

    Nothing that is there is written over.
    """
    place = folder or Path(sample)
    try:
        if place.exists() and not place.is_dir():
            raise UsageError(f"{place} is a file: name a folder", reason="file")
        for path in write(sample, place):
            typer.echo(f"{path} written")
    except (UsageError, OSError) as error:
        told = f"cannot write {place}: {error.strerror}" if isinstance(error, OSError) else error
        typer.echo(f"tidemill: {told}", err=True)
        raise typer.Exit(1) from None
    typer.echo(
        f"\nNext:\n  tidemill test {place}\n  tidemill up -f {place / sample}.yaml"
        f"\n  python {place / GENERATOR}        # in another shell"
    )
