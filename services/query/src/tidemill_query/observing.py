"""Questions in the metrics of a process: how long they take, and who is subscribed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing

from tidemill.rpc.handlers import QueryHandlers
from tidemill.rpc.messages import (
    Answer,
    CollectionInfo,
    Condition,
    Event,
    Explanation,
    TimestampExplanation,
    Translation,
)
from tidemill.rpc.paging import Page
from tidemill.runtime.metrics import QUERY_DURATION, SUBSCRIPTIONS, Metrics
from tidemill.time import SourceFrontier


class ObservedQueries:
    """Query handlers whose answers are timed and whose subscribers are counted."""

    def __init__(self, inner: QueryHandlers, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics
        self._open: Counter[str] = Counter()
        metrics.watch(
            SUBSCRIPTIONS,
            lambda: [({"collection": each}, count) for each, count in self._open.items()],
        )

    async def snapshot(
        self,
        collection: str,
        as_of: int | None,
        wait_s: float | None,
        where: Sequence[Condition] = (),
    ) -> Answer:
        """The answer of the inner handlers, timed, as for all methods below."""
        with self._metrics.timed(QUERY_DURATION, kind="snapshot"):
            return await self._inner.snapshot(collection, as_of, wait_s, where)

    async def ask(self, goal: str, as_of: int | None, wait_s: float | None) -> Answer:
        with self._metrics.timed(QUERY_DURATION, kind="ask"):
            return await self._inner.ask(goal, as_of, wait_s)

    async def subscribe(
        self, goal: str, start: int | None, snapshot: bool, until: int | None
    ) -> AsyncIterator[Event]:
        """The events of the inner handlers, counted from the first one while it lasts."""
        name, begun = goal.partition("(")[0].strip(), False
        try:
            events = self._inner.subscribe(goal, start, snapshot, until)
            async with aclosing(events) as stream:  # type: ignore[type-var]  # a generator
                async for event in stream:
                    # NB: now, that there is such a collection: other names would be labels for
                    # ever.
                    self._open[name] += not begun
                    begun = True
                    yield event
        finally:
            if begun:
                self._open[name] -= 1

    async def why(self, record: str, as_of: int | None) -> Explanation:
        with self._metrics.timed(QUERY_DURATION, kind="why"):
            return await self._inner.why(record, as_of)

    async def why_not(self, record: str, as_of: int | None) -> Explanation:
        with self._metrics.timed(QUERY_DURATION, kind="why_not"):
            return await self._inner.why_not(record, as_of)

    async def explain(self, view: str, form: str) -> str:
        with self._metrics.timed(QUERY_DURATION, kind="explain"):
            return await self._inner.explain(view, form)

    async def tables(
        self, names: Sequence[str], as_of: int | None, wait_s: float | None
    ) -> Mapping[str, Answer]:
        with self._metrics.timed(QUERY_DURATION, kind="tables"):
            return await self._inner.tables(names, as_of, wait_s)

    async def explain_timestamp(
        self, names: Sequence[str], as_of: int | None
    ) -> TimestampExplanation:
        return await self._inner.explain_timestamp(names, as_of)

    async def translate(
        self, source: str, wanted: int | SourceFrontier | None, wait_s: float | None
    ) -> Translation:
        with self._metrics.timed(QUERY_DURATION, kind="translate"):
            return await self._inner.translate(source, wanted, wait_s)

    async def collections(self, page: Page | None = None) -> Sequence[CollectionInfo]:
        with self._metrics.timed(QUERY_DURATION, kind="collections"):
            return await self._inner.collections(page)
