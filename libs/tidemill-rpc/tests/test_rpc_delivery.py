"""A subscriber gets everything in order, within bounds, or is told where to go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa
import pytest

from tidemill.errors import BeforeSince, CutOff
from tidemill.rpc.delivery import Delivery, DeliveryPolicy
from tidemill.rpc.messages import Changes, Event, Progress
from tidemill.time import frontier

CHANGE = Changes(pa.table({"n": [1]}))
PATIENT = DeliveryPolicy(messages_max=3, patience_s=600.0)
IMPATIENT = DeliveryPolicy(messages_max=3, patience_s=0.5)
"""Long beside the time between two turns of the event loop."""


class Handler:
    """Progress 1, 2, 3, …, each behind a change; counts what it gave and knows that it was
    closed.
    """

    def __init__(self, last: int = 1_000_000, error: Exception | None = None) -> None:
        self.last, self.error = last, error
        self.given = 0
        self.closed = asyncio.Event()

    async def events(self) -> AsyncIterator[Event]:
        try:
            for upper in range(1, self.last + 1):
                self.given += 1
                yield CHANGE
                yield Progress(frontier(upper))
            if self.error is not None:
                raise self.error
        finally:
            self.closed.set()


def delivered(handler: Handler, policy: DeliveryPolicy = PATIENT) -> Delivery[Event]:
    return Delivery(handler.events(), lambda event: (event,), policy)


async def collect(messages: AsyncIterator[Event], into: list[Event]) -> None:
    """Append each message, so that those before an error are not lost."""
    async for event in messages:
        into.append(event)  # noqa: PERF401  a list of them would be lost with the error


async def test_everything_arrives_once_and_in_order() -> None:
    handler = Handler(last=50)
    events = [event async for event in delivered(handler).messages()]
    expected = [e for upper in range(1, 51) for e in (CHANGE, Progress(frontier(upper)))]
    assert events == expected
    assert handler.closed.is_set()


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
    assert handler.closed.is_set()


async def test_the_handler_is_never_further_ahead_than_the_queue_has_room() -> None:
    handler = Handler()
    messages = delivered(handler, DeliveryPolicy(messages_max=4, patience_s=600)).messages()
    await anext(messages)
    for _turn in range(50):
        await asyncio.sleep(0)
    assert handler.given <= 4
    await messages.aclose()


async def test_a_subscriber_that_stops_reading_is_cut_off_with_the_place_to_go_on() -> None:
    handler = Handler()
    messages = delivered(handler, IMPATIENT).messages()
    first = await anext(messages)
    await handler.closed.wait()
    seen = [first]
    with pytest.raises(CutOff) as caught:
        await collect(messages, seen)
    # One was taken and three were queued: the second progress was the last one sent.
    assert seen == [CHANGE, Progress(frontier(1)), CHANGE, Progress(frontier(2))]
    assert caught.value.details == {"upper": frontier(2), "resume_at": 1}


async def test_a3_long_changes_are_encoded_beside_the_event_loop_a_message_at_a_time() -> None:
    long, threads = Changes(pa.table({"n": pa.array(range(50_000))})), list[int]()

    async def changes() -> AsyncIterator[Event]:
        yield CHANGE
        yield long

    def encode(event: Event) -> Iterator[Event]:
        for _ in range(20 if event is long else 1):
            threads.append(threading.get_ident())
            yield event

    messages = Delivery(changes(), encode, PATIENT).messages()
    assert [await anext(messages) for _ in range(2)] == [CHANGE, long]
    for _turn in range(200):
        await asyncio.sleep(0)
    assert len(threads) <= 2 + PATIENT.messages_max + 1
    assert [await anext(messages) for _ in range(19)] == [long] * 19
    assert [each == threading.get_ident() for each in threads] == [True] + [False] * 20
    await messages.aclose()


async def test_a_subscriber_cut_off_before_any_progress_has_no_place_to_go_on() -> None:
    closed = asyncio.Event()

    async def changes() -> AsyncIterator[Event]:
        try:
            while True:
                yield CHANGE
        finally:
            closed.set()

    messages = Delivery(changes(), lambda event: (event,), IMPATIENT).messages()
    await anext(messages)
    await closed.wait()
    with pytest.raises(CutOff) as caught:
        await collect(messages, [])
    assert caught.value.details == {"upper": None, "resume_at": None}
