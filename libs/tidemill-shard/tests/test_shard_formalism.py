"""The rules of the formalism, each with a test that names it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest

from tidemill.errors import (
    AlreadyUsed,
    BeforeSince,
    CapabilityExpired,
    Corrupt,
    NotYet,
    UnknownCapability,
    UnknownCollection,
    UsageError,
)
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    DirectoryBlob,
    Progress,
    ReadCapability,
    SqliteConsensus,
    Updates,
    UpperMismatch,
    WriteCapability,
)
from tidemill.time import Frontier, frontier

ROWS = pa.schema([("row", pa.string())])
rule = pytest.mark.rule


class Stores:
    """Durable state in a folder, and processes that come and go on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(1_000)
        self.opened: list[Collections] = []
        self.now = self.open()

    def open(self) -> Collections:
        """A process that knows nothing but what is durable."""
        collections = Collections(
            SqliteConsensus(self.folder / "consensus.sqlite"),
            DirectoryBlob(self.folder / "blob", lambda: token_hex(8)),
            self.clock,
            lambda: token_hex(16),
        )
        self.opened.append(collections)
        return collections

    async def table(
        self, name: str = "t", *, allow_negative: bool = False, lease_ms: int | None = None
    ) -> tuple[ReadCapability, WriteCapability]:
        """A user-writable collection at [0]."""
        read, write = await self.now.create(
            name,
            Description(ROWS, user_writable=True, allow_negative=allow_negative),
            lease_ms=lease_ms,
        )
        assert write is not None
        return read, write

    async def frontiers(self, name: str = "t") -> tuple[Frontier, Frontier]:
        """(since, upper)."""
        status = await self.now.status(name)
        return status.since, status.upper


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    stores = Stores(tmp_path)
    yield stores
    for collections in stores.opened:
        await collections.close()


