"""Subcommands that ask."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.client.formats import Rows
from tidemill.client.reporting import reported

if TYPE_CHECKING:
    from tidemill.rpc.messages import Explanation


AsOf = Annotated[
    str,
    typer.Option(
        "--as-of", help="Instant: milliseconds, ISO-8601, latest, or now-5m.", metavar="T"
    ),
]
Written = Annotated[Rows, typer.Option("--format", help="How rows are written.")]
WAIT_S = 60.0
Wait = Annotated[bool, typer.Option("--wait", help=f"Wait for T to become definite, {WAIT_S:g} s.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", help="Wait so long instead; implies --wait.", metavar="SECONDS"),
]
Record = Annotated[str, typer.Argument(help="""A record, such as 'late("UA1545", 42)'.""")]
AsTree = Annotated[bool, typer.Option("--json", help="The tree as JSON.")]


def add_to(app: typer.Typer) -> None:
    """Register the subcommands of this module."""
    for command in (query, sql, subscribe, why, why_not, explain, timestamp, translate, expire):
        app.command()(command)


def query(
    context: typer.Context,
    goal: Annotated[
        str, typer.Argument(help="A goal with variables and constants, or a collection.")
    ],
    as_of: AsOf = "latest",
    written: Written = Rows.table,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Ask for records, exactly as they are at one instant.

    \b
        tidemill query 'late(flight, delay)'
        tidemill query 'late("UA1545", delay)' --as-of 2013-02-01T06:00:00Z
        tidemill query 'alarm(t, level)' --as-of 1360000000000 --wait
        tidemill query flights --format csv > flights.csv
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.rendering import print_rows

        with connect_to(context.obj) as client, _waiting("asking"):
            answer = client.query(goal, as_of, timeout_s=_patience(wait, timeout))
        frontiers = {answer.collection: (answer.since, answer.upper)}
        print_rows(answer.table, written, answer.as_of, frontiers)


def sql(
    context: typer.Context,
    select: Annotated[
        str, typer.Argument(help="One SELECT; other databases and files are out of reach.")
    ],
    as_of: AsOf = "latest",
    written: Written = Rows.table,
    wait: Wait = False,
    timeout: Timeout = None,
    memory: Annotated[
        str, typer.Option("--memory", help="What the SELECT may hold.", metavar="SIZE")
    ] = "4GB",
) -> None:
    """Ask in SQL over collections, all at one instant.

    The dialect is DuckDB's; the collections are exactly those that the SELECT names.

    \b
        tidemill sql 'select carrier, avg(delay) from late group by 1' --as-of 2013-02-01

    Without --as-of that is the latest instant at which all of them are definite. Of a view's
    collection delays/late write delays.late, or "delays/late" in double quotes.
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.rendering import print_rows

        with connect_to(context.obj) as client, _waiting("asking"):
            patience = _patience(wait, timeout)
            answer = client.sql(select, as_of, timeout_s=patience, memory=memory)
        print_rows(answer.table, written, answer.as_of, answer.collections)


def subscribe(
    context: typer.Context,
    goal: Annotated[str, typer.Argument(help="A goal or a collection.")],
    start: Annotated[str, typer.Option("--from", help="First instant.", metavar="T")] = "latest",
    until: Annotated[
        str | None, typer.Option("--until", help="Stop once this is definite.", metavar="T")
    ] = None,
    snapshot: Annotated[bool, typer.Option(help="First what is present at the start.")] = True,
    written: Written = Rows.table,
) -> None:
    """Follow a goal: what is present, then each change.

    Rows have their time and +1 or -1. After each change, and at the end, a line on standard error
    gives the instant before which all changes have come. In JSON it is a line among the rows, every
    second. Ctrl-C ends it. To go on where it ended, start one millisecond before that, with
    --no-snapshot.

    \b
        tidemill subscribe 'alarm(t, level)'
        tidemill subscribe flights --from 2013-02-01 --until 2013-02-02 --format csv
        tidemill subscribe flights --from 1360000000000 --no-snapshot --format json
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.following import changes_written

        last = None if until in (None, "latest") else until
        with connect_to(context.obj) as client, changes_written(written) as write:
            for event in client.subscribe(goal, start, snapshot=snapshot, until=last):
                write(event)


def why(
    context: typer.Context,
    record: Record,
    as_of: AsOf = "latest",
    depth: Annotated[int, typer.Option(help="Draw so many levels.", min=1)] = 40,
    as_json: AsTree = False,
) -> None:
    """Prove a record that is present, down to the inputs.

    \b
        tidemill why 'late("UA1545", 42)' --as-of 2013-02-01T06:00:00Z
        tidemill why 'alarm("JFK", 3) @time(1360000000000)' --json
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to

        with connect_to(context.obj) as client:
            _print_explanation(client.why(record, as_of), as_json, depth)


