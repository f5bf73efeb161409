"""`tidemill fsck`: the stores of a server, without the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidemill.runtime import settings
from tidemill.shard.fsck_command import check_stores
from tidemill.time import TidemillError
from tidemill_embedded.settings import EmbeddedSettings


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
    """Check every byte of the stores, claims included, and say what is wrong; nothing is changed.

    The stores are those of `up` with the same settings, variables TIDEMILL_UP_… included: within a pod
    of the server nothing has to be named. Exit status 0 if nothing is wrong (objects left behind are
    reported, and do no harm), 1 if something is, 2 if there is nothing to check.
    """
    try:
        chosen = settings.load(EmbeddedSettings, config, "TIDEMILL_UP_")
        stores = {"consensus": consensus, "blob": blob}
        given = {name: value for name, value in stores.items() if value is not None}
        store = msgspec.structs.replace(chosen.store, **given)
        chosen = msgspec.structs.replace(
            chosen, store=store, directory=directory or chosen.directory
        )
        address = chosen.consensus_address if store.consensus else ""
        place = chosen.blob_place
    except TidemillError as error:
        typer.echo(f"tidemill fsck: {error}", err=True)
        raise typer.Exit(2) from None
    check_stores(chosen.root, address, place)
