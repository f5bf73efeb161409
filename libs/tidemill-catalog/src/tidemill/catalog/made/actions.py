"""Collections of an action: its outbox, notes of what is done, corrections."""

from __future__ import annotations

import pyarrow as pa

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import SYSTEM, CatalogEntry, state_of
from tidemill.catalog.firing import proves
from tidemill.catalog.lifetime import close_collection, ensure_collection, release_holds
from tidemill.catalog.schemas import DONE_SCHEMA, corrections_schema, outbox_schema
from tidemill.catalog.store import Stored
from tidemill.datalog.eager import inputs_below
from tidemill.datalog.goals import Goal, goal_over
from tidemill.runtime.clock import Clock
from tidemill.runtime.resources import ActionSpec
from tidemill.shard import Collections, Description
from tidemill.time import U64_MAX, U64_TIME, Frontier, frontier


class ActionCollections:
    """Collections of an action, and its holds on what it watches."""

    def __init__(
        self, stored: Stored, watched: CatalogEntry, catalog: Catalog, collections: Collections,
        clock: Clock,
    ) -> None:  # fmt: skip
        """Raises: ProgramErrors for a goal that does not fit what is watched."""
        spec = stored.resource.spec
        assert isinstance(spec, ActionSpec)
        self.stored = stored
        self.spec = spec
        self.name = f"Action/{stored.resource.name}"
        self.watched = watched
        self.outbox = f"{stored.prefix}/outbox"
        self.done = f"{stored.prefix}/done"
        self.corrections = f"{stored.prefix}/corrections"
        # The key of a firing has the user's name of the action: applied again, it is the same one.
        columns = watched.shape.argument_columns
        self.goal: Goal = goal_over(
            spec.goal, {watched.shape.predicate: columns}, stored.resource.name
        )
        self._catalog = catalog
        self._collections = collections
        self._clock = clock
        self._owner = f"action:{stored.prefix}"

    def read_early(self) -> list[str]:
        """Collections that an eager action reads beside what it watches."""
        if not self.spec.eager:
            return []
        view = self._catalog.planned(self.spec.view)
        found = {state_of(view)}
        for name in inputs_below(view.program, self.goal.predicate):
            source = self._catalog.applied_source(view.inputs[name].name)
            assert source is not None, "what is no source was refused"
            raw, made = f"{source.prefix}/raw", source.prefix
            found |= {raw, source.remap, f"{made}/eventmap", f"{made}/deadletters", made}
        return sorted(found)

    def read_in_proofs(self) -> list[str]:
        """Collections that the proofs of its messages are read from."""
        if not proves(self.spec.sink):
            return []
        view = self._catalog.planned(self.spec.view)
        state = [] if view.ticks is None else [state_of(view)]
        return sorted({*state, *(named.collection for named in view.inputs.values())})

    async def prepare(self) -> None:
        """Hold what is watched, and create the outbox where firing begins."""
        await self._hold(self.watched.collection)
        status = await self._collections.status(self.watched.collection)
        fire_from = self.spec.fire_from
        if fire_from == "creation":
            start = await self._find_history_end(status.upper)
        elif fire_from == "beginning":
            start = status.since
        else:
            start = frontier(int(fire_from))
        timeline = self.watched.timeline
        limited = self.spec.limit is not None
        outbox = outbox_schema(self.spec.follow, limited=limited)
        parts = [(self.outbox, outbox), (self.done, DONE_SCHEMA)]
        corrections = (self.corrections, corrections_schema(self.watched.shape))
        if not self.spec.eager:
            parts.append(corrections)
        else:
            # Early firings stand at the instant of their append; corrections begin where firing
            # begins.
            await self._make(*corrections, timeline, start)
            # Its notes change with each step: what they were is kept no longer than a restart
            # needs it.
            timeline, start = SYSTEM, frontier(self._clock.now_ms())
            start = await self._make(*parts.pop(0), timeline, start, retain_ms=1)
        for collection, schema in parts:
            # The marks of done effects begin where the outbox does, also after a crash between the
            # two.
            start = await self._make(collection, schema, timeline, start)
        for collection in (self.outbox, self.done, self.corrections, *self.read_early()):
            await self._hold(collection)

    async def _hold(self, collection: str) -> None:
        await self._collections.read_hold(collection, owner=self._owner, lease_ms=None)

    async def _make(
        self,
        collection: str,
        schema: pa.Schema,
        timeline: str,
        start: Frontier,
        retain_ms: int | None = None,
    ) -> Frontier:
        """Create a collection of the action; where it begins."""
        description = Description(schema, kind="actions", timeline=timeline, retain_ms=retain_ms)
        await ensure_collection(self._collections, collection, description, start)
        return (await self._collections.status(collection)).since

    async def _find_history_end(self, upper: Frontier) -> Frontier:
        """Frontier at which the watched collection has caught up with its sources: all before is
        history.

        A view that was made together with the action has not evaluated its history yet.
        """
        there: Frontier = frontier()
        for root in self._catalog.roots_of(self.spec.view):
            there = there.meet((await self._collections.status(root)).upper)
        return frontier(U64_MAX) if there.empty else upper.join(there, U64_TIME)

    async def release(self) -> None:
        """Close the outbox, give up the holds on what is watched."""
        owners = frozenset((self._owner,))
        for collection in (self.outbox, self.done, self.corrections):
            await close_collection(self._collections, collection, owners)
        read = (self.watched.collection, *self.read_early(), *self.read_in_proofs())
        for collection in read:
            await release_holds(self._collections, collection, owners)
