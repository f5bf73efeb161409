"""Subcommands that change what there is, and show it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidemill.client.formats import Output
from tidemill.client.reporting import reported

if TYPE_CHECKING:
    from tidemill.rpc.messages import ColumnInfo, ResourceDocument, ResourceStatus

S = TypeVar("S")
KINDS = {
    "source": "Source", "table": "Table", "view": "View", "action": "Action",
    "arrangement": "Arrangement", "hold": "Hold", "collection": "Collection",
}  # fmt: skip
PUSH_ROWS = 2_000

Kind = Annotated[
    str,
    typer.Argument(help="source, table, view, action, arrangement or hold; plural forms are fine."),
]
Name = Annotated[str, typer.Argument(help="The resource's name.")]
DefinedAsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        help="Definitions of that instant: milliseconds, ISO-8601, or now-5m.",
        metavar="T",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the subcommands of this module."""
    for command in (apply, get, describe, delete, approve, abort, insert, push, heartbeat):
        app.command()(command)


def kind_named(written: str) -> str:
    """The kind, from any case and number. Raises UsageError if there is none such."""
    from tidemill.errors import UsageError

    word = written.lower()
    found = KINDS.get(word) or KINDS.get(word.removesuffix("s"))
    if found is None:
        from tidemill.runtime.problems import did_you_mean

        raise UsageError(
            f"there is no kind {written!r}; {did_you_mean(written, KINDS)}", reason="kind"
        )
    return found


def apply(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Option("-f", "--file", help="YAML file, folder of them, or - for standard input."),
    ],
) -> None:
    """Create or change resources from YAML: all, or none.

    \b
        tidemill apply -f flights.yaml -f views/
        cat flights.yaml | tidemill apply -f -
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.errors import UsageError

        with connect_to(context.obj) as client:
            found = client.apply(*_documents(files))
            if not found:
                raise UsageError(f"no resource in {', '.join(files)}", reason="file")
            for applied in found:
                outcome = applied.outcome.value
                typer.echo(f"{applied.kind.lower()}/{applied.name} {outcome}")


def get(
    context: typer.Context,
    kind: Annotated[
        str | None,
        typer.Argument(help="A kind of resource, or collections; all kinds if left out."),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    output: Annotated[
        Output | None, typer.Option("-o", "--output", help="More columns, or the documents.")
    ] = None,
    as_of: DefinedAsOf = None,
    limit: Annotated[
        int | None, typer.Option(help="At most so many, in the order of their names.", min=1)
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            help="With --limit: those behind this KIND/NAME, or collection.", metavar="NAME"
        ),
    ] = None,
) -> None:
    """List resources, or the collections that they make.

    \b
        tidemill get
        tidemill get views -o wide
        tidemill get --limit 100 --after View/delays
        tidemill get view delays -o yaml
        tidemill get view delays -o yaml --as-of now-1d
        tidemill get collections
    """
    with reported(context.obj.address):
        from tidemill.client import listings
        from tidemill.client.connection import connect_to
        from tidemill.errors import UsageError

        if name is not None:
            limit = after = None  # it is one, on whatever page
        with connect_to(context.obj) as client:
            if kind is not None and kind.lower() in ("collection", "collections"):
                if as_of is not None:
                    raise UsageError(
                        "collections are listed as they are now: ask for what a resource was by "
                        "`tidemill get --as-of`, for what one held by `tidemill query --as-of`",
                        reason="asOf",
                    )
                listed = client.collections(limit=limit, after=after)
                listings.print_collections(
                    [c for c in listed if name in (None, c.id)], output == Output.json
                )
                listings.print_next(listed.next, limit)
                return
            found = client.get(
                kind_named(kind) if kind else None, name, as_of, limit=limit, after=after
            )
            following = found.next
            if kind is not None and name is not None and not found:
                # Refuses, with a name that is near.
                found.append(client.describe(kind_named(kind), name, as_of))
        _print_resources(found, output)
        listings.print_next(following, limit)


def describe(context: typer.Context, kind: Kind, name: Name, as_of: DefinedAsOf = None) -> None:
    """Show one resource: its state, its frontiers, its document; as of an instant its definition.

    \b
        tidemill describe source flights
        tidemill describe view late --as-of 2026-02-01T06:00:00Z
    """
    with reported(context.obj.address):
        from tidemill.client import listings
        from tidemill.client.connection import connect_to

        with connect_to(context.obj) as client:
            listings.print_description(client.describe(kind_named(kind), name, as_of))


def delete(
    context: typer.Context,
    kind: Kind,
    name: Name,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="Delete it in the stores, while no process runs: nothing of it is run.",
        ),
    ] = False,
    directory: Annotated[
        str | None, typer.Option("--dir", help="With --offline: folder of all state, as for `up`.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="With --offline: settings of `up`, as TOML or YAML.")
    ] = None,
) -> None:
    """Remove a resource that nothing else reads.

    \b
        tidemill delete view delays
        tidemill delete --offline --dir .tidemill view delays
    """
    with reported(context.obj.address):
        if offline:
            from tidemill.client.plugins import offline_command

            offline_command("delete")(kind_named(kind), name, directory, config)
        else:
            from tidemill.client.connection import connect_to

            with connect_to(context.obj) as client:
                client.delete(kind_named(kind), name)
        typer.echo(f"{kind_named(kind).lower()}/{name} deleted")


View = Annotated[str, typer.Argument(help="A view one of whose versions waits.")]
Version = Annotated[
    int | None,
    typer.Option(help="Only the version with this number.", metavar="N", min=1),
]


def approve(context: typer.Context, view: View, version: Version = None) -> None:
    """Approve the new version of a view: with `takeover: manual` it waits, and takes over then.

    \b
        tidemill plan -f delays.yaml      # rows and firings that would differ
        tidemill approve delays
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to

        with connect_to(context.obj) as client:
            number = client.approve(view, version)
        typer.echo(f"view/{view} version {number} approved")


