"""The handlers as servicers: decode the request, ask, encode the reply. Nothing is decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from tidemill.arrangement.looks import with_looks
from tidemill.rpc import codecs, codecs_compute, codecs_proof, codecs_storage
from tidemill.rpc.admission import throttle_rows_of_call
from tidemill.rpc.delivery import Delivery, DeliveryPolicy
from tidemill.rpc.handlers import CatalogHandlers, ComputeHandlers, QueryHandlers, StorageHandlers
from tidemill.rpc.messages import Explanation, ResourceDocument, ResourceStatus, Right
from tidemill.rpc.paging import Page, list_page, page_of
from tidemill.rpc.turns import beside, let_go_beside
from tidemill_protos.catalog.v1 import catalog_pb2 as catalog
from tidemill_protos.catalog.v1 import catalog_pb2_grpc
from tidemill_protos.compute.v1 import compute_pb2 as compute
from tidemill_protos.compute.v1 import compute_pb2_grpc
from tidemill_protos.query.v1 import query_pb2 as query
from tidemill_protos.query.v1 import query_pb2_grpc
from tidemill_protos.storage.v1 import storage_pb2 as storage
from tidemill_protos.storage.v1 import storage_pb2_grpc

BYTES_PER_ROW = 64
"""Making an object takes as long as reading so many bytes."""
TEXT_WEIGHT = 8
"""Text of proofs takes as long as so many times more bytes of rows."""

T = TypeVar("T")

Context = Any  # the generated stubs type the context as both of gRPC's two, which no value is


def _as_of(request: Any) -> int | None:
    return int(request.as_of) if request.HasField("as_of") else None


def _page(request: Any) -> Page | None:
    return page_of(int(request.limit) if request.HasField("limit") else None, request.after)


def _wait_s(request: Any) -> float | None:
    return float(request.wait_s) if request.HasField("wait_s") else None


def _token(request: Any) -> str | None:
    return str(request.token) if request.HasField("token") else None


def _lease_ms(request: Any) -> int | None:
    return int(request.lease_ms) if request.HasField("lease_ms") else None


async def _table_in(data: bytes) -> pa.Table:
    """The table of a request, decoded by `codecs.table_in`, which checks every value."""
    return await beside(len(data), partial(codecs.table_in, data, foreign=True))


async def _proof_out(found: Explanation, write: Callable[[Explanation], T]) -> T:
    """The message of an explanation: some 10 µs for each part, of which each has a line of the
    text.
    """
    return await beside(len(found.text) * TEXT_WEIGHT, partial(write, found))


class QueryServicer(query_pb2_grpc.QueryServiceServicer):
    """QueryService over `QueryHandlers`."""

    def __init__(self, handlers: QueryHandlers, delivery: DeliveryPolicy) -> None:
        self._handlers = handlers
        self._delivery = delivery

    async def Snapshot(  # noqa: N802 - gRPC's name, as below
        self, request: query.SnapshotRequest, context: Context
    ) -> AsyncIterator[query.SnapshotResponse]:
        """Stream a collection as of an instant."""
        answer = await self._handlers.snapshot(
            request.collection, _as_of(request), _wait_s(request)
        )
        for part in codecs.answer_out(answer):
            yield query.SnapshotResponse(part=part)

    async def Ask(  # noqa: N802
        self, request: query.AskRequest, context: Context
    ) -> AsyncIterator[query.AskResponse]:
        """Stream the matches of a goal."""
        answer = await self._handlers.ask(request.goal, _as_of(request), _wait_s(request))
        for part in codecs.answer_out(answer):
            yield query.AskResponse(part=part)

    async def Subscribe(  # noqa: N802
        self, request: query.SubscribeRequest, context: Context
    ) -> AsyncIterator[query.SubscribeResponse]:
        """Stream a goal's matches and their changes; a subscriber that stops reading is cut off."""
        events = self._handlers.subscribe(
            request.goal,
            request.start if request.HasField("start") else None,
            request.snapshot,
            request.until if request.HasField("until") else None,
        )
        delivery = Delivery(events, codecs.event_out, self._delivery)
        async with aclosing(delivery.messages()) as messages:
            async for message in messages:
                yield message

    async def Why(  # noqa: N802
        self, request: query.WhyRequest, context: Context
    ) -> query.WhyResponse:
        """Answer with a proof of a record."""
        found = await self._handlers.why(request.record, _as_of(request))
        return await _proof_out(found, codecs_proof.why_out)

    async def WhyNot(  # noqa: N802
        self, request: query.WhyNotRequest, context: Context
    ) -> query.WhyNotResponse:
        """Answer with the reasons for which a record is absent."""
        found = await self._handlers.why_not(request.record, _as_of(request))
        return await _proof_out(found, codecs_proof.why_not_out)

    async def Explain(  # noqa: N802
        self, request: query.ExplainRequest, context: Context
    ) -> query.ExplainResponse:
        """Answer with the plan of a view, as text."""
        form = request.form or "plan"
        return query.ExplainResponse(text=await self._handlers.explain(request.view, form))

    async def Tables(  # noqa: N802
        self, request: query.TablesRequest, context: Context
    ) -> AsyncIterator[query.TablesResponse]:
        """Stream several collections as of one instant."""
        answers = await self._handlers.tables(
            list(request.names), _as_of(request), _wait_s(request)
        )
        for name, answer in answers.items():
            for part in codecs.answer_out(answer):
                yield query.TablesResponse(name=name, part=part)

    async def ExplainTimestamp(  # noqa: N802
        self, request: query.ExplainTimestampRequest, context: Context
    ) -> query.ExplainTimestampResponse:
        """Answer with the instant that a question gets, and its cause."""
        found = await self._handlers.explain_timestamp(list(request.names), _as_of(request))
        return codecs.timestamp_out(found)

    async def Translate(  # noqa: N802
        self, request: query.TranslateRequest, context: Context
    ) -> query.TranslateResponse:
        """Answer with the offsets behind an instant of a source, or the instant of offsets."""
        offsets = codecs.offsets_in(request.offsets) if request.HasField("offsets") else None
        wanted = _as_of(request) if offsets is None else offsets
        found = await self._handlers.translate(request.source, wanted, _wait_s(request))
        return codecs.translation_out(found)

    async def Collections(  # noqa: N802
        self, request: query.CollectionsRequest, context: Context
    ) -> query.CollectionsResponse:
        """Answer with all collections and their frontiers."""
        found = await list_page(self._handlers.collections, _page(request), lambda each: each.id)
        return query.CollectionsResponse(
            collections=[codecs.collection_out(i) for i in found], next=found.next
        )


