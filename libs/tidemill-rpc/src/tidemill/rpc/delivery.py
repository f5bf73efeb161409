"""Delivery to a subscriber at its own pace, within bounds: one that stops reading is cut off.

The handler's events wait in a queue of a few messages. While that is full the handler waits too,
with its hold on history. After `patience_s` it is closed, which ends the hold, and the subscriber
finds a CutOff behind the queued messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from tidemill.errors import CutOff
from tidemill.rpc.admission import in_steps_of_call
from tidemill.rpc.messages import Changes, Event, Progress
from tidemill.rpc.turns import beside
from tidemill.time import Frontier

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """Lag of a subscriber at most: messages of about 256 KiB, and seconds without taking one."""

    messages_max: int = 8
    patience_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _End:
    """Nothing follows; `error` is what the subscriber is told, if anything."""

    error: Exception | None = None


class _TooSlow(Exception):
    """The queue stayed full for as long as the policy allows."""


class Delivery(Generic[M]):
    """The messages of one subscription, each once and in order."""

    def __init__(
        self,
        events: AsyncIterator[Event],
        encode: Callable[[Event], Iterable[M]],
        policy: DeliveryPolicy,
    ) -> None:
        self._events = events
        self._encode = encode
        self._policy = policy
        self._credit = asyncio.Semaphore(policy.messages_max)
        # The credit bounds the messages; the end needs none.
        self._queue: asyncio.Queue[tuple[M] | _End] = asyncio.Queue()
        self._sealed: Frontier | None = None

    async def messages(self) -> AsyncGenerator[M, None]:
        """Messages of the handler; leaving the loop closes the handler.

        Raises: errors of the handler; CutOff, behind all that was queued, if nobody took it.
        """
        pump = asyncio.create_task(in_steps_of_call(self._pump()))
        try:
            while not isinstance(item := await self._queue.get(), _End):
                self._credit.release()
                yield item[0]
            if item.error is not None:
                raise item.error
        finally:
            item = _End()  # an error holds this frame: in it, it would be a cycle
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self) -> None:
        try:
            async with aclosing(_closable(self._events)) as events:
                async for event in events:
                    size = event.table.nbytes if isinstance(event, Changes) else 0
                    encode = partial(next, iter(self._encode(event)), None)
                    while (message := await beside(size, encode)) is not None:
                        await self._put(message)
                    if isinstance(event, Progress):
                        self._sealed = event.upper
        except _TooSlow:
            self._queue.put_nowait(_End(self._cut_off()))
        except Exception as error:  # raised again in the call, which is waiting for the queue
            self._queue.put_nowait(_End(error))
        else:
            self._queue.put_nowait(_End())

    async def _put(self, message: M) -> None:
        try:
            async with asyncio.timeout(self._policy.patience_s):
                await self._credit.acquire()
        except TimeoutError:
            raise _TooSlow from None
        self._queue.put_nowait((message,))

    def _cut_off(self) -> CutOff:
        """The error; `resume_at` starts a subscription without snapshot that repeats nothing
        sealed.
        """
        sealed = self._sealed
        before = "nothing was sealed" if sealed is None else f"all before {sealed} was sent"
        return CutOff(
            f"cut off: {self._policy.messages_max} messages were not taken for "
            f"{self._policy.patience_s:g} s; {before}",
            upper=sealed,
            resume_at=max(sealed) - 1 if sealed is not None and max(sealed, default=0) else None,
        )


async def _closable(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """The events; closing this closes the handler's generator now, not when memory is collected."""
    try:
        async for event in events:
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
