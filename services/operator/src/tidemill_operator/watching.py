"""A mirror of the objects of one kind: list, watch, and list again whenever that is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random  # noqa: TID251  the type of what is handed in

from tidemill.errors import TidemillError, UnknownCollection, UsageError
from tidemill.kubernetes.api import Expired, KubernetesApi
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill_operator.objects import PLURALS, Declared, collection_path, declared, version_of

PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 30.0

log = get_logger("watch")


class Mirror:
    """The objects of one kind, in one namespace or in all, as they were a moment ago."""

    def __init__(
        self, api: KubernetesApi, kind: str, namespace: str, clock: Clock, rng: Random,
        watch_s: int, changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self.objects: dict[str, Declared] = {}
        self.filled = False
        self._api = api
        self._kind = kind
        self._path = collection_path(PLURALS[kind], namespace)
        self._clock = clock
        self._rng = rng
        self._watch_s = watch_s
        self._changed = changed

    async def follow_forever(self) -> None:
        """Keep the mirror true, as far as the server allows it.

        Raises: UsageError if it takes no such call.
        """
        pause_s = PAUSE_S_MIN
        version: str | None = None
        while True:
            try:
                if version is None:
                    version = await self._list()
                    pause_s = PAUSE_S_MIN
                version = await self._watch(version)
                continue
            except Expired:
                log.info("listing again", path=self._path)
                version = None
                continue
            except TidemillError as error:
                if isinstance(error, UsageError) and not _passing(error):
                    raise
                log.warning("watch failed", path=self._path, error=str(error), pause_s=pause_s)
            version = None
            await self._clock.sleep(pause_s * (0.5 + self._rng.random()))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _list(self) -> str:
        try:
            items, version = await self._api.list(self._path)
        except UnknownCollection:
            # The kind is not defined here, or not yet: then there is none of it, and the others go
            # on.
            self.objects, self.filled = {}, True
            self._changed()
            raise
        except UsageError:
            # Not for us to see, as under a Role from before this kind: what was seen stays, and the
            # others go on.
            self.filled = True
            self._changed()
            raise
        self.objects = {each.uid: each for each in (declared(self._kind, item) for item in items)}
        self.filled = True
        self._changed()
        return version

    async def _watch(self, version: str) -> str:
        """Follow until the server ends the watch; the version to go on from."""
        async for what, document in self._api.watch(self._path, version, self._watch_s):
            version = version_of(document)
            if what == "BOOKMARK":
                continue
            each = declared(self._kind, document)
            before = self.objects.get(each.uid)
            if what == "DELETED":
                self.objects.pop(each.uid, None)
            else:
                self.objects[each.uid] = each
            if before is None or what == "DELETED" or _asks(each) != _asks(before):
                self._changed()
        return version


def _passing(error: UsageError) -> bool:
    """Whether what the server refused is what it may yet allow: a kind or a right that is to
    come.
    """
    return isinstance(error, UnknownCollection) or error.details.get("reason") == "403"


def _asks(each: Declared) -> Declared:
    """The object without its status, which is our own writing."""
    return replace(each, status={})
