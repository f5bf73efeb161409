"""Carries out what has to be done: looks at both sides, changes them, says how it went."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemill.errors import Denied, Fenced, TidemillError, UnknownCollection, UsageError
from tidemill.kubernetes.api import Json, KubernetesApi
from tidemill.kubernetes.events import About, tell
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger
from tidemill.runtime.resources import API_VERSION
from tidemill_operator.granting import ungranted
from tidemill_operator.objects import (
    FINALIZER,
    PLURALS,
    Declared,
    Key,
    KnownResource,
    collection_path,
)
from tidemill_operator.reconciling import (
    AddFinalizer,
    Apply,
    Change,
    Decide,
    Remove,
    RemoveFinalizer,
    changes,
    owners,
)
from tidemill_operator.reporting import (
    DENIED,
    NO_USER,
    NOT_GRANTED,
    Event,
    Refusal,
    Report,
    barred,
    reports,
)
from tidemill_operator.settings import OperatorSettings
from tidemill_operator.tidemill_side import Tidemill, document_of, everything

MANAGER = "tidemill-operator"
"""Whose fields of an object ours are, and who tells events."""

PASSES_MAX = 20
"""Passes in one look: views of views become ready one layer at a time."""

UNDECLARED = re.compile(r"\.status\.(\w+): field not declared in schema")
"""Fields of a status that the definitions of an API server lack, in its words."""

log = get_logger("operator")


class Unentitled(UsageError):
    """An object asks for what is not its namespace's; grant it there."""


