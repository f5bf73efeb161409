"""Changes over HTTP as server-sent events, whose ids are frontiers.

One event has all changes before its frontier that no event before it had. So a browser that
connects again with the id of the last event misses nothing and repeats nothing. Behind the frontier
an id has a mark of its collection: a name that was deleted and is used again means another one.
Followers of one goal share one subscription, and the bytes of each event.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from tidemill.errors import TidemillError, UsageError
from tidemill.rpc.codecs import parts
from tidemill.rpc.handlers import QueryHandlers
from tidemill.rpc.identity import PROCESS, caller
from tidemill.rpc.messages import Changes, Event
from tidemill.rpc.turns import beside
from tidemill.runtime.http_messages import HttpReply
from tidemill.runtime.http_problems import fault, refusal
from tidemill.runtime.http_server import EVENTS
from tidemill.runtime.logs import get_logger
from tidemill.time import Frontier, sole_time
from tidemill_query.web.door import Asked, Handlers, Operation
from tidemill_query.web.forms import WEIGHT, json_rows
from tidemill_query.web.reading import SERVICE, Instant, Text

log = get_logger("following")

KEPT_BYTES_MAX = 8 << 20
"""Bytes of events of one goal that followers may be late by, before they read for themselves."""

SILENCE_S = 15.0
"""Seconds without an event after which a comment shows that the connection lives."""

_ID = re.compile(r"(0|[1-9][0-9]{0,18})(?:-([0-9a-f]{12}))?")
"""The id of an event: a frontier, and the mark of its collection; a person leaves the mark out."""

ENDED = "end"
"""Id of the last event of a closed collection."""

_BEGIN = b"retry: 1000\n\n"
_COMMENT = b":\n\n"


class Following(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A goal or a collection; changes after `start`, by default the latest definite instant.

    With `snapshot` the rows at the start come first. The stream ends at `until`.
    """

    goal: Text
    start: Instant | None = None
    snapshot: bool = False
    until: Instant | None = None


