"""Settings of the operator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidemill.kubernetes.api import own_namespace
from tidemill.rpc.channel import Dialer
from tidemill.rpc.tls import TlsFiles


class OperatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator process."""

    tidemill: str = "127.0.0.1:7474"
    """Address at which Tidemill answers gRPC."""

    tls_ca: str = ""
    """File with the authority of Tidemill's certificate; empty calls in the clear."""

    tls_name: str = ""
    """Name in the certificate, if it is not that of the address."""

    tls_cert: str = ""
    """File with the operator's certificate, where Tidemill asks for one."""

    tls_key: str = ""
    """File with the key of that certificate."""

    token_file: str = ""
    """File with the token of the user that acts for the operator's own namespace."""

    users: Mapping[str, str] = {}
    """Namespace: file with the token of the user that acts for it."""

    namespaces: tuple[str, ...] = ()
    """Namespaces of the operator; empty is all of them, which needs a ClusterRole."""

    resync_s: float = 10.0
    """Longest time between two looks at all objects; a change is looked at immediately."""

    status_interval_s: float = 5.0
    """Shortest time between two writes of frontiers into a status, to spare the API server."""

    watch_s: int = 300
    """Time after which the API server ends a watch, which then begins again: none hangs unseen."""

    lease: str = "tidemill-operator"
    """Name of the Lease that one of several operators holds."""

    lease_namespace: str = ""
    """Namespace of the Lease; empty is that of this pod, or default outside a cluster."""

    lease_s: int = 15
    """Time after the last renewal until another operator takes the Lease."""

    renew_s: float = 3.0
    """Time between renewals; an operator that cannot renew for two thirds of `lease_s` ends."""

    http_host: str = "127.0.0.1"
    """Host at which /metrics, /healthz and /readyz are served."""

    http_port: int = 7476
    """Port at `http_host`; 0 takes a free one."""

    def token_of(self, namespace: str) -> str | None:
        """The file with the token by which objects of a namespace are made so.

        Empty where nobody is asked who calls; None for a namespace that has no user, whose objects
        are refused.
        """
        if namespace in self.users:
            return self.users[namespace]
        asked = bool(self.token_file or self.users)
        own = self.token_file if namespace == self.home else ""
        return None if asked and not own else own

    def dialer(self, token_file: str) -> Dialer:
        """Dialer of Tidemill with a token. Raises: UsageError for files that cannot be used."""

        def path(name: str) -> Path | None:
            return Path(name) if name else None

        files = TlsFiles(path(self.tls_cert), path(self.tls_key), path(self.tls_ca))
        tls = files if self.tls_ca or self.tls_cert else None
        return Dialer(tls, self.tls_name, path(token_file)).checked()

    @property
    def home(self) -> str:
        """The namespace of the Lease."""
        return self.lease_namespace or own_namespace()

    @property
    def identity(self) -> str:
        """Name of this process in the Lease: the pod, or the host."""
        return os.environ.get("HOSTNAME") or os.uname().nodename
