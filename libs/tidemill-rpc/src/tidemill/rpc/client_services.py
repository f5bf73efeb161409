"""Calls from one service to another, in domain types. An error of the other is raised here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from copy import copy
from typing import Any

import grpc.aio

from tidemill.errors import Unavailable, UsageError
from tidemill.rpc import codecs_services as codecs
from tidemill.rpc.channel import Dialer
from tidemill.rpc.identity import ELSEWHERE, RUN_KEY, place_and_run
from tidemill.rpc.messages import Delivered, Work
from tidemill.rpc.outcomes import begun, ends, messages_of
from tidemill.rpc.status import NOT_OFFERED
from tidemill_protos.ingest.v1 import ingest_pb2 as ingest
from tidemill_protos.ingest.v1 import ingest_pb2_grpc
from tidemill_protos.work.v1 import work_pb2 as work
from tidemill_protos.work.v1 import work_pb2_grpc

CREDIT = 4
"""Deliveries on their way at once: one is decoded while one travels and one is written."""

PEER_S = 5.0
"""Deadline of a short call to another service: one that is paused counts as away after it."""


class ServiceClient:
    """The services of one run of a process, called by another one.

    A call that another run or program answers is Unavailable.
    """

    def __init__(self, address: str, dialer: Dialer) -> None:
        """`address` is as the process advertises it: only the run that it names is called."""
        place, run = place_and_run(address)
        self.address = address
        self._run = ((RUN_KEY, run),)
        self._channel: grpc.aio.Channel = dialer.channel(place)
        self._ingest: Any = ingest_pb2_grpc.IngestServiceStub(self._channel)
        self._work: Any = work_pb2_grpc.WorkServiceStub(self._channel)

    def of_run(self, address: str) -> ServiceClient:
        """Calls of another run of a process at the same place, over the same connection."""
        other = copy(self)
        other.address, other._run = address, ((RUN_KEY, place_and_run(address)[1]),)
        return other

    def shares_connection(self, other: ServiceClient) -> bool:
        """Whether the calls of both go over one connection."""
        return self._channel is other._channel

    async def close(self) -> None:
        """Cancel running calls and close the connection, also those of other runs."""
        await self._channel.close()

    async def probe(self, source: str, *, timeout_s: float | None = None) -> dict[int, int]:
        """The offset that the next record of each partition will get."""
        request = ingest.ProbeRequest(source=source)
        found = await self._ends(self._ingest.Probe, request, timeout_s or PEER_S)
        return codecs.offsets_in(found.offsets)

    async def commit(self, source: str, offsets: Mapping[int, int]) -> None:
        """Tell outside tools how far the source has been written; again is fine."""
        request = ingest.CommitRequest(source=source, offsets=codecs.offsets_out(offsets))
        await self._ends(self._ingest.Commit, request, PEER_S)

    async def deliver(
        self, source: str, starts: Mapping[int, int]
    ) -> AsyncGenerator[Delivered, None]:
        """Everything from `starts` on; the next delivery is allowed when one has been taken."""
        granted: asyncio.Queue[int | None] = asyncio.Queue()
        granted.put_nowait(CREDIT)

        async def requests() -> AsyncIterator[ingest.DeliverRequest]:
            start = ingest.DeliverStart(source=source, starts=codecs.offsets_out(starts))
            yield ingest.DeliverRequest(start=start)
            while (credit := await granted.get()) is not None:
                yield ingest.DeliverRequest(credit=credit)

        call = begun(self._ingest.Deliver, requests(), metadata=self._run)
        try:
            with _of_a_service():
                async with aclosing(codecs.deliveries_in(messages_of(call))) as deliveries:
                    async for delivered in deliveries:
                        yield delivered
                        granted.put_nowait(1)
        finally:
            # NB: gRPC ends the task that sends requests with no call but one that goes on.
            granted.put_nowait(None)

    async def work(self) -> Sequence[Work]:
        """Work items of the other process."""
        found = await self._ends(self._work.List, work.ListRequest(), PEER_S)
        return [codecs.work_in(each) for each in found.work]

    async def _ends(self, method: Any, request: Any, timeout_s: float) -> Any:
        with _of_a_service():
            return await ends(begun(method, request, timeout=timeout_s, metadata=self._run))


@contextmanager
def _of_a_service() -> Iterator[None]:
    """Raises: Unavailable for a call that is not offered: the address may be another program's now,
    or of another version for a while.
    """
    try:
        yield
    except UsageError as error:
        if error.details.get("reason") != NOT_OFFERED:
            raise
        raise Unavailable(error.message, reason=ELSEWHERE) from None
