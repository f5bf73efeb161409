"""Subcommands that ask."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.client.faults import reported
from tidemill.client.formats import Lines, Rows

if TYPE_CHECKING:
    from tidemill.rpc.messages import Event, Explanation


AsOf = Annotated[
    str, typer.Option("--as-of", help="Instant: milliseconds, ISO-8601, or latest.", metavar="T")
]
Written = Annotated[Rows, typer.Option("--format", help="How rows are written.")]
Wait = Annotated[
    float | None,
    typer.Option("--timeout", help="Wait so long for T to become definite.", metavar="SECONDS"),
]
Record = Annotated[str, typer.Argument(help="""A record, such as 'late("UA1545", 42)'.""")]
AsTree = Annotated[bool, typer.Option("--json", help="The tree as JSON.")]


def add_to(app: typer.Typer) -> None:
    """Register the subcommands of this module."""
    for command in (query, sql, subscribe, why, why_not, explain):
        app.command()(command)


def query(
    context: typer.Context,
    goal: Annotated[
        str, typer.Argument(help="A goal with variables and constants, or a collection.")
    ],
    as_of: AsOf = "latest",
    written: Written = Rows.table,
    timeout: Wait = None,
) -> None:
    """Ask for records, exactly as they are at one instant.

    \b
        tidemill query 'late(flight, delay)'
        tidemill query 'late("UA1545", delay)' --as-of 2013-02-01T06:00:00Z
        tidemill query flights --as-of latest --format csv > flights.csv
    """
    with reported(context.obj):
        from tidemill.client.connection import connect
        from tidemill.client.rendering import print_rows

        with connect(context.obj) as client, _waiting("asking"):
            answer = client.query(goal, as_of, timeout_s=timeout)
        frontiers = {answer.collection: (answer.since, answer.upper)}
        print_rows(answer.table, written, answer.as_of, frontiers)


def sql(
    context: typer.Context,
    select: Annotated[
        str, typer.Argument(help="One SELECT; other databases and files are out of reach.")
    ],
    as_of: AsOf = "latest",
    written: Written = Rows.table,
    timeout: Wait = None,
) -> None:
    """Ask in SQL over collections, all at one instant.

    The dialect is DuckDB's; the collections are exactly those that the SELECT names.

    \b
        tidemill sql 'select carrier, avg(delay) from late group by 1' --as-of 2013-02-01

    Without --as-of that is the latest instant at which all of them are definite. Of a view's
    collection delays/late write delays.late, or "delays/late" in double quotes.
    """
    with reported(context.obj):
        from tidemill.client.connection import connect
        from tidemill.client.rendering import print_rows

        with connect(context.obj) as client, _waiting("asking"):
            answer = client.sql(select, as_of, timeout_s=timeout)
        print_rows(answer.table, written, answer.as_of, answer.collections)


def subscribe(
    context: typer.Context,
    goal: Annotated[str, typer.Argument(help="A goal or a collection.")],
    start: Annotated[str, typer.Option("--start", help="First instant.", metavar="T")] = "latest",
    until: Annotated[
        str | None, typer.Option("--until", help="Stop once this is definite.", metavar="T")
    ] = None,
    snapshot: Annotated[bool, typer.Option(help="First what is present at the start.")] = True,
    written: Annotated[
        Lines, typer.Option("--format", help="How changes are written.")
    ] = Lines.table,
) -> None:
    """Follow a goal: what is present, then each change.

    Ctrl-C ends it.

    \b
        tidemill subscribe 'alarm(t, level)'
        tidemill subscribe flights --no-snapshot --format json
    """
    with reported(context.obj):
        from tidemill.client.connection import connect

        last = None if until in (None, "latest") else until
        with connect(context.obj) as client:
            for event in client.subscribe(goal, start, snapshot=snapshot, until=last):
                _print_event(event, written)


def why(
    context: typer.Context, record: Record, as_of: AsOf = "latest", as_json: AsTree = False
) -> None:
    """Prove a record that is present, down to the inputs.

    \b
        tidemill why 'late("UA1545", 42)' --as-of 2013-02-01T06:00:00Z
    """
    with reported(context.obj):
        from tidemill.client.connection import connect

        with connect(context.obj) as client:
            _print_explanation(client.why(record, as_of), as_json)


def why_not(
    context: typer.Context, record: Record, as_of: AsOf = "latest", as_json: AsTree = False
) -> None:
    """Say what keeps a record from being present, rule by rule.

    \b
        tidemill why-not 'late("UA1545", 42)'
    """
    with reported(context.obj):
        from tidemill.client.connection import connect

        with connect(context.obj) as client:
            _print_explanation(client.why_not(record, as_of), as_json)


def explain(
    context: typer.Context, view: Annotated[str, typer.Argument(help="A view's name.")]
) -> None:
    """Show the plan of a view, and what holds it back.

    \b
        tidemill explain delays
    """
    with reported(context.obj):
        from tidemill.client.connection import connect

        with connect(context.obj) as client:
            typer.echo(client.explain(view))


def _print_event(event: Event, written: Lines) -> None:
    from tidemill.client.instants import shown, shown_frontier
    from tidemill.client.rendering import cell, plain
    from tidemill.rpc.messages import Progress

    if isinstance(event, Progress):
        if written is Lines.json:
            print(json.dumps({"progress": list(event.upper)}), flush=True)
        else:
            print(f"-- before {shown_frontier(event.upper)}: complete", file=sys.stderr, flush=True)
        return
    for row in event.table.to_pylist():
        if written is Lines.json:
            print(json.dumps(plain(row), ensure_ascii=False))
            continue
        time, diff = row.pop("_time"), row.pop("_diff")
        values = ", ".join(f"{name}={cell(value)}" for name, value in row.items())
        print(f"{shown(time)}  {diff:+d}  {values}")
    sys.stdout.flush()


def _print_explanation(found: Explanation, as_json: bool) -> None:
    from tidemill.client.rendering import console, proof

    if as_json:
        typer.echo(json.dumps(found.tree, ensure_ascii=False))
    else:
        console().print(proof(found.text, found.tree))


@contextmanager
def _waiting(label: str) -> Iterator[None]:
    """Show on a terminal that something is under way."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield
