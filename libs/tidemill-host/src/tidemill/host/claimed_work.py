"""The work of one process among others: resources are claimed, run, and handed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidemill.catalog.apply.plan import plan_reader
from tidemill.catalog.entry import columns_of
from tidemill.catalog.made.making import Made
from tidemill.catalog.store import Key, Stored
from tidemill.catalog.versions import version_of
from tidemill.errors import Indeterminate, Unavailable
from tidemill.host.context import Context
from tidemill.host.leaving import Leaving
from tidemill.host.roles import (
    CLAIMED,
    item_of,
    items_of,
    roles_for,
    share_of,
    without_share,
)
from tidemill.host.supervised import STARTING, Runner, Supervised
from tidemill.rpc.messages import Work
from tidemill.runtime.breaking import told
from tidemill.runtime.logs import get_logger
from tidemill.runtime.resources import SourceSpec, UnreadableSpec, ViewSpec
from tidemill.shard.claims import Claim, ClaimedTasks, Claiming, end_task

log = get_logger("claims")

LOOK_S = 2.0
"""The catalog is read anew at the latest after so long."""

SLOTS = 16
"""Collections are compacted by the slot that their name falls into; slots are claimed."""

BEGINNING_MAX = 64
"""Resources that are prepared at the same time: their flushes are shared."""


@dataclass(slots=True)
class ClaimedPart:
    """A claimed part of a resource that this process works on."""

    role: str
    stored: Stored
    supervised: Supervised
    epoch: int
    share: int | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is declared otherwise, deleted, or to stop for a while."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Work that was prepared by `apply`; `failed` if the stores were away."""

    stored: Stored
    made: Made
    failed: Exception | None


