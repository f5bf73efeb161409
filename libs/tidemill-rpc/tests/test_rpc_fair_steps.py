"""Steps of one user's flood do not stand before each step of another user's question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.rpc.fair_steps import CREDIT_S, FairSteps

T = TypeVar("T")
Order = Callable[[str, Awaitable[T]], Awaitable[T]]
FLOOD, HOPS, STEP_S = 64, 20, 0.002


class Work:
    """Calls whose steps take time of a clock of their own, and are noted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.done: list[str] = []

    def step(self, user: str) -> None:
        self.now_s += STEP_S
        self.done.append(user)

    async def hops(self, user: str, number: int) -> int:
        for _ in range(number):
            self.step(user)
            await asyncio.sleep(0)
        return number


async def longest_wait(order: Callable[[Work], Order[int]]) -> int:
    """The most steps of a flood between two steps of a question."""
    work = Work()
    ordered = order(work)

    async def flood() -> None:
        while True:
            await ordered("eve", work.hops("eve", 5))

    floods = [asyncio.ensure_future(flood()) for _ in range(FLOOD)]
    await asyncio.sleep(0.01)
    work.done.clear()
    assert await ordered("ann", work.hops("ann", HOPS)) == HOPS
    for each in floods:
        each.cancel()
    await asyncio.wait(floods)
    own = [-1, *(at for at, user in enumerate(work.done) if user == "ann")]
    assert len(own) == HOPS + 1
    return max(b - a - 1 for a, b in pairwise(own))


async def test_a3_a_question_waits_for_two_steps_of_a_flood_at_most() -> None:
    fair = await longest_wait(lambda work: FairSteps(lambda: work.now_s).steps_of)
    assert fair <= 2


async def test_a3_calls_that_are_given_up_clean_up_in_their_turn() -> None:
    """Hundreds of subscriptions may end at one moment: others wait for the credit of a user."""
    work = Work()
    steps = FairSteps(lambda: work.now_s)

    async def follow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            work.step("eve")

    flood = [asyncio.ensure_future(steps.steps_of("eve", follow())) for _ in range(4 * FLOOD)]
    question = asyncio.ensure_future(steps.steps_of("ann", work.hops("ann", HOPS)))
    await asyncio.sleep(0)
    for each in flood:
        each.cancel()
    assert await question == HOPS
    await asyncio.wait(flood)
    assert all(each.cancelled() for each in flood)
    own = [at for at, user in enumerate(work.done) if user == "ann"]
    assert max(b - a - 1 for a, b in pairwise(own)) <= CREDIT_S / STEP_S + 2 < FLOOD


async def test_a3_without_turns_the_same_question_waits_for_the_whole_flood() -> None:
    def unordered(work: Work) -> Order[int]:
        async def as_it_comes(user: str, call: Awaitable[int]) -> int:
            return await call

        return as_it_comes

    assert await longest_wait(unordered) >= FLOOD - 1


async def test_users_who_ask_for_as_much_get_as_much() -> None:
    work = Work()
    steps = FairSteps(lambda: work.now_s)
    calls = [("eve", 9), ("bob", 3)]
    await asyncio.gather(
        *(steps.steps_of(user, work.hops(user, 300)) for user, many in calls for _ in range(many))
    )
    half = work.done[100:1_500]
    assert abs(half.count("eve") - half.count("bob")) * STEP_S <= 2 * CREDIT_S


async def test_a_lone_user_is_never_queued() -> None:
    work = Work()
    steps = FairSteps(lambda: work.now_s)
    for _ in range(10):
        assert steps.goes_at_once("ann")
        steps.spend("ann", 5.0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 6),
            st.sampled_from(["ends", "raises", "is cancelled", "turns cancelling down"]),
        ),
        max_size=12,
    ),
    st.integers(0, 20),
)
def test_a_call_in_turns_ends_as_it_does_without(
    calls: list[tuple[str, int, str]], after: int
) -> None:
    async def call(work: Work, user: str, hops: int, how: str) -> str:
        try:
            await work.hops(user, hops)
            if how == "raises":
                raise ValueError(user)
            if "cancel" in how:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if how != "turns cancelling down":
                raise
            await asyncio.sleep(0)
        return f"{user} {hops}"

    async def run_all(fair: bool) -> list[object]:
        async def one(work: Work, steps: FairSteps, user: str, hops: int, how: str) -> str:
            made = call(work, user, hops, how)
            return await (steps.steps_of(user, made) if fair else made)

        work = Work()
        steps = FairSteps(lambda: work.now_s)
        tasks: list[tuple[asyncio.Task[str], str]] = []
        for user, hops, how in calls:
            tasks.append((asyncio.create_task(one(work, steps, user, hops, how)), how))
        for turn in range(10_000):
            if turn >= after:
                for task, how in tasks:
                    if "cancel" in how and not task.done():
                        task.cancel()
                        break
            if all(task.done() for task, _ in tasks):
                break
            await asyncio.sleep(0)
        found = await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        if fair:
            assert steps.goes_at_once("somebody else")
        return [repr(each) for each in found]

    assert asyncio.run(run_all(True)) == asyncio.run(run_all(False))


async def test_a_stream_in_turns_gives_what_it_gives_without() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(0)
            yield number

    steps = FairSteps(lambda: 0.0)
    stream = numbers()
    step = partial(steps.steps_of, "ann")
    found = [await step(anext(stream)) for _ in range(3)]
    with pytest.raises(StopAsyncIteration):
        await step(anext(stream))
    assert found == [0, 1, 2]
