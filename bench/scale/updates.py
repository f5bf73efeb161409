"""One collection of very many updates: made, merged, asked for keys, scanned; answers checked.

Each instant adds rows, and changes one in eight of those that the instant before has added. All
answers have a closed form. Appends, merges and reads are those of the product; memory is bounded by
an instant, and by a range.
"""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.arrangement.updates import DIFF
from tidemill.runtime.clock import SystemClock
from tidemill.shard import (
    Appended,
    Collections,
    Description,
    DirectoryBlob,
    Limits,
    ReadCapability,
    SqliteConsensus,
)
from tidemill.shard.encoding import encode_rollup
from tidemill.shard.part_store import LIMITS, PartStore
from tidemill.shard.ranges import RangeReader, cut
from tidemill.time import frontier
from tidemill_compaction.driver import CompactionDriver
from tidemill_compaction.settings import CompactionSettings

SCHEMA = pa.schema([("key", pa.int64()), ("val", pa.int64()), ("name", pa.string())])
NAME = "rows"
VALUES = 1_000
CHANGED = 8
"""One row in so many is changed at the next instant: its value grows by VALUES."""
ROWS_OF_STEP = 800_000
LOOKUPS = 2_000
NAMES = pa.array([f"name-{n}" for n in range(VALUES)])
ODD = np.uint64(0x9E3779B97F4A7C15)

Numbers = npt.NDArray[np.int64]


def key_of(numbers: Numbers) -> Numbers:
    """The keys of rows, as if drawn by lot; each number has one of its own."""
    with np.errstate(over="ignore"):
        return cast(Numbers, (numbers.astype(np.uint64) * ODD).view(np.int64))


def number_of(keys: Numbers) -> Numbers:
    """The numbers of the rows with these keys."""
    with np.errstate(over="ignore"):
        back = keys.view(np.uint64) * np.uint64(pow(int(ODD), -1, 1 << 64))
    return cast(Numbers, back.view(np.int64))


def values_at(numbers: Numbers, at: int, step: int) -> Numbers:
    """The values of rows as of an instant."""
    changed = (numbers % CHANGED == 0) & (numbers < at * step)
    return cast(Numbers, numbers % VALUES + changed * VALUES)


def rows_at(at: int, step: int) -> int:
    """The number of rows as of an instant."""
    return (at + 1) * step


def sum_at(at: int, step: int) -> int:
    """The sum of all values as of an instant, for a `step` that VALUES divides."""
    whole = rows_at(at, step) // VALUES * (VALUES * (VALUES - 1) // 2)
    return whole + at * step // CHANGED * VALUES


def updates_at(at: int, step: int) -> pa.Table:
    """The updates of one instant."""
    new = np.arange(at * step, (at + 1) * step)
    old = new[::CHANGED] - step if at else new[:0]
    numbers = np.concatenate([new, old, old])
    diffs = np.ones(len(numbers), np.int64)
    diffs[len(new) : len(new) + len(old)] = -1
    values = numbers % VALUES
    values[len(new) + len(old) :] += VALUES
    return pa.table(
        {
            "key": key_of(numbers),
            "val": values,
            "name": NAMES.take(pa.array(numbers % VALUES)),
            "_time": np.full(len(numbers), at, np.uint64),
            "_diff": diffs,
        }
    )


class CountedBlob(DirectoryBlob):
    """Objects in a folder, and how many bytes of them were read."""

    bytes_read = 0

    async def get(self, key: str) -> bytes | None:
        """An object, counted."""
        found = await super().get(key)
        self.bytes_read += len(found or b"")
        return found

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """A part of an object, counted."""
        found = await super().get_range(key, start, stop)
        self.bytes_read += len(found or b"")
        return found


