"""The client for code that is not asynchronous: the same calls, each waiting for its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from tidemill.rpc.channel import IN_THE_CLEAR, Dialer
from tidemill.rpc.client import AsyncClient
from tidemill.rpc.messages import (
    Answer,
    Applied,
    CollectionInfo,
    Decision,
    Event,
    Explanation,
    HolderInfo,
    Inserted,
    Pushed,
    ResourceDocument,
    ResourceStatus,
    TimestampExplanation,
    Translation,
)
from tidemill.rpc.outcomes import CALL_S
from tidemill.rpc.paging import Listed, Page
from tidemill.time import SourceFrontier

R = TypeVar("R")


class BlockingClient:
    """One server's calls, on an event loop in a thread of its own. Close it, or use `with`.

    Safe to share between threads.
    """

    def __init__(
        self, address: str, *, timeout_s: float = CALL_S, dialer: Dialer = IN_THE_CLEAR
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tidemill-client", daemon=True
        )
        self._thread.start()
        self._client = self._wait(_open_client(address, timeout_s, dialer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel running calls, close the connection, end the thread. Once is enough."""
        if self._loop.is_closed():
            return
        self._wait(self._client.close())
        self._wait(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def snapshot(
        self, collection: str, as_of: int | None = None, wait_s: float | None = None
    ) -> Answer:
        """The whole collection at one instant; the latest definite one by default."""
        return self._wait(self._client.snapshot(collection, as_of, wait_s))

    def ask(self, goal: str, as_of: int | None = None, wait_s: float | None = None) -> Answer:
        """The records that match a goal at one instant."""
        return self._wait(self._client.ask(goal, as_of, wait_s))

    def subscribe(
        self,
        goal: str,
        start: int | None = None,
        snapshot: bool = True,
        until: int | None = None,
    ) -> Iterator[Event]:
        """Changes from `start` on; closing the iterator ends the call."""
        return self._iterate(lambda: self._client.subscribe(goal, start, snapshot, until))

    def why(self, record: str, as_of: int | None = None) -> Explanation:
        """The proof of a record that is present."""
        return self._wait(self._client.why(record, as_of))

    def why_not(self, record: str, as_of: int | None = None) -> Explanation:
        """Reasons for which a record is absent."""
        return self._wait(self._client.why_not(record, as_of))

    def explain(self, view: str, form: str = "plan") -> str:
        """A view as `plan`, `analyze` (with rows, bytes and time), `json`, `analyze-json`, `dot` or
        `svg` (its strata).
        """
        return self._wait(self._client.explain(view, form))

    def tables(
        self, names: Sequence[str], as_of: int | None = None, wait_s: float | None = None
    ) -> Mapping[str, Answer]:
        """All named collections at one and the same instant."""
        return self._wait(self._client.tables(names, as_of, wait_s))

    def explain_timestamp(
        self, names: Sequence[str], as_of: int | None = None
    ) -> TimestampExplanation:
        """Which instant a question over these names gets, and what decides it."""
        return self._wait(self._client.explain_timestamp(names, as_of))

    def translate(
        self,
        source: str,
        wanted: int | SourceFrontier | None = None,
        wait_s: float | None = None,
    ) -> Translation:
        """Offsets behind a source's answer at an instant; for offsets, the least instant with
        them.
        """
        return self._wait(self._client.translate(source, wanted, wait_s))

    def collections(self, page: Page | None = None) -> Listed[CollectionInfo]:
        """Every collection with its frontiers and who holds them; or those of a page."""
        return self._wait(self._client.collections(page))

    def apply(self, documents: Iterable[ResourceDocument]) -> Sequence[Applied]:
        """Make all resources so, or none of them."""
        return self._wait(self._client.apply(documents))

    def get(
        self,
        kind: str | None = None,
        name: str | None = None,
        as_of: int | None = None,
        page: Page | None = None,
    ) -> Listed[ResourceStatus]:
        """Resources of a kind and name; None stands for all. As of an instant their definitions."""
        return self._wait(self._client.get(kind, name, as_of, page))

    def describe(self, kind: str, name: str, as_of: int | None = None) -> ResourceStatus:
        """One resource with its details; as of an instant its definition."""
        return self._wait(self._client.describe(kind, name, as_of))

    def delete(self, kind: str, name: str) -> None:
        """Remove a resource that nothing else reads."""
        self._wait(self._client.delete(kind, name))

    def decide(self, view: str, decision: Decision, version: int | None = None) -> int:
        """Approve or abort the version of a view that waits; its number."""
        return self._wait(self._client.decide(view, decision, version))

    def insert(self, table: str, rows: pa.Table, *, token: str | None = None) -> Inserted:
        """Write rows durably to a table, all at one time; once for each token."""
        return self._wait(self._client.insert(table, rows, token=token))

    def push(self, source: str, rows: Iterable[bytes], *, token: str | None = None) -> Pushed:
        """Write raw rows to the log of a source, durable when this returns; once for each token."""
        return self._wait(self._client.push(source, rows, token=token))

    def expire(self, collection: str, key: str) -> HolderInfo:
        """End the capability of the holder with this key, for administrators; who it was."""
        return self._wait(self._client.storage.expire(collection, key))

    def drive(self, work: Callable[[AsyncClient], Coroutine[Any, Any, R]]) -> R:
        """The result of a coroutine over the asynchronous client, on the loop of this one."""
        return self._wait(work(self._client))

    def each(self, start: Callable[[AsyncClient], AsyncGenerator[Event, None]]) -> Iterator[Event]:
        """The events of a stream of the asynchronous client; leaving the loop ends it."""
        return self._iterate(lambda: start(self._client))

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _iterate(self, start: Callable[[], AsyncGenerator[Event, None]]) -> Iterator[Event]:
        events = start()
        # A cancelled step may still be inside the generator when the loop is left.
        stepping = asyncio.Lock()

        async def follow() -> Event | None:
            async with stepping:
                return await anext(events, None)

        async def close_stream() -> None:
            async with stepping:
                await events.aclose()

        try:
            while (event := self._wait(follow())) is not None:
                yield event
        finally:
            if not self._loop.is_closed():
                self._wait(close_stream())


async def _open_client(address: str, timeout_s: float, dialer: Dialer) -> AsyncClient:
    return AsyncClient(address, timeout_s=timeout_s, dialer=dialer)
