"""Where the rows of a source come from: a reader in this process, or one in another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from tidemill.rpc.client_services import ServiceClient
from tidemill.rpc.messages import Delivered
from tidemill.rpc.status import DeadlinePassed
from tidemill.runtime.clock import Clock
from tidemill.time import Unavailable
from tidemill_embedded.replicas.peers import Peers
from tidemill_embedded.replicas.roles import share_of
from tidemill_ingest.driver import Deliver
from tidemill_ingest.edge import Readers

LOOK_S = 0.25
"""Between two looks for the process that reads a source."""

LOOK_S_MAX = 15.0
"""Longer than it takes until another process has taken the source over."""

WATCH_S = 1.0
"""How often a reader that delivers nothing is asked whether it is still there."""


class Feed(Protocol):
    """One source, read by whoever has it now."""

    async def probe(self) -> dict[int, int]:
        """The offset that the next record of each partition will get."""

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        """Deliver everything from `starts` on, in the order of each partition, for ever."""

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell outside tools how far the source has been written."""


class Feeds(Protocol):
    """Finds the feed of a source, named by the prefix of its collections."""

    def of(self, item: str, shares: int) -> Feed:
        """With more than one of `shares`, each is read by a process of its own."""


class LocalFeeds:
    """All sources are read by this process."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def of(self, item: str, shares: int) -> Feed:
        """The feed of a source that this process reads, with all its shares."""
        return _LocalFeed(self._readers, item)


class _LocalFeed:
    def __init__(self, readers: Readers, item: str) -> None:
        self._readers = readers
        self._item = item

    async def probe(self) -> dict[int, int]:
        return dict(await self._readers.probe(self._item))

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        async for delivered in self._readers.deliver(self._item, starts):
            await deliver(delivered)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        await self._readers.commit(self._item, offsets)


class PeerFeeds:
    """Sources are read by whichever process has claimed them, this one or another."""

    def __init__(self, readers: Readers, peers: Peers, clock: Clock) -> None:
        self._readers = readers
        self._peers = peers
        self._clock = clock

    def of(self, item: str, shares: int) -> Feed:
        """The feed of a source, wherever it is read; it may move while it is used."""
        items = [item] if shares == 1 else [share_of(item, number) for number in range(shares)]
        feeds = [_PeerFeed(each, self._readers, self._peers, self._clock) for each in items]
        return feeds[0] if shares == 1 else _SharedFeed(feeds, self._clock)


class _PeerFeed:
    """Goes on where it was when another process takes the source over."""

    def __init__(self, item: str, readers: Readers, peers: Peers, clock: Clock) -> None:
        self._item = item
        self._readers = readers
        self._peers = peers
        self._clock = clock

    async def probe(self) -> dict[int, int]:
        began_s = self._clock.monotonic_s()
        while True:
            try:
                return await self.probed()
            except (Unavailable, DeadlinePassed) as error:
                await _again(error, began_s, self._clock)

    async def probed(self) -> dict[int, int]:
        """As `probe`, tried once."""
        if self._readers.reads(self._item):
            return dict(await self._readers.probe(self._item))
        return await (await self._reader()).probe(self._item)

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        reached = dict(starts)
        began_s = self._clock.monotonic_s()

        async def taken(delivered: Delivered) -> None:
            nonlocal began_s
            await deliver(delivered)
            reached.update(delivered.positions)
            began_s = self._clock.monotonic_s()

        while True:
            try:
                if self._readers.reads(self._item):
                    async for delivered in self._readers.deliver(self._item, reached):
                        await taken(delivered)
                else:
                    await self._follow(await self._reader(), reached, taken)
            except (Unavailable, DeadlinePassed) as error:
                await _again(error, began_s, self._clock)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        if self._readers.reads(self._item):
            await self._readers.commit(self._item, offsets)
        else:
            await (await self._reader()).commit(self._item, offsets)

    async def _follow(
        self, reader: ServiceClient, starts: Mapping[int, int], deliver: Deliver
    ) -> None:
        """Deliver until the reader ends, or does not answer any more: a paused process says nothing."""

        async def deliveries() -> None:
            async for delivered in reader.deliver(self._item, dict(starts)):
                await deliver(delivered)

        following = asyncio.create_task(deliveries())
        try:
            while not following.done():
                pause = asyncio.ensure_future(self._clock.sleep(WATCH_S))
                await asyncio.wait((following, pause), return_when=asyncio.FIRST_COMPLETED)
                pause.cancel()
                if not following.done():
                    await reader.probe(self._item)
            following.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _reader(self) -> ServiceClient:
        """The process that has claimed the source. Raises: Unavailable."""
        address = await self._peers.owner("ingest", self._item)
        if address is None:
            raise Unavailable(
                f"no process reads {self._item}: start one with --role ingest, or wait for it",
                reason="elsewhere",
            )
        return self._peers.client(address)


class _SharedFeed:
    """A source whose partitions are shared by several processes: each delivers its own, at its own pace."""

    def __init__(self, shares: Sequence[_PeerFeed], clock: Clock) -> None:
        self._shares = shares
        self._clock = clock

    async def probe(self) -> dict[int, int]:
        """Of all partitions, by whichever process answers first: each of them knows all."""
        began_s = self._clock.monotonic_s()
        while True:
            for share in self._shares:
                try:
                    return await share.probed()
                except (Unavailable, DeadlinePassed) as error:
                    last: Exception = error
            await _again(last, began_s, self._clock)

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        """Each share from `starts` on. One that moves to another process holds up its own partitions alone."""
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


async def _again(error: Exception, began_s: float, clock: Clock) -> None:
    """Pause before another look. Raises: the error, once that took too long."""
    if clock.monotonic_s() - began_s > LOOK_S_MAX:
        raise Unavailable(str(error), reason="elsewhere") from error
    await clock.sleep(LOOK_S)
