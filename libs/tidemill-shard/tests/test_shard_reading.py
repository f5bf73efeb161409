"""Reads touch only the parts they need, and give what adding everything up gives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from itertools import count, pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.arrangement.updates import consolidate
from tidemill.errors import CapabilityExpired, Corrupt, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import (
    Collections,
    Description,
    Limits,
    MemoryBlob,
    MemoryConsensus,
    ReadCapability,
    pruning,
    reading,
)
from tidemill.shard.fsck import StoreCheck
from tidemill.shard.leases import Leases
from tidemill.time import frontier

ROWS = pa.schema([("n", pa.int64()), ("s", pa.string())])
OBJECTS = Limits(inline_bytes_max=0, cache_bytes_max=0)


class Opened(MemoryBlob):
    """Remembers which objects were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    async def get(self, key: str) -> bytes | None:
        self.read.add(key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        self.read.add(key)
        return await super().get_range(key, start, stop)


class World:
    """A collection whose every write is an object of its own."""

    def __init__(self, limits: Limits = OBJECTS, key: tuple[str, ...] = ("n",)) -> None:
        self.blob, self.clock = Opened(), ManualClock(1_000_000)
        names = count()
        self.consensus = MemoryConsensus()
        self.store = Collections(
            self.consensus, self.blob, self.clock, lambda: f"{next(names)}", limits=limits
        )
        self.key = key

    async def create(self) -> ReadCapability:
        read, _ = await self.store.create("c", Description(ROWS, key=self.key), lease_ms=None)
        return read

    async def write(self, lower: int, upper: int, rows: list[tuple[Any, ...]]) -> None:
        schema = Description(ROWS).update_schema()
        table = pa.Table.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in rows], schema
        )
        await self.store.compare_and_append(
            "c", frontier(lower), frontier(upper), table, writer="w"
        )

    async def parts_read(self, read: Any) -> int:
        """Number of objects that an awaitable reads."""
        self.blob.read.clear()
        await read
        return len(self.blob.read)


async def test_a_read_as_of_t_touches_only_parts_with_updates_before_it() -> None:
    world = World()
    read = await world.create()
    for time in range(8):
        await world.write(time, time + 1, [(time, "x", time, 1)])
    store = world.store
    assert await world.parts_read(store.snapshot(read, 2)) == 3
    assert await world.parts_read(store.snapshot(read, 7)) == 8
    assert await world.parts_read(store.changes(read, 3, 5)) == 2
    assert await world.parts_read(store.changes(read, 5, 5)) == 0
    assert await world.parts_read(store.snapshot(read, 7, where=pc.field("n") > 5)) == 2
    assert await world.parts_read(store.snapshot(read, 7, equal={"n": 4})) == 1
    assert await world.parts_read(store.snapshot(read, 7, equal={"s": "y"})) == 0


async def test_a_key_is_looked_up_in_the_part_of_its_hash_range_alone() -> None:
    world = World(Limits(inline_bytes_max=0, part_bytes_max=2_000, cache_bytes_max=0))
    read = await world.create()
    await world.write(0, 1, [(n, f"s{n}", 0, 1) for n in range(1_000)])
    parts = (await world.store.state("c")).parts()
    assert len(parts) >= 8
    ranges = sorted((part.hash_min, part.hash_max) for part in parts)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    for key in (0, 17, 999):
        assert await world.parts_read(world.store.snapshot(read, 0, equal={"n": key})) == 1
    assert await world.parts_read(world.store.snapshot(read, 0)) == len(parts)


records = st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from(["a", "b"]))
changes = st.lists(st.tuples(records, st.integers(1, 3)), min_size=1, max_size=4)
writes = st.lists(changes, min_size=2, max_size=5)
wheres = st.sampled_from([None, pc.field("n") > 1, pc.field("s") == "b"])


