"""Versions held for readers of objects: what a scan on other machines reads, and where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidemill.errors import NotYet, UsageError
from tidemill.shard import transitions
from tidemill.shard.capabilities import CapabilityId, ReadCapability
from tidemill.shard.capability_commands import request_digest
from tidemill.shard.log import folder_of
from tidemill.shard.ranges import bare
from tidemill.shard.state import State
from tidemill.shard.versions import Core
from tidemill.time import frontier, sole_time

URL_LIFE_S = 900.0
"""Seconds within which the address of an object is used."""


@dataclass(frozen=True, slots=True)
class HeldVersion:
    """A version, whose objects stay while its capability lives, and the instant it is held at."""

    capability: ReadCapability
    at: int
    version: State


class HeldVersions:
    """Commands for readers that read the objects of a version themselves."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def hold_version(
        self,
        collection: str,
        at: int | None,
        *,
        owner: str,
        lease_ms: int,
        token: str | None = None,
    ) -> HeldVersion:
        """The newest version, without its holders, held at `at`.

        By default that is the latest definite instant. Lists of parts are not read. No object that
        it names, or a list of it, is deleted while the capability lives (P8). A repeated token is
        answered with the same capability. Raises: BeforeSince, NotYet, UnknownCollection. Cost: a
        commit.
        """
        now_ms, asked = self._core.clock.now_ms(), request_digest("hold version", token)
        fresh = self._core.ids()

        def taken(state: State) -> tuple[HeldVersion, State]:
            before = transitions.asked_before(state.reads, asked)
            if before is None:
                held_at = frontier(_latest(state) if at is None else at)
                transitions.check_readable(state, sole_time(held_at))
                held, state = transitions.hold_read(
                    state, fresh, at=held_at, owner=owner, lease_ms=lease_ms, now_ms=now_ms,
                    token=asked,
                )  # fmt: skip
                before = fresh, held
                state = transitions.keep_objects(state, fresh, now_ms)
            name, held = before
            capability = ReadCapability(CapabilityId(name), collection, held)
            return HeldVersion(capability, sole_time(held), state), state

        found = await self._core.versions.commit(collection, taken)
        return replace(found, version=bare(found.version))

    async def locate(self, capability: ReadCapability, keys: Sequence[str]) -> list[str]:
        """The places of the objects of these keys, good for URL_LIFE_S, in their order.

        Raises: errors of the capability; UsageError for an object of another collection.
        """
        state = await self._core.versions.state(capability.collection)
        transitions.live_read(state, capability.id)
        folder = f"{folder_of(capability.collection)}/"
        for key in keys:
            name = key.removeprefix(folder)
            if name == key or "/" in name or not name.startswith(("part-", "list-")):
                raise UsageError(f"{key} is no object of the collection", reason="WrongObject")
        return [await self._core.parts.blob.url(key, URL_LIFE_S) for key in keys]


def _latest(state: State) -> int:
    """The latest instant that is definite. Raises: NotYet if none is."""
    if state.upper.empty:
        times = [batch.time_max for batch in state.batches]
        return max([0 if state.since.empty else sole_time(state.since), *times])
    upper = sole_time(state.upper)
    if not upper:
        raise NotYet("no instant is definite yet", requested=0, upper=state.upper)
    return upper - 1
