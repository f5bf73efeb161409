"""The role compute in a process."""

from __future__ import annotations

import asyncio
from functools import cache, partial

import pyarrow as pa

from tidemill.arrangement.machine_code import has_loops
from tidemill.catalog.made.actions import ActionCollections
from tidemill.catalog.made.arrangements import ArrangementCollection
from tidemill.catalog.made.holds import HeldCollection
from tidemill.catalog.made.making import Made
from tidemill.catalog.made.sources import SourceCollections
from tidemill.catalog.made.tables import TableCollection
from tidemill.catalog.made.views import ViewCollections
from tidemill.host.context import Context
from tidemill.host.launching import lacking_for_jobs
from tidemill.host.pace import Paces, moment
from tidemill.host.service import Confirm, RunningParts, Service
from tidemill.host.settings import ProcessSettings
from tidemill.host.supervised import Runner
from tidemill.runtime.ids import random_id
from tidemill.runtime.lifecycle import keep_loaded
from tidemill.shard.stores import open_blob
from tidemill_compute.actions.part import ActionPart
from tidemill_compute.events.part import StageContext, StagePart
from tidemill_compute.observing import watch
from tidemill_compute.parts import ArrangementPart, HoldPart, TablePart
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.context import ComputeContext
from tidemill_compute.views.part import ViewPart
from tidemill_compute.views.windows.session import WindowSession

ROLE = "compute"


class ComputeProcess(ProcessSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of a process with this role alone."""

    role: tuple[str, ...] = (ROLE,)

    compute: ComputeSettings = ComputeSettings()


class ComputeParts:
    """Keeps event streams, tables, views, actions, arrangements and holds going."""

    def __init__(self, settings: ComputeSettings, context: Context) -> None:
        session = WindowSession(
            context.launcher, partial(open_blob, context.settings.blob_place, random_id),
            context.clock, context.settings.name_of_process, random_id,
            context.settings.spark.pods.deadline_s,
            (lambda: "") if context.launcher.remote else lacking_for_jobs,
        )  # fmt: skip
        name = f"tables/{context.settings.name_of_process}"
        paces = Paces(name, context.collections, context.clock, moment)
        self._context = ComputeContext(context, settings, session, paces)
        self._warming = asyncio.get_running_loop().run_in_executor(None, load_engine)

    def make(self, made: Made, share: int | None, confirm: Confirm) -> Runner:
        """The part of this service, whatever the resource is."""
        context, host = self._context, self._context.host
        match made:
            case SourceCollections():
                staging = StageContext(
                    host.collections, host.clock, host.metrics, context.settings,
                    host.timeline_frontier,
                )  # fmt: skip
                return StagePart(made, ROLE, staging)
            case TableCollection():
                return TablePart(made, context)
            case ViewCollections():
                return ViewPart(made, context, share)
            case ActionCollections():
                return ActionPart(made, confirm, context)
            case ArrangementCollection():
                return ArrangementPart(made, context)
        assert isinstance(made, HeldCollection)
        return HoldPart(made)

    def watch(self, running: RunningParts) -> None:
        """Register what is read of views and actions."""
        watch(self._context.host, running, self._context.session)

    async def close(self) -> None:
        """Views give up what they share when they end; nobody needs their driver and the paces any
        more.
        """
        await self._warming
        await self._context.session.close()
        await self._context.paces.close()


@cache
def load_engine() -> None:
    """Load the engine and its loops, which the first view would wait for, and its records too.

    Cost: half a second of a thread, beside the start of the process.
    """
    if has_loops():
        from tidemill.datalog.columns.texts import Texts
        from tidemill_compute.views import dataflow

        assert dataflow
        Texts().numbers(pa.array(["warm"]))
        keep_loaded()


def service(settings: ComputeSettings) -> Service:
    """The role as a process takes it on."""
    return Service(ROLE, partial(ComputeParts, settings))
