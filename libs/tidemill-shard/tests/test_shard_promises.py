"""Promises of the formalism about parties: who may do what, who sees what, in which order."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest

from tidemill.errors import CapabilityExpired, UnknownCapability, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
    UpperMismatch,
    WriteCapability,
)
from tidemill.testkit.faults.groups import MemoryGroups
from tidemill.time import frontier

ROWS = pa.schema([("row", pa.string())])
TABLE = Description(ROWS, user_writable=True)
rule = pytest.mark.rule


class World:
    """Stores that last, and processes on them that share nothing else."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000)
        self.stores = MemoryConsensus(), MemoryBlob()
        self.names = count()
        self.here, self.there = self.process(), self.process()

    def process(self) -> Collections:
        return Collections(*self.stores, self.clock, lambda: f"{next(self.names):032x}")

    async def table(self) -> tuple[ReadCapability, WriteCapability]:
        read, write = await self.here.create("t", TABLE, owner="maker", lease_ms=None)
        assert write is not None
        return read, write


def updates(*changes: tuple[str, int, int]) -> pa.Table:
    schema = TABLE.update_schema()
    return pa.Table.from_pylist([dict(zip(schema.names, c, strict=True)) for c in changes], schema)


def triples(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


@rule("F15")
async def test_the_empty_frontier_is_a_frontier_and_not_the_absence_of_one() -> None:
    world = World()
    read, write = await world.table()
    await world.here.update_and_downgrade(write, None, frontier(9))
    await world.here.downgrade(read, frontier(6))
    unset = await world.here.read_hold("t", owner="unset", lease_ms=None)
    empty = await world.here.read_hold("t", owner="empty", at=frontier(), lease_ms=None)
    assert (unset.frontier, empty.frontier) == (frontier(6), frontier())
    await world.here.drop(read)
    assert (await world.here.status("t")).since == frontier(6)
    await world.here.drop(unset)
    status = await world.here.status("t")
    assert (status.since, status.upper) == (frontier(9), frontier(9))
    await world.here.close_collection("t")
    status = await world.there.status("t")
    assert (status.since, status.upper) == (frontier(), frontier())


@rule("L2a")
async def test_upper_advances_by_updates_by_internal_writers_and_when_the_last_writer_lets_go() -> (
    None
):
    world = World()
    _, write = await world.table()
    uppers = [(await world.here.status("t")).upper]
    await world.here.update_and_downgrade(write, updates(("a", 0, 1)), frontier(1))
    uppers.append((await world.here.status("t")).upper)
    await world.here.drop(write)
    uppers.append((await world.here.status("t")).upper)
    assert uppers == [frontier(0), frontier(1), frontier()]
    await world.here.create("s", Description(ROWS))
    outcome = await world.here.compare_and_append("s", frontier(0), frontier(3), None, writer="s")
    assert outcome == Appended((await world.there.status("s")).upper) == Appended(frontier(3))


@rule("F4", "S2", "CR3")
async def test_what_is_kept_are_triples_between_two_frontiers_and_all_of_them_come_back() -> None:
    world = World()
    read, write = await world.table()
    given = [("a", 0, 2), ("a", 3, -1), ("b", 3, 1), ("c", 5, 7)]
    await world.here.update_and_downgrade(write, updates(*given), frontier(6))
    status = await world.there.status("t")
    assert (status.since, status.upper) == (frontier(0), frontier(6))
    assert triples(await world.there.read_updates("t")) == given
    assert triples(await world.there.changes(read, 0, 6)) == given
    assert triples(await world.there.changes(read, 3, 5)) == given[1:3]


@rule("K7", "K3")
async def test_a_capability_given_away_is_answered_for_by_who_has_it_now() -> None:
    world = World()
    read, write = await world.table()
    await world.here.transfer(read, "taker")
    await world.clock.advance(5)
    holders = (await world.there.status("t")).holders
    assert [holder.owner for holder in holders] == ["taker"]
    await world.there.update_and_downgrade(write, updates(("a", 0, 1)), frontier(2))
    assert (await world.there.downgrade(read, frontier(1))).frontier == frontier(1)
    await world.there.drop(read)
    with pytest.raises(UnknownCapability):
        await world.here.transfer(read, "maker")


@rule("K11")
@pytest.mark.parametrize("together", [1, 3, 12])
async def test_writing_late_and_in_larger_pieces_changes_no_contents(together: int) -> None:
    world = World()
    read, write = await world.table()
    given = [(f"r{time % 5}", time, 1 - 2 * (time % 3 == 2)) for time in range(12)]
    for start in range(0, 12, together):
        stop = start + together
        piece = updates(*given[start:stop])
        outcome = await world.here.update_and_downgrade(write, piece, frontier(stop))
        assert outcome == Appended(frontier(stop))
        write = write.at(frontier(stop))
    assert triples(await world.there.changes(read, 0, 12)) == sorted(given)
    assert (await world.there.status("t")).upper == frontier(12)


@rule("K13", "S1")
async def test_only_what_users_write_keeps_a_write_capability() -> None:
    world = World()
    _, write = await world.here.create("source", Description(ROWS, kind="source"))
    assert write is None
    assert (await world.there.acquire("source"))[1] is None
    outcome = await world.here.compare_and_append(
        "source", frontier(0), frontier(1), updates(("a", 0, 1)), writer="reclock"
    )
    assert outcome == Appended(frontier(1))
    await world.table()
    with pytest.raises(UsageError) as refused:
        await world.here.compare_and_append("t", frontier(0), frontier(1), None, writer="reclock")
    assert refused.value.details["reason"] == "HeldByWriters"


@rule("K2", "K6", "K13", "S1")
async def test_several_writers_of_the_system_are_one_collection_that_users_do_not_write() -> None:
    world = World()
    await world.here.bind("view", Description(ROWS, kind="view"))
    first, second = [
        await world.here.write_hold("view", owner=f"range:{number}", users=False)
        for number in range(2)
    ]
    assert (await world.there.acquire("view"))[1] is None
    with pytest.raises(UsageError) as refused:
        await world.there.acquire("view", rights="write")
    assert refused.value.details["reason"] == "NotWritable"
    await world.here.update_and_downgrade(first, updates(("ahead", 3, 1)), frontier(5))
    status = await world.there.status("view")
    assert (status.upper, status.staged) == (frontier(0), 1)
    assert [holder.owner for holder in status.writing if holder.frontier == status.upper] == [
        "range:1"
    ]
    with pytest.raises(UsageError) as refused:
        await world.here.compare_and_append("view", frontier(0), frontier(1), None, writer="view")
    assert refused.value.details["reason"] == "HeldByWriters"
    found = await world.there.write_hold("view", owner="range:1", users=False)
    assert found == second
    await world.there.update_and_downgrade(found, updates(("late", 1, 1)), frontier(4))
    held, _ = await world.there.acquire("view", lease_ms=None)
    assert (await world.there.status("view")).upper == frontier(4)
    assert triples(await world.there.snapshot(held, 3)) == [("ahead", 1), ("late", 1)]
    for each in (first, second):
        await world.here.drop(each)
    # The last of them leaves upper where it is: the system goes on by compare-and-append.
    assert (await world.there.status("view")).upper == frontier(4)


@rule("UP1", "UP5", "K2")
async def test_a_writer_of_the_system_writes_several_collections_at_once_or_none() -> None:
    world = World()
    groups = MemoryGroups()
    here, there = (
        Collections(groups, world.stores[1], world.clock, lambda: f"{next(world.names):032x}")
        for _ in range(2)
    )
    held = {}
    for name in ("view", "errors"):
        await here.bind(name, Description(ROWS, kind="view"))
        held[name] = await here.write_hold(name, owner="range:0", users=False)
    await here.bind("state", Description(ROWS, kind="state"))
    tables = {name: updates((name, 1, 1)) for name in ("state", *held)}
    assert await here.append_all(frontier(0), frontier(2), tables, writer="v/0", held=held)
    assert groups.landed == 1
    for name in tables:
        assert (await there.status(name)).upper == frontier(2)
    # The same again, as a paused process would: another frontier is held by now.
    assert not await here.append_all(frontier(0), frontier(2), tables, writer="v/0", held=held)
    later = {name: each.at(frontier(2)) for name, each in held.items()}
    await there.update_and_downgrade(later["errors"], None, frontier(3))
    assert not await here.append_all(
        frontier(2), frontier(4), dict.fromkeys(tables, updates()), writer="v/0", held=later
    )
    assert (await here.status("state")).upper == frontier(2)


@rule("CR2")
async def test_a_source_holds_what_was_observed_not_what_its_creator_holds() -> None:
    world = World()
    read, _ = await world.here.create("source", Description(ROWS, kind="source"), lease_ms=None)
    for writer, time in (("one", 0), ("two", 1)):
        await world.there.compare_and_append(
            "source", frontier(time), frontier(time + 1), updates((writer, time, 1)), writer=writer
        )
    late = await world.here.compare_and_append(
        "source", frontier(0), frontier(1), updates(("late", 0, 1)), writer="late"
    )
    assert late == UpperMismatch(frontier(2))
    assert triples(await world.here.changes(read, 0, 2)) == [("one", 0, 1), ("two", 1, 1)]


@rule("AC3", "K14")
async def test_who_did_not_create_a_collection_acquires_it_and_who_lost_it_does_again() -> None:
    world = World()
    read, write = await world.here.create("t", TABLE, lease_ms=1_000)
    assert write is not None
    await world.here.update_and_downgrade(write, updates(("a", 0, 1), ("b", 3, 1)), frontier(4))
    other, _ = await world.there.acquire("t", owner="other", lease_ms=None)
    assert triples(await world.there.snapshot(other, 3)) == [("a", 1), ("b", 1)]
    await world.there.downgrade(other, frontier(2))
    await world.clock.advance(2)
    with pytest.raises(CapabilityExpired) as lost:
        await world.here.snapshot(read, 3)
    assert lost.value.details["since"] == frontier(2)
    again, writer = await world.here.acquire("t")
    assert again.frontier == frontier(2)
    assert writer is not None
    assert writer.frontier == frontier(4)
    assert triples(await world.here.snapshot(again, 3)) == [("a", 1), ("b", 1)]


@rule("D3")
async def test_what_diagnosis_says_is_what_capabilities_and_a_subscription_show() -> None:
    world = World()
    _, write = await world.table()
    given = [("a", 0, 1), ("b", 1, 1), ("a", 4, -1)]
    await world.here.update_and_downgrade(write, updates(*given), frontier(5))
    status = await world.here.status("t")
    read, writer = await world.there.acquire("t", lease_ms=None)
    assert writer is not None
    assert (status.since, status.upper) == (read.frontier, writer.frontier)
    subscription = world.there.subscription(read, 0)
    table, upper = await subscription.poll()
    assert upper == status.upper
    assert table.num_rows == status.updates
    assert triples(table) == triples(await world.here.read_updates("t"))
