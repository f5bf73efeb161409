"""A process without others owns each item at once, for as long as the item is wanted."""

from __future__ import annotations

import asyncio

import pytest

from tidemill.errors import Fenced
from tidemill.runtime.clock import ManualClock
from tidemill.shard.claims import Claim, ClaimedTasks, SoleClaimant


async def test_everything_wanted_is_owned_at_once_and_given_up_once_it_is_not() -> None:
    claimant = SoleClaimant("compute")
    assert await claimant.renew(["a", "b"], left=["a"]) == []
    assert list(claimant.held()) == ["a", "b"]
    first = claimant.held()["a"]
    await claimant.confirm(first)
    surplus = await claimant.renew(["b"])
    assert surplus == [first]
    assert "a" in claimant.held()  # until its work has stopped
    await claimant.give_up(surplus)
    assert list(claimant.held()) == ["b"]
    with pytest.raises(Fenced):
        await claimant.confirm(first)
    await claimant.renew(["a", "b"])
    assert claimant.held()["a"].epoch > first.epoch
    assert await claimant.owners() == ()
    await claimant.leave()
    assert claimant.held() == {}


async def test_a_renewal_that_is_asked_for_begins_and_ends_work_without_a_look_at_the_clock() -> (
    None
):
    wanted, begun, ended = ["a"], [], []

    async def work(claim: Claim) -> None:
        begun.append(claim.item)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(claim.item)

    async def items() -> list[str]:
        return list(wanted)

    tasks = ClaimedTasks(SoleClaimant("compute"), items, work, ManualClock())
    running = asyncio.create_task(tasks.run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert begun == ["a"]
    wanted.append("b")
    await tasks.renew()
    await asyncio.sleep(0)
    assert begun == ["a", "b"]
    wanted.remove("a")
    await tasks.renew()
    for _ in range(5):
        await asyncio.sleep(0)
    assert ended == ["a"]
    wanted.append("a")  # it was given up when its work had ended, so it begins again
    await tasks.renew()
    await asyncio.sleep(0)
    assert begun == ["a", "b", "a"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sorted(ended) == ["a", "a", "b"]
