"""The work on a view: the version that is read, and the changed one that is to take its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidemill.catalog import versions
from tidemill.catalog.entry import PlannedView
from tidemill.catalog.made.views import ViewCollections, spec_of
from tidemill.catalog.store import Stored
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.limits import Limits
from tidemill.errors import Fenced
from tidemill.host.settings import LimitSettings
from tidemill.host.speed import Speed
from tidemill.runtime.ids import random_id
from tidemill.runtime.metrics import VIEW_STEP_DURATION
from tidemill.runtime.resources import ViewSpec
from tidemill.time import U64_MAX
from tidemill_compute.views.bulk import HISTORY_BYTES
from tidemill_compute.views.bulk_spark import SparkHydrate
from tidemill_compute.views.context import ComputeContext
from tidemill_compute.views.engines import Engines, Windows
from tidemill_compute.views.takeover import Takeover, VersionChange
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import RangeOf, ViewTarget
from tidemill_compute.views.write_back import WriteBack

VIEW_BYTES = "limits.view_bytes"


def range_memory(limits: LimitSettings, *, remote: bool) -> tuple[int, str]:
    """Memory for one range of a window, and the setting that says how much.

    A range on this machine may take what a view may take here; one in a pod, what a job may.
    """
    return (limits.history_bytes, HISTORY_BYTES) if remote else (limits.view_bytes, VIEW_BYTES)


def bounds_of(spec: ViewSpec, name: str, context: ComputeContext) -> tuple[Limits, Allowance]:
    """Limits of a view: of its memory, and of its rounds."""
    return (
        Limits(spec.limits.rounds, spec.limits.rows, spec.limits.set_values),
        Allowance(context.host.settings.limits.view_bytes, VIEW_BYTES, f"view {name}"),
    )


class ViewPart:
    """Maintains a view, or one range of it; first lets a changed version take over.

    A view of several ranges has no versions: they are kept apart, and none waits for another one.
    """

    def __init__(
        self, made: ViewCollections, context: ComputeContext, share: int | None = None
    ) -> None:
        self.name = made.name
        self._made = made
        self.share = share
        self._context = context
        self._speed = Speed(context.host.clock, 0)
        self._takeover = None if made.changed is None else self._take_over(made.changed)
        self._driver = self._drive(self._target(made.view, made.base))
        host, prefix = context.host, made.stored.prefix
        written = {} if share else made.written()
        self._written = [
            WriteBack(output, into, prefix, host.collections, host.clock, context.settings)
            for output, into in written.items()
        ]

    @property
    def driver(self) -> ViewDriver:
        """The driver of the version that is read."""
        return self._driver if self._takeover is None else self._takeover.before

    @property
    def outputs(self) -> list[str]:
        """The collections that users read."""
        return self._made.outputs

    @property
    def roots(self) -> list[str]:
        """The collections of the sources and tables below it."""
        return self._context.host.catalog.roots_of(self._made.stored.resource.name)

    def details(self) -> dict[str, object]:
        """Progress and inputs, and which version is read."""
        progress = self.driver.progress
        return {
            "strategy": spec_of(self._made.view).strategy,
            **self._engine(),
            "steps": progress.steps,
            "changes": progress.changes,
            "evaluationSeconds": round(progress.seconds, 3),
            "inputs": dict(progress.inputs),
            "changesPerSecond": round(self._speed.per_s(), 1),
            "changesBehind": self.driver.count_changes(progress.lower, U64_MAX),
            "sharedWith": self.driver.shared_with,
            **self._versions(),
            **self._range(),
        }

    def _range(self) -> dict[str, object]:
        """Upper and rows of the range that is kept; nothing of a view that is whole."""
        if self.share is None:
            return {}
        progress = self.driver.progress
        told = {"upper": progress.lower, "rows": progress.held[1], "bytes": progress.held[0]}
        return {"ranges": {str(self.share): told}}

    def _engine(self) -> dict[str, object]:
        """Which engine keeps the view, and why."""
        engines = self.driver.engines
        if engines is None:
            return {}
        cause, said = engines.why
        told = {"engine": engines.running, "engineCause": cause, "engineReason": said}
        return {**told, **engines.figures}

    def _versions(self) -> dict[str, object]:
        """Which version is read, and how far a changed one has come."""
        stored = self._made.stored
        number = versions.version_of(stored)
        if versions.aborted(stored):
            return {"version": stored.resolved["base"], "aborted": number}
        if self._takeover is None:
            return {} if number == 1 else {"version": number}
        changing: dict[str, object] = {
            "to": number, "upper": self._takeover.beside.progress.lower,
        }  # fmt: skip
        if versions.waits(stored):
            found = self._takeover.differs
            changing["waits"] = True
            changing |= {} if found is None else {"differs": found.rows, "asOf": found.at}
        return {"version": stored.resolved["base"], "changing": changing}

    def _target(self, view: PlannedView, own: str, beside: bool = False) -> ViewTarget:
        """Inputs and outputs of one version; `beside` the other one it has outputs of its own."""
        made, spec = self._made, spec_of(view)
        prefix = own if beside else made.stored.prefix
        part = None
        if self.share is not None:
            own, part = made.range_of(self.share), RangeOf(self.share, spec.ranges, made.places())
        return ViewTarget(
            own, view.program,
            {p: (named.collection, named.shape) for p, named in view.inputs.items()},
            {p: (f"{prefix}/{p}", named.shape) for p, named in view.outputs.items()},
            f"{prefix}/errors", f"{own}/state", view.ticks,
            spec.strategy, made.begins_at(view),
            *bounds_of(spec, made.stored.resource.name, self._context), part,
        )  # fmt: skip

    def _drive(self, target: ViewTarget) -> ViewDriver:
        host, context = self._context.host, self._context
        driver = ViewDriver(target, host.collections, host.clock, context.settings, context.shared)
        driver.timed = self._measure
        if self.share is not None:
            return driver
        bytes_max = host.settings.limits.history_bytes
        driver.bulk = SparkHydrate(
            host.launcher, host.collections, host.clock.now_ms, random_id, bytes_max
        )
        driver.engines = self._engines_of(target)
        driver.may_rest()
        return driver

    def _engines_of(self, target: ViewTarget) -> Engines | None:
        """The engines of one version; None for what stays in this process."""
        host, context, spec = self._context.host, self._context, spec_of(self._made.view)
        if spec.engine == "local" or target.ticks is not None:
            return None
        limits, session = host.settings.limits, context.session
        bytes_max, setting = range_memory(limits, remote=host.launcher.remote)
        windows = Windows(
            session.ask, host.clock.now_ms, random_id, bytes_max, session.lacking, setting
        )
        return Engines(spec.engine, windows, limits.view_bytes)

    def _measure(self, seconds: float) -> None:
        name = self._made.stored.resource.name
        self._context.host.metrics.observe(VIEW_STEP_DURATION, seconds, view=name)
        self._speed.note(self.driver.progress.taken)

    def _take_over(self, changed: PlannedView) -> Takeover:
        made, context, host = self._made, self._context, self._context.host
        change = VersionChange(
            self._target(made.view, made.base),
            self._target(changed, made.newest),
            self._target(changed, made.newest, beside=True),
            versions.frontier_of(made.stored),
            versions.waits(made.stored),
        )
        takeover = Takeover(
            change, host.collections, host.clock, context.settings, made.create, self._record,
            context.shared,
        )  # fmt: skip
        takeover.before.timed = self._measure
        takeover.before.engines = self._engines_of(change.before)
        takeover.beside.engines = self._engines_of(change.beside)
        return takeover

    async def prepare(self) -> None:
        """Create the outputs where every input can be read from on, and hold the inputs there."""
        await self._made.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """Maintain the view, and write on into given collections; a changed version comes first."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._maintain(ready))
            for written in self._written:
                tasks.create_task(written.write_forever())

    async def _maintain(self, ready: Callable[[], None]) -> None:
        ready()
        if versions.to_clean(self._made.stored):
            await self._clean()
        if self._takeover is not None:
            await self._change_over(self._takeover)
        await self._driver.maintain_forever()

    async def _change_over(self, takeover: Takeover) -> None:
        made = self._made
        await takeover.run()
        await self._revise(versions.taken_over(made.stored))
        assert made.changed is not None
        made.view, made.changed, self._takeover = made.changed, None, None
        self._driver = self._drive(self._target(made.view, made.newest))
        await self._clean()

    async def _record(self, at: int) -> None:
        await self._revise(versions.decided(self._made.stored, at))

    async def _revise(self, revised: Stored) -> None:
        if not await self._context.host.revisions.revise(self._made.stored, revised):
            raise Fenced(f"{self.name}: another change has been applied since")
        self._made.stored = revised

    async def _clean(self) -> None:
        await self._made.clean()
        await self._revise(versions.cleaned(self._made.stored))

    async def release(self) -> None:
        """Close what it writes, give up the holds on what it reads."""
        await self._made.release()