class CatalogServicer(catalog_pb2_grpc.CatalogServiceServicer):
    """CatalogService over `CatalogHandlers`."""

    def __init__(self, handlers: CatalogHandlers) -> None:
        self._handlers = handlers

    async def Apply(  # noqa: N802
        self, request: catalog.ApplyRequest, context: Context
    ) -> catalog.ApplyResponse:
        """Apply documents of resources."""
        documents = [ResourceDocument(d.text, d.file) for d in request.documents]
        applied = await self._handlers.apply(documents)
        return catalog.ApplyResponse(applied=[codecs.applied_out(one) for one in applied])

    async def Get(  # noqa: N802
        self, request: catalog.GetRequest, context: Context
    ) -> catalog.GetResponse:
        """Answer with resources, by kind and name."""

        def ask(page: Page | None) -> Awaitable[Sequence[ResourceStatus]]:
            return self._handlers.get(
                request.kind if request.HasField("kind") else None,
                request.name if request.HasField("name") else None,
                as_of=_as_of(request), page=page,
            )  # fmt: skip

        found = await list_page(ask, _page(request), lambda each: each.key)
        return catalog.GetResponse(
            resources=[codecs.resource_out(one) for one in found], next=found.next
        )

    async def Describe(  # noqa: N802
        self, request: catalog.DescribeRequest, context: Context
    ) -> catalog.DescribeResponse:
        """Answer with one resource and its status."""
        found = await self._handlers.describe(request.kind, request.name, _as_of(request))
        return catalog.DescribeResponse(resource=codecs.resource_out(found))

    async def Delete(  # noqa: N802
        self, request: catalog.DeleteRequest, context: Context
    ) -> catalog.DeleteResponse:
        """Delete one resource."""
        await self._handlers.delete(request.kind, request.name)
        return catalog.DeleteResponse()

    async def Decide(  # noqa: N802
        self, request: catalog.DecideRequest, context: Context
    ) -> catalog.DecideResponse:
        """Approve or abort a version that waits."""
        version = request.version if request.HasField("version") else None
        decision = codecs.decision_in(request.decision)
        return catalog.DecideResponse(
            version=await self._handlers.decide(request.view, decision, version)
        )

    async def Insert(  # noqa: N802
        self, request: catalog.InsertRequest, context: Context
    ) -> catalog.InsertResponse:
        """Write rows to a table."""
        rows = await _table_in(request.arrow_ipc)
        inserted = await self._handlers.insert(request.table, rows, _token(request))
        return catalog.InsertResponse(time=inserted.time, rows=inserted.rows)

    async def Push(  # noqa: N802
        self, request: catalog.PushRequest, context: Context
    ) -> catalog.PushResponse:
        """Write raw rows to the log of a source."""
        await throttle_rows_of_call(len(request.rows))
        size = len(request.rows) * BYTES_PER_ROW
        rows: list[bytes] = await beside(size, lambda: list(with_looks(request.rows)))
        try:
            pushed = await self._handlers.push(request.source, rows, _token(request))
        finally:
            await let_go_beside(rows)
        return catalog.PushResponse(accepted=pushed.accepted)


