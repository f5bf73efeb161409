"""Carries out what has to be done: looks at both sides, changes them, says how it went."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidemill.kubernetes.api import Json, KubernetesApi
from tidemill.kubernetes.events import About, tell
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill.runtime.resources import API_VERSION
from tidemill.time import Fenced, TidemillError, UnknownCollection, UsageError
from tidemill_operator.objects import FINALIZER, PLURALS, Declared, collection_path
from tidemill_operator.reconciling import Apply, Change, Hold, Release, Remove, changes
from tidemill_operator.reporting import Event, Refusal, Report, reports
from tidemill_operator.settings import OperatorSettings
from tidemill_operator.tidemill_side import Tidemill, document_of, everything

MANAGER = "tidemill-operator"
"""Whose fields of an object ours are, and who tells events."""

PASSES_MAX = 20
"""Passes in one look: views of views become ready one layer at a time."""

log = get_logger("operator")


@dataclass(slots=True)
class Operator:
    """Makes what is declared so. `objects` gives the state of the mirrors; `allowed` is asked before
    every change, so that an operator that lost its Lease changes nothing more."""

    api: KubernetesApi
    tidemill: Tidemill
    objects: Callable[[], Sequence[Declared]]
    allowed: Callable[[], bool]
    clock: Clock
    settings: OperatorSettings
    counts: Counter[str] = field(default_factory=Counter)
    _refused: dict[str, Refusal] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Something changed: look soon."""
        self._woken.set()

    async def reconcile_forever(self) -> None:
        """Look after every change, and now and then anyway."""
        while True:
            self._woken.clear()
            try:
                await self.reconcile()
            except Fenced:
                raise
            except TidemillError as error:
                self.counts["failed"] += 1
                log.warning("looking again later", error=str(error))
            await self._until_woken()

    async def _until_woken(self) -> None:
        waiting = asyncio.ensure_future(self._woken.wait())
        resync = asyncio.ensure_future(self.clock.sleep(self.settings.resync_s))
        try:
            await asyncio.wait((waiting, resync), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            resync.cancel()

    async def reconcile(self) -> None:
        """One look: change what differs, as long as that gets further, then report."""
        objects = list(self.objects())
        known = await everything(self.tidemill)
        self._refused, self._gone = {}, set()
        for _ in range(PASSES_MAX):
            todo = changes(objects, known)
            done = [await self._change(each) for each in todo]
            if not any(done):
                break
            known = await everything(self.tidemill)
            objects = list(self.objects())
        due, events = reports(
            objects, known, self._refused, self.clock.now_ms(),
            int(self.settings.status_interval_s * 1000),
        )  # fmt: skip
        for report in due:
            await self._report(report)
        for event in events:
            await self._tell(event)
        self.counts["looks"] += 1

    async def _change(self, change: Change) -> bool:
        """Carry it out; whether anything in Tidemill is different now."""
        if not self.allowed():
            raise Fenced("the lease is lost")
        each = change.of
        if each.uid in self._gone:
            return False
        try:
            match change:
                case Hold():
                    await self._finalize(each, [FINALIZER])
                    return False
                case Release():
                    await self._finalize(each, [])
                    return False
                case Apply():
                    applied = await self.tidemill.apply([document_of(each)])
                    log.info("applied", resource=f"{each.kind}/{each.name}", outcome=str(applied))
                case Remove():
                    await self.tidemill.delete(each.kind, each.name)
                    log.info("deleted", resource=f"{each.kind}/{each.name}")
                    await self._finalize(each, [])
        except UnknownCollection as error:
            if isinstance(change, Remove):
                await self._finalize(each, [])
            else:
                self._refuse(each, error)
            return False
        except UsageError as error:
            self._refuse(each, error)
            return False
        self.counts["changed"] += 1
        self._refused.pop(each.uid, None)
        return True

    def _refuse(self, each: Declared, error: TidemillError) -> None:
        reason = str(error.details.get("reason") or type(error).__name__)
        self.counts["refused"] += 1
        self._refused[each.uid] = Refusal(_camel(reason), str(error))

    async def _finalize(self, each: Declared, finalizers: list[str]) -> None:
        """Set our finalizers of the object, and no others; of one that is gone nothing more is made."""
        body = _identity(each)
        body["metadata"]["finalizers"] = finalizers
        try:
            await self.api.apply(_path(each), body)
        except (UnknownCollection, Fenced):
            self._gone.add(each.uid)

    async def _report(self, report: Report) -> None:
        body = {**_identity(report.of), "status": report.status}
        try:
            await self.api.apply(_path(report.of), body, "status")
        except (UnknownCollection, Fenced):
            log.debug("gone before its status was written", name=report.of.name)

    async def _tell(self, event: Event) -> None:
        each = event.of
        about = About(API_VERSION, each.kind, each.namespace, each.name, each.uid)
        await tell(
            self.api, MANAGER, about, self.clock.now_ms(), event.reason, event.message,
            warning=event.warning,
        )  # fmt: skip


def _path(each: Declared) -> str:
    return f"{collection_path(PLURALS[each.kind], each.namespace)}/{each.name}"


def _identity(each: Declared) -> Json:
    """Which object is meant, and that one only: a newer one of the same name is another."""
    metadata = {"name": each.name, "namespace": each.namespace, "uid": each.uid}
    return {"apiVersion": API_VERSION, "kind": each.kind, "metadata": metadata}


def _camel(reason: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in reason.replace("_", "-").split("-"))
