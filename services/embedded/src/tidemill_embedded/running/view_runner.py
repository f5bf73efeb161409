"""Running a view: the version that is read, and the changed one that is to take its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa

from tidemill.catalog import versions
from tidemill.catalog.entry import SYSTEM, PlannedView, own_prefix
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.catalog.store import Stored
from tidemill.datalog.evaluation import Limits
from tidemill.datalog.evaluation.allowance import Allowance
from tidemill.runtime.metrics import VIEW_STEP_DURATION
from tidemill.runtime.resources import ViewSpec, retained_ms
from tidemill.shard import Description
from tidemill.time import Fenced, Frontier, UnknownCollection, UsageError, frontier
from tidemill_compute.views.bulk_spark import SparkHydrate
from tidemill_compute.views.takeover import Change, Takeover
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget
from tidemill_embedded.running.write_back import WriteBack, writer_of, written_into
from tidemill_embedded.world import World


class Records(Protocol):
    """Where it is written down what was decided about a view."""

    async def revise(self, known: Stored, revised: Stored) -> bool:
        """Write what was decided, unless something else was applied since `known`; whether it is written."""


def bounds_of(spec: ViewSpec, name: str, world: World) -> tuple[Limits, Allowance]:
    """What a view may hold, and how far its rounds may go."""
    return (
        Limits(spec.limits.rounds, spec.limits.rows, spec.limits.set_values),
        Allowance(world.settings.limits.view_bytes, "limits.view_bytes", f"view {name}"),
    )


class ViewRunner:
    """A view with its outputs, errors and state; `changed` is the newest version if that is not read yet."""

    def __init__(
        self, stored: Stored, view: PlannedView, changed: PlannedView | None, world: World,
        records: Records,
    ) -> None:  # fmt: skip
        self.name = f"View/{stored.resource.name}"
        self._stored = stored
        self._view = view
        self._changed = changed
        self._world = world
        self._records = records
        self._takeover = None if changed is None else self._taking_over(changed)
        self._driver = self._made(self._target(view, versions.version_of(versions.served(stored))))
        self._written = [
            WriteBack(
                view.outputs[predicate].collection, into, stored.prefix, world.collections,
                world.clock, world.settings.compute,
            )
            for predicate, into in written_into(stored.resource).items()
            if predicate in view.outputs
        ]  # fmt: skip

    @property
    def driver(self) -> ViewDriver:
        """What keeps the version that is read."""
        return self._driver if self._takeover is None else self._takeover.before

    @property
    def outputs(self) -> list[str]:
        """The collections that users read."""
        return [named.collection for named in self._view.outputs.values()]

    @property
    def strategy(self) -> str:
        """In which order changes flow through the program."""
        return self._spec(self._view).strategy

    @property
    def roots(self) -> list[str]:
        """The collections of the sources and tables below it."""
        return self._world.catalog.roots_of(self._stored.resource.name)

    def details(self) -> dict[str, Any]:
        """Which version is read, and how far a changed one has come."""
        number = versions.version_of(self._stored)
        if self._takeover is None:
            return {} if number == 1 else {"version": number}
        return {
            "version": self._stored.resolved["base"],
            "changing": {"to": number, "upper": self._takeover.beside.progress.lower},
        }

    # -- which collections ----------------------------------------------------------------------

    def _spec(self, view: PlannedView) -> ViewSpec:
        spec = view.stored.resource.spec
        assert isinstance(spec, ViewSpec)
        return spec

    def _target(self, view: PlannedView, version: int, beside: bool = False) -> ViewTarget:
        """What one version reads and writes; `beside` the other one it has outputs of its own."""
        own, spec = own_prefix(self._stored, version), self._spec(view)
        prefix = own if beside else self._stored.prefix
        return ViewTarget(
            own, view.program,
            {p: (named.collection, named.shape) for p, named in view.inputs.items()},
            {p: (f"{prefix}/{p}", named.shape) for p, named in view.outputs.items()},
            f"{prefix}/errors", f"{own}/state", view.ticks,
            spec.engine if spec.engine in ("incremental", "scratch") else "auto", spec.strategy,
            self._begins_at(view),
            *bounds_of(spec, self._stored.resource.name, self._world),
        )  # fmt: skip

    def _begins_at(self, view: PlannedView) -> Frontier | None:
        """From where on history counts; ticks of the system's timeline do not run in the past."""
        spec = self._spec(view)
        if spec.hydrate_from is not None:
            return frontier(spec.hydrate_from)
        if view.ticks is not None and view.timeline == SYSTEM:
            return frontier(self._stored.created_ms)
        return None

    def _made(self, target: ViewTarget) -> ViewDriver:
        world = self._world
        driver = ViewDriver(
            target, world.collections, world.clock, world.settings.compute, world.shared
        )
        driver.bulk = SparkHydrate(
            world.launcher, world.collections, world.settings.limits.history_bytes
        )
        driver.timed = self._timed
        return driver

    def _timed(self, seconds: float) -> None:
        name = self._stored.resource.name
        self._world.metrics.observe(VIEW_STEP_DURATION, seconds, view=name)

    def _taking_over(self, changed: PlannedView) -> Takeover:
        stored, world = self._stored, self._world
        newest, base = versions.version_of(stored), versions.version_of(versions.served(stored))
        change = Change(
            self._target(self._view, base),
            self._target(changed, newest),
            self._target(changed, newest, beside=True),
            versions.frontier_of(stored),
        )
        takeover = Takeover(
            change, world.collections, world.clock, world.settings.compute, self._make, self._record,
            world.shared,
        )  # fmt: skip
        takeover.before.timed = self._timed
        return takeover

    async def _make(self, collection: str, begin: Frontier) -> None:
        """Create a collection of the view: an output or its errors for readers, others for itself."""
        _, _, part = collection.rpartition("/")
        own = "@" in collection or part == "state"
        if part == "state" and self._view.ticks is not None:
            own = False  # proofs over ticks begin with what was handed on, as far back as outputs are read
        schemas: dict[str, pa.Schema] = {"errors": ERROR_SCHEMA, "state": STATE_SCHEMA}
        for view in (self._view, self._changed):
            outputs = {} if view is None else view.outputs
            schemas |= {p: named.shape.schema for p, named in outputs.items()}
        kind = {"errors": "errors", "state": "state"}.get(part, "view")
        retain = retained_ms(self._spec(self._changed or self._view))
        description = Description(
            schemas[part], kind=kind, timeline=self._view.timeline,
            retain_ms=0 if own else retain,
        )  # fmt: skip
        await self._world.ensure(collection, description, begin)
        held = (await self._world.collections.description(collection)).schema.names
        if held != schemas[part].names:
            raise UsageError(
                f"{collection} was made with the columns {', '.join(held)}, and its rows would have "
                f"{', '.join(schemas[part].names)}: delete the view and apply it anew",
                reason="Incompatible",
            )

    # -- the work -------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create the outputs where every input can be read from on, and hold the inputs there."""
        if self._takeover is not None:
            await self._takeover.prepare()
            return
        start = await self._driver.hold_inputs()
        if start.empty:
            raise UsageError(f"{self.name}: one of its inputs is closed", reason="Closed")
        state = f"{own_prefix(self._stored, versions.version_of(self._stored))}/state"
        for collection in (*self.outputs, f"{self._stored.prefix}/errors", state):
            await self._make(collection, start)
        for written in self._written:
            await written.prepare()
        await self._driver.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """Maintain it, and write on what is given further; first let a changed version take over."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._maintain(ready))
            for written in self._written:
                tasks.create_task(written.write_forever())

    async def _maintain(self, ready: Callable[[], None]) -> None:
        ready()
        if versions.to_clean(self._stored):
            await self._clean()
        if self._takeover is not None:
            await self._change_over(self._takeover)
        await self._driver.maintain_forever()

    async def _change_over(self, takeover: Takeover) -> None:
        await takeover.run()
        await self._revise(versions.taken_over(self._stored))
        assert self._changed is not None
        self._view, self._changed, self._takeover = self._changed, None, None
        target = self._target(self._view, versions.version_of(self._stored))
        self._driver = self._made(target)
        await self._clean()

    async def _record(self, at: int) -> None:
        await self._revise(versions.decided(self._stored, at))

    async def _revise(self, revised: Stored) -> None:
        if not await self._records.revise(self._stored, revised):
            raise Fenced(f"{self.name}: another change has been applied since")
        self._stored = revised

    async def _clean(self) -> None:
        """Close what versions have left that nobody reads, and let go of what they held."""
        used, past = versions.names_of(self._stored)
        owners = frozenset(f"{what}:{name}" for name in past for what in ("view", "takeover"))
        if not versions.changing(self._stored):
            owners |= {f"takeover:{name}" for name in used}
        for collection in await self._world.collections.ids():
            if self._is_left(collection, used):
                await self._world.close(collection, owners | {f"view:{name}" for name in used})
            else:
                with suppress(UnknownCollection):
                    await self._world.release(collection, owners)
        await self._revise(versions.cleaned(self._stored))

    def _is_left(self, collection: str, used: list[str]) -> bool:
        """Whether a collection is of a version that is past, or was only needed to become the one that is read."""
        prefix = self._stored.prefix
        mine = collection == f"{prefix}/state" or collection.startswith(f"{prefix}@")
        if not mine or any(collection == f"{name}/state" for name in used):
            return False
        newest = own_prefix(self._stored, versions.version_of(self._stored))
        return not (versions.changing(self._stored) and collection.startswith(f"{newest}/"))

    async def release(self) -> None:
        """Close what it writes, let go of what it reads."""
        used, past = versions.names_of(self._stored)
        prefix = self._stored.prefix
        owners = frozenset(f"{w}:{name}" for name in (*used, *past) for w in ("view", "takeover"))
        owners |= {writer_of(prefix)}
        for collection in await self._world.collections.ids():
            if collection in (*self.outputs, f"{prefix}/errors", f"{prefix}/state") or (
                collection.startswith(f"{prefix}@")
            ):
                await self._world.close(collection, owners)
        for view in (self._view, self._changed):
            for named in () if view is None else view.inputs.values():
                await self._world.release(named.collection, owners)
        for into in written_into(self._stored.resource).values():
            with suppress(UnknownCollection):
                await self._world.release(into, owners)
