"""Stores at the other end of a network of the virtual loop: slow, unreliable, sometimes away.

A call has one of four outcomes: done and told; done with the answer lost; not done with the request
lost; refused. Real networks have two more: done after the caller gave up, and done a second time
later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random  # noqa: TID251  seeded, so that a failure repeats
from typing import TypeVar

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.ports import Blob, BlobEntry, Consensus, Expected, Version
from tidemill.testkit.faults.virtual_loop import PROCESS, VirtualLoop

T = TypeVar("T")

ANSWERED = "answered"
OUTCOMES = (ANSWERED, "answer lost", "request lost", "refused", "done late", "done twice")


class Network:
    """Draws an outcome for each call; `share` of them are faults.

    With a `plan`, that decides by the number of the call. A request that is under way when its
    caller dies arrives all the same.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        *,
        share: float = 0.0,
        delay_s: float = 0.0,
        plan: Callable[[int], str] | None = None,
    ) -> None:
        self.share = share
        self.delay_s = delay_s
        self.dark = False
        self.calls = 0
        self.happened: Counter[str] = Counter()
        self._loop = loop
        self._random = random
        self._plan = plan

    async def call(self, done: Callable[[], Awaitable[T]]) -> T:
        """The result of a call, or one of the ways in which it is not to be had."""
        process = PROCESS.get()
        if process is not None and process.dead:
            raise asyncio.CancelledError
        outcome = self._outcome()
        self.happened[outcome] += 1
        if outcome == "refused":
            await self._travel()
            raise Unavailable("the store refused")
        if outcome == "request lost":
            await self._travel(3)
            raise Indeterminate("the request was lost")
        served = self._loop.serve(self._serve(done, 30 if outcome == "done late" else 1))
        if outcome == "done twice":
            self._loop.serve(self._again(served, done))
        if outcome in ("answer lost", "done late"):
            served.add_done_callback(lambda task: task.exception())
            await self._travel(3)
            raise Indeterminate("no answer came in time")
        return await asyncio.shield(served)

    def _outcome(self) -> str:
        self.calls += 1
        if self.dark:
            return self._random.choice(("request lost", "refused"))
        if self._plan is not None:
            return self._plan(self.calls)
        if self._random.random() >= self.share:
            return ANSWERED
        return self._random.choice(OUTCOMES[1:])

    async def _serve(self, done: Callable[[], Awaitable[T]], slowness: float) -> T:
        await self._travel(slowness)
        result = await done()
        await self._travel()
        return result

    async def _again(self, first: asyncio.Task[T], done: Callable[[], Awaitable[T]]) -> None:
        await asyncio.wait((first,))
        await self._serve(done, 30)

    async def _travel(self, slowness: float = 1) -> None:
        await asyncio.sleep(self._random.random() * self.delay_s * slowness)  # noqa: TID251  virtual


class RemoteConsensus:
    """A Consensus at the other end of a network."""

    def __init__(self, inner: Consensus, network: Network) -> None:
        self._inner = inner
        self._network = network

    async def head(self, key: str) -> Version | None:
        return await self._network.call(lambda: self._inner.head(key))

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        return await self._network.call(lambda: self._inner.scan(key, start))

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        return await self._network.call(lambda: self._inner.compare_and_set(key, expected, version))

    async def truncate(self, key: str, before: int) -> None:
        await self._network.call(lambda: self._inner.truncate(key, before))

    async def keys(self) -> Sequence[str]:
        return await self._network.call(self._inner.keys)

    async def close(self) -> None:
        return


class RemoteBlob:
    """A Blob at the other end of a network."""

    def __init__(self, inner: Blob, network: Network) -> None:
        self._inner = inner
        self._network = network

    async def put(self, key: str, data: bytes) -> None:
        await self._network.call(lambda: self._inner.put(key, data))

    async def get(self, key: str) -> bytes | None:
        return await self._network.call(lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        return await self._network.call(lambda: self._inner.get_range(key, start, stop))

    async def url(self, key: str, life_s: float) -> str:
        return await self._network.call(lambda: self._inner.url(key, life_s))

    async def delete(self, key: str) -> None:
        await self._network.call(lambda: self._inner.delete(key))

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        return await self._network.call(lambda: self._inner.list(prefix))

    async def close(self) -> None:
        return
