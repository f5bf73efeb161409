"""A resource whose work cannot be made: it says why, is tried again, and can be deleted all the same."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

from tidemill.catalog.store import ResourceStore, Stored
from tidemill.runtime.logs import get_logger
from tidemill.time import Corrupt, UnknownCapability, UnknownCollection
from tidemill_embedded.running.runner import Made, Runner
from tidemill_embedded.world import World

log = get_logger("resources")

_BY_PREFIX = {
    "View": ("view", "takeover", "written"),
    "Action": ("action",),
    "Arrangement": ("arrangement",),
    "Hold": ("hold",),
}
"""Who holds, by kind: the word before the colon, behind which stands the prefix of the resource."""

_BY_NAME = ("reclock", "events", "reference", "remap")
"""The same for sources, whose holds have their name."""


class Unmade:
    """The work of a resource of which `make` fails: made anew at each try, so that it may yet begin."""

    def __init__(
        self, stored: Stored, make: Callable[[], Runner], world: World, store: ResourceStore
    ) -> None:
        self.name = str(stored.resource)
        self.made: Runner | None = None
        self._stored = stored
        self._make = make
        self._world = world
        self._store = store

    async def prepare(self) -> None:
        """Raises: why it cannot be made."""
        self.made = self._make()
        await self.made.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """The work, once it could be made."""
        assert self.made is not None
        await self.made.run(ready)

    async def release(self) -> None:
        """Close its collections and give up its holds, known by their names alone."""
        await erase(self._stored, self._world, self._store.bound_by_others(self._stored))


async def erase(stored: Stored, world: World, shared: Collection[str]) -> None:
    """Close every collection of a resource and give up its holds, without planning or running it.

    What others have `shared` with it, and still use, stays open. Again is fine. A collection that is damaged is left as it is. Cost: a look at every collection.
    """
    collections = world.collections
    for collection in await collections.ids():
        try:
            with suppress(UnknownCollection, UnknownCapability):
                status = await collections.status(collection)
                held = {holder.owner for holder in (*status.holders, *status.writing)}
                await world.release(collection, frozenset(o for o in held if _owns(stored, o)))
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
    return word in _BY_PREFIX.get(stored.resource.kind, ()) and _is_of(whose, stored.prefix, "@")


def inner(made: Made) -> Made:
    """The work itself, if it could be made after all."""
    return made.made or made if isinstance(made, Unmade) else made
