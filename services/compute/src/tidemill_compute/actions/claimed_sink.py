"""A sink that is asked only while this process has the claim on its action."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from tidemill_compute.actions.outbox import Firing, Sink, Took, untold


class ClaimedSink:
    """Guarantees of the sink inside; before each effect `confirm` may refuse it with Fenced.

    A process that was paused between the two is refused by the sink itself, if its class can.
    """

    def __init__(self, inner: Sink, confirm: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._confirm = confirm

    @property
    def at_most_once(self) -> bool:
        return self._inner.at_most_once

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        await self._confirm()
        return await self._inner.recover(doubtful)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        if firings:
            await self._confirm()
            await self._inner.fire(firings, took)

    async def close(self) -> None:
        await self._inner.close()
