"""The work on an action: a goal over one output of a view, an outbox, a sink."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.entry import PlannedView, state_of
from tidemill.catalog.firing import proves, refuse_forgotten
from tidemill.catalog.made.actions import ActionCollections
from tidemill.catalog.made.views import spec_of
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.eager import inputs_below
from tidemill.datalog.limits import Limits
from tidemill.runtime.metrics import ACTION_DUPLICATES, ACTIONS_FIRED
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.claimed_sink import ClaimedSink
from tidemill_compute.actions.eager import EagerDriver
from tidemill_compute.actions.early import EarlyEvents, EarlyTarget
from tidemill_compute.actions.outbox import Sink
from tidemill_compute.actions.proving import Proofs, ProvingSink
from tidemill_compute.actions.sinks import open_sink
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.events.source_streams import stream_of
from tidemill_compute.views.context import ComputeContext
from tidemill_compute.views.part import bounds_of

COUNT_INTERVAL_S = 1.0


Confirm = Callable[[], Awaitable[None]]
"""Raises Fenced once the claim on the action is lost."""


class ActionPart:
    """An action: a goal over one output of a view, an outbox, a sink."""

    def __init__(self, made: ActionCollections, confirm: Confirm, context: ComputeContext) -> None:
        """The sink is asked after `confirm`, which raises Fenced once the claim is lost."""
        self.name = made.name
        self._made = made
        self._context = context
        self._sink: Sink = ClaimedSink(open_sink(made, context.host, context.settings), confirm)
        self._proofs = Proofs(made, context.host) if proves(made.spec.sink) else None
        if self._proofs is not None:
            self._sink = ProvingSink(self._sink, self._proofs)
        target = ActionTarget(
            made.stored.prefix, made.goal, made.watched.collection, made.watched.shape,
            made.outbox, made.done, made.corrections, made.spec.follow, made.spec.limit,
            made.spec.group, made.spec.remember, made.spec.sink.alertmanager is not None,
        )  # fmt: skip
        self._early = self._look_ahead() if made.spec.eager else None
        self.driver = self._drive(target)

    def _look_ahead(self) -> EarlyEvents:
        """Finder of the goal's events that are not definite yet. Raises: ProgramErrors if none may
        fire.
        """
        context, host, made = self._context, self._context.host, self._made
        view = host.catalog.planned(made.spec.view)
        bounds = bounds_of(spec_of(view), made.spec.view, context)
        target = early_target(view, made.goal.predicate, host.catalog, *bounds)
        return EarlyEvents(
            target, made.stored.prefix, host.collections, context.settings, context.shared.threads
        )

    def _drive(self, target: ActionTarget) -> ActionDriver:
        context, settings = self._context, self._context.settings
        if self._early is None:
            return ActionDriver(
                target, self._sink, context.host.collections, context.host.clock, settings
            )
        return EagerDriver(
            target,
            self._sink,
            context.host.collections,
            context.host.clock,
            settings,
            self._early,
        )

    @property
    def covering(self) -> str:
        """The collection whose upper says how far what is watched has been looked at."""
        return self._made.outbox if self._early is None else self._made.corrections

    def details(self) -> dict[str, object]:
        """When it fires, and counts of firings, in the words of resources."""
        done = self.driver.counts
        return {
            **self._firing(),
            "fired": done.fired,
            "duplicatesSuppressed": done.repeated,
            "effects": done.effects,
            **({} if self._made.spec.limit is None else {"limited": done.limited}),
            **({} if self._made.spec.remember is None else {"outdated": done.outdated}),
        }

    def _firing(self) -> dict[str, object]:
        """When it fires, and how often it did before an event was definite."""
        if not isinstance(self.driver, EagerDriver):
            return {"firing": "definite"}
        told: dict[str, object] = {"firing": "eager", "firedEarly": self.driver.foreseen}
        given_up = self.driver.early.given_up
        return {**told, "notEarly": given_up} if given_up else told

    @property
    def watched(self) -> str:
        """The collection that its goal is about."""
        return self._made.watched.collection

    async def prepare(self) -> None:
        """Hold what is watched, and create the outbox where firing begins."""
        await self._made.prepare()

    async def run(self, ready: Callable[[], None]) -> None:
        """Fire. Raises: UsageError if it is to fire from before what is known."""
        status = await self._context.host.collections.status(self._made.outbox)
        if status.upper == status.since:
            watched = await self._context.host.collections.status(self._made.watched.collection)
            instead = "delete the action, and apply it with"
            refuse_forgotten(self._made.spec, self._made.watched.name, watched.since, instead)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.driver.fire_forever())
                tasks.create_task(self._count_forever())
                if self._proofs is not None:
                    hold = self._proofs.hold_forever(self._context.settings.hold_interval_s)
                    tasks.create_task(hold)
                if self._made.spec.sink.alertmanager is not None:
                    repeat_s = self._made.spec.sink.alertmanager.repeat / 1000
                    tasks.create_task(self.driver.repeat_forever(repeat_s))
                ready()
        finally:
            await self._sink.close()

    async def _count_forever(self) -> None:
        effects = repeated = 0
        name = self._made.stored.resource.name
        while True:
            await self._context.host.clock.sleep(COUNT_INTERVAL_S)
            counts = self.driver.counts
            self._context.host.metrics.increment(
                ACTIONS_FIRED, counts.effects - effects, action=name
            )
            more = counts.repeated - repeated
            self._context.host.metrics.increment(ACTION_DUPLICATES, more, action=name)
            effects, repeated = counts.effects, counts.repeated

    async def release(self) -> None:
        """Close the outbox, give up the holds on what is watched."""
        await self._made.release()


def early_target(
    view: PlannedView, predicate: str, catalog: Catalog, limits: Limits, allowance: Allowance
) -> EarlyTarget:
    """Target of an eager action over a predicate of the view."""
    inputs = {}
    for name in inputs_below(view.program, predicate):
        stored = catalog.applied_source(view.inputs[name].name)
        assert stored is not None, "what is no source was refused"
        shape = replace(view.inputs[name].shape, predicate=name)
        inputs[name] = (*stream_of(stored), shape)
    return EarlyTarget(predicate, view.program, inputs, state_of(view), limits, allowance)
