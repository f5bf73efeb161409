"""The handlers between services as servicers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from tidemill.errors import UsageError
from tidemill.rpc import codecs_services as codecs
from tidemill.rpc.handlers import IngestHandlers, WorkHandlers
from tidemill_protos.ingest.v1 import ingest_pb2 as ingest
from tidemill_protos.ingest.v1 import ingest_pb2_grpc
from tidemill_protos.work.v1 import work_pb2 as work
from tidemill_protos.work.v1 import work_pb2_grpc

Context = Any  # the generated stubs type the context as both of gRPC's two, which no value is

CREDIT_MAX = 64
"""Deliveries that a receiver may allow ahead; more is not needed to keep a connection busy."""


class IngestServicer(ingest_pb2_grpc.IngestServiceServicer):
    """IngestService over `IngestHandlers`: nothing is read ahead of the credit that the receiver
    gives.
    """

    def __init__(self, handlers: IngestHandlers) -> None:
        self._handlers = handlers

    async def Probe(  # noqa: N802 - gRPC's name, as below
        self, request: ingest.ProbeRequest, context: Context
    ) -> ingest.ProbeResponse:
        """Answer with the offset that the next record of each partition will get."""
        offsets = await self._handlers.probe(request.source)
        return ingest.ProbeResponse(offsets=codecs.offsets_out(offsets))

    async def Commit(  # noqa: N802
        self, request: ingest.CommitRequest, context: Context
    ) -> ingest.CommitResponse:
        """Note the offsets that a source's outputs have committed."""
        await self._handlers.commit(request.source, codecs.offsets_in(request.offsets))
        return ingest.CommitResponse()

    async def Deliver(  # noqa: N802
        self, request_iterator: AsyncIterator[ingest.DeliverRequest], context: Context
    ) -> AsyncIterator[ingest.DeliverResponse]:
        """Stream the records of a source from given offsets on, as far as credit goes."""
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("step") != "start":
            raise UsageError("the first message of Deliver is a start", reason="start")
        credit = asyncio.Semaphore(0)
        granting = asyncio.create_task(_grant(request_iterator, credit))
        starts = codecs.offsets_in(first.start.starts)
        try:
            deliveries: Any = self._handlers.deliver(first.start.source, starts)
            async with aclosing(deliveries):
                while True:
                    await credit.acquire()
                    delivered = await anext(deliveries, None)
                    if delivered is None:
                        return
                    for message in codecs.delivery_out(delivered):
                        yield message
        finally:
            granting.cancel()
            await asyncio.gather(granting, return_exceptions=True)


async def _grant(requests: AsyncIterator[ingest.DeliverRequest], credit: asyncio.Semaphore) -> None:
    """Add the credit that the receiver grants to the semaphore, until its stream ends."""
    async for request in requests:
        for _ in range(min(request.credit, CREDIT_MAX)):
            credit.release()


class WorkServicer(work_pb2_grpc.WorkServiceServicer):
    """WorkService over `WorkHandlers`."""

    def __init__(self, handlers: WorkHandlers) -> None:
        self._handlers = handlers

    async def List(  # noqa: N802
        self, request: work.ListRequest, context: Context
    ) -> work.ListResponse:
        """Answer with the work items of this process."""
        found = await self._handlers.work()
        return work.ListResponse(work=[codecs.work_out(each) for each in found])