class ComputeServicer(compute_pb2_grpc.ComputeServiceServicer):
    """ComputeService over `ComputeHandlers`."""

    def __init__(self, handlers: ComputeHandlers) -> None:
        self._handlers = handlers

    async def MaintainView(  # noqa: N802
        self, request: compute.MaintainViewRequest, context: Context
    ) -> compute.MaintainViewResponse:
        """Install a view over held inputs."""
        view = codecs_compute.view_in(request)
        held = await self._handlers.maintain_view(view, _token(request))
        return codecs_compute.outputs_out(held)

    async def DropView(  # noqa: N802
        self, request: compute.DropViewRequest, context: Context
    ) -> compute.DropViewResponse:
        """End a view by a capability of one of its outputs."""
        await self._handlers.drop_view(codecs_storage.capability_in(request.capability))
        return compute.DropViewResponse()


class StorageServicer(storage_pb2_grpc.StorageServiceServicer):
    """StorageService over `StorageHandlers`."""

    def __init__(self, handlers: StorageHandlers, delivery: DeliveryPolicy) -> None:
        self._handlers = handlers
        self._delivery = delivery

    async def Create(  # noqa: N802
        self, request: storage.CreateRequest, context: Context
    ) -> storage.CreateResponse:
        """Create a collection and its capabilities."""
        pair = await self._handlers.create(
            request.collection,
            await beside(
                len(request.shape.arrow_schema), partial(codecs_storage.shape_in, request.shape)
            ),
            codecs.frontier_in(request.start) if request.HasField("start") else codecs.ORIGIN,
            request.owner,
            _lease_ms(request),
            _token(request),
        )
        write = None if pair.write is None else codecs_storage.capability_out(pair.write)
        return storage.CreateResponse(read=codecs_storage.capability_out(pair.read), write=write)

    async def AcquireCapabilities(  # noqa: N802
        self, request: storage.AcquireCapabilitiesRequest, context: Context
    ) -> storage.AcquireCapabilitiesResponse:
        """Acquire capabilities of a collection."""
        asked = request.owner, _lease_ms(request), _token(request)
        if request.rights in (storage.RIGHTS_READ, storage.RIGHTS_WRITE):
            reads = request.rights == storage.RIGHTS_READ
            right = Right.READ if reads else Right.WRITE
            held = await self._handlers.acquire_right(request.collection, right, *asked)
            one = codecs_storage.capability_out(held)
            return storage.AcquireCapabilitiesResponse(
                read=one if reads else None, write=None if reads else one
            )
        pair = await self._handlers.acquire(request.collection, *asked)
        write = None if pair.write is None else codecs_storage.capability_out(pair.write)
        return storage.AcquireCapabilitiesResponse(
            read=codecs_storage.capability_out(pair.read), write=write
        )

    async def CloneCapability(  # noqa: N802
        self, request: storage.CloneCapabilityRequest, context: Context
    ) -> storage.CloneCapabilityResponse:
        """Clone a capability."""
        capability = codecs_storage.capability_in(request.capability)
        held = await self._handlers.clone(capability, _token(request))
        return storage.CloneCapabilityResponse(capability=codecs_storage.capability_out(held))

    async def TransferCapability(  # noqa: N802
        self, request: storage.TransferCapabilityRequest, context: Context
    ) -> storage.TransferCapabilityResponse:
        """Make another owner answerable for a capability."""
        held = await self._handlers.transfer(
            codecs_storage.capability_in(request.capability), request.owner, _token(request)
        )
        return storage.TransferCapabilityResponse(capability=codecs_storage.capability_out(held))

    async def Downgrade(  # noqa: N802
        self, request: storage.DowngradeRequest, context: Context
    ) -> storage.DowngradeResponse:
        """Move the frontier of a capability forward."""
        held = await self._handlers.downgrade(
            codecs_storage.capability_in(request.capability),
            codecs.stated_frontier(request, "to"),
        )
        return storage.DowngradeResponse(capability=codecs_storage.capability_out(held))

    async def Drop(  # noqa: N802
        self, request: storage.DropRequest, context: Context
    ) -> storage.DropResponse:
        """End a capability."""
        await self._handlers.drop(codecs_storage.capability_in(request.capability))
        return storage.DropResponse()

    async def Renew(  # noqa: N802
        self, request: storage.RenewRequest, context: Context
    ) -> storage.RenewResponse:
        """Renew the lease of a capability."""
        held = await self._handlers.renew(codecs_storage.capability_in(request.capability))
        return storage.RenewResponse(capability=codecs_storage.capability_out(held))

    async def Expire(  # noqa: N802
        self, request: storage.ExpireRequest, context: Context
    ) -> storage.ExpireResponse:
        """End the capability of another owner, as an administrator."""
        ended = await self._handlers.expire(request.collection, request.key)
        return storage.ExpireResponse(
            owner=ended.owner, frontier=codecs.frontier_out(ended.frontier)
        )

    async def UpdateAndDowngrade(  # noqa: N802
        self, request: storage.UpdateAndDowngradeRequest, context: Context
    ) -> storage.UpdateAndDowngradeResponse:
        """Append updates and move the write capability, atomically."""
        outcome = await self._handlers.update_and_downgrade(
            codecs_storage.capability_in(request.capability),
            await _table_in(request.arrow_ipc) if request.HasField("arrow_ipc") else None,
            codecs.stated_frontier(request, "new"),
            _token(request),
        )
        return codecs_storage.append_out(outcome)

    async def SubscribeAt(  # noqa: N802
        self, request: storage.SubscribeAtRequest, context: Context
    ) -> AsyncIterator[storage.SubscribeAtResponse]:
        """Stream the updates of a collection from an instant on."""
        events = self._handlers.subscribe_at(
            codecs_storage.capability_in(request.capability),
            request.at,
            request.snapshot,
            request.up_to if request.HasField("up_to") else None,
            list(request.columns),
            [codecs_storage.condition_in(condition) for condition in request.where],
        )
        delivery = Delivery(events, codecs_storage.updates_out, self._delivery)
        async with aclosing(delivery.messages()) as messages:
            async for message in messages:
                yield message

    async def HoldVersion(  # noqa: N802
        self, request: storage.HoldVersionRequest, context: Context
    ) -> storage.HoldVersionResponse:
        """Hold the newest version at an instant."""
        held = await self._handlers.hold_version(
            request.collection,
            request.at if request.HasField("at") else None,
            request.owner,
            _lease_ms(request),
            _token(request),
        )
        return storage.HoldVersionResponse(
            capability=codecs_storage.capability_out(held.capability),
            at=held.at,
            version=held.version,
        )

    async def LocateObjects(  # noqa: N802
        self, request: storage.LocateObjectsRequest, context: Context
    ) -> storage.LocateObjectsResponse:
        """Answer with the places of objects of a held version."""
        capability = codecs_storage.capability_in(request.capability)
        urls = await self._handlers.locate(capability, list(request.keys))
        return storage.LocateObjectsResponse(urls=urls)