class Sent(msgspec.Struct, frozen=True):
    """The data of an event: all changes before `upper` that no event before it had.

    A row has its columns, `_time` and `_diff`. An empty `upper` says that nothing more will come.
    """

    upper: list[int]
    rows: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An event between two frontiers, as bytes."""

    lower: int
    upper: int | None
    data: bytes


@dataclass(slots=True)
class _Feed:
    """The latest events of one goal; `upper` is None until the first frontier is known."""

    upper: int | None = None
    ended: bool = False
    failed: Exception | None = None
    followers: int = 0
    entries: deque[_Entry] = field(default_factory=deque)
    size: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def after(self, at: int) -> _Entry | None:
        """The event that begins at a frontier, if it is kept."""
        return next((each for each in self.entries if each.lower == at), None)

    def take(self, upper: int | None, data: bytes) -> None:
        """Keep an event up to `upper`, and let early ones go."""
        if self.upper is not None:
            self.entries.append(_Entry(self.upper, upper, data))
            self.size += len(data)
            while self.size > KEPT_BYTES_MAX and len(self.entries) > 1:
                self.size -= len(self.entries.popleft().data)
        self.upper, self.ended = self.upper if upper is None else upper, upper is None
        self.wake()

    def wake(self) -> None:
        """Wake the followers."""
        self.moved.set()
        self.moved = asyncio.Event()


class Feeds:
    """The goals that are followed now, each subscribed to once for all who follow at its end."""

    def __init__(self, query: QueryHandlers) -> None:
        self._query = query
        self._feeds: dict[tuple[str, str], _Feed] = {}

    def followed(self) -> list[str]:
        """The goals that somebody follows now."""
        return [goal for goal, _ in self._feeds]

    @contextmanager
    def joined(self, goal: str, mark: str) -> Iterator[_Feed]:
        """The feed of a goal over the marked collection, for as long as somebody follows it."""
        feed = self._feeds.get((goal, mark))
        if feed is None or feed.failed is not None or feed.ended:
            feed = self._feeds[goal, mark] = _Feed()
            feed.task = asyncio.create_task(self._run(goal, mark, feed))
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                if feed.task is not None:
                    feed.task.cancel()
                if self._feeds.get((goal, mark)) is feed:
                    del self._feeds[goal, mark]

    async def _run(self, goal: str, mark: str, feed: _Feed) -> None:
        caller.set(PROCESS)  # each follower has shown its right at its own first look
        try:
            async with aclosing(_events(self._query, goal, None, False, None)) as events:
                async for upper, tables in events:
                    pieces = event_pieces(upper, tables, mark)
                    size = sum(table.nbytes for table in tables) * WEIGHT
                    feed.take(upper, await beside(size, partial(b"".join, pieces)))
        except Exception as error:  # the work of one feed: else its followers would wait for ever
            if not isinstance(error, TidemillError):
                log.exception("following failed")
            feed.failed = error
            feed.wake()


async def _events(
    query: QueryHandlers, goal: str, start: int | None, snapshot: bool, until: int | None
) -> AsyncGenerator[tuple[int | None, Sequence[pa.Table]], None]:
    """Each frontier that was reached, None for the end, with all changes before it."""
    tables: list[pa.Table] = []
    events = query.subscribe(goal, start, snapshot, until)
    async with aclosing(events) as stream:  # type: ignore[type-var]  # a generator
        event: Event
        async for event in stream:
            if isinstance(event, Changes):
                tables.append(event.table)
                continue
            yield _upper(event.upper), tables
            tables = []


def _upper(held: Frontier) -> int | None:
    return None if held.empty else sole_time(held)


def mark_of(birth: str) -> str:
    """The mark of a collection, by its birth, in the ids of its events."""
    return blake2b(birth.encode(), digest_size=6).hexdigest()


def event_pieces(upper: int | None, tables: Sequence[pa.Table], mark: str) -> Iterator[bytes]:
    """One event in pieces; a client sees it once its last piece is there.

    An event without rows has the name `progress`, the last one of a closed collection `end`.
    """
    rows = any(table.num_rows for table in tables)
    name = b"" if rows else b"event: end\n" if upper is None else b"event: progress\n"
    ident = ENDED if upper is None else f"{upper}-{mark}"
    times = "" if upper is None else str(upper)
    yield f"id: {ident}\n".encode() + name + f'data: {{"upper":[{times}],"rows":['.encode()
    begun = False
    for table in tables:
        for part in parts(table):
            if part.num_rows:
                # Lines of data are joined by line feeds, which JSON has room for.
                yield (b",\ndata: " if begun else b"") + json_rows(part)
                begun = True
    yield b"]}\n\n"


async def _pieces(upper: int | None, tables: Sequence[pa.Table], mark: str) -> AsyncIterator[bytes]:
    """The event, each of its pieces made beside the event loop if it is long."""
    pieces = event_pieces(upper, tables, mark)
    largest = max((table.nbytes for table in tables), default=0) * WEIGHT
    while (piece := await beside(largest, partial(next, pieces, None))) is not None:
        yield piece


@dataclass(frozen=True, slots=True)
class _Place:
    """Arguments of a follower, with its instants read, and the mark of its collection."""

    goal: str
    mark: str
    start: int | None
    snapshot: bool
    until: int | None


class _Follower:
    """The place of one follower: everything before `at` was sent."""

    def __init__(self, on: Handlers, of: _Place, last: int | None) -> None:
        self._on = on
        self._of = of
        self.at = last
        self._start = of.start if last is None else last - 1
        self._snapshot = of.snapshot and last is None

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The events, read alone until the feed of all followers has the next one.

        The first piece is empty: it comes once the caller may follow.
        """
        goal, until = self._of.goal, self._of.until
        with self._on.feeds.joined(goal, self._of.mark) as feed:
            shared = until is None
            stop = until
            while True:
                async with aclosing(self._alone(stop, feed if shared else None)) as pieces:
                    async for piece in pieces:
                        yield piece
                if not shared or self.at is None:
                    return
                while (entry := feed.after(self.at)) is not None or self._waits(feed):
                    if entry is None:
                        yield await self._silence(feed)
                        continue
                    yield entry.data
                    if entry.upper is None:
                        return
                    self.at = entry.upper
                if feed.failed is not None:
                    yield _problem(feed.failed)
                    return
                # It is behind what is kept, or between two events: it reads up to the feed's place.
                self._start, self._snapshot = self.at - 1, False
                stop = None if feed.ended else feed.upper

    def _waits(self, feed: _Feed) -> bool:
        assert self.at is not None
        late = feed.upper is not None and self.at < feed.upper
        return not (late or feed.failed or feed.ended)

    async def _silence(self, feed: _Feed) -> bytes:
        """Nothing once the feed has moved, else a comment."""
        try:
            async with asyncio.timeout(SILENCE_S):
                await feed.moved.wait()
        except TimeoutError:
            return _COMMENT
        return b""

    async def _alone(self, stop: int | None, feed: _Feed | None) -> AsyncGenerator[bytes, None]:
        """Events of a subscription of its own, up to `stop`, or to a place of the feed."""
        query, goal, start = self._on.query, self._of.goal, self._start
        async with aclosing(_events(query, goal, start, self._snapshot, stop)) as events:
            begun = False
            async for upper, tables in events:
                if not begun:
                    begun = True
                    # Ids of collections never come again: between two equal looks it was this one.
                    if mark_of(self._on.birth(await self._on.identify(goal))) != self._of.mark:
                        raise _another(goal)
                    yield b""
                # NB: a frontier that is not past the start says nothing, and is no place to begin.
                if upper is not None and start is not None and upper <= start:
                    continue
                if upper is None or upper != self.at or tables:
                    async for piece in _pieces(upper, tables, self._of.mark):
                        yield piece
                self.at = upper
                if upper is None:
                    return
                if feed is not None and (upper == feed.upper or feed.after(upper)):
                    return