@pytest.fixture(autouse=True, scope="module")
def however_small() -> Iterator[None]:
    """The oldest batch is kept apart from the others however small it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "APART_ROWS_MIN", 0)
        yield


@pytest.mark.rule("F5", "F11", "P6", "SU6")
@settings(max_examples=60, deadline=None)
@given(
    writes, st.sets(st.integers(0, 3), max_size=2), st.sampled_from([("n",), (), ("s", "n")]),
    wheres, st.sampled_from([None, ["s"]]), st.sampled_from([9, 9, 1]),
)  # fmt: skip
def test_contents_are_what_all_updates_add_up_to(
    given_writes: list[list[tuple[tuple[int | None, str], int]]],
    compacted_after: set[int],
    key: tuple[str, ...],
    where: pc.Expression | None,
    columns: list[str] | None,
    at: int,
) -> None:
    async def run() -> None:
        world = World(Limits(inline_bytes_max=0, part_bytes_max=64), key)
        read = await world.create()
        total: Counter[tuple[int | None, str]] = Counter()
        for time, some in enumerate(given_writes):
            await world.write(time, time + 1, [(*row, time, diff) for row, diff in some])
            if time <= at:
                for row, diff in some:
                    total[row] += diff
            if time in compacted_after:
                await world.store.compact("c")
        as_of = min(at, len(given_writes) - 1)
        table = await world.store.snapshot(read, as_of, columns=columns, where=where)
        expected: Counter[tuple[object, ...]] = Counter()
        for (n, s), diff in total.items():
            if where is None or ((n is not None and n > 1) if "n" in str(where) else s == "b"):
                expected[(s,) if columns else (n, s)] += diff
        names = columns or ROWS.names
        found = [(*(row[name] for name in names), row["_diff"]) for row in table.to_pylist()]
        assert len(found) == len({row[:-1] for row in found})
        assert {row[:-1]: row[-1] for row in found} == expected

    asyncio.run(run())


@pytest.mark.rule("L1")
async def test_a_schema_gains_nullable_columns_and_nothing_else() -> None:
    world = World()
    read = await world.create()
    await world.write(0, 1, [(1, "a", 0, 1)])
    wider = ROWS.append(pa.field("more", pa.float64()))
    await world.store.extend_schema("c", wider)
    assert (await world.store.snapshot(read, 0)).to_pylist() == [
        {"n": 1, "s": "a", "more": None, "_diff": 1}
    ]
    table = pa.table({"n": [2], "s": ["b"], "more": [0.5], "_time": [1], "_diff": [1]})
    await world.store.compare_and_append("c", frontier(1), frontier(2), table, writer="w")
    await world.store.compact("c")
    rows = (await world.store.snapshot(read, 1)).sort_by("n").to_pylist()
    assert [row["more"] for row in rows] == [None, 0.5]
    for refused in (
        ROWS,
        wider.remove(1),
        wider.set(0, pa.field("n", pa.int32())),
        wider.append(pa.field("must", pa.int64(), nullable=False)),
        pa.schema([wider.field(1), wider.field(0), wider.field(2)]),
    ):
        with pytest.raises(UsageError) as error:
            await world.store.extend_schema("c", refused)
        assert error.value.details["reason"] == "Schema"
    assert (await world.store.description("c")).schema.equals(wider)


@pytest.mark.parametrize("seed", range(12))
async def test_rows_from_before_and_after_a_schema_grew_anywhere_are_found_and_kept(
    seed: int,
) -> None:
    """Parts split by hash, kept in the log or in objects, merged across the growth: as a list of
    rows says.
    """
    random = Random(seed)
    inline, keyed = random.choice([0, 100_000]), random.random() < 0.4
    limits = Limits(inline_bytes_max=inline, part_bytes_max=3_000, cache_bytes_max=0)
    world = World(limits, ("s",) if keyed else ())
    read, schema = await world.create(), ROWS
    expected: list[dict[str, object]] = []
    for time in range(10):
        kinds = [column.type for column in schema]
        rows = [
            {
                name: f"s{random.randrange(50)}"
                if pa.types.is_string(kind)
                else random.randrange(9)
                for name, kind in zip(schema.names, kinds, strict=True)
            }
            for _ in range(random.choice([1, 200]))
        ]
        table = pa.Table.from_pylist(
            [{**row, "_time": time, "_diff": 1} for row in rows],
            Description(schema).update_schema(),
        )
        await world.store.compare_and_append("c", frontier(time), frontier(time + 1), table, writer="w")  # fmt: skip
        expected += rows
        if time == 4 or random.random() < 0.4:
            gained = pa.field(f"c{time}", random.choice([pa.int64(), pa.string()]))
            schema = schema.insert(random.randrange(len(schema) + 1), gained)
            await world.store.extend_schema("c", schema)
        if random.random() < 0.3:
            await world.store.compact("c")
        whole = [tuple(row.get(name) for name in schema.names) for row in expected]
        assert await _count(world.store.snapshot(read, time)) == Counter(whole)
        sought = dict(zip(schema.names, random.choice(whole), strict=True))
        for equal in (sought, {"s": sought["s"]}):
            wanted = Counter(
                row for row in whole if equal.items() <= dict(zip(schema.names, row, strict=True)).items()
            )  # fmt: skip
            assert await _count(world.store.snapshot(read, time, equal=equal)) == wanted
    assert len(schema) > len(ROWS)
    check = StoreCheck(world.consensus, world.blob, world.clock)
    assert [finding async for finding in check.findings() if not finding.harmless] == []


async def _count(rows: Awaitable[pa.Table]) -> Counter[tuple[object, ...]]:
    """Each row with its multiplicity."""
    found: Counter[tuple[object, ...]] = Counter()
    for row in (await rows).to_pylist():
        count = row.pop("_diff")
        found[tuple(row.values())] += count
    return found


@pytest.mark.rule("P8", "P9")
async def test_objects_of_a_version_that_a_live_capability_keeps_are_not_deleted() -> None:
    world = World()
    read = await world.create()
    slow = await world.store.read_hold("c", owner="job", lease_ms=10_000)
    for time in range(3):
        await world.write(time, time + 1, [(time, "x", time, 1)])
    store, clock = world.store, world.clock
    async with store.kept_version(slow) as version:
        kept = version.objects()
        assert len(kept) == 3
        clock.move(-5)  # Another machine, whose clock is behind.
        await store.compact("c")
        clock.move(9)
        assert await store.collect_garbage("c", grace_ms=0) == 0
        assert kept <= {entry.key for entry in await world.blob.list("")}
        await world.write(3, 4, [(9, "x", 3, 1)])
        await store.compact("c")
    assert await store.collect_garbage("c", grace_ms=0) == 5
    assert (await store.snapshot(read, 3)).num_rows == 4
    async with store.kept_version(slow):
        await world.write(4, 5, [(10, "x", 4, 1)])
        await store.compact("c")
        clock.move(11)  # The holder is dead or stands still: its lease is over.
        assert await store.collect_garbage("c", grace_ms=0) == 2
    with pytest.raises(CapabilityExpired):
        await store.snapshot(slow, 3)


@pytest.mark.rule("P8", "F11")
async def test_a_read_that_garbage_collection_overtakes_keeps_what_it_reads() -> None:
    world = World()
    read = await world.create()
    for time in range(4):
        await world.write(time, time + 1, [(time, "x", time, 1)])
    original, overtaken = world.blob.get, 0

    async def get(key: str) -> bytes | None:
        """Before each object is read, all that there are become garbage, and that is collected."""
        nonlocal overtaken
        state = await world.store.state("c")
        upper = state.upper.elements[0]
        await world.write(upper, upper + 1, [(upper, "y", upper, 1)])
        world.blob.get = original  # type: ignore[method-assign]  # compaction reads without a race
        await world.store.compact("c")
        overtaken += await world.store.collect_garbage("c", grace_ms=0)
        world.blob.get = get  # type: ignore[method-assign]
        return await original(key)

    world.blob.get = get  # type: ignore[method-assign]
    rows = await asyncio.wait_for(world.store.snapshot(read, 3), 60)
    world.blob.get = original  # type: ignore[method-assign]
    assert sorted(rows["n"].to_pylist()) == [0, 1, 2, 3]
    assert overtaken >= 4
    assert [hold.keeps_ms for hold in (await world.store.state("c")).reads.values()] == [None]
    world.clock.move(1)
    assert await world.store.collect_garbage("c", grace_ms=0) > 0


@pytest.mark.rule("P9")
@pytest.mark.parametrize("lease_ms", [None, 10_000])
async def test_a_version_is_kept_as_long_as_it_is_read_and_not_for_ever_after_a_crash(
    lease_ms: int | None,
) -> None:
    world = World()
    first = await world.create()
    read = await world.store.read_hold("c", owner="reader", lease_ms=lease_ms)
    await world.write(0, 1, [(1, "x", 0, 1)])
    async with world.store.kept_version(read) as version:
        await world.write(1, 2, [(1, "y", 1, 1)])
        await world.store.compact("c")
        kept = await world.store.state("c")
        (ends_ms,) = (h.lease_ms for h in kept.reads.values() if h.keeps_ms is not None)
        assert ends_ms == lease_ms or lease_ms is None
        assert ends_ms is not None
        await world.clock.settle()
        for _ in range(12):  # much longer than the lease
            await world.clock.advance(ends_ms / 4_000)
            await world.store.renew(read)
        assert await world.store.collect_garbage("c", grace_ms=0) == 0
        assert version.objects() <= {entry.key for entry in await world.blob.list("")}
    assert list((await world.store.state("c")).reads) == [first.id, read.id]
    (copy,) = (name for name, hold in kept.reads.items() if hold.keeps_ms is not None)
    leases = Leases(world.clock)
    assert leases.over("c", kept) == []
    world.clock.move(ends_ms / 1_000 + 1)
    assert copy in leases.over("c", kept)


async def test_a_missing_object_is_corrupt_and_an_expired_reader_is_told_so() -> None:
    world = World()
    read = await world.create()
    brief = await world.store.read_hold("c", owner="brief", lease_ms=5_000)
    await world.write(0, 1, [(1, "x", 0, 1)])
    original, waits = world.blob.get, iter([1, 1, 3, 6])

    async def get(key: str) -> bytes | None:
        world.clock.move(next(waits))
        return None

    world.blob.get = get  # type: ignore[method-assign]
    with pytest.raises(Corrupt):
        await world.store.snapshot(read, 0)
    with pytest.raises(CapabilityExpired):
        await world.store.snapshot(brief, 0)
    world.blob.get = original  # type: ignore[method-assign]
    assert (await world.store.snapshot(read, 0)).num_rows == 1
    assert list((await world.store.state("c")).reads) == [read.id]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.integers(-3, 3), st.none() | st.sampled_from("abc")), max_size=12
    ),
    st.integers(-3, 3),
    st.none() | st.sampled_from("abc"),
)
def test_few_rows_are_chosen_as_many_are(
    rows: list[tuple[int | None, str | None]], n: int, s: str | None
) -> None:
    table = pa.table({"n": [row[0] for row in rows], "s": [row[1] for row in rows]}, schema=ROWS)
    in_two = pa.concat_tables([table.slice(0, 3), table.slice(3)])
    equal = {"n": pa.scalar(n, pa.int64()), "s": pa.scalar(s, pa.string())}
    for where in (pc.field("n") < n, pc.field("s") == "a", pruning.all_equal(equal)):
        assert pruning.matching(in_two, where).to_pylist() == table.filter(where).to_pylist()


async def test_what_is_in_the_log_is_added_up_right_whatever_became_of_it() -> None:
    world = World(Limits(inline_bytes_max=10_000))
    await world.create()
    counted = world.store._inline
    for time in range(12):
        await world.write(time, time + 1, [(time, "x" * time, time, 1)])
        if time % 5 == 4:
            await world.store.compact("c")
        held = await world.store.state("c")
        assert counted.of("c", held) == held.inline_bytes() > 0


async def test_who_lags_behind_other_followers_finds_in_memory_what_comes_next() -> None:
    def rows(time: int) -> list[tuple[Any, ...]]:
        return [(n, "x" * 50, time + n % 2, 1) for n in range(1_000)]

    each = pa.Table.from_pylist([dict(zip("nstd", row, strict=True)) for row in rows(0)]).nbytes
    world = World(Limits(inline_bytes_max=0, cache_bytes_max=9 * each // 2))
    read = await world.create()
    for time in range(0, 8, 2):
        await world.write(time, time + 2, rows(time))
    store = world.store
    assert await world.parts_read(store.changes(read, 0, 5)) == 0  # and has not passed the third
    for time in (8, 10):
        await world.write(time, time + 2, rows(time))
    assert await world.parts_read(store.changes(read, 4, 12)) == 0
    assert await world.parts_read(store.changes(read, 0, 4)) == 2


async def test_s9_reading_ends_where_who_asked_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """`settled` hears of rows that are surely contents, `told` of all that is read; what they raise
    ends it.
    """
    monkeypatch.setattr(reading, "APART_ROWS_MIN", 0)
    world = World(Limits(inline_bytes_max=0, cache_bytes_max=0, part_bytes_max=2_000))
    read = await world.create()
    await world.write(0, 5, [(n, "x" * 50, 1, 1) for n in range(4_000)])
    heard: list[int] = []
    whole = await world.store.snapshot(read, 4, settled=heard.append)
    every = await world.parts_read(world.store.snapshot(read, 4))
    assert every > 5 * reading.TOGETHER
    assert heard == sorted(heard)
    assert heard[-1] >= whole.nbytes // 2

    def enough(size: int) -> None:
        if size > whole.nbytes // 20:
            raise UsageError("enough")

    async def give_up(**hears: Any) -> None:
        for reading_ in (
            world.store.snapshot(read, 4, **hears),
            world.store.read_without_hold("c", 4, **hears),
        ):
            with pytest.raises(UsageError, match="enough"):
                await reading_

    total = [0]

    def summed(size: int) -> None:
        total[0] += size
        enough(total[0])

    assert await world.parts_read(give_up(settled=enough)) < every // 2
    assert await world.parts_read(give_up(told=summed)) < every // 2


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_backlog_is_read_in_pieces_as_it_is_stored(compacted: bool) -> None:
    """Pieces are about as long as is asked for, and add up to what one reading gives."""
    world = World()
    read = await world.create()
    for at in range(40):
        rows = [(n, "x", at, 1) for n in range(at, at + 5)]
        await world.write(at, at + 1, rows + [(n, "x", at, -1) for n in range(at - 5, at) if n > 4])
    if compacted:
        await world.store.compact("c")
    pieces, lower = [], 0
    while lower < 40:
        upper = await world.store.upper_of_rows("c", lower, 40, 40)
        assert lower < upper <= 40
        pieces.append(await world.store.changes(read, lower, upper, added_up=False))
        lower = upper
    assert len(pieces) > 5
    assert max(piece.num_rows for piece in pieces) <= 60
    whole = await world.store.changes(read, 0, 40)
    assert consolidate(pa.concat_tables(pieces)).equals(consolidate(whole))
    assert await world.store.upper_of_rows("c", 3, 40, 0) == 4, "an instant is never cut"
    assert await world.store.upper_of_rows("c", 0, 40, 10_000) == 40


async def test_updates_between_instants_are_counted_without_a_read() -> None:
    """Exactly between the ends of appends, evenly within one."""
    world = World()
    await world.create()
    assert world.store.count_updates("c", 0, 100) == 0
    await world.write(0, 10, [(n, "x", n, 1) for n in range(10)])
    await world.write(10, 20, [(n, "x", 10 + n % 10, 1) for n in range(40)])
    for lower, upper, updates in ((0, 99, 50), (0, 10, 10), (10, 15, 20), (20, 99, 0)):
        assert world.store.count_updates("c", lower, upper) == updates
    assert world.store.count_updates("none", 0, 100) == 0


async def test_the_time_before_the_first_row_is_one_piece_with_it() -> None:
    world, begins = World(), 1_700_000_000_000
    await world.create()
    rows = [(n, "x", begins + n, 1) for n in range(1_000)]
    await world.write(0, begins + 1_000, rows)
    assert await world.store.upper_of_rows("c", 0, begins + 1_000, 100) == begins + 100


async def test_the_parts_from_an_instant_on_are_found_among_many() -> None:
    """Since and compaction change the batches, and not the answer."""
    random = Random(3)
    world = World()
    read = await world.create()
    looked = kept = upper = since = 0
    for _ in range(60):
        lower, upper = upper, upper + random.randrange(1, 4)
        rows = [(n, "x", random.randrange(lower, upper), 1) for n in range(random.randrange(3))]
        await world.write(lower, upper, rows)
        if random.random() < 0.1:
            since = random.randrange(since, upper)
            read = await world.store.downgrade(read, frontier(since))
            await world.store.compact_step("c", 20)
        state = await world.store.state("c")
        for at in range(upper + 2):
            found = [part for part in state.pieces_from(at) if part.meets(at, None)]
            assert found == [part for part in state.parts() if part.meets(at, None)]
            looked += len(state.pieces_from(at))
            kept += len(found)
    assert since > 0
    assert looked < 3 * kept