def why_not(
    context: typer.Context, record: Record, as_of: AsOf = "latest", as_json: AsTree = False
) -> None:
    """Say what keeps a record from being present, rule by rule.

    \b
        tidemill why-not 'late("UA1545", 42)'
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to

        with connect_to(context.obj) as client:
            _print_explanation(client.why_not(record, as_of), as_json, depth=40)


def explain(
    context: typer.Context,
    view: Annotated[str, typer.Argument(help="A view's name.")],
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Derive it once and show rows, bytes and time.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON, with --analyze its figures too.")
    ] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Draw its plan in the language DOT.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Draw its strata as SVG.")] = False,
) -> None:
    """Show the plan of a view, operator by operator, what it reads, and what holds it back.

    \b
        tidemill explain delays
        tidemill explain delays --analyze
        tidemill explain delays --analyze --json
        tidemill explain delays --dot | dot -Tsvg > delays.svg
    """
    asked = (("analyze", analyze), ("json", as_json), ("dot", dot), ("svg", svg))
    chosen = [name for name, on in asked if on]
    form = "-".join(chosen) or "plan"
    if len(chosen) > 1 and form != "analyze-json":
        raise typer.BadParameter(f"choose one of --{' and --'.join(chosen)}")
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to

        with connect_to(context.obj) as client:
            typer.echo(client.explain(view, form).rstrip("\n"))


def timestamp(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Collections, goals or views.")],
    as_of: AsOf = "latest",
) -> None:
    """Say which instant a question gets, what decides it, and who holds the frontiers of what it
    reads.

    \b
        tidemill timestamp delays
        tidemill timestamp 'late(f, d)' hosts --as-of 1360000000000
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.listings import print_timestamp

        with connect_to(context.obj) as client:
            print_timestamp(client.explain_timestamp(*names, as_of=as_of))


def translate(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A source.")],
    as_of: AsOf = "latest",
    offsets: Annotated[
        str | None,
        typer.Option(
            "--offsets", help="Since when are all records before these in?", metavar="p0=17,p1=4"
        ),
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(
            "--records", help="Since when are the records at these in?", metavar="p0=16,p1=3"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    wait: Wait = False,
    timeout: Timeout = None,
) -> None:
    """Say which records of a source are in its answer as of T, or since when some records are.

    \b
        tidemill translate flights --as-of 2013-02-01T06:00:00Z
        tidemill translate flights --offsets p0=17,p1=4
        tidemill translate flights --records p0=16 --wait

    The answer is made of exactly the records before the offsets that are shown. Of offsets, or
    records, it is told as of the least instant at which all of them are in; `tidemill query SOURCE
    --as-of T` has them then.
    """
    if (offsets is not None) + (records is not None) + (as_of != "latest") > 1:
        raise typer.BadParameter("choose one of --as-of, --offsets and --records")
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.listings import print_translation
        from tidemill.time import read_offsets

        with connect_to(context.obj) as client:
            patience = _patience(wait, timeout)
            if offsets is None and records is None:
                found = client.offsets(source, as_of, timeout_s=patience)
            else:
                wanted = read_offsets(offsets or records or "")
                behind = 0 if records is None else 1
                wanted = {partition: at + behind for partition, at in wanted.items()}
                found = client.since_when(source, wanted, timeout_s=patience)
        print_translation(source, found, as_json)


def expire(
    context: typer.Context,
    collection: Annotated[str, typer.Argument(help="The collection that is held.")],
    key: Annotated[str, typer.Argument(help="The key of the holder, as `timestamp` shows it.")],
) -> None:
    """End the capability of a holder that nobody answers for any more; for administrators.

    \b
        tidemill expire hosts 3f9a6c21b07e
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to

        with connect_to(context.obj) as client:
            ended = client.expire(collection, key)
        typer.echo(f"{ended.owner or 'a session'} holds {collection} at {ended.frontier} no more")


def _patience(wait: bool, timeout: float | None) -> float | None:
    """Seconds for which the server may wait; None if it may not wait."""
    return timeout if timeout is not None else WAIT_S if wait else None


def _print_explanation(found: Explanation, as_json: bool, depth: int) -> None:
    from tidemill.client.proofs import drawn, nested_json
    from tidemill.client.rendering import console

    if as_json:
        typer.echo(nested_json(found.tree))
    else:
        console().print(drawn(found.text, found.tree, depth))


@contextmanager
def _waiting(label: str) -> Iterator[None]:
    """Show on a terminal that something is under way."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield
