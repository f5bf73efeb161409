"""A gRPC server over handlers, with health, and reflection by flag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tidemill.errors import Unavailable
from tidemill.rpc.admission import Admissions
from tidemill.rpc.audited import Auditor, NoAuditor
from tidemill.rpc.calls import CallObserver, Calls, DeadlinePolicy, SilentObserver
from tidemill.rpc.delivery import DeliveryPolicy
from tidemill.rpc.handlers import (
    CatalogHandlers,
    ComputeHandlers,
    IngestHandlers,
    QueryHandlers,
    StorageHandlers,
    WorkHandlers,
)
from tidemill.rpc.identity import Authenticator, Open
from tidemill.rpc.interceptors import CallInterceptor
from tidemill.rpc.servicers import (
    CatalogServicer,
    ComputeServicer,
    QueryServicer,
    StorageServicer,
)
from tidemill.rpc.servicers_services import IngestServicer, WorkServicer
from tidemill.rpc.status import METADATA_BYTES_MAX
from tidemill_protos.catalog.v1 import catalog_pb2_grpc
from tidemill_protos.compute.v1 import compute_pb2_grpc
from tidemill_protos.ingest.v1 import ingest_pb2_grpc
from tidemill_protos.query.v1 import query_pb2_grpc
from tidemill_protos.storage.v1 import storage_pb2_grpc
from tidemill_protos.work.v1 import work_pb2_grpc

MESSAGE_BYTES_MAX = 64 << 20
"""The largest single message; only an insert comes near it, since answers travel in parts."""

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # a second server on the address is refused, not mixed in
    # Calls of clients that went away without a word end, and with them what they hold.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # else clients that ask are cut
)


CONNECTION_AGE_S = 300.0
"""Seconds after which a connection takes no new calls: clients then find newer processes."""


@dataclass(slots=True)
class Server:
    """A server that answers; `port` is the one bound, also when any free one was asked for."""

    port: int
    _server: grpc.aio.Server
    _health: health.aio.HealthServicer
    _watching: asyncio.Task[None] | None = None

    async def stop(self, grace_s: float = 2.0) -> None:
        """Say NOT_SERVING, refuse new calls, let running ones end for `grace_s`, then cut them."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


@dataclass(frozen=True, slots=True)
class ServiceHandlers:
    """Handlers for other services; None is not offered."""

    ingest: IngestHandlers | None = None
    work: WorkHandlers | None = None


def _add_services(services: ServiceHandlers, server: grpc.aio.Server) -> list[str]:
    """Add them; their names."""
    offered = []
    if services.ingest is not None:
        ingest = IngestServicer(services.ingest)
        ingest_pb2_grpc.add_IngestServiceServicer_to_server(ingest, server)
        offered.append("tidemill.ingest.v1.IngestService")
    if services.work is not None:
        work_pb2_grpc.add_WorkServiceServicer_to_server(WorkServicer(services.work), server)
        offered.append("tidemill.work.v1.WorkService")
    return offered


def _add_for_users(
    query: QueryHandlers | None,
    catalog: CatalogHandlers | None,
    storage: StorageHandlers | None,
    compute: ComputeHandlers | None,
    delivery: DeliveryPolicy,
    server: grpc.aio.Server,
) -> list[str]:
    """Add what users call; the names of what is offered."""
    offered = []
    if query is not None:
        query_pb2_grpc.add_QueryServiceServicer_to_server(QueryServicer(query, delivery), server)
        offered.append("tidemill.query.v1.QueryService")
    if catalog is not None:
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogServicer(catalog), server)
        offered.append("tidemill.catalog.v1.CatalogService")
    if storage is not None:
        servicer = StorageServicer(storage, delivery)
        storage_pb2_grpc.add_StorageServiceServicer_to_server(servicer, server)
        offered.append("tidemill.storage.v1.StorageService")
    if compute is not None:
        compute_pb2_grpc.add_ComputeServiceServicer_to_server(ComputeServicer(compute), server)
        offered.append("tidemill.compute.v1.ComputeService")
    return offered


def _bound_port(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None
) -> int:
    """The port that the server has taken. Raises: Unavailable if the address is taken."""
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise Unavailable(
            f"cannot listen on {address}: is it in use? End the process that has it, or give another "
            "address by --grpc",
            address=address,
        ) from error


async def serve(
    address: str,
    query: QueryHandlers | None = None,
    catalog: CatalogHandlers | None = None,
    storage: StorageHandlers | None = None,
    compute: ComputeHandlers | None = None,
    *,
    reflect: bool = False,
    observer: CallObserver | None = None,
    deadlines: DeadlinePolicy | None = None,
    delivery: DeliveryPolicy | None = None,
    services: Callable[[int], ServiceHandlers] | None = None,
    authenticator: Authenticator | None = None,
    credentials: grpc.ServerCredentials | None = None,
    connection_age_s: float = CONNECTION_AGE_S,
    states: Sequence[str] = (),
    admissions: Admissions | None = None,
    auditor: Auditor | None = None,
) -> Server:
    """A server that answers on `address` (host:port, port 0 for any) when this returns.

    A service whose handlers are None is not offered. `delivery` decides when a subscriber that does
    not read is cut off. `services` are those that only other services call, made for the port that
    is bound. Without `credentials` it listens in the clear, without `authenticator` it answers
    everybody. After `connection_age_s` a connection takes no new calls; running ones, streams as
    well, go on to their end. The health service knows `states` beside the services that are
    offered. `admissions` refuse callers that ask too much, and end connections of strangers;
    without them nothing is counted. `auditor` hears of changes and refusals. Raises: Unavailable if
    the address is taken.
    """
    observer = observer or SilentObserver()
    calls = Calls(
        observer, deadlines or DeadlinePolicy(), authenticator or Open(),
        admissions, auditor or NoAuditor(),
    )  # fmt: skip
    options = [*_OPTIONS, ("grpc.max_connection_age_ms", int(connection_age_s * 1000))]
    if admissions is not None:
        limits = admissions.limits
        options.append(("grpc.max_allowed_incoming_connections", limits.connections))
        # Calls whose request never comes are counted by nobody else.
        options.append(("grpc.max_concurrent_streams", limits.calls + limits.subscriptions))
    server = grpc.aio.server(interceptors=(CallInterceptor(calls),), options=options)
    port = _bound_port(server, address, credentials)
    offered = _add_for_users(query, catalog, storage, compute, delivery or DeliveryPolicy(), server)
    if services is not None:
        offered += _add_services(services(port), server)
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    if reflect:
        names = (*offered, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    await server.start()
    for name in ("", *offered, *states):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    watching = None
    if admissions is not None:
        watching = asyncio.create_task(admissions.end_strangers(port, observer.refused))
    return Server(port, server, healthy, watching)
