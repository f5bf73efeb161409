"""A gRPC server over handlers, with health, and reflection by flag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from tidemill.catalog.v1 import catalog_pb2_grpc
from tidemill.query.v1 import query_pb2_grpc
from tidemill.rpc.delivery import DeliveryPolicy
from tidemill.rpc.handlers import CatalogHandlers, QueryHandlers, StorageHandlers
from tidemill.rpc.interceptors import (
    CallInterceptor,
    CallObserver,
    DeadlinePolicy,
    SilentObserver,
)
from tidemill.rpc.servicers import CatalogServicer, QueryServicer, StorageServicer
from tidemill.rpc.status import METADATA_BYTES_MAX
from tidemill.storage.v1 import storage_pb2_grpc
from tidemill.time import Unavailable

MESSAGE_BYTES_MAX = 64 << 20
"""The largest single message; only an insert comes near it, since answers travel in parts."""

_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # a second server on the address is refused, not mixed in
)


@dataclass(slots=True)
class Server:
    """A server that answers; `port` is the one bound, also when any free one was asked for."""

    port: int
    _server: grpc.aio.Server
    _health: health.aio.HealthServicer

    async def stop(self, grace_s: float = 2.0) -> None:
        """Say NOT_SERVING, refuse new calls, let running ones end for `grace_s`, then cut them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def wait_closed(self) -> None:
        """Return once the server has stopped."""
        await self._server.wait_for_termination()


async def serve(
    address: str,
    query: QueryHandlers | None = None,
    catalog: CatalogHandlers | None = None,
    storage: StorageHandlers | None = None,
    *,
    reflect: bool = False,
    observer: CallObserver | None = None,
    deadlines: DeadlinePolicy | None = None,
    delivery: DeliveryPolicy | None = None,
) -> Server:
    """A server that answers on `address` (host:port, port 0 for any) when this returns.

    A service whose handlers are None is not offered; `delivery` says when a subscriber that does
    not read is cut off. Raises Unavailable if the address is taken.
    """
    interceptor = CallInterceptor(observer or SilentObserver(), deadlines or DeadlinePolicy())
    server = grpc.aio.server(interceptors=(interceptor,), options=_OPTIONS)
    services: list[str] = []
    pace = delivery or DeliveryPolicy()
    if query is not None:
        query_pb2_grpc.add_QueryServiceServicer_to_server(QueryServicer(query, pace), server)
        services.append("tidemill.query.v1.QueryService")
    if catalog is not None:
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogServicer(catalog), server)
        services.append("tidemill.catalog.v1.CatalogService")
    if storage is not None:
        storage_pb2_grpc.add_StorageServiceServicer_to_server(
            StorageServicer(storage, pace), server
        )
        services.append("tidemill.storage.v1.StorageService")
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    if reflect:
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise Unavailable(f"cannot listen on {address}: is it in use?", address=address) from error
    await server.start()
    for name in ("", *services):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    return Server(port, server, healthy)
