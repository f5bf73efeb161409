"""A subscriber gets everything in order, within bounds, or is told where to go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from tidemill.rpc.delivery import Delivery, DeliveryPolicy
from tidemill.rpc.messages import Changes, Event, Progress
from tidemill.rpc.status import CutOff
from tidemill.time import BeforeSince, frontier

CHANGE = Changes(pa.table({"n": [1]}))
IMPATIENT = DeliveryPolicy(messages_max=3, patience_s=0.02)


class Handler:
    """Progress 1, 2, 3, …, each behind a change; counts what it gave and knows that it was closed."""

    def __init__(self, last: int = 1_000_000, error: Exception | None = None) -> None:
        self.last, self.error = last, error
        self.given = 0
        self.closed = False

    async def events(self) -> AsyncIterator[Event]:
        try:
            for upper in range(1, self.last + 1):
                self.given += 1
                yield CHANGE
                yield Progress(frontier(upper))
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def delivered(handler: Handler, policy: DeliveryPolicy = IMPATIENT) -> Delivery[Event]:
    return Delivery(handler.events(), lambda event: (event,), policy)


async def collect(messages: AsyncIterator[Event], into: list[Event], pause_s: float = 0) -> None:
    """Append each message, so that those before an error are not lost."""
    async for event in messages:
        into.append(event)
        if pause_s:
            await asyncio.sleep(pause_s)


async def test_everything_arrives_once_and_in_order() -> None:
    handler = Handler(last=50)
    events = [event async for event in delivered(handler).messages()]
    expected = [e for upper in range(1, 51) for e in (CHANGE, Progress(frontier(upper)))]
    assert events == expected
    assert handler.closed


async def test_what_the_handler_raises_comes_after_what_it_gave() -> None:
    handler = Handler(last=1, error=BeforeSince("gone", since=frontier(7)))
    seen: list[Event] = []
    with pytest.raises(BeforeSince):
        await collect(delivered(handler).messages(), seen)
    assert seen == [CHANGE, Progress(frontier(1))]


async def test_leaving_closes_the_handler() -> None:
    handler = Handler()
    messages = delivered(handler).messages()
    await anext(messages)
    await messages.aclose()
    assert handler.closed


async def test_the_handler_is_never_further_ahead_than_the_queue_has_room() -> None:
    handler = Handler()
    messages = delivered(handler, DeliveryPolicy(messages_max=4, patience_s=60)).messages()
    await anext(messages)
    for _turn in range(50):
        await asyncio.sleep(0)
    assert handler.given <= 4
    await messages.aclose()


async def test_a_subscriber_that_stops_reading_is_cut_off_with_the_place_to_go_on() -> None:
    handler = Handler()
    messages = delivered(handler).messages()
    first = await anext(messages)
    async with asyncio.timeout(5):
        while not handler.closed:
            await asyncio.sleep(0.005)
    seen = [first]
    with pytest.raises(CutOff) as caught:
        await collect(messages, seen)
    # One was taken and three were queued: the second progress was the last one sent.
    assert seen == [CHANGE, Progress(frontier(1)), CHANGE, Progress(frontier(2))]
    assert caught.value.details == {"upper": frontier(2), "resume_at": 1}


async def test_a_subscriber_cut_off_before_any_progress_has_no_place_to_go_on() -> None:
    async def changes() -> AsyncIterator[Event]:
        while True:
            yield CHANGE

    messages = Delivery(changes(), lambda event: (event,), IMPATIENT).messages()
    with pytest.raises(CutOff) as caught:
        await collect(messages, [], pause_s=0.05)
    assert caught.value.details == {"upper": None, "resume_at": None}
