"""The log: one winner per version, unknown outcomes resolved, rollups, truncation, damage found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pyarrow as pa
import pytest

from tidemill.errors import Corrupt, Indeterminate, Unavailable, UnknownCollection
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    MemoryBlob,
    MemoryConsensus,
    Version,
)
from tidemill.shard.log import ROLLUP_EVERY, WRITE_ATTEMPTS, CollectionLog
from tidemill.shard.ports import Expected
from tidemill.shard.state import State
from tidemill.time import frontier

ROWS = pa.schema([("row", pa.string())])
FIRST = State(Description(ROWS), frontier(0), frontier(0))
NAMES = count()


def logs(consensus: MemoryConsensus, blob: MemoryBlob, number: int = 1) -> list[CollectionLog]:
    clock = ManualClock()
    return [
        CollectionLog("c", consensus, blob, clock, lambda: f"n{next(NAMES)}") for _ in range(number)
    ]


def upper_to(time: int) -> Callable[[State], tuple[int, State]]:
    return lambda state: (time, replace(state, upper=frontier(time)))


def bump(state: State) -> tuple[int, State]:
    time = state.upper.elements[0]
    return time, replace(state, upper=frontier(time + 1))


class Scripted(MemoryConsensus):
    """Answers the next compare-and-sets as told: "lost", "unheard" (done, not told), "refused"."""

    def __init__(self, *script: str) -> None:
        super().__init__()
        self.script = list(script)

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        fault = self.script.pop(0) if self.script else "answered"
        if fault == "refused":
            raise Unavailable("refused")
        if fault == "lost":
            raise Indeterminate("lost")
        done = await super().compare_and_set(key, expected, version)
        if fault == "unheard":
            raise Indeterminate("unheard")
        return done


class Slow(MemoryConsensus):
    """Decides nothing while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def compare_and_set(self, key: str, expected: Expected, version: Version) -> bool:
        await self.goes_on.wait()
        return await super().compare_and_set(key, expected, version)


