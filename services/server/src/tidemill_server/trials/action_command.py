"""Say what an action would have told, without telling it."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.client.reporting import reported
from tidemill_server.trials import CHANGES_MAX

action = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None,
    help="Say what an action would have told, without telling it.",
)  # fmt: skip


@action.callback()
def actions() -> None:
    """Commands about one action."""


@action.command()
def replay(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="An action of the server.")],
    start: Annotated[
        str | None,
        typer.Option("--from", help="First instant; by default all that is known.", metavar="T"),
    ] = None,
    until: Annotated[
        str, typer.Option(help="Last instant, which is definite.", metavar="T")
    ] = "latest",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, as an HTTP sink gets it.")
    ] = False,
    changes_max: Annotated[
        int, typer.Option(help="Changes of its output that are read at most.", min=1)
    ] = CHANGES_MAX,
) -> None:
    """Show the firings of an action over a stretch of history, exactly, without firing.

    They are those of the same action with `fireFrom` at the first instant. Earlier firings do
    not count. Nothing is changed, and no sink is called.
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.instants import instant, shown
        from tidemill_server.trials.replaying import replay as replayed

        with connect_to(context.obj) as client:
            begin = instant(start) if start else None
            found = replayed(client, name, begin, instant(until), changes_max)
        for message in found.messages if as_json else ():
            typer.echo(message.line)
        for firing in () if as_json else found.firings:
            phase = f" {firing.phase}" if firing.event else ""
            phase += " beyond the limit:" if firing.limited else ""
            typer.echo(f"{shown(firing.instant)}{phase} {firing.record}")
        for each in found.corrections if not as_json else ():
            what = "withdrawn" if each.new is None else "changed"
            typer.echo(f"{shown(each.instant)} {what} after it fired: {each.old or each.new}")
        first, last = shown(found.stretch.start), shown(found.stretch.at)
        counts = f"{len(found.firings)} firings, {len(found.corrections)} corrections"
        typer.echo(f"{name}: {counts} from {first} to {last}", err=True)
