"""`tidemill fsck`: the stores of a server and its own log, without the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidemill.errors import TidemillError
from tidemill.host.settings import SECTIONS, ProcessSettings
from tidemill.host.state_folder import check_files
from tidemill.reclock import remap_problems
from tidemill.runtime import settings
from tidemill.runtime.log_check import LogCheck
from tidemill.shard.fsck_command import check_stores


def fsck(
    directory: Annotated[
        str | None, typer.Argument(help="Folder of all state, as for `up --dir`.")
    ] = None,
    consensus: Annotated[
        str | None, typer.Option(help="redis://HOST:PORT/DB, as for `up`.")
    ] = None,
    blob: Annotated[
        str | None, typer.Option(help="s3://BUCKET/PREFIX?endpoint=URL, likewise.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings of `up`, as TOML or YAML.")] = None,
) -> None:
    """Check every byte of stores, claims and the own log, and report damage; nothing is changed.

    The stores are those of `up` with the same settings, variables TIDEMILL_UP_… included. Within a
    pod of the server nothing has to be named. Exit status 0 means no damage; objects left behind
    are reported, and do no harm. 1 means damage, 2 that there is nothing to check.
    """
    try:
        chosen = settings.load(ProcessSettings, config, "TIDEMILL_UP_", others=SECTIONS)
        stores = {"consensus": consensus, "blob": blob}
        given = {name: value for name, value in stores.items() if value is not None}
        store = msgspec.structs.replace(chosen.store, **given)
        chosen = msgspec.structs.replace(
            chosen, store=store, directory=directory or chosen.directory
        )
        address = chosen.consensus_address if store.consensus else ""
        place = chosen.blob_place
        check_files(chosen.root, chosen.embeds_log)
    except TidemillError as error:
        typer.echo(f"tidemill fsck: {error}", err=True)
        raise typer.Exit(2) from None
    wrong = check_stores(chosen.root, address, place, {"remap": remap_problems})
    if wrong + _check_log(chosen.root / "log"):
        raise typer.Exit(1)


def _check_log(directory: Path) -> int:
    """Print what is wrong with the own log, if there is one; how much it is."""
    if not directory.is_dir():
        return 0
    check = LogCheck(directory)
    wrong = 0
    for problem in check.problems():
        wrong += 1
        typer.echo(f"WRONG: log: {problem} (restore it from a backup)")
    checked = check.checked
    typer.echo(
        f"{checked['topics']} topics, {checked['records']} records: {wrong or 'nothing'} wrong"
    )
    return wrong
