"""Appends to several collections in one transaction: all of them, or none."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tidemill.errors import Indeterminate, Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Consensus,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    SqliteConsensus,
    UpperMismatch,
    Version,
)
from tidemill.shard.log import CollectionLog
from tidemill.shard.ports import Attempt, GroupConsensus
from tidemill.shard.state import State
from tidemill.shard.together import commit_together
from tidemill.testkit.faults.groups import FaultyGroups, MemoryGroups
from tidemill.testkit.faults.stores import Faults, FaultyBlob
from tidemill.time import frontier, sole_time

NAMES = ("state", "out", "errors")
ROW = pa.schema([("n", pa.int64())])


@pytest.fixture(params=["memory", "sqlite"])
async def groups(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GroupConsensus]:
    sqlite = request.param == "sqlite"
    store = SqliteConsensus(tmp_path / "log.sqlite") if sqlite else MemoryGroups()
    yield store
    await store.close()


def process(consensus: Consensus, blob: MemoryBlob | FaultyBlob, limits: Limits) -> Collections:
    ids = map("{:032x}".format, itertools.count())
    return Collections(consensus, blob, ManualClock(), ids.__next__, limits=limits)


async def create_all(collections: Collections) -> None:
    for name in NAMES:
        await collections.create(name, Description(ROW, retain_ms=0), start=frontier(0))


def rows(numbers: Sequence[int], time: int) -> pa.Table:
    times = pa.array([time] * len(numbers), pa.uint64())
    return pa.table(
        {"n": pa.array(numbers, pa.int64()), "_time": times, "_diff": [1] * len(numbers)}
    )


async def uppers(collections: Collections) -> list[int]:
    return [sole_time((await collections.status(name)).upper) for name in NAMES]


@pytest.mark.rule("P1", "UP1")
async def test_one_stale_expectation_keeps_a_whole_group_out(groups: GroupConsensus) -> None:
    assert isinstance(groups, SqliteConsensus | MemoryGroups)
    first = Version(0, b"first")
    assert await groups.compare_and_set_all([Attempt(key, None, first) for key in NAMES])
    assert await groups.compare_and_set("errors", 0, Version(1, b"alone"))
    next_one = [Attempt(key, 0, Version(1, b"group")) for key in NAMES]
    assert not await groups.compare_and_set_all(next_one)
    heads = [await groups.head(key) for key in NAMES]
    assert heads == [first, first, Version(1, b"alone")]
    fits = [*next_one[:2], Attempt("errors", 1, Version(2, b"group"))]
    assert await groups.compare_and_set_all(fits)
    assert [await groups.head(key) for key in NAMES] == [each.version for each in fits]


async def test_groups_of_the_same_logs_in_opposite_orders_both_end() -> None:
    """Each took the turn that the other one waited for, once both turns had just been handed on."""
    groups, blob, ids = MemoryGroups(), MemoryBlob(), map("{:032x}".format, itertools.count())
    logs = [CollectionLog(each, groups, blob, ManualClock(), ids.__next__) for each in NAMES[:2]]
    state = State(Description(ROW), frontier(0), frontier(0))
    for log in logs:
        await log.create(state)
        await log.turn.acquire()

    async def use(log: CollectionLog) -> None:
        async with log.turn:
            pass

    def bump(state: State) -> tuple[None, State]:
        return None, replace(state, upper=frontier(sole_time(state.upper) + 1))

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for log in logs:
            tasks.create_task(use(log))
        await asyncio.sleep(0)
        orders = logs, logs[::-1]
        made = [
            tasks.create_task(commit_together(groups, [(log, bump) for log in order]))
            for order in orders
        ]
        for log in logs:
            log.turn.release()  # a turn of nobody, and somebody waits for it
    landed = sum(task.result() for task in made)
    assert landed >= 1
    assert [sole_time((await log.refresh()).state.upper) for log in logs] == [landed] * 2


@pytest.mark.rule("P1", "UP1")
async def test_of_groups_that_meet_in_one_key_one_lands(groups: GroupConsensus) -> None:
    assert isinstance(groups, SqliteConsensus | MemoryGroups)
    version = Version(0, b"first")
    asked = [[Attempt(f"own {each}", None, version), Attempt("k", None, version)] for each in NAMES]
    won = await asyncio.gather(*map(groups.compare_and_set_all, asked))
    assert sorted(won) == [False, False, True]
    landed = [name for name, one in zip(NAMES, won, strict=True) if one]
    assert await groups.keys() == sorted(["k", *(f"own {name}" for name in landed)])


@pytest.mark.rule("P1", "P5", "UP1", "UP2")
@pytest.mark.parametrize("seed", range(12))
async def test_two_processes_append_together_or_not_at_all_whatever_the_store_says(
    seed: int,
) -> None:
    random, store, blob = Random(seed), MemoryGroups(), MemoryBlob()
    faults = Faults(seed)
    limits = Limits(inline_bytes_max=400)
    honest = process(store, blob, limits)
    await create_all(honest)
    writers = [process(FaultyGroups(store, faults), FaultyBlob(blob, faults), limits) for _ in "ab"]
    told: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
    together = 0
    for step in range(60):
        writer, before = random.choice(writers), await uppers(honest)
        lower, upper = min(before) - (random.random() < 0.1), max(before) + random.randrange(1, 3)
        given = {name: [step] * random.choice((0, 1, 1, 90)) for name in NAMES}
        updates = {name: rows(numbers, upper - 1) for name, numbers in given.items()}
        faults.on = False
        if random.random() < 0.8:  # it knows where they stand
            await uppers(writer)
        faults.on = True
        try:
            done = await writer.append_all(
                frontier(max(0, lower)), frontier(upper), updates, writer="w"
            )
        except (Unavailable, Indeterminate):
            done = False
        after = await uppers(honest)
        assert after in (before, [upper] * 3)
        assert after == [upper] * 3 or not done
        together += done
        if after != before:
            for name, numbers in given.items():
                told[name] += [(each, upper - 1) for each in numbers]
        if random.random() < 0.2:  # somebody brings one of them ahead by itself
            name = random.choice(NAMES)
            held = (await honest.status(name)).upper
            alone = frontier(sole_time(held) + 1)
            outcome = await honest.compare_and_append(name, held, alone, None, writer="o")
            assert isinstance(outcome, Appended)
        if len(set(await uppers(honest))) > 1 and random.random() < 0.7:
            top = max(await uppers(honest))
            for name in NAMES:
                held = (await honest.status(name)).upper
                await honest.compare_and_append(name, held, frontier(top), None, writer="o")
    for name in NAMES:
        found = (await honest.read_updates(name)).to_pylist()
        kept = [(row["n"], row["_time"]) for row in found for _ in range(row["_diff"])]
        assert sorted(kept) == sorted(told[name])
    assert together > 3
    assert store.refused + faults.happened["request lost"] + faults.happened["answer lost"] > 0


async def test_a_group_wakes_who_waits_and_what_it_wrote_is_known_without_a_look() -> None:
    store = MemoryGroups()
    collections = process(store, MemoryBlob(), Limits())
    await create_all(collections)
    waiting = [asyncio.create_task(collections.wait_for_upper(each, 4, 60.0)) for each in NAMES]
    await asyncio.sleep(0)
    updates = {name: rows([1], 4) for name in NAMES}
    assert await collections.append_all(frontier(0), frontier(5), updates, writer="w")
    assert await asyncio.gather(*waiting) == [frontier(5)] * 3
    assert all(collections.known_past(name, 4) for name in NAMES)
    again = await collections.compare_and_append(
        "out", frontier(0), frontier(5), updates["out"], writer="w"
    )
    assert again == UpperMismatch(frontier(5))


async def test_a_rollup_that_is_due_is_left_to_a_commit_of_its_own() -> None:
    store, blob = MemoryGroups(), MemoryBlob()
    collections = process(store, blob, Limits())
    await create_all(collections)
    alone = 0
    for at in range(300):
        updates = {name: rows([at], at) for name in NAMES}
        if not await collections.append_all(frontier(at), frontier(at + 1), updates, writer="w"):
            alone += 1
            for name, table in updates.items():
                await collections.compare_and_append(
                    name, frontier(at), frontier(at + 1), table, writer="w"
                )
    assert alone == 2
    # Another process opens the logs from their rollups.
    assert await uppers(process(store, blob, Limits())) == [300] * 3


@pytest.mark.rule("P2")
async def test_what_rests_is_left_to_commits_that_end_its_rest() -> None:
    store = MemoryGroups()
    collections = process(store, MemoryBlob(), Limits())
    await create_all(collections)
    updates = {name: rows([1], 1) for name in NAMES}
    assert await collections.append_all(frontier(0), frontier(2), updates, writer="w")
    await collections.open_pace("pace")
    number = await collections.follow("out", ("pace",), frontier(2))
    assert number is not None
    assert await collections.step_pace("pace", frontier(2), {"g": {"out": number}}, ())
    await collections.step_pace("pace", frontier(9), {}, ())
    for lower in (2, 9):
        later = {name: rows([2], 10) for name in NAMES}
        assert not await collections.append_all(frontier(lower), frontier(11), later, writer="w")
    assert await uppers(collections) == [2, 9, 2]


async def test_a_store_without_groups_says_so_before_anything_is_written() -> None:
    collections = process(MemoryConsensus(), MemoryBlob(), Limits())
    await create_all(collections)
    updates = {name: rows([1], 0) for name in NAMES}
    assert not await collections.append_all(frontier(0), frontier(1), updates, writer="w")
    assert await uppers(collections) == [0] * 3
