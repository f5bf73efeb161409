"""Errors of work beside the event loop: nothing that the work held is left to the collector."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from tidemill.rpc.fair_steps import FairSteps
from tidemill.rpc.turns import in_turn, on_thread

WAIT_S = 30.0


class Refused(Exception):
    """An error that can be watched."""


class Read:
    """A thing that the work has read when it is refused."""


Watched = list[weakref.ref[object]]


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def refused(watched: Watched) -> None:
    """Work that is refused with much in its hands, by an error that it has named before."""
    read = Read()
    watched.append(weakref.ref(read))
    try:
        raise Refused("the first") from ValueError("its cause")
    except Refused as first:
        watched.append(weakref.ref(first))
        error = Refused("the second")
        error.__context__ = first
    watched.append(weakref.ref(error))
    raise error


def test_the_frames_of_a_refusal_hold_each_other() -> None:
    watched: Watched = []
    with suppress(Refused):
        refused(watched)
    assert all(one() is not None for one in watched)


async def in_fair_steps(work: Callable[[], None]) -> None:
    """The work within a call that is ordered among those of others."""

    async def call() -> None:
        await in_turn(work)

    await FairSteps(asyncio.get_running_loop().time).steps_of("eve", call())


@pytest.mark.parametrize(
    "ways",
    [in_turn, lambda work: in_turn(work, lambda: None), on_thread, in_fair_steps],
    ids=["in turn", "called off", "on a thread", "in fair steps"],
)
async def test_a3_refused_work_leaves_nothing_to_the_collector(
    ways: Callable[[Callable[[], None]], Awaitable[None]],
) -> None:
    watched: Watched = []
    with suppress(Refused):
        await ways(lambda: refused(watched))
    async with asyncio.timeout(WAIT_S):
        while any(one() is not None for one in watched):  # the thread comes to its end
            await asyncio.sleep(0.001)
    assert len(watched) == 3


async def test_an_error_that_was_raised_before_ends_nothing_that_goes_on() -> None:
    """Its frames were emptied, which closes a generator and breaks a coroutine."""
    error = Refused("again")

    def refuse() -> None:
        raise error

    def numbers() -> Iterator[int]:
        with suppress(Refused):
            refuse()
        yield 1
        yield 2

    go_on = asyncio.Event()

    async def waits() -> int:
        with suppress(Refused):
            refuse()
        await go_on.wait()
        return 3

    going_on, waiting = numbers(), asyncio.create_task(waits())
    assert next(going_on) == 1
    await asyncio.sleep(0)
    with pytest.raises(Refused):
        await in_turn(refuse)
    go_on.set()
    assert (next(going_on), await waiting) == (2, 3)
