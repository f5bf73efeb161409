"""Settings of the operator."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class OperatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator process."""

    tidemill: str = "127.0.0.1:7474"
    """Where Tidemill answers gRPC."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose objects are looked after; empty is all of them, which needs a ClusterRole."""

    resync_s: float = 10.0
    """The longest time between two looks at everything; changes are looked at at once."""

    status_interval_s: float = 5.0
    """Frontiers in a status are at most so often written anew, to spare the API server."""

    watch_s: int = 300
    """A watch is ended by the server after this time and begun again, so that none hangs unseen."""

    lease: str = "tidemill-operator"
    """Name of the Lease that one of several operators holds."""

    lease_namespace: str = ""
    """Its namespace; empty is that of this pod, or default outside a cluster."""

    lease_s: int = 15
    """How long others wait after the last renewal."""

    renew_s: float = 3.0
    """Time between renewals; whoever could not renew for two thirds of lease_s ends itself."""

    http_host: str = "127.0.0.1"
    """Where /metrics, /healthz and /readyz are served."""

    http_port: int = 7476
    """Port of the same; 0 takes any free one."""

    @property
    def home(self) -> str:
        """The namespace of the Lease."""
        if self.lease_namespace:
            return self.lease_namespace
        return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "default"

    @property
    def identity(self) -> str:
        """What this process is called in the Lease: the pod, or the host."""
        return os.environ.get("HOSTNAME") or os.uname().nodename
