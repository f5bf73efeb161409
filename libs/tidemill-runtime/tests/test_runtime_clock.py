"""Virtual time stands still until it is moved."""

from __future__ import annotations

import asyncio

from tidemill.runtime.clock import ManualClock, SystemClock


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
