"""Feeds: the rows of a source, from a reader in this process or in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Protocol

from tidemill.errors import DeadlinePassed, Unavailable
from tidemill.host.peers import Peers
from tidemill.host.readers import Deliver, Readers
from tidemill.host.roles import share_of
from tidemill.rpc.client_services import PEER_S, ServiceClient
from tidemill.rpc.identity import ELSEWHERE
from tidemill.rpc.messages import Delivered
from tidemill.runtime.clock import Clock
from tidemill.shard.offloading import first_of

LOOK_S = 0.25
"""Between two looks for the process that reads a source."""

LOOK_S_MAX = 15.0
"""Longer than it takes until another process has taken the source over."""

WATCH_S = 1.0
"""Silence after which a reader is asked whether it is still there, and its claim is looked at."""

ANSWER_S = 15.0
"""A reader that answers nothing for so long is given up, although it keeps its claim."""


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
    """Goes on where it was when another process takes the source over.

    The claim says whether a process is there: one that is slow is waited for.
    """

    def __init__(self, item: str, readers: Readers, peers: Peers, clock: Clock) -> None:
        self.item = item
        self._readers = readers
        self._peers = peers
        self._clock = clock

    async def probe(self) -> dict[int, int]:
        patience = _Patience(self._clock)
        while True:
            try:
                return await self.probe_once()
            except (Unavailable, DeadlinePassed) as error:
                self._refuse_own(error)
                await patience.again(error, self._readers, [self.item])

    async def probe_once(self, answer_s: float = ANSWER_S) -> dict[int, int]:
        """The offsets that `probe` gives, tried once."""
        if self._readers.reads(self.item):
            return dict(await self._readers.probe(self.item))
        async with self._reader() as reader:
            return await self._ask(reader, answer_s)

    async def deliver_from(self, starts: Mapping[int, int], deliver: Deliver) -> None:
        reached = dict(starts)
        patience = _Patience(self._clock)

        async def take(delivered: Delivered) -> None:
            await deliver(delivered)
            # A reader begins with its positions: that alone is no way ahead.
            if not delivered.positions.items() <= reached.items():
                patience.renew()
            reached.update(delivered.positions)

        while True:
            try:
                if self._readers.reads(self.item):
                    here = self._readers.deliver(self.item, reached)
                    async with aclosing(here) as deliveries:
                        async for delivered in deliveries:
                            await take(delivered)
                else:
                    async with self._reader() as reader:
                        await self._follow(reader, reached, take, patience.renew)
            except (Unavailable, DeadlinePassed) as error:
                self._refuse_own(error)
                await patience.again(error, self._readers, [self.item])

    def _refuse_own(self, error: Unavailable | DeadlinePassed) -> None:
        """Raises: the error, if a reader of this process has it: no other reader is looked for."""
        if self._readers.reads(self.item) and error.details.get("reason") != ELSEWHERE:
            raise error

    async def commit(self, offsets: Mapping[int, int]) -> None:
        if self._readers.reads(self.item):
            await self._readers.commit(self.item, offsets)
        else:
            async with self._reader() as reader:
                await reader.commit(self.item, offsets)

    async def _follow(
        self,
        reader: ServiceClient,
        starts: Mapping[int, int],
        deliver: Deliver,
        answered: Callable[[], None],
    ) -> None:
        """Deliver until the reader ends, loses the source, or neither delivers nor answers.

        A paused process says nothing, so one that is silent is asked; `answered` tells that it did.
        """
        came, taking = 0, False

        async def follow() -> None:
            nonlocal came, taking
            async with aclosing(reader.deliver(self.item, dict(starts))) as deliveries:
                async for delivered in deliveries:
                    came, taking = came + 1, True
                    await deliver(delivered)
                    taking = False

        async def ask(heard: int) -> None:
            try:
                await self._ask(reader, ANSWER_S)
                answered()
            except DeadlinePassed:
                if came == heard and not taking:
                    raise

        heard = came
        following = asyncio.create_task(follow())
        try:
            while not await _ends_during(following, self._clock.sleep(WATCH_S)):
                if came == heard and not taking and await _ends_during(following, ask(heard)):
                    break
                heard = came
            following.result()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _ask(self, reader: ServiceClient, answer_s: float) -> dict[int, int]:
        """The answer to a probe, however slow, for as long as the reader has the source.

        Raises: Unavailable once another process has it; DeadlinePassed.
        """
        asking = asyncio.ensure_future(reader.probe(self.item, timeout_s=answer_s))
        try:
            while not await _ends_during(asking, self._clock.sleep(WATCH_S)):
                await self._check_claim(reader)
            return asking.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _check_claim(self, reader: ServiceClient) -> None:
        """Raises: Unavailable if the source is known to be another process's, or nobody's."""
        try:
            owner = await self._peers.owner("ingest", self.item)
        except (Unavailable, DeadlinePassed):
            return
        if owner != reader.address:
            raise Unavailable(f"{self.item} is read elsewhere", reason=ELSEWHERE)

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[ServiceClient]:
        """The process that has claimed the source. Raises: Unavailable."""
        address = await self._peers.owner("ingest", self.item)
        if address is None:
            raise Unavailable(
                f"no process reads {self.item}: start one with --role ingest, or wait for it",
                reason=ELSEWHERE,
            )
        async with self._peers.called(address) as client:
            yield client


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
        patience = _Patience(self._clock)
        while True:
            for share in self._shares:
                try:
                    return await share.probe_once(ANSWER_S if share is self._shares[-1] else PEER_S)
                except (Unavailable, DeadlinePassed) as error:
                    last: Exception = error
            items = [share.item for share in self._shares]
            await patience.again(last, self._readers, items)

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


class _Patience:
    """With failures, until nothing has come of a feed for `LOOK_S_MAX`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = clock.monotonic_s()

    def renew(self) -> None:
        """Something has come of it: it lasts from the next failure on."""
        self._since_s = None

    async def again(self, error: Exception, readers: Readers, items: Sequence[str]) -> None:
        """Pause before another look, until this process reads one of the items.

        Raises: the error, once that took too long.
        """
        now_s = self._clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s > LOOK_S_MAX:
            raise Unavailable(str(error), reason=ELSEWHERE) from error
        read = [] if any(map(readers.reads, items)) else map(readers.until_read, items)
        await first_of((self._clock.sleep(LOOK_S), *read))


async def _ends_during(task: asyncio.Future[Any], meanwhile: Awaitable[None]) -> bool:
    """Whether a task ends before something else does, which ends with it.

    Raises: errors of the latter.
    """
    other = asyncio.ensure_future(meanwhile)
    try:
        await asyncio.wait((task, other), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            other.result()
        return task.done()
    finally:
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