@dataclass(slots=True)
class Operator:
    """Makes what is declared so.

    `objects` gives the state of the mirrors; `allowed` is asked before every change, so that an
    operator that lost its Lease changes nothing more. `acting_for` gives the user by whom it acts
    for a namespace, the same for the same user, or None where there is none.
    """

    api: KubernetesApi
    acting_for: Callable[[str], Tidemill | None]
    objects: Callable[[], Sequence[Declared]]
    allowed: Callable[[], bool]
    clock: Clock
    settings: OperatorSettings
    counts: Counter[str] = field(default_factory=Counter)
    _refused: dict[str, Refusal] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _users: dict[str, Tidemill] = field(default_factory=dict)
    _known: dict[Key, KnownResource] = field(default_factory=dict)
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
        self._refused, self._gone = {}, set()
        await self._ask(objects)
        for _ in range(PASSES_MAX):
            todo = changes(objects, self._known, barred(self._refused))
            heard = [each for each in todo if each.of.namespace in self._users]
            done = [await self._change(each, objects) for each in heard]
            if not any(done):
                break
            objects = list(self.objects())
            await self._ask(objects)
        due, events = reports(
            objects, self._known, self._refused, self.clock.now_ms(),
            int(self.settings.status_interval_s * 1000),
        )  # fmt: skip
        for report in due:
            await self._try_to_tell(report.of, self._report(report))
        for event in events:
            await self._try_to_tell(event.of, self._tell(event))
        self.counts["looks"] += 1

    async def _ask(self, objects: Sequence[Declared]) -> None:
        """Find what all users together know.

        A namespace whose user is refused is left alone, the others are not.
        """
        self._users, self._known = {}, {}
        asked: dict[int, dict[Key, KnownResource]] = {}
        why: dict[str, Refusal] = {}
        for namespace in sorted({each.namespace for each in objects}):
            try:
                user = self.acting_for(namespace)
                if user is None:
                    says = f"the operator has no user for objects of the namespace {namespace}"
                    why[namespace] = Refusal(
                        NO_USER, f"{says}: operator.users of the chart names one"
                    )
                    continue
                if id(user) not in asked:
                    asked[id(user)] = await everything(user)
            except UsageError as error:
                why[namespace] = Refusal(NO_USER, f"the user of {namespace} is refused: {error}")
                continue
            self._users[namespace] = user
        for known in asked.values():
            self._known |= known
        self._refused |= {o.uid: why[o.namespace] for o in objects if o.namespace in why}

    async def _apply(self, each: Declared, objects: Sequence[Declared]) -> None:
        first = owners(objects, self._known, barred(self._refused))
        foreign = ungranted(each, objects, first, self._known)
        if foreign is not None:
            raise Unentitled(foreign, reason=NOT_GRANTED)
        applied = await self._users[each.namespace].apply([document_of(each)])
        log.info("applied", resource=f"{each.kind}/{each.name}", outcome=str(applied))

    async def _change(self, change: Change, objects: Sequence[Declared]) -> bool:
        """Carry it out; whether it is worth to look again, since something is different now."""
        if not self.allowed():
            raise Fenced("the lease is lost")
        each = change.of
        if each.uid in self._gone:
            return False
        try:
            match change:
                case AddFinalizer():
                    await self._finalize(each, [FINALIZER])
                    return False
                case RemoveFinalizer():
                    await self._finalize(each, [])
                    return False
                case Apply():
                    await self._apply(each, objects)
                case Decide():
                    return await self._decide(change)
                case Remove():
                    await self._users[each.namespace].delete(each.kind, each.name)
                    log.info("deleted", resource=f"{each.kind}/{each.name}")
                    await self._finalize(each, [])
        except UnknownCollection as error:
            if isinstance(change, Remove):
                await self._finalize(each, [])
            else:
                self._refuse(each, error)
            return False
        except UsageError as error:
            # Somebody else may be entitled to a name that this one asked for first.
            before = barred(self._refused)
            self._refuse(each, error)
            return barred(self._refused) > before
        self.counts["changed"] += 1
        self._refused.pop(each.uid, None)
        return True

    async def _decide(self, change: Decide) -> bool:
        """Carry a decision out; one that was carried out before is no refusal."""
        user, each = self._users[change.of.namespace], change.of
        try:
            await user.decide(each.name, change.decision, change.version)
        except UsageError as error:
            if error.details.get("reason") not in ("NothingWaits", "OtherVersion"):
                raise
            return False
        log.info("decided", resource=f"{each.kind}/{each.name}", decision=change.decision.value)
        self.counts["changed"] += 1
        return True

    def _refuse(self, each: Declared, error: TidemillError) -> None:
        reason = str(error.details.get("reason") or type(error).__name__)
        if isinstance(error, Denied):
            reason = DENIED
        self.counts["refused"] += 1
        self._refused[each.uid] = Refusal(_camel(reason), str(error))

    async def _finalize(self, each: Declared, finalizers: list[str]) -> None:
        """Set our finalizers of the object, and no others; of one that is gone nothing more is
        made.
        """
        body = _identity(each)
        body["metadata"]["finalizers"] = finalizers
        try:
            await self.api.apply(_path(each), body)
        except (UnknownCollection, Fenced):
            self._gone.add(each.uid)

    async def _try_to_tell(self, each: Declared, telling: Coroutine[Any, Any, None]) -> None:
        """Tell of one object; a refusal, as in a namespace that ends, holds up no other object."""
        try:
            await telling
        except UsageError as error:
            self.counts["untold"] += 1
            log.warning("not told", object=f"{each.namespace}/{each.name}", error=str(error))

    async def _report(self, report: Report) -> None:
        """Write a status, without the numbers that older definitions do not have: what is ready is
        said during an upgrade, too.
        """
        status = dict(report.status)
        while True:
            body = {**_identity(report.of), "status": status}
            try:
                await self.api.apply(_path(report.of), body, "status")
            except (UnknownCollection, Fenced):
                log.debug("gone before its status was written", name=report.of.name)
            except TidemillError as error:
                absent = status.keys() & set(UNDECLARED.findall(str(error)))
                if not absent:
                    raise
                status = {name: value for name, value in status.items() if name not in absent}
                continue
            return

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
