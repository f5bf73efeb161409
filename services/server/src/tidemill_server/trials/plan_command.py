"""`tidemill plan`: what an apply would change in the answers, before it does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemill.client.reporting import reported
from tidemill_server.trials import CHANGES_MAX


def plan(
    context: typer.Context,
    files: Annotated[
        list[Path], typer.Option("--file", "-f", help="Resources as they would be applied.")
    ],
    as_of: Annotated[
        str, typer.Option(help="Instant at which records are compared.", metavar="T")
    ] = "latest",
    start: Annotated[
        str | None,
        typer.Option("--from", help="Beginning of the history that is read.", metavar="T"),
    ] = None,
    rows: Annotated[int, typer.Option(help="Records that are shown of each kind.", min=0)] = 10,
    changes_max: Annotated[
        int, typer.Option(help="Changes of one input that are read at most.", min=1)
    ] = CHANGES_MAX,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 if any record or firing differs.")
    ] = False,
) -> None:
    """Compare new versions of views with the old ones: records as of T, and firings of actions.

    Nothing is changed. The command reads the history that the server has kept of the inputs. It
    evaluates both versions here, and those of views that read a changed one.
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.instants import instant, shown
        from tidemill.client.manifests import documents_in
        from tidemill.runtime.resources import load_resources
        from tidemill.runtime.rng import new_rng
        from tidemill_server.trials.previews import previews

        documents = [
            resource
            for file in files
            for document in documents_in(file)
            for resource in load_resources(document.text, document.file)
        ]
        differs = False
        with connect_to(context.obj) as client:
            for preview in previews(
                client, documents, start=instant(start) if start else None, at=instant(as_of),
                changes_max=changes_max, random=new_rng(1),
            ):  # fmt: skip
                at, begin = shown(preview.stretch.at), shown(preview.stretch.start)
                typer.echo(
                    f"View {preview.view} ({preview.kind}), as of {at}, history from {begin}"
                )
                for each in preview.differences:
                    differs |= bool(each.more or each.fewer)
                    typer.echo(
                        f"  {each.what}: {len(each.more)} more, {len(each.fewer)} fewer, "
                        f"{each.alike} alike"
                    )
                    for sign, lines in (("+", each.more), ("-", each.fewer)):
                        for line in lines[:rows]:
                            typer.echo(f"    {sign} {line}")
                        if len(lines) > rows:
                            typer.echo(f"    {sign} … {len(lines) - rows} others")
        if check and differs:
            raise typer.Exit(1)
