"""The work of one process among others: resources are claimed, run, and handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidemill.catalog.apply.plan import plan_reader
from tidemill.catalog.entry import columns_of, row_schema
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.rpc.messages import Work
from tidemill.runtime.breaking import told
from tidemill.runtime.logs import get_logger
from tidemill.runtime.resources import SourceSpec, ViewSpec
from tidemill.shard.claims import Claim, KeptClaimant, ended, work_claimed
from tidemill.time import Indeterminate, Unavailable
from tidemill_embedded.replicas.peers import Peers
from tidemill_embedded.replicas.roles import (
    CLAIMED,
    item_of,
    roles_for,
    share_of,
    shares_of,
    without_share,
)
from tidemill_embedded.running.details import details_of
from tidemill_embedded.running.leaving import Leaving
from tidemill_embedded.running.readers import ActionRunner
from tidemill_embedded.running.runner import Health, Runner, Supervised
from tidemill_embedded.running.sources import SourceRunner
from tidemill_embedded.world import World

log = get_logger("claims")

LOOK_S = 2.0
"""The catalog is read anew at the latest after so long."""

SLOTS = 16
"""Collections are compacted by the slot that their name falls into; slots are claimed."""

Key = tuple[str, str]


class SourcePart:
    """One role's part of the work on a source; of ingest perhaps a share of the partitions alone."""

    def __init__(self, source: SourceRunner, role: str, share: int | None = None) -> None:
        self.source = source
        self.name = f"{source.name} ({role if share is None else share_of(role, share)})"
        runs: dict[str, Callable[[Callable[[], None]], Awaitable[None]]] = {
            "ingest": partial(source.read, number=share), "remap": source.bind,
            "reclock": source.write, "compute": source.stage,
        }  # fmt: skip
        self._run = runs[role]

    async def prepare(self) -> None:
        """The collections of a source are made when it is applied, and again here: it is done twice."""
        await self.source.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """The part until it is cancelled."""
        await self._run(ready)

    async def release(self) -> None:
        """Close everything: the source is deleted."""
        await self.source.release()


@dataclass(slots=True)
class Held:
    """A claimed part of a resource that this process works on."""

    role: str
    stored: Stored
    supervised: Supervised
    epoch: int
    share: int | None = None


