"""Running tables, actions and holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa

from tidemill.catalog.entry import SYSTEM, CatalogEntry, row_schema
from tidemill.catalog.firing import refuse_forgotten
from tidemill.catalog.places import check_sink
from tidemill.catalog.schemas import DONE_SCHEMA, OUTBOX_SCHEMA, corrections_schema
from tidemill.catalog.store import Stored
from tidemill.datalog.goals import Goal, goal_over
from tidemill.runtime.metrics import ACTION_DUPLICATES, ACTIONS_FIRED
from tidemill.runtime.resources import (
    ActionSpec,
    HoldSpec,
    TableSpec,
    ViewSpec,
    retained_ms,
)
from tidemill.shard import Description
from tidemill.time import U64_MAX, U64_TIME, Frontier, frontier
from tidemill_compute.actions.action import ActionDriver, ActionTarget
from tidemill_compute.actions.eager import EagerDriver
from tidemill_compute.actions.early import EarlyEvents
from tidemill_compute.actions.early_targets import early_target
from tidemill_compute.actions.outbox import Sink
from tidemill_compute.actions.sink_file import FileSink
from tidemill_compute.actions.sink_http import Delivery, Endpoint, HttpSink
from tidemill_compute.actions.sink_log import LogSink
from tidemill_compute.actions.sink_redis import RedisSink
from tidemill_compute.actions.sink_sqlite import SqliteSink
from tidemill_compute.tables import TableDriver
from tidemill_embedded.running.guarding import GuardedSink
from tidemill_embedded.running.view_runner import bounds_of
from tidemill_embedded.world import World

COUNT_INTERVAL_S = 1.0


class TableRunner:
    """A table: users write it, and its upper follows the clock or its timeline."""

    def __init__(self, stored: Stored, world: World) -> None:
        spec = stored.resource.spec
        assert isinstance(spec, TableSpec)
        self.name = f"Table/{stored.resource.name}"
        self.collection = stored.prefix
        self._spec = spec
        self._world = world
        timeline = spec.timeline
        self._begins = stored.begins if timeline == SYSTEM else 0
        self.driver = TableDriver(
            self.collection, world.collections, world.clock,
            None if timeline == SYSTEM else lambda: world.timeline_frontier(timeline),
            world.settings.compute, self._begins,
        )  # fmt: skip

    async def prepare(self) -> None:
        """Create the collection, or give it the columns that the table has gained."""
        retain = retained_ms(self._spec)
        schema = row_schema(self._spec.columns)
        description = Description(schema, timeline=self._spec.timeline, retain_ms=retain)
        await self._world.ensure(self.collection, description, frontier(self._begins))
        await self._world.collections.extend_schema(self.collection, schema)
        await self.driver.writer()

    async def run(self, ready: Callable[[], None]) -> None:
        """Keep it readable."""
        ready()
        await self.driver.advance_forever()

    async def release(self) -> None:
        """Close it."""
        await self._world.close(self.collection, frozenset())


class ActionRunner:
    """An action: a goal over one output of a view, an outbox, a sink."""

    def __init__(self, stored: Stored, watched: CatalogEntry, world: World) -> None:
        spec = stored.resource.spec
        assert isinstance(spec, ActionSpec)
        self.name = f"Action/{stored.resource.name}"
        self._stored = stored
        self._spec = spec
        self._watched = watched
        self._world = world
        self._owner = f"action:{stored.prefix}"
        columns = watched.shape.argument_columns
        # The key of a firing has the user's name of the action: applied again, it is the same one.
        goal = goal_over(spec.goal, {watched.shape.predicate: columns}, stored.resource.name)
        self.outbox = f"{stored.prefix}/outbox"
        self._done = f"{stored.prefix}/done"
        self._corrections = f"{stored.prefix}/corrections"
        self._guarded = GuardedSink(self._sink())
        target = ActionTarget(
            stored.prefix, goal, watched.collection, watched.shape, self.outbox, self._done,
            self._corrections,
        )  # fmt: skip
        self._early = self._looking_ahead(goal) if spec.eager else None
        self.driver = self._driver(target)

    def _looking_ahead(self, goal: Goal) -> EarlyEvents:
        """What finds the events of the goal that are not definite yet. Raises: ProgramErrors if none may fire."""
        world, view = self._world, self._world.catalog.planned(self._spec.view)
        spec = view.stored.resource.spec
        assert isinstance(spec, ViewSpec)
        bounds = bounds_of(spec, self._spec.view, world)
        target = early_target(view, goal.predicate, world.catalog, *bounds)
        return EarlyEvents(
            target, self._stored.prefix, world.collections, world.settings.compute,
            world.shared.threads,
        )  # fmt: skip

    def _driver(self, target: ActionTarget) -> ActionDriver:
        world, settings = self._world, self._world.settings.compute
        if self._early is None:
            return ActionDriver(target, self._guarded, world.collections, world.clock, settings)
        return EagerDriver(
            target, self._guarded, world.collections, world.clock, settings, self._early
        )

    @property
    def covering(self) -> str:
        """The collection whose upper says how far what is watched has been looked at."""
        return self.outbox if self._early is None else self._corrections

    def firing(self) -> dict[str, object]:
        """When it fires, and how often it did before an event was definite, in the words of resources."""
        if not isinstance(self.driver, EagerDriver):
            return {"firing": "definite"}
        told: dict[str, object] = {"firing": "eager", "firedEarly": self.driver.foreseen}
        given_up = self.driver.early.given_up
        return {**told, "notEarly": given_up} if given_up else told

    @property
    def watched(self) -> str:
        """The collection that its goal is about."""
        return self._watched.collection

    def confirm_with(self, confirm: Callable[[], Awaitable[None]]) -> None:
        """Ask before each effect whether this process still has the claim on the action."""
        self._guarded.confirm = confirm

    def _sink(self) -> Sink:
        sink, name, places = self._spec.sink, self._stored.resource.name, self._world.places
        check_sink(sink, places)
        if sink.file is not None:
            return FileSink(Path(sink.file.path), places.write)
        if sink.sqlite is not None:
            return SqliteSink(Path(sink.sqlite.path), sink.sqlite.table, name, places.write)
        if sink.redis is not None:
            redis, secret = sink.redis, sink.redis.secret
            return RedisSink(
                redis.url, redis.stream, name, allow_non_durable=redis.allow_non_durable,
                username=redis.username, secret=None if secret is None else places.secret(secret),
                egress=places.sending(*([] if secret is None else [secret])),
            )  # fmt: skip
        if sink.http is not None:
            http, named = sink.http, sorted(sink.http.secret_headers.items())
            endpoint = Endpoint(
                http.url, Delivery(http.delivery), http.key_header, http.ask or "",
                http.timeout / 1000, tuple((header, places.secret(name)) for header, name in named),
                places.sending(*(name for _, name in named)),
            )  # fmt: skip
            return HttpSink(endpoint)
        assert sink.log is not None
        return LogSink(self._world.log, sink.log.topic, self._stored.resource.name)

    async def prepare(self) -> None:
        """Hold what is watched, and create the outbox where firing begins."""
        await self.driver.hold_watched()
        status = await self._world.collections.status(self._watched.collection)
        fire_from = self._spec.fire_from
        if fire_from == "creation":
            start = await self._caught_up(status.upper)
        elif fire_from == "beginning":
            start = status.since
        else:
            start = frontier(int(fire_from))
        timeline = self._watched.timeline
        parts = [(self.outbox, OUTBOX_SCHEMA), (self._done, DONE_SCHEMA)]
        corrections = (self._corrections, corrections_schema(self._watched.shape))
        if self._early is None:
            parts.append(corrections)
        else:
            # What fires early stands where it is put down; where firing begins, corrections begin.
            await self._made(*corrections, timeline, start)
            # Its notes change with each step: what they were is kept no longer than a restart needs it.
            timeline, start = SYSTEM, frontier(self._world.clock.now_ms())
            start = await self._made(*parts.pop(0), timeline, start, retain_ms=1)
        for collection, schema in parts:
            # What is done begins where the outbox does, also if a crash came between the two.
            start = await self._made(collection, schema, timeline, start)
        await self.driver.prepare()

    async def _made(
        self,
        collection: str,
        schema: pa.Schema,
        timeline: str,
        start: Frontier,
        retain_ms: int | None = None,
    ) -> Frontier:
        """Create a collection of the action; where it begins."""
        description = Description(schema, kind="actions", timeline=timeline, retain_ms=retain_ms)
        await self._world.ensure(collection, description, start)
        return (await self._world.collections.status(collection)).since

    async def _caught_up(self, upper: Frontier) -> Frontier:
        """Where what is watched will be once it has caught up with what there is: all before is history.

        A view that was made together with the action has not evaluated its history yet.
        """
        there: Frontier = frontier()
        for root in self._world.catalog.roots_of(self._spec.view):
            there = there.meet((await self._world.collections.status(root)).upper)
        return frontier(U64_MAX) if there.empty else upper.join(there, U64_TIME)

    async def run(self, ready: Callable[[], None]) -> None:
        """Fire. Raises: UsageError if it is to fire from before what is known."""
        status = await self._world.collections.status(self.outbox)
        if status.upper == status.since:
            watched = await self._world.collections.status(self._watched.collection)
            instead = "delete the action, and apply it with"
            refuse_forgotten(self._spec, self._watched.name, watched.since, instead)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.driver.fire_forever())
                tasks.create_task(self._count_forever())
                ready()
        finally:
            await self._guarded.close()

    async def _count_forever(self) -> None:
        effects = repeated = 0
        name = self._stored.resource.name
        while True:
            await self._world.clock.sleep(COUNT_INTERVAL_S)
            counts = self.driver.counts
            self._world.metrics.increment(ACTIONS_FIRED, counts.effects - effects, action=name)
            more = counts.repeated - repeated
            self._world.metrics.increment(ACTION_DUPLICATES, more, action=name)
            effects, repeated = counts.effects, counts.repeated

    async def release(self) -> None:
        """Close the outbox, let go of what is watched."""
        owners = frozenset((self._owner,))
        for collection in (self.outbox, self._done, self._corrections):
            await self._world.close(collection, owners)
        read = [] if self._early is None else self._early.read
        for collection in (self._watched.collection, *read):
            await self._world.release(collection, owners)


class HoldRunner:
    """A hold: keeps the history of one collection."""

    def __init__(self, stored: Stored, held: CatalogEntry, world: World) -> None:
        spec = stored.resource.spec
        assert isinstance(spec, HoldSpec)
        self.name = f"Hold/{stored.resource.name}"
        self.collection = held.collection
        self._spec = spec
        self._world = world
        self._owner = f"hold:{stored.prefix}"

    async def prepare(self) -> None:
        """Take the hold, or move it forward to where the document says."""
        wanted = None if self._spec.frontier is None else frontier(self._spec.frontier)
        held = await self._world.collections.read_hold(
            self.collection, at=wanted, owner=self._owner, lease_ms=None
        )
        if wanted is not None and held.frontier != wanted and held.frontier.precedes(wanted):
            await self._world.collections.downgrade(held, wanted)

    async def run(self, ready: Callable[[], None]) -> None:
        """A hold does nothing by itself."""
        ready()
        while True:
            await self._world.clock.sleep(3600)

    async def release(self) -> None:
        """Let go."""
        await self._world.release(self.collection, frozenset((self._owner,)))