def _problem(error: Exception) -> bytes:
    """The event that says why a stream ends."""
    body = (refusal(error) if isinstance(error, TidemillError) else fault(error)).body
    assert isinstance(body, bytes)
    return b"event: problem\ndata: " + body.rstrip() + b"\n\n"


def _refused(says: str) -> UsageError:
    return UsageError(
        f"following refused: {says}; leave Last-Event-ID out to begin anew", reason="LastEventId"
    )


def _another(goal: str) -> UsageError:
    return _refused(f"{goal[:100]} means another collection than the events before had")


def _last_id(last: str, goal: str, mark: str, upper: Frontier) -> int | None:
    """The frontier that the header names; None for the end.

    Raises: UsageError for an id that no event of this collection has had.
    """
    if last == ENDED:
        return None
    found = _ID.fullmatch(last)
    frontier = int(found[1]) if found else 0
    if found is None or not 0 < frontier < 1 << 63:
        raise _refused(f"{last[:100]!r} is no id of an event")
    if found[2] not in (None, mark):
        raise _another(goal)
    if not upper.empty and frontier > sole_time(upper):
        raise _refused(f"{last!r} is beyond everything that was sent, which is before {upper}")
    return frontier


async def follow(on: Handlers, asked: Asked) -> HttpReply:
    """The changes of a goal or collection as server-sent events; their ids begin with frontiers.

    With `Last-Event-ID` the stream goes on behind that event: nothing is missed or repeated. An id
    of another collection is refused, such as one from before a view was deleted and made again. An
    event without a name has changes, one named `progress` has none. One named `problem` says why
    the stream ends, one named `end` that the collection is closed. Status 204 ends it for good. An
    `EventSource` of a browser sends no token; with tokens a page reads the stream by `fetch`.
    """
    of, until = asked.of, on.at(asked.of.until)
    collection = await on.identify(of.goal)
    given, mark = asked.request.sent.get("last-event-id", "").strip(), mark_of(on.birth(collection))
    last = _last_id(given, of.goal, mark, await on.upper_of(collection)) if given else None
    if until == 0 or (until is None and of.until is not None):
        raise UsageError(
            f"following refused: until={of.until} is no end of a stream: name an instant after 0, "
            "or leave it out",
            reason="Until",
        )
    if given == ENDED or (last is not None and until is not None and last >= until):
        return HttpReply(204, content_type=EVENTS)
    place = _Place(of.goal, mark, on.at(of.start), of.snapshot, until)
    stream = _Follower(on, place, last).stream()
    first = await anext(stream)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return HttpReply(200, _Begun(_BEGIN + first, stream), EVENTS, headers)


class _Begun:
    """A stream whose first piece was taken; to close it closes the stream."""

    def __init__(self, first: bytes, stream: AsyncGenerator[bytes, None]) -> None:
        self._first = first
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, b""
        while not first:
            first = await anext(self._stream)
        return first

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


FOLLOWING = (
    Operation("GET", "/v1/subscribe", SERVICE + "Subscribe", Following, follow, {EVENTS: Sent}),
)  # fmt: skip
