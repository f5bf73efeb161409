"""Commits: latency by size, throughput of one writer and of many collections, subscribers."""

from __future__ import annotations

import asyncio
from time import perf_counter

import numpy as np

from bench.shard.figures import Figure, quantiles
from bench.shard.worlds import TABLE, World, plain_bytes, rows
from tidemill.shard import Appended, Collections, Progress
from tidemill.time import frontier

COMMITS = {1: 300, 1_000: 100, 100_000: 12}
OBJECTS_FROM = 100_000
COLLECTIONS = 16
SUBSCRIBERS = 100


async def commit(store: Collections, collection: str, time: int, table: object) -> None:
    """Append one instant, which nobody else does."""
    outcome = await store.compare_and_append(
        collection,
        frontier(time),
        frontier(time + 1),
        table,
        writer="bench",  # type: ignore[arg-type]
    )
    assert outcome == Appended(frontier(time + 1))


async def latencies(world: World, seed: int) -> list[Figure]:
    """Each commit is timed beside a bare write of the same rows to the same store."""
    random = np.random.default_rng(seed)
    store, found = world.open(), []
    for size, count in COMMITS.items():
        name = f"latency-{size}"
        await store.create(name, TABLE, lease_ms=None)
        floor = world.object_floor if size >= OBJECTS_FROM else world.log_floor
        floor_name = world.object_floor_name if size >= OBJECTS_FROM else world.log_floor_name
        ours, bare = [], []
        for time in range(count):
            table = rows(size, time, random)
            data = plain_bytes(table)
            begin = perf_counter()
            await floor(data)
            bare.append(perf_counter() - begin)
            begin = perf_counter()
            await commit(store, name, time, table)
            ours.append(perf_counter() - begin)
        for label, mine, least in zip(
            ("p50", "p99"), quantiles(ours), quantiles(bare), strict=True
        ):
            what = f"commit of {size:,} rows, {label}"
            found.append(Figure(world.name, what, mine * 1e3, "ms", least * 1e3, floor_name))
        reader = await store.read_hold(name, owner="bench")
        contents = await store.snapshot(reader, count - 1)
        assert sum(contents["_diff"].to_pylist()) == size * count
    await store.close()
    return found


async def throughput(world: World, seed: int) -> list[Figure]:
    """Commits a second of one row each, by one writer and into several collections at once."""
    random = np.random.default_rng(seed)
    store = world.open()
    names = [f"throughput-{number}" for number in range(COLLECTIONS + 1)]
    for name in names:
        await store.create(name, TABLE, lease_ms=None)
    tables = [rows(1, time, random) for time in range(200)]
    begin = perf_counter()
    for table in tables:
        await world.log_floor(plain_bytes(table))
    bare = len(tables) / (perf_counter() - begin)

    async def writer(name: str, count: int) -> None:
        for time in range(count):
            await commit(store, name, time, tables[time])

    begin = perf_counter()
    await writer(names[0], 200)
    one = 200 / (perf_counter() - begin)
    begin = perf_counter()
    await asyncio.gather(*(writer(name, 60) for name in names[1:]))
    many = COLLECTIONS * 60 / (perf_counter() - begin)
    await store.close()
    floor = f"{world.log_floor_name}s one after the other"
    return [
        Figure(world.name, "commits of one writer", one, "1/s", bare, floor),
        Figure(world.name, f"commits into {COLLECTIONS} collections", many, "1/s", bare, floor),
    ]


async def fan_out(world: World, seed: int, subscribers: int = SUBSCRIBERS) -> list[Figure]:
    """From an acknowledged commit until every subscriber in the process has its update."""
    random = np.random.default_rng(seed)
    store = world.open()
    read, _ = await store.create("fan-out", TABLE, lease_ms=None)
    await commit(store, "fan-out", 0, rows(100, 0, random))
    streams = [store.subscribe(read, 0, columns=("key",)) for _ in range(subscribers)]
    counts = [0] * subscribers

    async def reach(number: int, upper: int) -> None:
        async for event in streams[number]:
            if not isinstance(event, Progress):
                counts[number] += event.table.num_rows
            elif not event.upper.less_equal(upper - 1):
                return

    await asyncio.gather(*(reach(number, 1) for number in range(subscribers)))
    waits = []
    for time in range(1, 21):
        table = rows(1, time, random)
        readers = [asyncio.create_task(reach(number, time + 1)) for number in range(subscribers)]
        await asyncio.sleep(0)
        await commit(store, "fan-out", time, table)
        begin = perf_counter()
        await asyncio.gather(*readers)
        waits.append(perf_counter() - begin)
    assert counts == [120] * subscribers
    for stream in streams:
        await stream.aclose()
    await store.close()
    median, worst = quantiles(waits)
    return [
        Figure(world.name, f"commit seen by {subscribers} subscribers, p50", median * 1e3, "ms"),
        Figure(world.name, f"commit seen by {subscribers} subscribers, p99", worst * 1e3, "ms"),
    ]


async def open_long_log(world: World, versions: int = 10_000) -> list[Figure]:
    """A process that knows nothing opens a collection with a long log."""
    store = world.open()
    for name, count in (("short", 1), ("long", versions)):
        await store.create(name, TABLE, lease_ms=None)
        for time in range(count):
            await commit(store, name, time, None)
    await store.close()
    took: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(7):
        for name, times in took.items():
            fresh = world.open()
            await fresh.ids()
            begin = perf_counter()
            status = await fresh.status(name)
            times.append(perf_counter() - begin)
            assert status.upper == frontier(versions if name == "long" else 1)
            await fresh.close()
    least, mine = (quantiles(took[name])[0] * 1e3 for name in ("short", "long"))
    what = f"open a collection with {versions:,} versions"
    return [Figure(world.name, what, mine, "ms", least, "with two versions")]