class World:
    """The collection in a folder, and what was measured of it."""

    def __init__(self, folder: Path, step: int, limits: Limits) -> None:
        self.step, self.limits, self.folder = step, limits, folder
        self.figures: dict[str, float] = {}
        self.clock = SystemClock()
        self.open()

    def open(self) -> None:
        """Open it as a process that knows nothing."""
        self.blob = CountedBlob(self.folder / "blob", lambda: token_hex(8))
        consensus = SqliteConsensus(self.folder / "consensus.sqlite")
        self.store = Collections(
            consensus, self.blob, self.clock, lambda: token_hex(16), limits=self.limits
        )

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Add the seconds of a block, on the wall and of the processor, to the figures."""
        begun_s, used_s = time.perf_counter(), time.process_time()
        yield
        for name, spent in (
            ("wall", time.perf_counter() - begun_s),
            ("processor", time.process_time() - used_s),
        ):
            key = f"{what}_{name}_s"
            self.figures[key] = self.figures.get(key, 0.0) + spent

    async def make(self, steps: int, say: Callable[[str], None]) -> ReadCapability:
        """Append all instants, with the looks of compaction between them, and merge at the end.

        History from the middle on is kept.
        """
        first, _ = await self.store.create(NAME, Description(SCHEMA, key=("key",)), lease_ms=None)
        settings = CompactionSettings(garbage_grace_s=0.0)
        driver = CompactionDriver(self.store, self.clock, settings)
        held = await self.store.read_hold(
            NAME, owner="bench", at=frontier(steps // 2), lease_ms=None
        )
        await self.store.drop(first)
        for at in range(steps):
            with self.measured("generate"):
                table = updates_at(at, self.step)
            with self.measured("append"):
                outcome = await self.store.compare_and_append(
                    NAME, frontier(at), frontier(at + 1), table, writer="bench"
                )
            assert outcome == Appended(frontier(at + 1))
            with self.measured("merge"):
                await driver.look()
            if at % max(1, steps // 20) == 0:
                say(f"{at + 1} of {steps} instants, {memory_mb():.0f} MB at most")
        with self.measured("merge"):
            await self.store.compact(NAME)
            await self.store.collect_garbage(NAME, 0)
        self.figures["rewritten_rows"] = sum(driver.counts.rewritten.values())
        return held

    async def ask(self, held: ReadCapability, first: int, last: int) -> None:
        """Look up keys as of instants from `first` to `last`; some are not there yet."""
        self.open()
        random, took = np.random.default_rng(1), []
        numbers = random.integers(0, rows_at(last, self.step), LOOKUPS)
        with self.measured("lookups"):
            for number in numbers:
                at = int(random.integers(first, last + 1))
                begun_s = time.perf_counter()
                key = int(key_of(np.array([number]))[0])
                found = await self.store.snapshot(held, at, equal={"key": key})
                took.append((time.perf_counter() - begun_s) * 1e3)
                there = [int(values_at(np.array([number]), at, self.step)[0])]
                expected = there if number < rows_at(at, self.step) else []
                assert found["val"].to_pylist() == expected, (number, at)
        took.sort()
        self.figures["lookup_p50_ms"] = took[len(took) // 2]
        self.figures["lookup_p99_ms"] = took[len(took) * 99 // 100]
        self.figures["lookup_bytes"] = self.blob.bytes_read / len(took)
        await self.store.close()

    async def scan(self, at: int) -> None:
        """Read all rows as of an instant, a range after the other, and compare count and sum."""
        self.open()
        version = await self.store.state(NAME)
        reader = RangeReader(PartStore(self.blob, lambda: token_hex(16)))
        count = total = 0
        with self.measured("scan"):
            for each in cut(version, 0, at + 1):
                for table in await reader.contents(each, at, ["key", "val"]):
                    diffs = table.column(DIFF).to_numpy()
                    numbers = number_of(np.array(table.column("key").to_numpy()))
                    values = np.array(table.column("val").to_numpy())
                    assert bool((values == values_at(numbers, at, self.step)).all())
                    count += int(diffs.sum())
                    total += int((values * diffs).sum())
        assert (count, total) == (rows_at(at, self.step), sum_at(at, self.step))
        self.figures["scanned_rows"] = self.figures.get("scanned_rows", 0) + count
        self.figures["parts"] = len(version.parts())
        self.figures["state_bytes"] = len(encode_rollup(version))
        self.figures["bytes"] = sum(part.size for part in version.parts())
        await self.store.close()


def memory_mb() -> float:
    """The most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


async def run(
    updates: int,
    step: int = ROWS_OF_STEP,
    limits: Limits = LIMITS,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, float]:
    """The figures of a collection of about so many updates; every answer is checked.

    `step` rows are added at each instant: a multiple of VALUES.
    """
    folder = _folder()
    try:
        steps = max(2, updates * CHANGED // (step * (CHANGED + 2)))
        world = World(folder, step, limits)
        held = await world.make(steps, say)
        await world.store.close()
        last = steps - 1
        await world.ask(held, steps // 2, last)
        for at in (last, steps // 2):
            await world.scan(at)
        made = steps * step + 2 * (steps - 1) * step // CHANGED
        found = {"updates": made, "instants": steps, **world.figures, "memory_mb": memory_mb()}
        return {name: round(value, 3) for name, value in found.items()}
    finally:
        shutil.rmtree(folder)


def _folder() -> Path:
    root = Path(".state")
    root.mkdir(exist_ok=True)
    return Path(mkdtemp(prefix="bench-", dir=root))


def shown(figures: dict[str, float]) -> str:
    """The figures for programs, with those that follow from them."""
    more: dict[str, Any] = {
        "append_per_processor_s": figures["updates"] / figures["append_processor_s"],
        "merge_per_processor_s": figures["updates"] / figures["merge_processor_s"],
        "scan_per_processor_s": figures["scanned_rows"] / figures["scan_processor_s"],
        "lookup_processor_ms": figures["lookups_processor_s"] / LOOKUPS * 1e3,
        "bytes_per_update": figures["bytes"] / figures["updates"],
    }
    return json.dumps({**figures, **{name: round(value, 3) for name, value in more.items()}})
