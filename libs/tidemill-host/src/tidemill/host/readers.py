"""Sources that this process reads, for parts that bind and write them here and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.errors import Unavailable
from tidemill.rpc.identity import ELSEWHERE
from tidemill.rpc.messages import Delivered

Deliver = Callable[[Delivered], Awaitable[None]]
"""Takes a delivery; returns when there is room for the next."""

Commit = Callable[[Mapping[int, int]], Awaitable[None]]
"""Tells the log how far the source has been written."""


class Reader(Protocol):
    """A source that is read; tidemill_ingest.driver.SourceReader is one."""

    async def probe(self) -> dict[int, int]:
        """The offset that the next record of each partition will get."""

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        """Call `deliver` with everything from `starts` on; never ends by itself."""


@dataclass(slots=True)
class _Offered:
    reader: Reader
    commit: Commit
    failed: asyncio.Future[None]
    withdrawn: asyncio.Event = field(default_factory=asyncio.Event)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell the part that reads of a failure which may pass: it opens the origin anew."""
        try:
            yield
        except Unavailable as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise


class Readers:
    """Guarantees of IngestHandlers, over the sources that this process reads now.

    The deliveries of a withdrawn source end with Unavailable. Their receiver looks for the process
    that reads it next, and begins again at the upper of its output.
    """

    def __init__(self) -> None:
        self._offered: dict[str, _Offered] = {}
        self._more = asyncio.Event()
        """Set, and replaced, whenever a source is offered."""

    def offer(self, source: str, reader: Reader, commit: Commit) -> asyncio.Future[None]:
        """Offer the reading of `source` to other processes from now on.

        The future ends with the first Unavailable of the reader: an origin that is opened anew may
        have another password, other certificates, other addresses.
        """
        failed = asyncio.get_running_loop().create_future()
        self._offered[source] = _Offered(reader, commit, failed)
        more, self._more = self._more, asyncio.Event()
        more.set()
        return failed

    def withdraw(self, source: str) -> None:
        """End its deliveries; again is fine."""
        offered = self._offered.pop(source, None)
        if offered is not None:
            offered.withdrawn.set()

    def reads(self, source: str) -> bool:
        """Whether this process reads the source."""
        return source in self._offered

    async def until_read(self, source: str) -> None:
        """Return once this process reads the source."""
        while not self.reads(source):
            await self._more.wait()

    def _find(self, source: str) -> _Offered:
        offered = self._offered.get(source)
        if offered is None:
            raise Unavailable(f"the source {source} is not read by this process", reason=ELSEWHERE)
        return offered

    async def probe(self, source: str) -> Mapping[int, int]:
        """The offset that the next record of each partition will get."""
        offered = self._find(source)
        with offered.watched():
            return await offered.reader.probe()

    async def commit(self, source: str, offsets: Mapping[int, int]) -> None:
        """Tell the log how far the source has been written."""
        await self._find(source).commit(offsets)

    async def deliver(
        self, source: str, starts: Mapping[int, int]
    ) -> AsyncGenerator[Delivered, None]:
        """Everything from `starts` on; nothing is read before it is asked for, but one delivery."""
        offered = self._find(source)
        waiting: asyncio.Queue[Delivered] = asyncio.Queue(maxsize=1)
        reading = asyncio.ensure_future(offered.reader.deliver_from(starts, waiting.put))
        ending = asyncio.ensure_future(offered.withdrawn.wait())
        try:
            while True:
                taking = asyncio.ensure_future(waiting.get())
                try:
                    await asyncio.wait(
                        (taking, reading, ending), return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    taking.cancel()
                if ending.done():
                    raise Unavailable(f"the source {source} is read elsewhere", reason=ELSEWHERE)
                if reading.done() and not taking.done():
                    with offered.watched():
                        reading.result()
                    return
                yield taking.result()
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.gather(reading, ending, return_exceptions=True)
