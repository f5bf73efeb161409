"""`tidemill delete --offline`: a resource is taken out of the stores while no process runs it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from tidemill.runtime import logs, settings
from tidemill.time import UnknownCollection
from tidemill_embedded.process import opened
from tidemill_embedded.settings import EmbeddedSettings


def delete_offline(kind: str, name: str, directory: str | None, config: Path | None) -> None:
    """Mark a resource as deleted, close its collections, give up its holds; nothing is planned or run.

    The stores are those of `up` with the same settings. Whoever reads the resource says so when it runs next.
    Raises: UnknownCollection; Unavailable or UsageError if the stores cannot be opened, as by a running process.
    """
    logs.configure("console", "warning")
    chosen = settings.load(EmbeddedSettings, config, "TIDEMILL_UP_")
    chosen = msgspec.structs.replace(chosen, directory=directory or chosen.directory, role=())
    asyncio.run(_deleted(kind, name, chosen))


async def _deleted(kind: str, name: str, chosen: EmbeddedSettings) -> None:
    async with opened(chosen) as process:
        await process.store.open()
        stored = process.store.get(kind, name)
        if stored is None:
            raise UnknownCollection(f"there is no {kind} {name}", kind=kind, name=name)
        await process.system.forget(stored)
        await process.system.erase(stored)
