"""`tidemill delete --offline`: a resource is taken out of the stores while no process runs it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tidemill.errors import UnknownCollection, UsageError
from tidemill.host.process import opened
from tidemill.runtime import logs, settings
from tidemill_query.controller import Controller
from tidemill_server.services import services_of
from tidemill_server.settings import ServerSettings


def delete_offline(kind: str, name: str, directory: str | None, config: Path | None) -> None:
    """Mark a resource as deleted, close its collections, give up its holds; nothing is planned or
    run.

    The stores are those of `up` with the same settings. Readers of the resource say so when they
    run next. Raises: UnknownCollection; Unavailable or UsageError if the stores cannot be opened,
    as by a running process.
    """
    logs.configure("console", "warning")
    chosen = settings.load(ServerSettings, config, "TIDEMILL_UP_")
    chosen = msgspec.structs.replace(chosen, directory=directory or chosen.directory, role=())
    if not chosen.root.is_dir():
        raise UsageError(
            f"there is no folder {chosen.directory} with state: name that of the server with --dir",
            reason="directory",
        )
    asyncio.run(_delete(kind, name, chosen))


async def _delete(kind: str, name: str, chosen: ServerSettings) -> None:
    async with opened(chosen, services_of(chosen)) as process:
        store = process.context.store
        await store.open()
        stored = store.get(kind, name)
        if stored is None:
            raise UnknownCollection(f"there is no {kind} {name}", kind=kind, name=name)
        controller = Controller(process.context, process.work, process.reports)
        await controller.forget(stored)
        await controller.erase(stored)