class ClaimedWork:
    """The work of this process: its roles' parts of the resources that it has claimed.

    A part runs in one process at a time, as far as processes notice. Effects of a paused process
    that wakes are refused at their place. A part whose process dies begins in another one within
    the lease. A process alone claims everything, at once.
    """

    def __init__(
        self,
        context: Context,
        roles: Sequence[str],
        claimants: Callable[[str], Claiming],
        make: Callable[[Stored, str, int | None, Callable[[], Awaitable[None]]], Runner],
        name: str,
    ) -> None:
        self._context = context
        self._store = context.store
        self._claimants = {role: claimants(role) for role in roles if role != "query"}
        self._sole = bool(self._claimants) and all(c.sole for c in self._claimants.values())
        self._make = make
        self._name = name
        self._planned: dict[Key, Stored] = {}
        self._unplanned: dict[Key, str] = {}
        """Why resources could not be planned, as it was logged."""
        self._held: dict[tuple[str, str], ClaimedPart] = {}
        self._prepared: dict[tuple[str, str], _Prepared] = {}
        self._registered = asyncio.Event()
        """Set, and replaced, whenever a part is held."""
        self._still: dict[str, asyncio.Event] = {}
        """Items whose work is to stand still, until the event."""
        self._unprepared: dict[str, asyncio.Event] = {}
        """Items whose work is to begin prepared, after the event."""
        self._tasks: dict[str, ClaimedTasks] = {}
        self._running: asyncio.Task[None] | None = None
        self._preparing = asyncio.Semaphore(BEGINNING_MAX)
        self._leaving = Leaving(context.clock, context.settings.services)
        self.slots: set[int] = set()
        self.named_at = -1

    @property
    def sole(self) -> bool:
        """Whether no other process works on the same stores."""
        return self._sole

    # -- the catalog ----------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the catalog anew, and know by name what it says."""
        await self._store.refresh()
        unplanned = [s for s in self._store.live() if self._planned.get(_key(s)) != s]
        if unplanned:
            await self._context.discover()
        for stored in unplanned:
            await self._context.catalog.foresee(stored)
        # IMPORTANT: nothing is awaited from here on, so that names are those of the catalog as it
        # is read.
        live = {_key(stored): stored for stored in self._store.live()}
        self.named_at = self._store.upper
        for key, stored in list(self._planned.items()):
            now = live.get(key)
            if now is None or now.prefix != stored.prefix:
                if makes_names(stored):
                    self._context.catalog.forget(key[1])
                del self._planned[key]
        for key, stored in live.items():
            if self._planned.get(key) != stored:
                self._plan(stored)
        for (_, item), held in self._held.items():
            declared = self._live(item)
            if declared is None or _declared_anew(held.stored, declared):
                held.over.set()

    def _plan(self, stored: Stored) -> None:
        """Enter the collections of a resource under their names; one that cannot be planned reports
        it.
        """
        key = _key(stored)
        try:
            if isinstance(stored.resource.spec, UnreadableSpec) and makes_names(stored):
                self._context.catalog.forget(key[1])
            plan_reader(stored, self._context.catalog)
            self._planned[key] = stored
            self._unplanned.pop(key, None)
        except Exception as error:  # tried again at the next look; whoever claims it says why
            if self._unplanned.get(key) != (why := told(error)):
                log.error("not planned", resource=str(stored.resource), error=why)
            self._unplanned[key] = why

    def planned(self, stored: Sequence[Stored]) -> None:
        """These are known by name already: this process has applied them.

        Their work here waits for `prepared`: it would fail again and again, for want of
        collections that are yet to be made.
        """
        for each in stored:
            self._planned[_key(each)] = each
            self._unprepared.setdefault(item_of(each), asyncio.Event())

    def prepared(self, stored: Sequence[Stored]) -> None:
        """Begin what `planned` has held back."""
        for each in stored:
            waiting = self._unprepared.pop(item_of(each), None)
            if waiting is not None:
                waiting.set()

    # -- what this process prepares itself --------------------------------------------------------

    @asynccontextmanager
    async def stopped(self, stored: Stored) -> AsyncIterator[None]:
        """Stop all parts of a resource in this process for the body; afterwards claimed parts begin
        anew.
        """
        over = self._still[item_of(stored)] = asyncio.Event()
        try:
            running = self.held_of(stored)
            for held in running:
                held.over.set()
            for held in running:
                await held.ended.wait()
            yield
        finally:
            del self._still[item_of(stored)]
            over.set()

    def hand_over(self, stored: Stored, made: Made, failed: Exception | None = None) -> None:
        """Hand prepared work to the parts that this process claims, so that it is done once."""
        for role, item in self._parts_of(stored):
            self._prepared[role, item] = _Prepared(stored, made, failed)

    async def take_up(self) -> None:
        """Begin applied and end deleted resources now, if no other process may claim them."""
        held: dict[str, Mapping[str, Claim]] = {}
        for role, tasks in self._tasks.items():
            if self._sole:
                await tasks.renew()
            held[role] = self._claimants[role].held()
        # A part that is claimed elsewhere is prepared there once more.
        self._prepared = {part: p for part, p in self._prepared.items() if part[1] in held[part[0]]}
        for role, item in list(self._prepared):
            if self._sole:
                await self._until_begun(role, item)

    # -- claims ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Claim and work in the background; return once what is granted at once has begun."""
        await self.refresh()
        self._tasks = {role: self._claim(role) for role in self._claimants}
        self._running = asyncio.create_task(self._run(), name="claims")
        await self.take_up()
        for role, claimant in self._claimants.items():
            for item in claimant.held() if self._sole and role in CLAIMED else ():
                await self._until_begun(role, item)

    async def _until_begun(self, role: str, item: str) -> None:
        """Return once a part that is granted has begun, or could not; at once for one that is held
        back.
        """
        while (held := self._held.get((role, item))) is None and self._live(item) is not None:
            if without_share(item)[0] in self._unprepared:
                return
            await self._registered.wait()
        if held is not None:
            await held.supervised.begun.wait()

    @property
    def running(self) -> asyncio.Task[None]:
        """All that was started: it ends by itself only with an error."""
        assert self._running is not None
        return self._running

    async def stop(self) -> None:
        """Stop all work and hand it over; nothing durable changes."""
        if self._running is not None:
            await end_task(self._running, self._context.clock)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if not self._sole:
                group.create_task(self._follow_catalog())
            for tasks in self._tasks.values():
                group.create_task(tasks.run())

    def _claim(self, role: str) -> ClaimedTasks:
        claimant, clock = self._claimants[role], self._context.clock
        if role == "compaction":
            return ClaimedTasks(claimant, self._all_slots, self._work_on_slot, clock)
        return ClaimedTasks(
            claimant, self._wanted(role), partial(self._work, role), clock,
            partial(self._left, role),
        )  # fmt: skip

    async def _read_anew(self) -> None:
        """Read the catalog anew, as soon as the stores let us."""
        while True:
            try:
                await self.refresh()
                return
            except Exception as error:
                await self._not_read(error)

    async def _follow_catalog(self) -> None:
        """Read the catalog whenever it changes; new work is claimed at once, not at the next
        renewal. A claim that failed is tried again.
        """
        seen = self._claimable()
        claimed = True
        while True:
            try:
                if claimed:
                    await self._store.until_changed(LOOK_S)
                else:
                    await self._context.clock.sleep(self._context.settings.retry_s_min)
                await self.refresh()
                now = self._claimable()
                roles = {role for role, _ in now - seen}
                claimed = all([await self._tasks[role].renew() for role in roles])
                seen = now if claimed else seen & now
            except Exception as error:
                await self._not_read(error)

    async def _not_read(self, error: Exception) -> None:
        """Pause, whatever it was: what is claimed goes on as it was declared."""
        pause_s = self._context.settings.retry_s_min
        if not isinstance(error, Unavailable | Indeterminate):
            log.error("catalog not read", error=told(error), exc_info=error)
            pause_s = LOOK_S
        await self._context.clock.sleep(pause_s)

    def _wanted(self, role: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
        async def list_items() -> list[str]:
            return list(self._items(role))

        return list_items

    def _items(self, role: str) -> dict[str, Stored]:
        """The items of a role that can be claimed, with their resources."""
        return {
            item: stored
            for stored in self._store.live()
            if role in roles_for(stored.resource)
            for item in _items_of(role, stored)
        }

    def _claimable(self) -> set[tuple[str, str]]:
        """Each role of this process, with each of its items."""
        return {(role, item) for role in self._claimants for item in self._items(role)}

    def _left(self, role: str) -> list[str]:
        """Items that others are to have, while there are any: their work has failed here for some
        time.
        """
        for (held_role, item), held in self._held.items():
            if held_role == role:
                self._leaving.look(role, item, held.stored, held.supervised)
        return self._leaving.items(role, self._items(role))

    async def _all_slots(self) -> list[str]:
        return [str(slot) for slot in range(SLOTS)]

    async def _work_on_slot(self, claim: Claim) -> None:
        self.slots.add(int(claim.item))
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.slots.discard(int(claim.item))

    async def _work(self, role: str, claim: Claim) -> None:
        """Run one claimed part until the claim is over; what is changed begins again."""
        says = log.debug if self._sole else log.info
        says("claimed", role=role, item=claim.item, epoch=claim.epoch)
        try:
            if not self._sole:
                await self._read_anew()
            while (stored := await self._find_declared(claim.item)) is not None:
                await self._work_on(role, claim, stored)
        finally:
            says("let go", role=role, item=claim.item, epoch=claim.epoch)

    async def _find_declared(self, item: str) -> Stored | None:
        """The resource of an item, once its work may run; None if it is deleted."""
        whole, _ = without_share(item)
        while (over := self._still.get(whole) or self._unprepared.get(whole)) is not None:
            await over.wait()
        return self._live(item)

    async def _work_on(self, role: str, claim: Claim, stored: Stored) -> None:
        """Run a part as it is declared, until it is declared otherwise, deleted or stopped."""
        held, prepared = self._hold(role, claim, stored)
        runner = held.supervised.runner
        try:
            await self._until_over(held, prepared)
        finally:
            del self._held[role, claim.item]
            try:
                if self._live(claim.item) is None:
                    # It was deleted: what a late step of ours took again is given up once more.
                    await runner.release()
            except Exception as error:  # who has deleted it has given up all there was then
                log.warning("not released", resource=runner.name, error=told(error))
            finally:
                held.ended.set()

    def _hold(
        self, role: str, claim: Claim, stored: Stored
    ) -> tuple[ClaimedPart, _Prepared | None]:
        """Register the work on a part, and how it was prepared, if it was."""
        prepared = self._prepared.pop((role, claim.item), None)
        if prepared is not None and prepared.stored != stored:
            prepared = None
        _, share = without_share(claim.item)
        # NB: what was prepared is known until here, so that the part finds it.
        claimant, context = self._claimants[role], self._context
        runner = self._make(stored, role, share, partial(claimant.confirm, claim))
        supervised = Supervised(
            runner, context.clock, context.settings, sole=self._sole, turns=context.tried,
            preparing=self._preparing,
        )  # fmt: skip
        held = self._held[role, claim.item] = ClaimedPart(
            role, stored, supervised, claim.epoch, share
        )
        registered, self._registered = self._registered, asyncio.Event()
        registered.set()
        return held, prepared

    async def _until_over(self, held: ClaimedPart, prepared: _Prepared | None) -> None:
        """Run until the claim is over, or the part is to end or begin again."""
        failed = None if prepared is None else prepared.failed
        running = held.supervised.run(prepared=prepared is not None, failed=failed)
        work = asyncio.create_task(running)
        waiting = asyncio.create_task(held.over.wait())
        try:
            await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            waiting.cancel()
            await end_task(work, self._context.clock)

    def _live(self, item: str) -> Stored | None:
        """The resource of an item; None if it is deleted, or the name is another one's now."""
        whole, _ = without_share(item)
        kind, _, prefix = whole.partition("/")
        stored = self._store.get(kind, prefix.partition("~")[0])
        return stored if stored is not None and item_of(stored) == whole else None

    def _parts_of(self, stored: Stored) -> list[tuple[str, str]]:
        """Role and item of each part of a resource that this process may claim."""
        roles = [role for role in roles_for(stored.resource) if role in self._claimants]
        return [(role, item) for role in roles for item in _items_of(role, stored)]

    def claimants(self) -> Mapping[str, Claiming]:
        """The claimant of each role that has something to claim."""
        return self._claimants

    # -- what it says ---------------------------------------------------------------------------

    def held(self) -> list[ClaimedPart]:
        """The parts that this process works on."""
        return list(self._held.values())

    def held_of(self, stored: Stored) -> list[ClaimedPart]:
        """The parts of one resource that this process works on."""
        found = (self._held.get(part) for part in self._parts_of(stored))
        return [held for held in found if held is not None]

    def has_slot_of(self, collection: str) -> bool:
        """Whether this process has claimed the compaction of a collection."""
        return sum(collection.encode()) % SLOTS in self.slots

    async def work(self) -> Sequence[Work]:
        """The parts that this process has claimed, for others."""
        return [work for stored in self._store.live() for work in self.reports(stored)]

    def reports(self, stored: Stored) -> list[Work]:
        """The health of a resource's parts that this process has claimed."""
        reports = []
        for role, item in self._parts_of(stored):
            if (held := self._held.get((role, item))) is not None:
                runner, health, epoch = held.supervised.runner, held.supervised.health, held.epoch
                details = runner.details()
            elif (claim := self._claimants[role].held().get(item)) is not None:
                health, epoch, details = STARTING, claim.epoch, {}
            else:
                continue
            share = without_share(item)[1]
            resource = stored.resource
            reports.append(Work(
                role if share is None else share_of(role, share), resource.kind, resource.name,
                health.ready, health.reason, health.message, details, self._name, epoch,
            ))  # fmt: skip
        return reports


def makes_names(stored: Stored) -> bool:
    """Whether collections have the name of a resource."""
    return stored.resource.kind not in ("Action", "Hold")


def _key(stored: Stored) -> Key:
    return stored.resource.kind, stored.resource.name


def _declared_anew(stored: Stored, now: Stored) -> bool:
    """Whether the work on a resource has to begin again: a view has changed, or a source has more
    columns.
    """
    if type(now.resource.spec) is not type(stored.resource.spec):
        return True
    if isinstance(now.resource.spec, SourceSpec):
        return columns_of(now) != columns_of(stored)
    # NB: what a view decides itself while a version takes over is no declaration.
    return isinstance(now.resource.spec, ViewSpec) and (
        now.resource != stored.resource or version_of(now) != version_of(stored)
    )


def _items_of(role: str, stored: Stored) -> list[str]:
    """The names of a role's items for a resource among processes, share by share."""
    return items_of(stored.resource, role, item_of(stored))
