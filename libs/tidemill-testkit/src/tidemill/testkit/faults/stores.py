"""Consensus and Blob that sometimes do not do, or do not say, what they were asked.

Each call has one of four outcomes: done and answered; done, the answer lost; not done, the answer
lost; refused. The counters prove which of them happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random  # noqa: TID251  seeded, so that a failure repeats
from typing import TypeVar

from tidemill.errors import Indeterminate, Unavailable
from tidemill.shard.ports import Blob, BlobEntry, Consensus, Expected, Version

T = TypeVar("T")


class Faults:
    """Draws an outcome for each call; `share` of them are faults while it is on."""

    def __init__(self, seed: int, share: float = 0.2) -> None:
        self._random = Random(seed)
        self._share = share
        self.on = True
        self.happened: Counter[str] = Counter()

    async def call(self, done: Callable[[], Awaitable[T]]) -> T:
        """The result of a call, or one of the ways in which it is not to be had."""
        if not self.on or self._random.random() >= self._share:
            self.happened["answered"] += 1
            return await done()
        outcome = self._random.choice(("answer lost", "request lost", "refused"))
        self.happened[outcome] += 1
        if outcome == "answer lost":
            await done()
            raise Indeterminate("the answer was lost")
        if outcome == "request lost":
            raise Indeterminate("the request was lost")
        raise Unavailable("the store refused")


class FaultyConsensus:
    """Guarantees of Consensus, with faults."""

    def __init__(self, inner: Consensus, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def head(self, key: str) -> Version | None:
        return await self._faults.call(lambda: self._inner.head(key))

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        return await self._faults.call(lambda: self._inner.scan(key, start))

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        return await self._faults.call(lambda: self._inner.compare_and_set(key, expected, version))

    async def truncate(self, key: str, before: int) -> None:
        await self._faults.call(lambda: self._inner.truncate(key, before))

    async def keys(self) -> Sequence[str]:
        return await self._faults.call(self._inner.keys)

    async def close(self) -> None:
        await self._inner.close()


class FaultyBlob:
    """Guarantees of Blob, with faults."""

    def __init__(self, inner: Blob, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def put(self, key: str, data: bytes) -> None:
        await self._faults.call(lambda: self._inner.put(key, data))

    async def get(self, key: str) -> bytes | None:
        return await self._faults.call(lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        return await self._faults.call(lambda: self._inner.get_range(key, start, stop))

    async def url(self, key: str, life_s: float) -> str:
        return await self._faults.call(lambda: self._inner.url(key, life_s))

    async def delete(self, key: str) -> None:
        await self._faults.call(lambda: self._inner.delete(key))

    async def list(self, prefix: str) -> Sequence[BlobEntry]:
        return await self._faults.call(lambda: self._inner.list(prefix))

    async def close(self) -> None:
        await self._inner.close()