def updates(*changes: tuple[str, int, int]) -> pa.Table:
    rows = [{"row": row, "_time": time, "_diff": diff} for row, time, diff in changes]
    lanes = [pa.field("_time", pa.uint64()), pa.field("_diff", pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema([*ROWS, *lanes]))


def contents(table: pa.Table) -> dict[str, int]:
    return {row["row"]: row["_diff"] for row in table.to_pylist()}


async def write(
    stores: Stores, capability: WriteCapability, new: int, *changes: tuple[str, int, int]
) -> WriteCapability:
    """Append and hold `new` from then on."""
    outcome = await stores.now.update_and_downgrade(capability, updates(*changes), frontier(new))
    assert outcome == Appended(frontier(new))
    return WriteCapability(capability.id, capability.collection, frontier(new))


@rule("F1", "F2", "F3", "F5", "F11")
async def test_a_snapshot_is_the_sum_of_the_updates_up_to_its_time(stores: Stores) -> None:
    read, cap = await stores.table()
    await write(stores, cap, 5, ("a", 0, 2), ("b", 1, 1), ("a", 3, -1), ("b", 4, -1))
    assert contents(await stores.now.snapshot(read, 0)) == {"a": 2}
    assert contents(await stores.now.snapshot(read, 1)) == {"a": 2, "b": 1}
    assert contents(await stores.now.snapshot(read, 4)) == {"a": 1}


@rule("F6", "P6", "CR3")
async def test_compaction_changes_no_accumulation_at_or_beyond_since(stores: Stores) -> None:
    read, cap = await stores.table()
    cap = await write(stores, cap, 3, ("a", 0, 1), ("a", 2, 1), ("b", 1, 1))
    await write(stores, cap, 6, ("b", 4, -1), ("c", 5, 1))
    read = await stores.now.downgrade(read, frontier(3))
    before = [contents(await stores.now.snapshot(read, time)) for time in (3, 4, 5)]
    await stores.now.compact("t")
    assert [contents(await stores.now.snapshot(read, time)) for time in (3, 4, 5)] == before
    assert min((await stores.now.read_updates("t"))["_time"].to_pylist()) == 2
    assert (await stores.now.status("t")).batches == 1


@rule("P1")
async def test_what_is_read_is_the_same_before_and_after_compaction(stores: Stores) -> None:
    read, cap = await stores.table()
    cap = await write(stores, cap, 3, ("a", 0, 1), ("a", 2, 1), ("b", 1, 1))
    await write(stores, cap, 6, ("b", 4, -1), ("c", 5, 1))
    read = await stores.now.downgrade(read, frontier(3))

    async def read_all() -> list[list[dict[str, object]]]:
        tables = [await stores.now.snapshot(read, time) for time in (3, 4, 5)]
        tables += [await stores.now.changes(read, lower, 6) for lower in (0, 3, 5)]
        return [table.to_pylist() for table in tables]

    before = await read_all()
    await stores.now.compact("t")
    assert (await stores.now.status("t")).updates == 4
    assert await read_all() == before
    assert {row["_time"] for row in before[3]} == {2, 4, 5}


@rule("F7", "K1", "K15", "L2b", "L2c")
async def test_since_never_passes_the_meet_of_its_holds_nor_upper(stores: Stores) -> None:
    first, cap = await stores.table()
    second = await stores.now.read_hold("t", owner="second", lease_ms=None)
    await write(stores, cap, 10)
    first = await stores.now.downgrade(first, frontier(7))
    assert await stores.frontiers() == (frontier(0), frontier(10))
    await stores.now.downgrade(second, frontier(4))
    assert await stores.frontiers() == (frontier(4), frontier(10))
    third = await stores.now.read_hold("t", owner="third", lease_ms=None)
    third = await stores.now.downgrade(third, frontier(9))
    assert await stores.frontiers() == (frontier(4), frontier(10))
    await stores.now.drop(second)
    assert await stores.frontiers() == (frontier(7), frontier(10))
    await stores.now.drop(third)
    await stores.now.downgrade(first, frontier(99))
    assert await stores.frontiers() == (frontier(10), frontier(10))


@rule("F8", "F9", "UP2")
@pytest.mark.parametrize(
    ("time", "reason"),
    [(4, "UpdateNotBeyondLower"), (8, "UpdateBeyondUpper"), (9, "UpdateBeyondUpper")],
)
async def test_an_update_outside_its_interval_is_refused_and_nothing_applied(
    stores: Stores, time: int, reason: str
) -> None:
    read, cap = await stores.table()
    cap = await write(stores, cap, 5)
    with pytest.raises(UsageError) as refused:
        await stores.now.update_and_downgrade(
            cap, updates(("ok", 6, 1), ("x", time, 1)), frontier(8)
        )
    assert refused.value.details["reason"] == reason
    assert await stores.frontiers() == (frontier(0), frontier(5))
    assert contents(await stores.now.snapshot(read, 4)) == {}


@rule("F12", "SU7")
async def test_below_since_is_an_error_that_names_since(stores: Stores) -> None:
    read, cap = await stores.table()
    await write(stores, cap, 9, ("a", 1, 1))
    read = await stores.now.downgrade(read, frontier(5))
    with pytest.raises(BeforeSince) as refused:
        await stores.now.snapshot(read, 4)
    assert refused.value.details == {
        "requested": 4,
        "since": frontier(5),
        "holder": "downgrade by a reader",
    }


@rule("F13", "SU3")
async def test_at_upper_nothing_is_answered(stores: Stores) -> None:
    read, cap = await stores.table()
    await write(stores, cap, 9, ("a", 1, 1))
    with pytest.raises(NotYet) as refused:
        await stores.now.snapshot(read, 9)
    assert refused.value.details == {"requested": 9, "upper": frontier(9)}


@rule("L0", "CR4", "L4", "P10")
async def test_an_id_is_bound_once_for_ever(stores: Stores) -> None:
    with pytest.raises(UnknownCollection):
        await stores.now.acquire("t")
    read, cap = await stores.table()
    with pytest.raises(AlreadyUsed):
        await stores.table()
    await stores.now.drop(cap)
    await stores.now.downgrade(read, frontier())
    assert await stores.frontiers() == (frontier(), frontier())
    stores.now = stores.open()
    with pytest.raises(AlreadyUsed):
        await stores.table()


@rule("L1", "CR1")
async def test_a_new_collection_has_since_equal_to_upper(stores: Stores) -> None:
    read, cap = await stores.now.create("t", Description(ROWS), start=frontier(7))
    assert read.frontier == frontier(7)
    assert cap is None
    assert await stores.frontiers() == (frontier(7), frontier(7))
    read, cap = await stores.now.create(
        "w", Description(ROWS, user_writable=True), start=frontier(7)
    )
    assert cap is not None
    assert read.frontier == cap.frontier == frontier(7)
    assert await stores.frontiers("w") == (frontier(7), frontier(7))


@rule("L3", "AC2")
async def test_a_tombstone_answers_everything_and_holds_nothing(stores: Stores) -> None:
    read, cap = await stores.table()
    cap = await write(stores, cap, 3, ("a", 1, 1))
    await stores.now.drop(cap)
    read = await stores.now.downgrade(read, frontier())
    with pytest.raises(BeforeSince):
        await stores.now.snapshot(read, 1)
    acquired, writer = await stores.now.acquire("t", lease_ms=None)
    assert acquired.frontier == frontier()
    assert writer is not None
    assert writer.frontier == frontier()
    assert (await stores.now.status("t")).updates == 0


@rule("P10", "L3")
async def test_what_has_ended_takes_nothing_more(stores: Stores) -> None:
    await stores.now.create("t", Description(ROWS))
    await stores.now.close_collection("t")
    assert (await stores.frontiers())[1] == frontier()

    for rows in (None, updates(("a", 3, 1))):
        late = await stores.now.compare_and_append(
            "t", frontier(0), frontier(5), rows, writer="late"
        )
        assert late == UpperMismatch(frontier())
        with pytest.raises(UsageError):
            await stores.now.compare_and_append("t", frontier(), frontier(5), rows, writer="late")
    read = await stores.now.read_hold("t", owner="late", at=frontier(0))
    assert contents(await stores.now.snapshot(read, 7)) == {}
    assert (await stores.frontiers())[1] == frontier()


@rule("L5")
async def test_only_bound_ids_are_listed(stores: Stores) -> None:
    await stores.table("b")
    await stores.table("a")
    with pytest.raises(UnknownCollection):
        await stores.now.status("c")
    assert await stores.now.ids() == ("a", "b")


@rule("K2")
async def test_upper_is_the_meet_of_the_write_capabilities(stores: Stores) -> None:
    read, first = await stores.table()
    _, second = await stores.now.acquire("t", lease_ms=None)
    assert second is not None
    await write(stores, first, 8, ("ahead", 6, 1), ("early", 1, 1))
    assert await stores.frontiers() == (frontier(0), frontier(0))
    await write(stores, second, 4, ("behind", 2, 1))
    assert (await stores.frontiers())[1] == frontier(4)
    assert contents(await stores.now.snapshot(read, 3)) == {"early": 1, "behind": 1}
    assert "ahead" not in (await stores.now.read_updates("t"))["row"].to_pylist()
    await stores.now.drop(second)
    assert contents(await stores.now.snapshot(read, 7))["ahead"] == 1


@rule("K3", "K5", "K7")
async def test_a_capability_is_used_by_whoever_presents_its_id_also_elsewhere(
    stores: Stores,
) -> None:
    read, cap = await stores.table()
    assert len({read.id, cap.id}) == 2
    assert all(len(each.id) == 32 for each in (read, cap))
    assert read.id not in repr(read)
    elsewhere = stores.open()
    await elsewhere.update_and_downgrade(cap, updates(("a", 0, 1)), frontier(1))
    assert contents(await elsewhere.snapshot(read, 0)) == {"a": 1}


@rule("K4", "K9")
async def test_a_dropped_capability_is_unknown_also_at_the_second_drop(stores: Stores) -> None:
    read, cap = await stores.table()
    await stores.now.drop(read)
    for use in (stores.now.drop, stores.now.renew, stores.now.clone):
        with pytest.raises(UnknownCapability):
            await use(read)
    with pytest.raises(UnknownCapability):
        await stores.now.snapshot(read, 0)
    await stores.now.drop(cap)
    with pytest.raises(UnknownCapability):
        await stores.now.update_and_downgrade(cap, None, frontier(1))


@rule("K4")
async def test_the_wrong_kind_of_capability_is_a_usage_error(stores: Stores) -> None:
    read, cap = await stores.table()
    as_reader = ReadCapability(cap.id, "t", cap.frontier)
    as_writer = WriteCapability(read.id, "t", read.frontier)
    with pytest.raises(UsageError, match="does not read"):
        await stores.now.snapshot(as_reader, 0)
    with pytest.raises(UsageError, match="does not write"):
        await stores.now.update_and_downgrade(as_writer, None, frontier(1))


@rule("K6")
async def test_clones_hold_independently_and_their_writes_add_up(stores: Stores) -> None:
    read, cap = await stores.table()
    copy = await stores.now.clone(cap)
    assert isinstance(copy, WriteCapability)
    await write(stores, cap, 2, ("a", 1, 1))
    await write(stores, copy, 2, ("a", 1, 1))
    assert contents(await stores.now.snapshot(read, 1)) == {"a": 2}
    held = await stores.now.clone(read)
    await stores.now.drop(read)
    assert await stores.frontiers() == (frontier(0), frontier(2))
    await stores.now.drop(held)


@rule("K8")
async def test_a_backward_downgrade_is_refused_with_both_frontiers(stores: Stores) -> None:
    read, cap = await stores.table()
    await write(stores, cap, 9)
    read = await stores.now.downgrade(read, frontier(5))
    assert await stores.now.downgrade(read, frontier(5)) == read
    with pytest.raises(UsageError) as refused:
        await stores.now.downgrade(read, frontier(4))
    assert refused.value.details["held"] == frontier(5)
    assert refused.value.details["target"] == frontier(4)
    assert (await stores.frontiers())[0] == frontier(5)


@rule("K12", "K15", "AC1", "K14")
async def test_an_expired_lease_frees_since_at_once_and_is_named_so(stores: Stores) -> None:
    read, cap = await stores.table(lease_ms=None)
    slow = await stores.now.read_hold("t", owner="slow", lease_ms=10_000)
    await write(stores, cap, 9)
    await stores.now.downgrade(read, frontier(8))
    assert (await stores.frontiers())[0] == frontier(0)
    await stores.clock.advance(9)
    await stores.now.renew(slow)
    await stores.clock.advance(9)
    assert (await stores.frontiers())[0] == frontier(0)
    await stores.clock.advance(2)
    assert (await stores.frontiers())[0] == frontier(8)
    for use in (stores.now.renew, stores.now.drop):
        with pytest.raises(CapabilityExpired):
            await use(slow)
    again, _ = await stores.now.acquire("t")
    assert again.frontier == frontier(8)


@rule("K14", "K15")
async def test_dropping_the_last_writer_closes_and_expiry_does_not(stores: Stores) -> None:
    _, cap = await stores.table("dropped")
    await stores.now.drop(cap)
    assert (await stores.frontiers("dropped"))[1] == frontier()
    _, cap = await stores.table("expired")
    await write(stores, cap, 4)
    await stores.now.expire(cap)
    assert (await stores.frontiers("expired"))[1] == frontier(4)
    _, writer = await stores.now.acquire("expired")
    assert writer is not None
    assert writer.frontier == frontier(4)


@rule("K15")
async def test_who_holds_since_back_is_known_by_name(stores: Stores) -> None:
    await stores.table()
    await stores.now.read_hold("t", owner="view late", lease_ms=None)
    await stores.now.read_hold("t", owner="session 7", lease_ms=5_000)
    holders = (await stores.now.status("t")).holders
    assert [(h.owner, h.frontier, h.lease_end_ms) for h in holders if h.owner] == [
        ("session 7", frontier(0), 6_000),
        ("view late", frontier(0), None),
    ]


@rule("K5")
async def test_an_owner_finds_its_hold_again_after_a_restart(stores: Stores) -> None:
    _, cap = await stores.table()
    hold = await stores.now.read_hold("t", owner="view late", lease_ms=None)
    await write(stores, cap, 9)
    await stores.now.downgrade(hold, frontier(4))
    stores.now = stores.open()
    again = await stores.now.read_hold("t", owner="view late", lease_ms=None)
    assert (again.id, again.frontier) == (hold.id, frontier(4))
    session = await stores.now.read_hold("t", owner="view late")
    assert session.id != hold.id


@rule("SU1", "SU2", "P7")
async def test_snapshot_and_stream_add_up_to_the_collection_across_compaction(
    stores: Stores,
) -> None:
    read, cap = await stores.table()
    cap = await write(stores, cap, 4, ("a", 1, 1), ("b", 2, 1), ("a", 3, -1))
    subscription = stores.now.subscription(read, 2)
    total: dict[str, int] = {}
    for step in range(4, 40, 4):
        table, upper = await subscription.poll()
        assert upper == frontier(step)
        for row in table.to_pylist():
            total[row["row"]] = total.get(row["row"], 0) + row["_diff"]
        expected = contents(await stores.now.snapshot(read, step - 1))
        assert {row: n for row, n in total.items() if n} == expected
        read = await stores.now.downgrade(read, frontier(step - 1))
        await stores.now.compact("t")
        cap = await write(stores, cap, step + 4, ("a", step, 1), (f"r{step}", step + 2, 1))


@rule("SU3", "SU4")
async def test_a_subscription_at_the_future_waits_and_ends_where_asked(stores: Stores) -> None:
    read, cap = await stores.table()
    cap = await write(stores, cap, 3, ("z", 1, 1))
    stream = stores.now.subscribe(read, 3, up_to=9)
    assert await anext(stream) == Progress(frontier(3))
    await write(stores, cap, 9, ("a", 3, 1), ("b", 5, 1))
    seen = [item async for item in stream]
    assert isinstance(seen[0], Updates)
    assert [(r["row"], r["_time"]) for r in seen[0].table.to_pylist()] == [
        ("a", 3),
        ("z", 3),
        ("b", 5),
    ]
    assert seen[1:] == [Progress(frontier(9))]


@rule("SU6")
async def test_without_snapshot_only_later_updates_come(stores: Stores) -> None:
    read, cap = await stores.table()
    await write(stores, cap, 9, ("a", 2, 1), ("b", 5, 1))
    table, _ = await stores.now.subscription(read, 2, snapshot=False).poll()
    assert table["row"].to_pylist() == ["b"]


@rule("SU6")
async def test_filters_and_projections_equal_what_the_client_would_do(stores: Stores) -> None:
    read, cap = await stores.table()
    await write(stores, cap, 2, *((f"r{n % 7}", 1, 1) for n in range(70)))
    whole = contents(await stores.now.snapshot(read, 1))
    assert contents(await stores.now.snapshot(read, 1, equal={"row": "r3"})) == {"r3": whole["r3"]}
    assert contents(await stores.now.snapshot(read, 1, equal={"row": "zz"})) == {}


@rule("UP1", "UP5", "P3")
async def test_of_two_presenters_of_one_capability_one_wins(stores: Stores) -> None:
    read, cap = await stores.table()
    other = stores.open()
    won = await stores.now.update_and_downgrade(cap, updates(("a", 0, 1)), frontier(2))
    lost = await other.update_and_downgrade(cap, updates(("b", 0, 1)), frontier(2))
    assert won == Appended(frontier(2))
    assert lost == UpperMismatch(frontier(2))
    assert contents(await stores.now.snapshot(read, 1)) == {"a": 1}


@rule("UP3")
async def test_a_negative_multiplicity_is_corrupt_and_names_the_row(stores: Stores) -> None:
    read, cap = await stores.table()
    await write(stores, cap, 2, ("gone", 1, -1))
    with pytest.raises(Corrupt, match="gone"):
        await stores.now.snapshot(read, 1)
    read, cap = await stores.table("ledger", allow_negative=True)
    await write(stores, cap, 2, ("gone", 1, -1))
    assert contents(await stores.now.snapshot(read, 1)) == {"gone": -1}


@rule("UP4")
async def test_empty_updates_move_upper(stores: Stores) -> None:
    _, cap = await stores.table()
    await write(stores, cap, 6)
    assert (await stores.frontiers())[1] == frontier(6)


@rule("UP5", "P2")
@pytest.mark.parametrize(("new", "reason"), [(2, "InvalidBounds"), (5, "InvalidEmptyTimeInterval")])
async def test_bad_bounds_are_a_usage_error(stores: Stores, new: int, reason: str) -> None:
    _, cap = await stores.table()
    cap = await write(stores, cap, 5)
    with pytest.raises(UsageError) as refused:
        await stores.now.update_and_downgrade(cap, updates(("a", 5, 1)), frontier(new))
    assert refused.value.details["reason"] == reason


@rule("UP6", "P5")
async def test_a_retry_with_the_same_token_applies_once(stores: Stores) -> None:
    read, cap = await stores.table()
    for process in (stores.now, stores.now, stores.open()):
        outcome = await process.update_and_downgrade(
            cap, updates(("a", 0, 1)), frontier(3), token="attempt-1"
        )
        assert outcome == Appended(frontier(3))
    assert contents(await stores.now.snapshot(read, 2)) == {"a": 1}


@rule("D1", "S3", "S4", "P4")
async def test_everything_acknowledged_is_there_after_a_restart(stores: Stores) -> None:
    read, cap = await stores.table()
    cap = await write(stores, cap, 3, ("a", 1, 1), ("b", 2, 1))
    read = await stores.now.downgrade(read, frontier(1))
    hold = await stores.now.read_hold("t", owner="kept", lease_ms=None)
    before = await stores.now.status("t")
    stores.now = stores.open()
    assert await stores.now.status("t") == before
    assert contents(await stores.now.snapshot(hold, 2)) == {"a": 1, "b": 1}
    await write(stores, cap, 5, ("c", 4, 1))


@rule("S1", "UP5")
async def test_internal_writers_race_on_upper(stores: Stores) -> None:
    await stores.now.create("v", Description(ROWS, kind="view"))
    one, two = stores.now, stores.open()
    first = await one.compare_and_append(
        "v", frontier(0), frontier(4), updates(("a", 1, 1)), writer="replica"
    )
    second = await two.compare_and_append(
        "v", frontier(0), frontier(4), updates(("a", 1, 1)), writer="replica"
    )
    assert (first, second) == (Appended(frontier(4)), UpperMismatch(frontier(4)))
    read = await one.read_hold("v", owner="test")
    assert contents(await one.snapshot(read, 3)) == {"a": 1}


@rule("K15", "F14")
async def test_retention_lets_since_follow_upper(stores: Stores) -> None:
    read, _ = await stores.now.create("v", Description(ROWS, kind="view", retain_ms=100))
    await stores.now.drop(read)
    await stores.now.compare_and_append("v", frontier(0), frontier(1_000), None, writer="w")
    assert await stores.frontiers("v") == (frontier(900), frontier(1_000))
    await stores.now.retain("v", 10)
    assert (await stores.frontiers("v"))[0] == frontier(990)
    await stores.now.retain("v", 500)
    assert (await stores.frontiers("v"))[0] == frontier(990)
