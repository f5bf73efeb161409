"""`tidemill up`: the whole system in one process, or some of its roles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tidemill.client.commands_catalog import kind_named
from tidemill.runtime import logs, settings
from tidemill.runtime.lifecycle import collect_rarely, give_way_often, keep_freed_memory
from tidemill.time import TidemillError
from tidemill_embedded.process import run_process
from tidemill_embedded.settings import EmbeddedSettings
from tidemill_embedded.state_folder import NOBODY_ELSE


class LogLevel(Enum):
    """What is logged at least."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Without = Annotated[
    list[str] | None,
    typer.Option(
        help="Leave this resource out, KIND/NAME: what it holds stays, nothing of it runs."
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Answer beyond loopback without tokens: whoever reaches a port may do everything.",
    ),
]


def _left_out(names: Iterable[str]) -> tuple[str, ...]:
    """Resources as they are named, from KIND/NAME in any case and number. Raises: UsageError."""
    return tuple(
        f"{kind_named(kind)}/{name}" for kind, _, name in (n.partition("/") for n in names)
    )


def up(
    directory: Annotated[
        str | None, typer.Option("--dir", help="Folder of all state (default ./.tidemill).")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Resources to apply at the start.")
    ] = None,
    grpc: Annotated[
        str | None, typer.Option(help="Where clients connect (default 127.0.0.1:7474).")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Port of /metrics and pushed rows (default 7475).")
    ] = None,
    consensus: Annotated[
        str | None,
        typer.Option(help="redis://HOST:PORT/DB for versions, instead of a file in --dir."),
    ] = None,
    blob: Annotated[
        str | None, typer.Option(help="s3://BUCKET/PREFIX?endpoint=URL for objects, likewise.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="Take only this part of the work, beside processes with the others on the same "
            "stores: ingest, remap, reclock, compute, compaction, query; several with commas."
        ),
    ] = None,
    services: Annotated[
        str | None,
        typer.Option(
            help="Where a process with roles answers the others (default 127.0.0.1:7473)."
        ),
    ] = None,
    insecure: Insecure = False,
    without: Without = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML or YAML.")] = None,
    log_format: Annotated[
        logs.Style, typer.Option(help="How events are written.")
    ] = logs.Style.CONSOLE,
    log_level: Annotated[
        LogLevel, typer.Option(help="Events below it are left out.")
    ] = LogLevel.INFO,
) -> None:
    """Run everything in this process, with its state in one folder; or some roles, on shared stores.

    Then, in another shell: tidemill apply -f examples/… · tidemill get · tidemill query 'late(f, d)'
    """
    os.umask(NOBODY_ELSE)
    logs.configure(log_format.value, log_level.value)
    try:
        chosen = settings.load(EmbeddedSettings, config, "TIDEMILL_UP_")
        told = {"directory": directory, "grpc": grpc, "http_port": http_port}
        chosen = _chosen(chosen, told, {"consensus": consensus, "blob": blob})
        reached = {} if services is None else {"address": services}
        chosen = msgspec.structs.replace(
            chosen, services=msgspec.structs.replace(chosen.services, **reached),
            role=tuple(role or chosen.role), without=_left_out(without or chosen.without), insecure=insecure or chosen.insecure,
        )  # fmt: skip
        collect_rarely()
        give_way_often()
        keep_freed_memory()
        code = asyncio.run(run_process(chosen, tuple(file or ()), config))
    except TidemillError as error:
        typer.echo(f"tidemill up: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _chosen(
    chosen: EmbeddedSettings,
    told: Mapping[str, str | int | None],
    stores: Mapping[str, str | None],
) -> EmbeddedSettings:
    """The settings with what the command line says."""
    changes: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    places = {name: value for name, value in stores.items() if value}
    store = msgspec.structs.replace(chosen.store, **places)
    return msgspec.structs.replace(chosen, store=store, **changes)
