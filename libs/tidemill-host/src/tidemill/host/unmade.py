"""A resource whose work cannot be made: it says why, is tried again, and can be deleted all the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from tidemill.catalog.store import CatalogMoved, Stored
from tidemill.errors import Corrupt, UnknownCapability, UnknownCollection
from tidemill.host.context import Context
from tidemill.host.supervised import Runner
from tidemill.runtime.breaking import told
from tidemill.runtime.logs import get_logger

log = get_logger("resources")

_BY_PREFIX = {
    "View": ("view", "range", "takeover", "written"),
    "Action": ("action",),
    "Arrangement": ("arrangement",),
    "Hold": ("hold",),
}
"""Holders by kind: the word before the colon, behind which stands the prefix of the resource."""

_BY_NAME = ("reclock", "events", "reference", "remap")
"""The same for sources, whose holds have their name."""


class Unmade:
    """The work of a resource of which `make` fails: made anew at each try, so that it may yet
    begin.
    """

    def __init__(self, stored: Stored, make: Callable[[], Runner], context: Context) -> None:
        self.name = str(stored.resource)
        self.made: Runner | None = None
        self._stored = stored
        self._make = make
        self._context = context

    async def prepare(self) -> None:
        """Raises: why it cannot be made."""
        self.made = self._make()
        await self.made.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """The work, once it could be made."""
        assert self.made is not None
        await self.made.run(ready)

    def details(self) -> Mapping[str, Any]:  # values of JSON
        """The details of the work, if it could be made."""
        return {} if self.made is None else self.made.details()

    async def release(self) -> None:
        """Close its collections and give up its holds, known by their names alone."""
        await erase(self._stored, self._context, self._context.store.bound_by_others(self._stored))


async def erase(stored: Stored, context: Context, shared: Collection[str]) -> None:
    """Close every collection of a resource and give up its holds, without planning or running it.

    Collections that others share (`shared`) and still use stay open. A damaged collection is left
    as it is. A second call is harmless. Cost: a look at every collection.
    """
    collections = context.collections
    for collection in await collections.ids():
        try:
            with suppress(UnknownCollection, UnknownCapability):
                status = await collections.status(collection)
                held = {holder.owner for holder in (*status.holders, *status.writing)}
                await context.release(collection, frozenset(o for o in held if _owns(stored, o)))
                if _made(stored, collection) and collection not in shared:
                    await collections.retire(collection)
        except Corrupt as error:
            log.error("left as it is", collection=collection, error=str(error))


def _made(stored: Stored, collection: str) -> bool:
    """Whether a collection goes with the resource, unless others share it."""
    if stored.resource.kind == "Hold":
        return False
    bindings = stored.shares is not None and collection == stored.remap
    return bindings or _is_of(collection, stored.prefix, "/@")


def _is_of(name: str, prefix: str, marks: str) -> bool:
    return name == prefix or any(name.startswith(prefix + mark) for mark in marks)


def _owns(stored: Stored, owner: str) -> bool:
    """Whether a hold is one of the resource."""
    word, _, whose = owner.partition(":")
    if stored.resource.kind == "Source":
        return word in _BY_NAME and whose == stored.resource.name
    return word in _BY_PREFIX.get(stored.resource.kind, ()) and _is_of(whose, stored.prefix, "/@")


def inner(made: Runner) -> Runner:
    """The work itself, if it could be made after all."""
    return made.made or made if isinstance(made, Unmade) else made


async def erase_deleted(context: Context) -> None:
    """Erase resources of which a deletion was cut off, by a death or by a store that went away."""
    for stored in context.store.ending():
        try:
            await erase(stored, context, context.store.bound_by_others(stored))
            await note_ended(context, stored)
        except Exception as error:  # it is tried again, and holds up nothing else
            log.error("not erased", resource=str(stored.resource), error=told(error))


async def note_ended(context: Context, stored: Stored) -> None:
    """Write to the catalog that nothing is left of a deleted resource."""
    while True:
        with suppress(CatalogMoved):
            return await context.store.record_end(stored)
        await context.store.refresh()
