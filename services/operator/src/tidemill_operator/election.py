"""One of several operators works: the holder of a Lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from tidemill.errors import AlreadyUsed, Fenced, TidemillError, UnknownCollection
from tidemill.kubernetes.api import Json, KubernetesApi
from tidemill.runtime.clock import Clock
from tidemill.runtime.logs import get_logger

log = get_logger("election")


@dataclass(frozen=True, slots=True)
class Seen:
    """Content of the Lease, and the second of our own clock since which it is so."""

    holder: str
    renewed: str
    since_s: float


@dataclass(frozen=True, slots=True)
class Take:
    """Write ourselves into the Lease; `transitions` counts its holders."""

    transitions: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else holds it."""

    holder: str


Decision: TypeAlias = "Take | Wait"


def look(lease: Json, seen: Seen | None, now_s: float) -> Seen:
    """Knowledge after a look: clocks of others are never compared with ours."""
    spec = lease.get("spec", {})
    holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
    if seen is not None and (seen.holder, seen.renewed) == (holder, renewed):
        return seen
    return Seen(holder, renewed, now_s)


def decide(lease: Json, seen: Seen, me: str, now_s: float) -> Decision:
    """Take the Lease if it is ours, nobody's, or was not renewed for its whole duration."""
    spec = lease.get("spec", {})
    transitions = int(spec.get("leaseTransitions") or 0)
    if seen.holder in ("", me):
        return Take(transitions)
    if now_s - seen.since_s >= float(spec.get("leaseDurationSeconds") or 15):
        return Take(transitions + 1)
    return Wait(seen.holder)


class Election:
    """Holds the Lease for one process, or waits for it."""

    def __init__(
        self, api: KubernetesApi, namespace: str, name: str, me: str, lease_s: int, clock: Clock
    ) -> None:
        self._api = api
        self._base = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._me = me
        self._lease_s = lease_s
        self._clock = clock
        self._seen: Seen | None = None
        self.held_until_s = 0.0

    @property
    def leading(self) -> bool:
        """Whether nobody else can hold the Lease now."""
        return self._clock.monotonic_s() < self.held_until_s

    async def try_once(self) -> bool:
        """Renew or take the Lease; whether it is ours.

        A lost race is no error. Raises: Unavailable.
        """
        begun_s = self._clock.monotonic_s()
        try:
            taken = await self._take(begun_s)
        except (AlreadyUsed, Fenced):
            return False
        if taken:
            # Others wait for lease_s; we stop earlier, by a third, whatever happens.
            self.held_until_s = begun_s + self._lease_s * 2 / 3
        return taken

    async def _take(self, now_s: float) -> bool:
        try:
            lease = await self._api.call("GET", f"{self._base}/{self._name}")
        except UnknownCollection:
            await self._api.call("POST", self._base, self._document({}, 0))
            return True
        self._seen = look(lease, self._seen, now_s)
        match decide(lease, self._seen, self._me, now_s):
            case Wait():
                return False
            case Take(transitions):
                body = self._document(lease["metadata"], transitions)
                await self._api.call("PUT", f"{self._base}/{self._name}", body)
                return True

    async def give_up(self) -> None:
        """Release the Lease: the next replica may begin at once."""
        if not self.leading:
            return
        self.held_until_s = 0.0
        lease = await self._api.call("GET", f"{self._base}/{self._name}")
        if lease["spec"].get("holderIdentity") == self._me:
            lease["spec"]["holderIdentity"] = ""
            await self._api.call("PUT", f"{self._base}/{self._name}", lease)

    async def hold_forever(self, renew_s: float, began: Callable[[], Awaitable[None]]) -> None:
        """Try until the Lease is ours, call `began`, renew. Raises: Fenced when it is lost."""
        leads = False
        while True:
            try:
                ours = await self.try_once()
            except TidemillError as error:
                log.warning("the lease cannot be renewed", error=str(error))
                ours = leads and self.leading
            if ours and not leads:
                leads = True
                log.info("leading", lease=self._name, identity=self._me)
                await began()
            elif leads and not (ours and self.leading):
                raise Fenced(f"the lease {self._name} is lost: another operator may work")
            await self._clock.sleep(renew_s)

    def _document(self, metadata: Json, transitions: int) -> Json:
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, **metadata},
            "spec": {
                "holderIdentity": self._me,
                "leaseDurationSeconds": self._lease_s,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "leaseTransitions": transitions,
            },
        }
