"""Events: what happened to an object, where `kubectl describe` shows it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from tidemill.errors import AlreadyUsed
from tidemill.kubernetes.api import Json, KubernetesApi

MESSAGE_MAX = 1024
"""So much of a message the API takes."""


@dataclass(frozen=True, slots=True)
class About:
    """The object that an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


async def tell(
    api: KubernetesApi, component: str, about: About, now_ms: int, reason: str, message: str,
    *, warning: bool = False,
) -> None:  # fmt: skip
    """An event at the object; the same one again is counted, not repeated.

    Raises: as `api.call`.
    """
    said = hashlib.sha256(f"{about.uid}{reason}{message}".encode()).hexdigest()[:16]
    now, name = moment(now_ms), f"{about.name}.{said}"
    base = f"/api/v1/namespaces/{about.namespace}/events"
    body: Json = {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": name, "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.api_version, "kind": about.kind, "namespace": about.namespace,
            "name": about.name, "uid": about.uid,
        },
        "type": "Warning" if warning else "Normal",
        "reason": reason, "message": message[:MESSAGE_MAX], "count": 1,
        "firstTimestamp": now, "lastTimestamp": now, "source": {"component": component},
    }  # fmt: skip
    try:
        await api.call("POST", base, body)
    except AlreadyUsed:
        told = await api.call("GET", f"{base}/{name}")
        told |= {"count": int(told.get("count") or 1) + 1, "lastTimestamp": now}
        await api.call("PUT", f"{base}/{name}", told)


def moment(ms: int) -> str:
    """An instant of the clock as the API writes it, to the second."""
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