class SharedWork:
    """What this process works on: its roles' parts of the resources that it has claimed.

    A part runs in one process at a time, as far as processes notice; what one that was paused still does
    when it goes on is refused where it would have an effect. A part whose process dies begins in
    another one within the lease.
    """

    def __init__(
        self,
        world: World,
        store: ResourceStore,
        roles: Sequence[str],
        claimants: Callable[[str], KeptClaimant],
        make: Callable[[Stored], Runner],
        name: str,
    ) -> None:
        self._world = world
        self._store = store
        self._roles = tuple(roles)
        self._claimants = claimants
        self._make = make
        self._name = name
        self._planned: dict[Key, Stored] = {}
        self._held: dict[tuple[str, str], Held] = {}
        self._sources: dict[str, SourceRunner] = {}
        self._refreshed = asyncio.Event()
        self._leaving = Leaving(world.clock, world.settings.services)
        self.slots: set[int] = set()
        self.named_at = -1

    # -- the catalog ----------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the catalog anew, and know by name what it says."""
        await self._store.refresh()
        refreshed, self._refreshed = self._refreshed, asyncio.Event()
        refreshed.set()
        if any(self._planned.get(_key(stored)) != stored for stored in self._store.live()):
            await self._world.discover()
        for stored in self._store.live():
            if self._planned.get(_key(stored)) != stored:
                await self._world.catalog.foresee(stored)
        # IMPORTANT: nothing is awaited from here on, so that names are those of the catalog as it is read.
        live = {_key(stored): stored for stored in self._store.live()}
        self.named_at = self._store.upper
        for key, stored in list(self._planned.items()):
            now = live.get(key)
            if now is None or now.prefix != stored.prefix:
                self._world.catalog.forget(key[1])
                del self._planned[key]
        for key, stored in live.items():
            if self._planned.get(key) == stored:
                continue
            try:
                plan_reader(stored, self._world.catalog)
                self._planned[key] = stored
            except Exception as error:  # tried again at the next look; whoever claims it says why
                log.error("not planned", resource=str(stored.resource), error=told(error))

    def planned(self, stored: Sequence[Stored]) -> None:
        """These are known by name already: this process has applied them."""
        self._planned.update({(s.resource.kind, s.resource.name): s for s in stored})

    # -- claims ---------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Claim and work until cancelled; then hand everything over."""
        await self.refresh()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_catalog())
            for role in self._roles:
                if role in CLAIMED:
                    tasks.create_task(
                        self._claim(
                            role, self._wanted(role), self._worked(role), partial(self._left, role)
                        )
                    )
                elif role == "compaction":
                    tasks.create_task(self._claim(role, self._all_slots, self._worked_slot))
            ready()

    async def _claim(
        self,
        role: str,
        wanted: Callable[[], Coroutine[Any, Any, list[str]]],
        work: Callable[[Claim], Coroutine[Any, Any, None]],
        left: Callable[[], list[str]] = list,
    ) -> None:
        await work_claimed(self._claimants(role), wanted, work, self._world.clock, left)

    async def _refreshed_anew(self) -> None:
        """Read the catalog anew, as soon as the stores let us."""
        while True:
            try:
                await self.refresh()
                return
            except Exception as error:
                await self._not_read(error)

    async def _follow_catalog(self) -> None:
        while True:
            try:
                await self._store.until_changed(LOOK_S)
                await self.refresh()
            except Exception as error:
                await self._not_read(error)

    async def _not_read(self, error: Exception) -> None:
        """Pause, whatever it was: what is claimed goes on as it was declared."""
        pause_s = self._world.settings.retry_s_min
        if not isinstance(error, Unavailable | Indeterminate):
            log.error("catalog not read", error=told(error), exc_info=error)
            pause_s = LOOK_S
        await self._world.clock.sleep(pause_s)

    def _wanted(self, role: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
        async def wanted() -> list[str]:
            return list(self._items(role))

        return wanted

    def _items(self, role: str) -> dict[str, Stored]:
        """What there is to be claimed of a role."""
        return {
            item: stored
            for stored in self._store.live()
            if role in roles_for(stored.resource)
            for item in _items_of(role, stored)
        }

    def _left(self, role: str) -> list[str]:
        """What of it others are to have, as long as there are any: its work has failed here for some time."""
        for (held_role, item), held in self._held.items():
            if held_role == role:
                self._leaving.look(role, item, held.stored, held.supervised)
        return self._leaving.items(role, self._items(role))

    def _worked(self, role: str) -> Callable[[Claim], Coroutine[Any, Any, None]]:
        async def work(claim: Claim) -> None:
            await self._work(role, claim)

        return work

    async def _all_slots(self) -> list[str]:
        return [str(slot) for slot in range(SLOTS)]

    async def _worked_slot(self, claim: Claim) -> None:
        self.slots.add(int(claim.item))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.slots.discard(int(claim.item))

    async def _work(self, role: str, claim: Claim) -> None:
        """Run one claimed part until the claim is over; what is changed begins again."""
        log.info("claimed", role=role, item=claim.item, epoch=claim.epoch)
        try:
            await self._refreshed_anew()
            while (stored := self._live(claim.item)) is not None:
                if not await self._work_on(role, claim, stored):
                    return
        finally:
            log.info("let go", role=role, item=claim.item, epoch=claim.epoch)

    async def _work_on(self, role: str, claim: Claim, stored: Stored) -> bool:
        """Run a part as it is declared; whether it is declared otherwise now."""
        runner = self._part(role, stored, without_share(claim.item)[1])
        if isinstance(runner, ActionRunner):
            claimant = self._claimants(role)
            runner.confirm_with(lambda: claimant.confirm(claim))
        world = self._world
        supervised = Supervised(
            runner, world.clock, world.settings, claimed=True, turns=world.tried
        )
        _, share = without_share(claim.item)
        self._held[role, claim.item] = Held(role, stored, supervised, claim.epoch, share)
        try:
            return await self._until_changed(supervised, stored)
        finally:
            del self._held[role, claim.item]
            self._forget_source(claim.item)
            if self._live(claim.item) is None:
                # It was deleted: what a late step of ours took again is given up once more.
                try:
                    await runner.release()
                except Exception as error:  # who has deleted it has given up all there was then
                    log.warning("not released", resource=runner.name, error=told(error))

    async def _until_changed(self, supervised: Supervised, stored: Stored) -> bool:
        """Run until the claim is over, or the catalog says something else that matters: whether it does."""
        work = asyncio.create_task(supervised.run_claimed())
        try:
            while not work.done():
                waiting = asyncio.create_task(self._refreshed.wait())
                await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                now = self._live(item_of(stored))
                if now is not None and _declared_anew(stored, now) and not work.done():
                    return True
            await work
            return False
        finally:
            await ended(work, self._world.clock)

    def _live(self, item: str) -> Stored | None:
        whole, _ = without_share(item)
        return next((s for s in self._store.live() if item_of(s) == whole), None)

    def _part(self, role: str, stored: Stored, share: int | None) -> Runner:
        item = item_of(stored)
        if stored.resource.kind != "Source":
            return self._make(stored)
        known = self._sources.get(item)
        if known is None or known.rows != row_schema(columns_of(stored)):
            made = self._make(stored)
            if not isinstance(made, SourceRunner):
                return made
            known = self._sources[item] = made
        return SourcePart(known, role, share)

    def _forget_source(self, item: str) -> None:
        whole, _ = without_share(item)
        if all(without_share(other)[0] != whole for _, other in self._held):
            self._sources.pop(whole, None)

    def claimants(self) -> dict[str, KeptClaimant]:
        """Who claims, for each role that has something to claim."""
        return {role: self._claimants(role) for role in self._roles if role != "query"}

    # -- what it says ---------------------------------------------------------------------------

    def held(self) -> list[Held]:
        """The parts that this process works on."""
        return list(self._held.values())

    def has_slot_of(self, collection: str) -> bool:
        """Whether this process has claimed the compaction of a collection."""
        return sum(collection.encode()) % SLOTS in self.slots

    async def work(self) -> Sequence[Work]:
        """The parts that this process works on, for others."""
        return [self._said(held) for held in self.held()]

    def _said(self, held: Held) -> Work:
        runner = held.supervised.runner
        health = held.supervised.health
        details = details_of(runner.source if isinstance(runner, SourcePart) else runner, held.role)
        resource = held.stored.resource
        return Work(
            held.role if held.share is None else share_of(held.role, held.share), resource.kind, resource.name, health.ready, health.reason, health.message,
            details, self._name, held.epoch,
        )  # fmt: skip


def _key(stored: Stored) -> Key:
    return stored.resource.kind, stored.resource.name


def _declared_anew(stored: Stored, now: Stored) -> bool:
    """Whether the work on a resource has to begin again: a view has changed, or a source has more columns."""
    if type(now.resource.spec) is not type(stored.resource.spec):
        return True
    if isinstance(now.resource.spec, SourceSpec):
        return columns_of(now) != columns_of(stored)
    return isinstance(now.resource.spec, ViewSpec) and now != stored


def _items_of(role: str, stored: Stored) -> list[str]:
    """What the work of a role on a resource is called among processes, share by share."""
    item, shares = item_of(stored), shares_of(stored.resource)
    if role != "ingest" or shares == 1:
        return [item]
    return [share_of(item, number) for number in range(shares)]


def combined(said: Mapping[str, Work | None]) -> Health:
    """How a resource does whose roles say how they do; None is a role that nobody has claimed."""
    for role, work in said.items():
        if work is None:
            return Health(
                False, "Unclaimed",
                f"no process has claimed the part of {role}: one takes it over within seconds, or "
                f"start one with --role {role}",
            )  # fmt: skip
    stalled = [work for work in said.values() if work is not None and not work.ready]
    for work in sorted(stalled, key=lambda work: work.reason != "Stalled"):
        return Health(False, work.reason, f"{work.role}: {work.message}")
    return Health(True, "Running", "")


Said = Mapping[Key, Mapping[str, Work]]
"""What processes say of the parts of resources: by kind and name, then by role."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The work of this process, and the processes that do the rest."""

    work: SharedWork
    peers: Peers
    address: str

    async def said(self) -> Said:
        """What every process says of what it has claimed."""
        owners = await self.peers.owners(CLAIMED)
        others = {own.details for found in owners.values() for own in found} - {self.address}
        said: dict[Key, dict[str, Work]] = {}
        for work in [*await self.peers.work(sorted(others)), *await self.work.work()]:
            known = said.setdefault((work.kind, work.name), {})
            # A process that lost its claim may not know yet: the newest epoch counts.
            if work.role not in known or known[work.role].epoch < work.epoch:
                known[work.role] = work
        return said
