"""The client of a Tidemill server, asynchronous, in domain types.

Each call raises what the handler on the other side raised, class and fields. Reads that find the
server briefly away are tried again; writes never are, since they may have happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.rpc import codecs, codecs_proof
from tidemill.rpc.channel import IN_THE_CLEAR, Dialer
from tidemill.rpc.client_compute import ComputeCalls
from tidemill.rpc.client_storage import StorageCalls
from tidemill.rpc.messages import (
    Answer,
    Applied,
    CollectionInfo,
    Decision,
    Event,
    Explanation,
    Inserted,
    Pushed,
    ResourceDocument,
    ResourceStatus,
    TimestampExplanation,
    Translation,
)
from tidemill.rpc.outcomes import CALL_S, Explain, ends, messages_of
from tidemill.rpc.paging import Listed, Page
from tidemill.rpc.reaching import why_unreachable
from tidemill.time import SourceFrontier
from tidemill_protos.catalog.v1 import catalog_pb2 as catalog
from tidemill_protos.catalog.v1 import catalog_pb2_grpc
from tidemill_protos.query.v1 import query_pb2 as query
from tidemill_protos.query.v1 import query_pb2_grpc

T = TypeVar("T")


class AsyncClient:
    """Calls of one server, on the event loop that is running. Close it, or use `async with`."""

    def __init__(
        self, address: str, *, timeout_s: float = CALL_S, dialer: Dialer = IN_THE_CLEAR
    ) -> None:
        self._timeout_s = timeout_s
        self._channel = dialer.channel(address)
        self._explain: Explain = lambda: why_unreachable(address, dialer)
        self._query: Any = query_pb2_grpc.QueryServiceStub(self._channel)
        self._catalog: Any = catalog_pb2_grpc.CatalogServiceStub(self._channel)
        self.storage = StorageCalls(self._channel, timeout_s)
        self.compute = ComputeCalls(self._channel, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel running calls and close the connection."""
        await self._channel.close()

    # Reading.

    async def snapshot(
        self, collection: str, as_of: int | None = None, wait_s: float | None = None
    ) -> Answer:
        """The whole collection at one instant; the latest definite one by default."""
        request = query.SnapshotRequest(collection=collection, as_of=as_of, wait_s=wait_s)
        call = self._query.Snapshot(request, timeout=self._timeout_s + (wait_s or 0.0))
        return codecs.answer_in(
            [message.part async for message in messages_of(call, explain=self._explain)]
        )

    async def ask(self, goal: str, as_of: int | None = None, wait_s: float | None = None) -> Answer:
        """The records that match a goal at one instant."""
        request = query.AskRequest(goal=goal, as_of=as_of, wait_s=wait_s)
        call = self._query.Ask(request, timeout=self._timeout_s + (wait_s or 0.0))
        return codecs.answer_in(
            [message.part async for message in messages_of(call, explain=self._explain)]
        )

    async def subscribe(
        self,
        goal: str,
        start: int | None = None,
        snapshot: bool = True,
        until: int | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Changes from `start` on; leaving the loop ends the call on the server too."""
        request = query.SubscribeRequest(goal=goal, start=start, snapshot=snapshot, until=until)
        call = self._query.Subscribe(request)
        async with aclosing(messages_of(call, explain=self._explain)) as messages:
            async for message in messages:
                yield codecs.event_in(message)

    async def why(self, record: str, as_of: int | None = None) -> Explanation:
        """The proof of a record that is present."""
        found = await self._ended(self._query.Why, query.WhyRequest(record=record, as_of=as_of))
        return codecs_proof.explanation_in(found)

    async def why_not(self, record: str, as_of: int | None = None) -> Explanation:
        """Reasons for which a record is absent."""
        request = query.WhyNotRequest(record=record, as_of=as_of)
        found = await self._ended(self._query.WhyNot, request)
        return codecs_proof.explanation_in(found)

    async def explain(self, view: str, form: str = "plan") -> str:
        """A view as `plan`, `analyze` (with rows, bytes and time), `json`, `analyze-json`, `dot` or
        `svg` (its strata).
        """
        request = query.ExplainRequest(view=view, form=form)
        found = await self._ended(self._query.Explain, request)
        return str(found.text)

    async def tables(
        self, names: Sequence[str], as_of: int | None = None, wait_s: float | None = None
    ) -> Mapping[str, Answer]:
        """All named collections at one and the same instant."""
        request = query.TablesRequest(names=names, as_of=as_of, wait_s=wait_s)
        call = self._query.Tables(request, timeout=self._timeout_s + (wait_s or 0.0))
        received: dict[str, list[query.Answer]] = {}
        async for message in messages_of(call, explain=self._explain):
            received.setdefault(message.name, []).append(message.part)
        return {name: codecs.answer_in(found) for name, found in received.items()}

    async def explain_timestamp(
        self, names: Sequence[str], as_of: int | None = None
    ) -> TimestampExplanation:
        """Which instant a question over these names gets, and what decides it."""
        request = query.ExplainTimestampRequest(names=names, as_of=as_of)
        return codecs.timestamp_in(await self._ended(self._query.ExplainTimestamp, request))

    async def translate(
        self,
        source: str,
        wanted: int | SourceFrontier | None = None,
        wait_s: float | None = None,
    ) -> Translation:
        """Offsets behind a source's answer at an instant; for offsets, the least instant with
        them.
        """
        request = query.TranslateRequest(source=source, wait_s=wait_s)
        if isinstance(wanted, int):
            request.as_of = wanted
        elif wanted is not None:
            request.offsets.CopyFrom(codecs.offsets_out(wanted))
        call = self._query.Translate(request, timeout=self._timeout_s + (wait_s or 0.0))
        return codecs.translation_in(await ends(call, explain=self._explain))

    async def collections(self, page: Page | None = None) -> Listed[CollectionInfo]:
        """Every collection with its frontiers and who holds them; or those of a page."""
        request = query.CollectionsRequest(
            limit=None if page is None else page.limit, after="" if page is None else page.after
        )
        answer = await self._ended(self._query.Collections, request)
        return _listed(map(codecs.collection_in, answer.collections), answer)

    # The catalog.

    async def apply(self, documents: Iterable[ResourceDocument]) -> Sequence[Applied]:
        """Make all resources so, or none of them."""
        sent = [catalog.ResourceDocument(text=d.text, file=d.file) for d in documents]
        request = catalog.ApplyRequest(documents=sent)
        found = await self._ended(self._catalog.Apply, request, writes=True)
        return [codecs.applied_in(message) for message in found.applied]

    async def get(
        self,
        kind: str | None = None,
        name: str | None = None,
        as_of: int | None = None,
        page: Page | None = None,
    ) -> Listed[ResourceStatus]:
        """Resources of a kind and name; None stands for all. As of an instant their definitions.

        With `page` those of the page, in the order of kind and name.
        """
        request = catalog.GetRequest(
            kind=kind, name=name, as_of=as_of, limit=None if page is None else page.limit,
            after="" if page is None else page.after,
        )  # fmt: skip
        answer = await self._ended(self._catalog.Get, request)
        return _listed(map(codecs.resource_in, answer.resources), answer)

    async def describe(self, kind: str, name: str, as_of: int | None = None) -> ResourceStatus:
        """One resource with its details; as of an instant its definition."""
        request = catalog.DescribeRequest(kind=kind, name=name, as_of=as_of)
        return codecs.resource_in((await self._ended(self._catalog.Describe, request)).resource)

    async def delete(self, kind: str, name: str) -> None:
        """Remove a resource that nothing else reads."""
        request = catalog.DeleteRequest(kind=kind, name=name)
        await self._ended(self._catalog.Delete, request, writes=True)

    async def decide(self, view: str, decision: Decision, version: int | None = None) -> int:
        """Approve or abort the version of a view that waits; its number."""
        request = catalog.DecideRequest(
            view=view, decision=codecs.decision_out(decision), version=version
        )
        return int((await self._ended(self._catalog.Decide, request, writes=True)).version)

    async def insert(self, table: str, rows: pa.Table, *, token: str | None = None) -> Inserted:
        """Write rows durably to a table, all at one time; at most 64 MiB in one call.

        With a token the same call may be made again: it writes once.
        """
        request = catalog.InsertRequest(table=table, arrow_ipc=pack_table(rows), token=token)
        found = await self._ended(self._catalog.Insert, request, writes=True)
        return Inserted(time=found.time, rows=found.rows)

    async def push(self, source: str, rows: Iterable[bytes], *, token: str | None = None) -> Pushed:
        """Write raw rows to the log of a source, durable when this returns.

        With a token of 16 characters or more the same call may be made again: each row is there
        once.
        """
        request = catalog.PushRequest(source=source, rows=rows, token=token)
        found = await self._ended(self._catalog.Push, request, writes=True)
        return Pushed(accepted=found.accepted)

    def _ended(self, method: Any, request: Any, *, writes: bool = False) -> Awaitable[Any]:
        call = method(request, timeout=self._timeout_s)
        return ends(call, writes=writes, explain=self._explain)


def _listed(entries: Iterable[T], answer: Any) -> Listed[T]:
    """The entries of an answer, which says what follows."""
    found = Listed(entries)
    found.next = answer.next if answer.HasField("next") else None
    return found