async def test_a3_a_reader_that_allows_an_age_waits_for_no_flush_of_a_commit() -> None:
    consensus = Slow()
    (log,) = logs(consensus, MemoryBlob())
    await log.create(FIRST)
    await log.commit(upper_to(1))
    consensus.goes_on.clear()
    committing = asyncio.create_task(log.commit(upper_to(2)))
    asked = [asyncio.create_task(log.refresh(age)) for age in (1.0, 0.0)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [each.done() for each in (*asked, committing)] == [True, False, False]
    consensus.goes_on.set()
    await committing
    assert [(await each).state.upper for each in asked] == [frontier(1), frontier(2)]
    assert (await log.refresh(1.0)).state.upper == frontier(2)


async def test_a_commit_is_seen_by_others_and_made_once() -> None:
    one, two = logs(MemoryConsensus(), MemoryBlob(), 2)
    assert await one.create(FIRST)
    assert not await two.create(FIRST)
    assert await one.commit(bump) == (0, True)
    assert await two.commit(bump) == (1, True)
    assert (await one.refresh()).state.upper == frontier(2)
    assert (await one.refresh()).number == 2


async def test_the_loser_of_a_race_applies_its_command_to_what_the_winner_left() -> None:
    one, two = logs(MemoryConsensus(), MemoryBlob(), 2)
    await one.create(FIRST)
    await two.refresh()
    for _ in range(5):
        await one.commit(bump)
    assert await two.commit(bump) == (5, True)
    assert two.lost == 1


async def test_a_command_that_changes_nothing_makes_no_version_and_answers_from_the_newest() -> (
    None
):
    one, two = logs(MemoryConsensus(), MemoryBlob(), 2)
    await one.create(FIRST)
    await two.refresh()
    await one.commit(upper_to(9))
    assert await two.commit(lambda state: (state.upper, state)) == (frontier(9), False)
    assert (await two.refresh()).number == 1


async def test_a_refusal_is_about_the_newest_version() -> None:
    one, two = logs(MemoryConsensus(), MemoryBlob(), 2)
    await one.create(FIRST)
    await two.refresh()
    await one.commit(upper_to(9))

    def refuse_before_nine(state: State) -> tuple[str, State]:
        if not state.upper.precedes(frontier(8)):
            return "fine", state
        raise Unavailable("too early")

    assert await two.commit(refuse_before_nine) == ("fine", False)


@pytest.mark.rule("F10", "K10")
async def test_what_the_store_did_not_take_has_no_effect() -> None:
    consensus = Scripted("answered", "refused")
    (log,) = logs(consensus, MemoryBlob())
    await log.create(FIRST)
    with pytest.raises(Unavailable):
        await log.commit(upper_to(9))
    assert log.cached is not None
    assert log.cached.state.upper == FIRST.upper
    assert (await log.refresh()).state.upper == FIRST.upper
    assert await log.commit(bump) == (0, True)
    assert [version.number for version in await consensus.scan("c", 0)] == [0, 1]


@pytest.mark.rule("UP6", "D1", "P5")
@pytest.mark.parametrize("script", [["unheard"], ["lost"], ["lost", "unheard"], ["unheard", "lost"], ["unheard", "refused"]])  # fmt: skip
async def test_a_write_whose_outcome_is_unknown_happens_once(script: list[str]) -> None:
    consensus = Scripted("answered", *script)
    (log,) = logs(consensus, MemoryBlob())
    await log.create(FIRST)
    assert await log.commit(bump) == (0, True)
    assert consensus.script == []
    assert (await log.refresh()).state.upper == frontier(1)
    assert len(await consensus.scan("c", 0)) == 2


async def test_a_write_that_was_lost_may_find_another_in_its_place() -> None:
    consensus = Scripted()
    one, two = logs(consensus, MemoryBlob(), 2)
    await one.create(FIRST)
    await two.refresh()
    await one.commit(bump)
    consensus.script = ["lost"]
    assert await two.commit(bump) == (1, True)
    assert (await one.refresh()).state.upper == frontier(2)


async def test_what_stays_unknown_is_indeterminate_and_what_was_refused_is_unavailable() -> None:
    consensus = Scripted("answered", *["lost"] * WRITE_ATTEMPTS, "refused")
    (log,) = logs(consensus, MemoryBlob())
    await log.create(FIRST)
    with pytest.raises(Indeterminate):
        await log.commit(bump)
    with pytest.raises(Unavailable):
        await log.commit(bump)
    assert await log.commit(bump) == (0, True)


async def test_commands_of_one_process_run_one_after_the_other() -> None:
    (log,) = logs(MemoryConsensus(), MemoryBlob())
    await log.create(FIRST)
    answers = await asyncio.gather(*(log.commit(bump) for _ in range(20)))
    assert sorted(time for time, _ in answers) == list(range(20))


async def test_a_collection_that_was_never_bound_is_unknown() -> None:
    (log,) = logs(MemoryConsensus(), MemoryBlob())
    with pytest.raises(UnknownCollection):
        await log.refresh()


@pytest.mark.rule("S3")
async def test_a_long_log_is_rolled_up_and_opened_from_there() -> None:
    consensus, blob = MemoryConsensus(), MemoryBlob()
    (log,) = logs(consensus, blob)
    await log.create(FIRST)
    for number in range(1, 3 * ROLLUP_EVERY + 5):
        await log.commit(bump)
        (fresh,) = logs(consensus, blob)
        if number % 37 == 0 or number % ROLLUP_EVERY < 3:
            known = await fresh.refresh()
            assert (known.number, known.state) == (number, (await log.refresh()).state)
    versions = await consensus.scan("c", 0)
    assert versions[0].number == 3 * ROLLUP_EVERY + 1
    known = await log.refresh()
    assert known.rollup is not None
    rollups = {entry.key for entry in await blob.list("")}
    assert rollups == {known.rollup[0], *known.state.garbage}
    assert len(rollups) == 3


async def test_a_process_that_fell_behind_a_truncation_starts_again_from_the_rollup() -> None:
    consensus, blob = MemoryConsensus(), MemoryBlob()
    one, two = logs(consensus, blob, 2)
    await one.create(FIRST)
    await two.refresh()
    for _ in range(2 * ROLLUP_EVERY):
        await one.commit(bump)
    assert (await two.refresh()).state == (await one.refresh()).state
    assert await two.commit(bump) == (2 * ROLLUP_EVERY, True)


class NoPuts(MemoryBlob):
    """A blob that stores nothing."""

    async def put(self, key: str, data: bytes) -> None:
        raise Unavailable("no space left")


@pytest.mark.rule("K10")
async def test_a_rollup_that_cannot_be_stored_does_not_undo_the_commit() -> None:
    consensus = MemoryConsensus()
    (log,) = logs(consensus, NoPuts())
    await log.create(FIRST)
    for number in range(2 * ROLLUP_EVERY):
        assert await log.commit(bump) == (number, True)
    (fresh,) = logs(consensus, NoPuts())
    assert (await fresh.refresh()).number == 2 * ROLLUP_EVERY


async def test_a_missing_version_and_a_missing_rollup_are_corrupt() -> None:
    consensus, blob = MemoryConsensus(), MemoryBlob()
    (log,) = logs(consensus, blob)
    await log.create(FIRST)
    for _ in range(5):
        await log.commit(bump)
    kept = consensus._logs["c"]
    consensus._logs["c"] = [version for version in kept if version.number != 3]
    with pytest.raises(Corrupt, match="hole before version 4"):
        await logs(consensus, blob)[0].refresh()
    consensus._logs["c"] = [version for version in kept if version.number > 2]
    with pytest.raises(Corrupt, match="no beginning"):
        await logs(consensus, blob)[0].refresh()
    consensus._logs["c"] = kept
    for _ in range(ROLLUP_EVERY):
        await log.commit(bump)
    (rollup,) = await blob.list("")
    await blob.delete(rollup.key)
    with pytest.raises(Corrupt, match="rollup"):
        await logs(consensus, blob)[0].refresh()


async def test_a_state_of_a_moment_ago_is_served_without_asking_the_store() -> None:
    consensus, clock = MemoryConsensus(), ManualClock()
    one, two = (
        CollectionLog("c", consensus, MemoryBlob(), clock, lambda: f"n{next(NAMES)}")
        for _ in range(2)
    )
    await one.create(FIRST)
    await two.refresh()
    await one.commit(bump)
    clock.move(0.1)
    assert (await two.refresh(age_s_max=1)).number == 0
    clock.move(1)
    assert (await two.refresh(age_s_max=1)).number == 1


async def test_a_rollup_is_named_as_soon_as_it_is_stored_however_long_the_pause() -> None:
    clock = ManualClock()
    blob = MemoryBlob(clock.now_ms)
    consensus = MemoryConsensus()
    store = Collections(consensus, blob, clock, lambda: f"n{next(NAMES)}")
    await store.create("c", Description(ROWS), lease_ms=None)
    for step in range(2 * ROLLUP_EVERY):
        outcome = await store.compare_and_append(
            "c", frontier(step), frontier(step + 1), None, writer="w"
        )
        assert outcome == Appended(frontier(step + 1))
        clock.move(10_000)
        await store.collect_garbage("c", grace_ms=1_000)
        await store.reap_orphans("c", age_ms=1_000)
        fresh = Collections(consensus, blob, clock, lambda: f"n{next(NAMES)}")
        assert (await fresh.status("c")).upper == frontier(step + 1)
    assert len(await blob.list("")) == 1


async def test_the_loser_of_a_race_leaves_no_rollup_behind() -> None:
    consensus, blob = MemoryConsensus(), MemoryBlob()
    one, two = logs(consensus, blob, 2)
    await one.create(FIRST)
    for _ in range(ROLLUP_EVERY):
        await one.commit(bump)
    await two.refresh()
    await one.commit(bump)
    assert await two.commit(bump) == (ROLLUP_EVERY + 1, True)
    assert two.lost == 1
    assert len(await blob.list("")) == 1


class CountedScans(MemoryConsensus):
    """Counts the reads of the log, each of which lets others run."""

    scans = 0

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        self.scans += 1
        found = await super().scan(key, start)
        await asyncio.sleep(0)
        return found


async def test_many_that_ask_at_once_share_a_read_that_began_after_they_asked() -> None:
    consensus = CountedScans()
    one, two = logs(consensus, MemoryBlob(), 2)
    await one.create(FIRST)
    await two.refresh()
    before = consensus.scans
    await one.commit(bump)
    seen = await asyncio.gather(*(two.refresh() for _ in range(50)))
    assert {known.number for known in seen} == {1}
    assert consensus.scans == before + 2
    asking = asyncio.create_task(two.refresh())
    await asyncio.sleep(0)  # Its read has begun: what is committed now need not be in it.
    await one.commit(bump)
    assert (await two.refresh()).number == 2
    await asking


class SlowReads(MemoryConsensus):
    """Has found what is there, and tells it once a gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []

    async def scan(self, key: str, start: int) -> Sequence[Version]:
        found = await super().scan(key, start)
        if self.gates:
            await self.gates.pop(0).wait()
        return found


@pytest.mark.parametrize("ends", ["well", "cancelled"])
async def test_a_read_that_is_given_up_tells_nobody_who_waits(ends: str) -> None:
    """A reader behind a commit waits for two reads, of which the last one is given up."""
    consensus = SlowReads()
    one, two = logs(consensus, MemoryBlob(), 2)
    await one.create(FIRST)
    await two.refresh()
    consensus.gates = gates = [asyncio.Event(), asyncio.Event()]
    first, second = gates
    asked = [asyncio.create_task(two.refresh())]
    await asyncio.sleep(0.01)
    asked.append(asyncio.create_task(two.refresh()))
    await asyncio.sleep(0.01)
    consensus.gates = []
    await one.commit(bump)
    consensus.gates = [second]
    asked.append(asyncio.create_task(two.refresh()))
    await asyncio.sleep(0.01)
    first.set()
    await asyncio.sleep(0.01)
    if ends == "cancelled":
        asked[1].cancel()
    second.set()
    assert (await asked[2]).state.upper == frontier(1)
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_collection_is_opened_however_wide_it_is() -> None:
    """It may have been made before there was a bound for what strangers send."""
    wide = pa.schema([(f"c{at}", pa.int64()) for at in range(6_000)])
    one, two = logs(MemoryConsensus(), MemoryBlob(), 2)
    assert await one.create(replace(FIRST, description=Description(wide)))
    assert (await two.refresh()).state.description.schema == wide
