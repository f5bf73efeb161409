"""Feeds: the rows of a source, from a reader in this process or in another one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Protocol

from tidemill.errors import DeadlinePassed, Unavailable
from tidemill.host.peers import Peers
from tidemill.host.readers import Deliver, Readers
from tidemill.host.roles import share_of
from tidemill.rpc.client_services import ServiceClient
from tidemill.rpc.messages import Delivered
from tidemill.runtime.clock import Clock

LOOK_S = 0.25
"""Between two looks for the process that reads a source."""

LOOK_S_MAX = 15.0
"""Longer than it takes until another process has taken the source over."""

WATCH_S = 1.0
"""Seconds between two questions to a reader that delivers nothing, whether it is still there."""


class Feed(Protocol):
    """One source, read by whoever has it now."""

    async def probe(self) -> dict[int, int]:
        """The offset that the next record of each partition will get."""

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        """Deliver everything from `starts` on, in the order of each partition, for ever."""

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell outside tools how far the source has been written."""


class Feeds:
    """Finds the feed of a source: read by whichever process has claimed it, this one or another."""

    def __init__(self, readers: Readers, peers: Peers, clock: Clock) -> None:
        self._readers = readers
        self._peers = peers
        self._clock = clock

    def of(self, item: str, shares: int) -> Feed:
        """The feed of a source, named by the prefix of its collections; it may move while in use.

        With more than one of `shares`, each may be read by a process of its own.
        """
        items = [item] if shares == 1 else [share_of(item, number) for number in range(shares)]
        feeds = [_PeerFeed(each, self._readers, self._peers, self._clock) for each in items]
        return feeds[0] if shares == 1 else _SharedFeed(feeds, self._readers, self._clock)


class _PeerFeed:
    """Goes on where it was when another process takes the source over."""

    def __init__(self, item: str, readers: Readers, peers: Peers, clock: Clock) -> None:
        self.item = item
        self._readers = readers
        self._peers = peers
        self._clock = clock

    async def probe(self) -> dict[int, int]:
        began_s = self._clock.monotonic_s()
        while True:
            try:
                return await self.probe_once()
            except (Unavailable, DeadlinePassed) as error:
                self._refuse_own(error)
                await _again(error, began_s, self._clock, self._readers, [self.item])

    async def probe_once(self) -> dict[int, int]:
        """The offsets that `probe` gives, tried once."""
        if self._readers.reads(self.item):
            return dict(await self._readers.probe(self.item))
        return await (await self._reader()).probe(self.item)

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        reached = dict(starts)
        began_s = self._clock.monotonic_s()

        async def take(delivered: Delivered) -> None:
            nonlocal began_s
            await deliver(delivered)
            reached.update(delivered.positions)
            began_s = self._clock.monotonic_s()

        while True:
            try:
                if self._readers.reads(self.item):
                    here = self._readers.deliver(self.item, reached)
                    async with aclosing(here) as deliveries:
                        async for delivered in deliveries:
                            await take(delivered)
                else:
                    await self._follow(await self._reader(), reached, take)
            except (Unavailable, DeadlinePassed) as error:
                self._refuse_own(error)
                await _again(error, began_s, self._clock, self._readers, [self.item])

    def _refuse_own(self, error: Unavailable | DeadlinePassed) -> None:
        """Raises: the error, if a reader of this process has it: no other reader is looked for."""
        if self._readers.reads(self.item) and error.details.get("reason") != "elsewhere":
            raise error

    async def commit(self, offsets: Mapping[int, int]) -> None:
        if self._readers.reads(self.item):
            await self._readers.commit(self.item, offsets)
        else:
            await (await self._reader()).commit(self.item, offsets)

    async def _follow(
        self, reader: ServiceClient, starts: Mapping[int, int], deliver: Deliver
    ) -> None:
        """Deliver until the reader ends, or does not answer any more: a paused process says
        nothing.
        """

        async def follow() -> None:
            async with aclosing(reader.deliver(self.item, dict(starts))) as deliveries:
                async for delivered in deliveries:
                    await deliver(delivered)

        following = asyncio.create_task(follow())
        try:
            while not following.done():
                pause = asyncio.ensure_future(self._clock.sleep(WATCH_S))
                await asyncio.wait((following, pause), return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                if not following.done():
                    await reader.probe(self.item)
            following.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _reader(self) -> ServiceClient:
        """The process that has claimed the source. Raises: Unavailable."""
        address = await self._peers.owner("ingest", self.item)
        if address is None:
            raise Unavailable(
                f"no process reads {self.item}: start one with --role ingest, or wait for it",
                reason="elsewhere",
            )
        return self._peers.client(address)


class _SharedFeed:
    """A source whose partitions are shared by several processes: each delivers its own, at its own
    pace.
    """

    def __init__(self, shares: Sequence[_PeerFeed], readers: Readers, clock: Clock) -> None:
        self._shares = shares
        self._readers = readers
        self._clock = clock

    async def probe(self) -> dict[int, int]:
        """Of all partitions, by whichever process answers first: each of them knows all."""
        began_s = self._clock.monotonic_s()
        while True:
            for share in self._shares:
                try:
                    return await share.probe_once()
                except (Unavailable, DeadlinePassed) as error:
                    last: Exception = error
            items = [share.item for share in self._shares]
            await _again(last, began_s, self._clock, self._readers, items)

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        """Each share from `starts` on. One that moves to another process holds up its own
        partitions alone.
        """
        shares = [asyncio.ensure_future(s.deliver_from(starts, deliver)) for s in self._shares]
        try:
            await asyncio.gather(*shares)
        finally:
            for share in shares:
                share.cancel()
            await asyncio.gather(*shares, return_exceptions=True)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """By whichever process there is."""
        for share in self._shares[:-1]:
            with suppress(Unavailable, DeadlinePassed):
                return await share.commit(offsets)
        return await self._shares[-1].commit(offsets)


async def _again(
    error: Exception, began_s: float, clock: Clock, readers: Readers, items: Sequence[str]
) -> None:
    """Pause before another look, until this process reads one of the items.

    Raises: the error, once that took too long.
    """
    if clock.monotonic_s() - began_s > LOOK_S_MAX:
        raise Unavailable(str(error), reason="elsewhere") from error
    read = [] if any(map(readers.reads, items)) else map(readers.until_read, items)
    waiting = [asyncio.ensure_future(each) for each in (clock.sleep(LOOK_S), *read)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
