"""The command that runs a process: its options, its settings, its exit status."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from tidemill.arrangement.looks import BESIDE
from tidemill.errors import TidemillError, UsageError
from tidemill.host.process import run_process
from tidemill.host.service import Service
from tidemill.host.settings import SECTIONS, ProcessSettings
from tidemill.host.state_folder import NOBODY_ELSE
from tidemill.rpc.turns import PRECEDENCE, looks_beside
from tidemill.runtime import logs, settings
from tidemill.runtime.clock import SystemClock
from tidemill.runtime.lifecycle import (
    FullLooks,
    collect_rarely,
    forget_overloads,
    give_way_often,
    keep_freed_memory,
    keep_loaded,
    leave_pandas_out,
)
from tidemill.runtime.problems import did_you_mean
from tidemill.runtime.resources import KINDS


class LogLevel(Enum):
    """The least level that is logged."""

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


S = TypeVar("S", bound=ProcessSettings)
T = TypeVar("T", bound=msgspec.Struct)


def command(
    struct: type[S], offered: Callable[[S], Sequence[Service]], says: str
) -> Callable[..., None]:
    """The command that runs a process with these settings and services; `says` is its help."""

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
        logs.configure(log_format.value, log_level.value)
        told = {
            "directory": directory, "grpc": grpc, "http_port": http_port, "insecure": insecure,
            "store": {"consensus": consensus, "blob": blob}, "services": {"address": services},
            "role": tuple(role or ()), "without": tuple(without or ()),
        }  # fmt: skip
        raise typer.Exit(_run(struct, offered, config, tuple(file or ()), told))

    up.__doc__ = says
    return up


def run_service(struct: type[S], service: Callable[[S], Service], says: str) -> None:
    """Be the program of one service. Raises: SystemExit with its exit status."""
    settings.check_environment()
    app = typer.Typer(add_completion=False)
    app.command()(command(struct, lambda chosen: [service(chosen)], says))
    app()


def _left_out(names: Iterable[str]) -> tuple[str, ...]:
    """Resources as they are named, from KIND/NAME in any case and number. Raises: UsageError."""
    return tuple(f"{_kind(kind)}/{name}" for kind, _, name in (n.partition("/") for n in names))


def _kind(written: str) -> str:
    for kind in KINDS:
        if written.lower() in (kind.lower(), f"{kind.lower()}s"):
            return kind
    raise UsageError(f"there is no kind {written!r}; {did_you_mean(written, KINDS)}", reason="kind")


def _run(
    struct: type[S], offered: Callable[[S], Sequence[Service]], config: Path | None,
    files: tuple[Path, ...], told: Mapping[str, Any],
) -> int:  # fmt: skip
    """Run the process as settings say, and the command line over them; its exit status."""
    os.umask(NOBODY_ELSE)
    try:
        chosen = _override(settings.load(struct, config, "TIDEMILL_UP_", others=SECTIONS), told)
        chosen = msgspec.structs.replace(chosen, without=_left_out(chosen.without))
        collect_rarely()
        give_way_often()
        PRECEDENCE.contended = give_way_often
        BESIDE.set(looks_beside(SystemClock().monotonic_s))
        keep_freed_memory()
        forget_overloads()
        leave_pandas_out()
        keep_loaded()
        PRECEDENCE.idle = FullLooks().put_off
        return asyncio.run(run_process(chosen, offered(chosen), files, config))
    except TidemillError as error:
        typer.echo(f"tidemill up: {error}", err=True)
        return 1


def _override(chosen: T, told: Mapping[str, Any]) -> T:
    """The settings with values of the command line, as far as there are any."""
    changes = {
        name: _override(getattr(chosen, name), value) if isinstance(value, Mapping) else value
        for name, value in told.items()
        if value is not None and value is not False and value not in ((), "")  # port 0 is one
    }
    return msgspec.structs.replace(chosen, **changes)
