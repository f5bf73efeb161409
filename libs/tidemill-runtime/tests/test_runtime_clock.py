"""Virtual time stands still until it is moved."""

from __future__ import annotations

import asyncio

from tidemill.runtime.clock import DOUBT_S, LEAP_S, ManualClock, SystemClock


async def test_sleepers_wake_in_order_at_their_own_instants() -> None:
    clock = ManualClock(1_000)
    woken: list[tuple[str, int]] = []

    async def sleep(name: str, *naps: float) -> None:
        for nap in naps:
            await clock.sleep(nap)
            woken.append((name, clock.now_ms()))

    tasks = [
        asyncio.create_task(sleep("a", 2, 2)),
        asyncio.create_task(sleep("b", 1, 0, 2.5)),
        asyncio.create_task(sleep("c", 9)),
    ]
    await clock.advance(5)
    assert woken == [("b", 2_000), ("b", 2_000), ("a", 3_000), ("b", 4_500), ("a", 5_000)]
    assert clock.now_ms() == 6_000
    assert clock.monotonic_s() == 5.0
    assert clock.sleepers == 1
    tasks[2].cancel()
    await clock.advance(0)
    assert clock.sleepers == 0


async def test_moving_wakes_whoever_is_due() -> None:
    clock = ManualClock()
    sleeping = asyncio.create_task(clock.sleep(3))
    await clock.settle()
    clock.move(2.999)
    await clock.settle()
    assert not sleeping.done()
    clock.move(0.001)
    await sleeping
    assert clock.now_ms() == 3_000


async def test_the_clock_of_the_machine_goes_forward() -> None:
    clock = SystemClock()
    before_ms, before_s = clock.now_ms(), clock.monotonic_s()
    await clock.sleep(0.002)
    assert clock.now_ms() > before_ms > 1_500_000_000_000
    assert clock.monotonic_s() > before_s


class Machine:
    """Two clocks that are moved by hand, in seconds; the wall clock may be set beside."""

    def __init__(self) -> None:
        self.steady_s, self.ahead_s = 500, 1_700_000_000
        self.clock = SystemClock(
            lambda: (self.steady_s + self.ahead_s) * 10**9, lambda: self.steady_s * 10**9
        )

    def now_s(self) -> int:
        return self.clock.now_ms() // 1000


def test_v14_a_clock_that_is_ahead_for_a_moment_is_not_believed() -> None:
    """Ten minutes ahead for a second: whatever is stamped meanwhile would stand for ten minutes."""
    machine = Machine()
    began_s = machine.now_s()
    machine.ahead_s += 600
    for passed_s in range(1, DOUBT_S):
        machine.steady_s += 1
        assert machine.now_s() == began_s + passed_s
    machine.ahead_s -= 600
    machine.steady_s += 3_600
    assert machine.now_s() == began_s + DOUBT_S - 1 + 3_600
    machine.ahead_s += 600
    assert machine.now_s() == began_s + DOUBT_S - 1 + 3_600, "each leap is doubted anew"


def test_v14_a_clock_that_stays_ahead_is_believed_in_the_end() -> None:
    machine = Machine()
    began_s = machine.now_s()
    machine.ahead_s += 600
    assert machine.now_s() == began_s
    machine.steady_s += DOUBT_S
    assert machine.now_s() == began_s + DOUBT_S + 600
    machine.steady_s += 1
    assert machine.now_s() == began_s + DOUBT_S + 601


def test_a_clock_that_is_put_right_by_seconds_or_set_back_is_believed_at_once() -> None:
    machine = Machine()
    began_s = machine.now_s()
    machine.ahead_s += LEAP_S
    assert machine.now_s() == began_s + LEAP_S
    machine.ahead_s -= 3_600
    assert machine.now_s() == began_s + LEAP_S - 3_600
