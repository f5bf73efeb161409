"""Which ports of a process would answer whoever reaches them from elsewhere, and that somebody has
to say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.errors import UsageError
from tidemill.host.settings import ProcessSettings, TlsSettings
from tidemill.runtime.addresses import PORT_MAX, refuse_no_address
from tidemill.runtime.http_guard import is_loopback

SAID = "tidemill.insecure"
"""Name in the health service of gRPC: it is there, and serves, if a port answers everybody."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """A port beyond loopback that asks no caller for a token: its name in metrics, its address."""

    port: str
    address: str
    mend: str

    def __str__(self) -> str:
        return f"{self.port} at {self.address} answers whoever reaches it: {self.mend}"


def answers_users(chosen: ProcessSettings) -> bool:
    """Whether the process has the calls of users: it has all roles, or query among them."""
    return not chosen.role or any("query" in each.split(",") for each in chosen.role)


def exposed(chosen: ProcessSettings) -> tuple[Exposure, ...]:
    """The ports that anybody on the network may use as an administrator; none on one machine.

    Metrics and probes ask for no token anywhere, and do not count. A port that wants a certificate
    asks.
    """
    return tuple(_exposed(chosen))


def _exposed(chosen: ProcessSettings) -> Iterator[Exposure]:
    users = answers_users(chosen) and not chosen.token_file
    host = chosen.grpc.rpartition(":")[0]
    if users and not is_loopback(host) and not _proved(chosen.tls):
        yield Exposure("grpc", chosen.grpc, "set token_file and tls")
    if users and not is_loopback(chosen.http_host) and not _proved(chosen.http_tls):
        yield Exposure("http", f"{chosen.http_host}:{chosen.http_port}", "set token_file")
    services = chosen.services
    near = is_loopback(services.address.rpartition(":")[0])
    if chosen.role and services.tls.files is None and not near:
        yield Exposure("services", services.address, "set services.tls")


def _proved(tls: TlsSettings) -> bool:
    return bool(tls.certificate and tls.authority)


def refuse_exposure(chosen: ProcessSettings) -> tuple[Exposure, ...]:
    """The wanted exposures.

    Raises: UsageError that says which setting to give, also for what is no address.
    """
    refuse_no_address("grpc", chosen.grpc)
    if chosen.role:
        refuse_no_address("services.address", chosen.services.address)
    if not 0 <= chosen.http_port <= PORT_MAX:
        raise UsageError(
            f"http_port {chosen.http_port} is no port: write 0, which takes a free one, to {PORT_MAX}",
            reason="address",
        )
    found = exposed(chosen)
    if found and not chosen.insecure:
        raise UsageError(
            "; ".join(map(str, found))
            + ". Without that a server listens on loopback alone; insecure: true "
            "(--insecure) lets everybody on the network take the whole system over",
            reason="insecure",
        )
    return found


def services_warning(chosen: ProcessSettings) -> str | None:
    """A warning about the callers that count as services. Raises: UsageError if every client
    would.
    """
    services = chosen.services
    if not services.tls.authority or services.names:
        return None
    for clients in (chosen.tls, chosen.http_tls):
        if clients.authority and _read(clients.authority) == _read(services.tls.authority):
            raise UsageError(
                "services.tls.authority also signs clients, and services.names is empty: every client "
                "would be a service, which may do everything; name the services, or give them an "
                "authority of their own",
                reason="tls",
            )
    return (
        "services.names is empty: whoever has any certificate of services.tls.authority is a service, "
        "and may do everything"
    )


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return file.encode()  # whoever serves with it refuses it, and says why
