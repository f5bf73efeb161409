"""A process that dies at a chosen write: what it wrote before stays, and nothing after it
happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidemill.shard.ports import Consensus, Expected, Version

T = TypeVar("T")


class Killed(BaseException):
    """The end of a process; no handler of errors sees it as an error."""


class Fuse:
    """Blows at the `writes`-th write, just before it or just after it; dead from then on."""

    def __init__(self, writes: int | None, *, after: bool = False) -> None:
        self._left = writes
        self._after = after
        self.blown = False
        self.written = 0

    async def write(self, done: Callable[[], Awaitable[T]]) -> T:
        """The result of a write, unless the process dies of it."""
        self.check()
        self.written += 1
        last = self._left is not None and self.written >= self._left
        if last and not self._after:
            self.blow()
        result = await done()
        if last:
            self.blow()
        return result

    def check(self) -> None:
        """Raise Killed if the process is dead."""
        if self.blown:
            raise Killed

    def blow(self) -> None:
        """Kill the process."""
        self.blown = True
        raise Killed


class MortalConsensus:
    """A Consensus as one mortal process uses it."""

    def __init__(self, inner: Consensus, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    async def head(self, key: str) -> Version | None:
        self._fuse.check()
        return await self._inner.head(key)

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        self._fuse.check()
        return await self._inner.scan(key, start)

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        return await self._fuse.write(lambda: self._inner.compare_and_set(key, expected, version))

    async def truncate(self, key: str, before: int) -> None:
        await self._fuse.write(lambda: self._inner.truncate(key, before))

    async def keys(self) -> Sequence[str]:
        self._fuse.check()
        return await self._inner.keys()

    async def close(self) -> None:
        return
