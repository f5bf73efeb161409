"""Reads of a large collection in local files: snapshots, lookups by key, space."""

from __future__ import annotations

import asyncio
import os
import shutil
import zlib
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter

import numpy as np
import pyarrow.parquet as pq

from bench.shard.figures import Figure, quantiles
from bench.shard.worlds import TABLE, files_at, rows, value_of
from bench.shard.writing import commit
from tidemill.shard import ReadCapability
from tidemill.shard.parts import BLOCK_BYTES
from tidemill.time import frontier

STEP = 1_000_000
WARM, COLD = 1_000, 40


async def large(seed: int, count: int) -> list[Figure]:
    """Write `count` rows in steps, compact, and read what there is in processes that know
    nothing.
    """
    folder = Path(mkdtemp(prefix="bench-", dir=".state"))
    try:
        random = np.random.default_rng(seed)
        store = files_at(folder)
        first, _ = await store.create("large", TABLE, lease_ms=None)
        times = range(-(-count // STEP))
        for time in times:
            await commit(store, "large", time, rows(STEP, time, random, time * STEP))
        read = await store.read_hold("large", owner="bench", at=frontier(times[-1]), lease_ms=None)
        await store.drop(first)
        begin = perf_counter()
        await store.compact("large")
        rate = count / (perf_counter() - begin)
        await store.collect_garbage("large", grace_ms=0)
        await store.close()
        found = [Figure("files", "compaction", rate / 1e6, "M rows/s")]
        found += await _snapshots(folder, read, times[-1])
        found += await _lookups(folder, read, times[-1], np.random.default_rng(seed + 1), count)
        return found
    finally:
        shutil.rmtree(folder)


async def _snapshots(folder: Path, read: ReadCapability, as_of: int) -> list[Figure]:
    plain = folder / "plain.parquet"
    ours, theirs = [], []
    for attempt in range(4):
        store = files_at(folder)
        begin = perf_counter()
        contents = await store.snapshot(read, as_of)
        ours.append(contents.num_rows / (perf_counter() - begin))
        size = (await store.status("large")).bytes
        await store.close()
        if attempt == 0:
            data = contents.drop_columns(["_diff"])
            pq.write_table(data.sort_by("key"), plain, compression="zstd")
            keys = np.asarray(contents["key"].to_numpy())
            assert len(np.unique(keys)) == contents.num_rows
            assert np.array_equal(np.asarray(contents["val"].to_numpy()), value_of(keys))
            del data, keys
        count = contents.num_rows
        del contents
        begin = perf_counter()
        pq.read_table(plain)
        theirs.append(count / (perf_counter() - begin))
    tail = await _with_a_tail(folder, read, as_of, count)
    mine, least = (sorted(rates)[len(rates) // 2] / 1e6 for rates in (ours[1:], theirs[1:]))
    stored, bare = size / count, plain.stat().st_size / count
    return [
        Figure("files", "snapshot", mine, "M rows/s", least, "plain Parquet, read on two cores"),
        Figure("files", "snapshot with ten fresh batches of 1,000 rows", tail, "M rows/s"),
        Figure("files", "space of a million rows", stored, "MB", bare, "plain Parquet zstd"),
    ]


async def _with_a_tail(folder: Path, read: ReadCapability, as_of: int, count: int) -> float:
    """Million rows a second of a snapshot of what is not all compacted."""
    store = files_at(folder)
    random = np.random.default_rng(0)
    for time in range(as_of + 1, as_of + 11):
        await commit(store, "large", time, rows(1_000, time, random, time * 1_000))
    await store.close()
    store = files_at(folder)
    begin = perf_counter()
    contents = await store.snapshot(read, as_of + 10)
    rate = contents.num_rows / (perf_counter() - begin)
    await store.close()
    assert contents.num_rows == count
    assert int(np.asarray(contents["_diff"].to_numpy()).sum()) == count + 10_000
    return rate / 1e6


async def _lookups(
    folder: Path, read: ReadCapability, as_of: int, random: np.random.Generator, count: int
) -> list[Figure]:
    found = []
    for kind, tries in (("warm", WARM), ("cold", COLD)):
        store = files_at(folder)
        times, bare = [], []
        for key in random.integers(0, count, tries):
            if kind == "cold":
                await store.close()
                _forget_pages(folder)
                store = files_at(folder)
                await store.status("large")
            begin = perf_counter()
            await asyncio.to_thread(_read_block, folder, random)
            bare.append(perf_counter() - begin)
            begin = perf_counter()
            row = await store.snapshot(read, as_of, equal={"key": int(key)})
            times.append(perf_counter() - begin)
            assert row["val"].to_pylist() == [int(value_of(key))]
        await store.close()
        both = zip(("p50", "p99"), quantiles(times), quantiles(bare), strict=True)
        for label, mine, least in both:
            what = f"lookup in {count // 10**6} M rows, {kind}, {label}"
            floor = "one block read on another thread"
            found.append(Figure("files", what, mine * 1e3, "ms", least * 1e3, floor))
    return found


def _read_block(folder: Path, random: np.random.Generator) -> int:
    """Read one block of one object, with its checksum: the least that a lookup may do."""
    files = sorted((folder / "blob").rglob("part-*"), key=lambda file: file.stat().st_size)
    with files[-1].open("rb") as file:
        file.seek(BLOCK_BYTES * int(random.integers(0, file.seek(0, os.SEEK_END) // BLOCK_BYTES)))
        return zlib.crc32(file.read(BLOCK_BYTES))


def _forget_pages(folder: Path) -> None:
    """Make the operating system forget its copies of the objects."""
    for file in (folder / "blob").rglob("part-*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