def abort(context: typer.Context, view: View, version: Version = None) -> None:
    """Give up the new version of a view that waits; the one that is read goes on.

    \b
        tidemill abort delays
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to

        with connect_to(context.obj) as client:
            number = client.abort(view, version)
        typer.echo(f"view/{view} version {number} aborted")


def insert(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="The table to write to.")],
    file: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            help="csv, jsonl, parquet or arrow file; by default standard input (jsonl).",
        ),
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="A row as a JSON object; repeatable.")
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", help="Where the ending of the file does not say it.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Writes the rows once, however often the same insert is made with this key.",
        ),
    ] = None,
) -> None:
    """Write rows to a table, durably.

    They are present from the instant printed. Many rows go in steps of 200,000 at most, or of fewer
    wide or long ones: each step at an instant of its own. A column _diff of -1 removes rows. After
    a lost answer make the same insert with the same key again: what was written before is not
    written a second time.

    \b
        tidemill insert airlines -f airlines.csv
        cat airlines.jsonl | tidemill insert airlines
        tidemill insert airlines --row '{"carrier": "UA", "name": "United"}'
        tidemill insert airlines -f airlines.csv --idempotency-key "$(uuidgen)"
    """
    with reported(context.obj.address):
        from tidemill.client import rows as rows_in
        from tidemill.client.connection import connect_to
        from tidemill.client.instants import shown
        from tidemill.client.rendering import counted
        from tidemill.errors import UsageError

        if file is not None and row:
            raise UsageError("say which rows: either -f FILE or --row JSON", reason="rows")
        with connect_to(context.obj) as client:
            columns: Sequence[ColumnInfo] = ()
            if row:
                rows = rows_in.table_of([rows_in.parse_row(text) for text in row])
            else:
                file = file or "-"
                columns = next((c.columns for c in client.collections() if c.id == table), ())
                rows = rows_in.read_file(file, format_name, columns)
            if not rows.num_rows:
                raise UsageError("there is no row to insert", reason="rows")
            inserted = None
            for start, count in _progress(rows_in.steps(rows, len(columns)), "inserting"):
                token = None if key is None else f"{key} {start}"
                inserted = client.insert(table, rows.slice(start, count), token=token)
        if inserted is not None:
            typer.echo(f"{counted(rows.num_rows)} in {table}, present from {shown(inserted.time)}")


def push(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A source with http: or an embedded log.")],
    file: Annotated[
        str, typer.Option("-f", "--file", help="Lines, one row each; - for standard input.")
    ] = "-",
    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Writes each line once, however often the same push is made with this key: 16 characters or more.",
        ),
    ] = None,
) -> None:
    """Write raw lines to the log of a source, durably.

    \b
        tidemill push events -f events.jsonl
        tail -f events.jsonl | tidemill push events
        tidemill push events -f events.jsonl --idempotency-key "$(uuidgen)"

    With a key all lines go in one call, at most limits.push_rows_known of the server. After a lost
    answer make the same push with the same key again.
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.rendering import counted
        from tidemill.client.rows import open_input

        accepted = 0
        with connect_to(context.obj) as client, open_input(file) as lines:
            # Nothing at first: a source that there is not is told before the input is read, and
            # without any.
            client.push(source, [])
            kept = (line.rstrip(b"\r\n") for line in lines)
            rows = (line for line in kept if line)
            batches = _batches(rows) if key is None else [list(rows)]
            for batch in _progress(batches, "pushing"):
                accepted += client.push(source, batch, token=key).accepted
        typer.echo(f"{counted(accepted)} in the log of {source}")


def heartbeat(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A source with eventTime that takes pushed rows.")],
    until: Annotated[
        str,
        typer.Option(
            "--until", help="Nothing before it follows: milliseconds, or ISO-8601.", metavar="T"
        ),
    ],
) -> None:
    """Move event time on without an event: nothing before T follows from this source.

    \b
        tidemill heartbeat events --until 2013-02-01T06:00:00Z

    An event that comes later with a time before T is late.
    """
    with reported(context.obj.address):
        from tidemill.client.connection import connect_to
        from tidemill.client.instants import instant, shown

        with connect_to(context.obj) as client:
            client.heartbeat(source, until)
        typer.echo(f"{source} has no more events before {shown(instant(until) or 0)}")


def _documents(files: list[str]) -> Iterator[str | ResourceDocument]:
    from tidemill.rpc.messages import ResourceDocument

    for file in files:
        yield ResourceDocument(sys.stdin.read(), "<stdin>") if file == "-" else str(Path(file))


def _print_resources(found: list[ResourceStatus], output: Output | None) -> None:
    from tidemill.client import listings

    match output:
        case Output.yaml:
            typer.echo("\n---\n".join(status.document_yaml.strip() for status in found))
        case Output.json:
            listings.print_resources_json(found)
        case _:
            listings.print_resources(found, wide=output is Output.wide)


def _batches(lines: Iterator[bytes]) -> Iterator[list[bytes]]:
    while batch := list(islice(lines, PUSH_ROWS)):
        yield batch


def _progress(steps: Iterable[S], label: str) -> Iterator[S]:
    """The steps, with a bar on a terminal."""
    if not sys.stderr.isatty():
        yield from steps
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(steps, label, console=Console(stderr=True), transient=True)
