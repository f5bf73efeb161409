"""The work of one range alone is divided by time, with the same answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from secrets import token_hex

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.arrangement.updates import concatenate, consolidate
from tidemill.shard.encoding import unpack_part
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.workplace import Workplace
from tidemill.testkit.mortal_views import END, HOST, PING, PROGRAMS, World, expected, table
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views import eras
from tidemill_compute.views.bulk import History
from tidemill_compute.views.bulk_spark import history_window
from tidemill_compute.views.eras import cuts_of
from tidemill_compute.views.range_history import BEFORE
from tidemill_compute.views.range_wire import Dealt, table_in
from tidemill_compute.views.told_wire import Told
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.spec import WindowResult, pack_window
from tidemill_compute.views.windows.window_job import run
from tidemill_compute.views.windows.work import WindowWork

MORE = {
    "a group after an exchange": """
        named(n, h) := ping(h, n) ^ host(h);
        many(n) @count(h) @max(h) := named(n, h);
        few(n) := many(n) @count(c) if c < 2;
    """,
    "groups of which each range has a part": """
        worth(n) @sum(length(h)) @count(h) := ping(h, n) ^ host(h);
        total() @sum(n) @average(n) @count(1) := ping(_, n);
        kinds() @count_distinct(n) @set(h) := ping(h, n) ^ host(h);
        often(n) ~sum ~count := worth(n) @count(c) if c > 1;
    """,
    "counts that are passed on, and meet again": """
        many(n) @count(h) := ping(h, n);
        either(n, h) := many(n) ^ ping(h, n);
        all(h) @max(n) := either(n, h);
        both(h) := all(h) ^ host(h);
    """,
    "one error of several keys": "share(h, 6 / 0) := ping(h, n);",
    "facts of a later time": """
        later(h, n) @time(t + 9) := ping(h, n) @time(t) ^ host(h);
        soon(h) @count(n) := later(h, n);
    """,
    "sets of another view": """
        alike(s) @count(h) := load(h) @set(s);
        most(h, m) := load(h) @max(m) ^ host(h);
    """,
    "joins without a key": "later(n, m) := ping(_, n) ^ ping(_, m) if n < m;",
}
TEXTS = PROGRAMS | MORE
ALONE = {
    "solutions that outlive what established them", "solutions that outlive one of their facts",
    "recursion that groups facts with ends", "recursion",
}  # fmt: skip
DIVIDED: Counter[str] = Counter()


async def history_of(world: World, seed: int) -> History:
    """All that was fed, in several parts."""
    await world.create()
    random, fed = Random(seed), 0
    while fed < END:
        upper = min(END, fed + random.randrange(5, 30))
        await world.feed(fed, upper)
        fed = upper
    return await history_below(world, END)


async def history_below(world: World, upper: int) -> History:
    """All that was fed, below an instant."""
    states = {name: await world.now.state(name) for name, _ in world.target.inputs.values()}
    written = [name for name, _ in world.target.outputs.values()] + ["v/state", "v/errors"]
    return History(
        world.target, ComputeSettings(), 0, upper,
        {name: (state.description, state.parts()) for name, state in states.items()},
        {name: await world.now.description(name) for name in written},
    )  # fmt: skip


def window_of(history: History, ranges: int, cores: int) -> bytes:
    window = history_window(history, "test", 0, ranges=ranges)
    ranges = ranges if window.ranges > 1 else 1
    return pack_window(msgspec.structs.replace(window, ranges=ranges, cores=cores))


async def rows_of(world: World, history: History, found: Mapping[str, list[bytes]]) -> object:
    store, tables = PartStore(world.stores[1], str), {}
    for name in (*(name for name, _ in world.target.outputs.values()), "v/errors"):
        description = history.written[name]
        parts = [
            await store.table(unpack_part(each), description, keep=False)
            for each in found.get(name, ())
        ]
        tables[name] = consolidate(concatenate([description.update_schema().empty_table(), *parts]))
    return tables


def divide_all(monkeypatch: pytest.MonkeyPatch, random: Random) -> None:
    """Divide each range, at any instants."""

    def every(divided: object, fragment: object, *told: object) -> dict[int, int]:
        ranges = divided.ranges_of(fragment)  # type: ignore[attr-defined]  # as they are called
        return {at: 4 for at in range(ranges) if random_of(at).random() < 0.8}

    def cuts(parts: object, lower: int, upper: int, pieces: int) -> list[int]:
        return [lower, *sorted(random_of(0).sample(range(lower + 1, upper), 3)), upper]

    seed = random.random()

    def random_of(at: int) -> Random:
        return Random(f"{seed} {at}")

    monkeypatch.setattr(eras, "pieces_of", every)
    monkeypatch.setattr(eras, "cuts_of", cuts)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("seed", range(6))
async def test_eras_of_a_history_say_together_what_the_twin_says(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(TEXTS[name], seed)
    history = await history_of(world, seed)
    divide_all(monkeypatch, Random(f"{name} {seed}"))
    packed = window_of(history, (1, 2, 4)[seed % 3], 2)
    work = WindowWork(packed, world.stores[1], None)
    DIVIDED[name] += work.tasks > work.divided.ranges
    result = await answer(packed, world.stores[1], None, evaluate_here)
    assert not result.failure, result.message
    assert await rows_of(world, history, result.parts) == expected(world.program, world.history)


def test_most_programs_have_had_eras() -> None:
    """Others remember matches, or recur."""
    divided = {name for name, found in DIVIDED.items() if found}
    assert TEXTS.keys() - divided <= ALONE
    assert len(divided) > 9


def forgetting(payload: bytes, at: int) -> Iterator[bytes]:
    """Nothing is there before an era."""
    yield from ()


@pytest.mark.parametrize(("name", "wrong"), [
    ("told_before", forgetting), ("consolidate", lambda rows: rows.slice(0, 0)),
])  # fmt: skip
async def test_eras_that_begin_with_nothing_are_found_out(
    name: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The companion: the same comparison fails where rows before an era are lost."""
    monkeypatch.setattr(eras, name, wrong)
    differing = 0
    for seed in range(4):
        world = World(MORE["a group after an exchange"], seed)
        history = await history_of(world, seed)
        divide_all(monkeypatch, Random(seed))
        packed = window_of(history, 2, 2)
        result = await answer(packed, world.stores[1], None, evaluate_here)
        found = await rows_of(world, history, result.parts)
        differing += bool(result.failure) or found != expected(world.program, world.history)
    assert differing > 2


def pings(heavy: float, size: int = 4_000) -> pa.Table:
    """Pings that end, a part of them by one host, the others by 400."""
    random, rows = Random(1), []
    for n in range(size):
        time = random.randrange(1, 900)
        host = "a" if random.random() < heavy else f"h{n % 400}"
        row = (host, n, time, time + 50)
        rows += [(*row, time, 1), (*row, time + 50, -1)]
    return table(rows, PING)


def with_heavy(history: History, rows: int) -> History:
    """A history whose parts tell, as larger ones do, how many of their rows are of host a."""
    inputs = dict(history.inputs)
    description, parts = inputs["ping"]
    known = {"h": (("a", rows),)} if rows else {}
    inputs["ping"] = description, tuple(replace(part, heavy=known) for part in parts)
    return replace(history, inputs=inputs)


async def rows_of_tasks(text: str, heavy: float, cores: int) -> Counter[tuple[int, int]]:
    """The rows that each task is dealt, by fragments and ranges."""
    world = World(text, 1)
    world.history = {"ping": pings(heavy), "host": table([("a", 1, 1)], HOST)}
    await world.create()
    for name in world.target.inputs:
        await world.now.compare_and_append(
            name, frontier(0), frontier(1_000), world.history[name], writer="test"
        )
    history = with_heavy(await history_below(world, 1_000), int(8_000 * heavy))
    packed = window_of(history, 8, cores)
    found: Counter[tuple[int, int]] = Counter()
    work = WindowWork(packed, world.stores[1], None)
    waiting: list[Dealt] = []
    for fragment in work.fragments:
        for at in range(len(work.inputs_of(fragment))):
            waiting += [each async for each in work.deal(fragment.number, at)]
        mine = [each for each in waiting if each.stage == fragment.number]
        told = {n.name for n in fragment.reads if work.divided.input_of(n.predicate) is None}
        for each in mine:
            was_told = each.name.removeprefix(BEFORE) in told
            rows = Told.unpack(each.payload).table if was_told else table_in(each.payload)
            found[each.stage, each.range] += len(rows)
        waiting += [each async for each in work.stage(fragment.number, 0, 1, mine)]
    return found


HEAVY_GROUPS = {
    "a count": "load(h) @count(n) := ping(h, n);",
    "an extreme and a sum": "load(h) @max(n) @sum(n) := ping(h, n);",
    "a set": "load(h) @set(n) := ping(h, n) if n < 9;",
    "a count after an exchange": """
        odd(n, h) := ping(h, n) ^ not ping("b", n);
        load(h) @count(n) := odd(n, h);
    """,
    "distinct values": "load(h) @count_distinct(n) := ping(h, n);",
    "a group of all": "load() @max(n) @count(n) := ping(_, n);",
}


@pytest.mark.parametrize("name", HEAVY_GROUPS)
async def test_no_task_has_far_more_rows_than_others_for_a_key_of_30_percent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eras, "ROWS_MIN", 10)
    text = HEAVY_GROUPS[name]
    even = await rows_of_tasks(text, 0.0, 8)
    most = await rows_of_tasks(text, 0.3, 8)
    alone = await rows_of_tasks(text, 0.3, 0)
    longest = []
    for stage in {stage for stage, _ in even}:
        rows = [max(n for (s, _), n in e.items() if s == stage) for e in (even, most, alone)]
        assert rows[1] <= 1.5 * rows[0], rows
        longest.append(rows[2] / rows[0])
    assert "all" in name or max(longest) > 2


def part(rows: int, begin: int, end: int) -> Part:
    return Part(rows, 0, begin, end, 2)


def test_instants_between_eras_have_as_many_updates_on_each_side() -> None:
    assert cuts_of([part(100, 0, 99)], 0, 100, 4) == [0, 25, 50, 75, 100]
    assert cuts_of([part(100, 0, 9), part(100, 90, 99)], 0, 100, 4) == [0, 5, 10, 95, 100]
    assert cuts_of([part(100, 7, 7)], 0, 100, 4) == [0, 8, 100]
    assert cuts_of([part(100, 0, 0)], 0, 1, 4) == [0, 1]


@pytest.mark.server
async def test_a_job_of_several_cores_divides_the_count_of_one_host(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Its parts say the same as those of a process that divides nothing."""
    blob = open_blob(BlobPlace(f"file:{tmp_path}"), lambda: token_hex(8))
    world = World(
        "load(h) @count(n) := ping(h, n); all() @max(n) @count(n) := ping(_, n);", 1, blob
    )
    world.history = {"ping": pings(0.9, 12_000)}
    await world.create()
    await world.now.compare_and_append(
        "ping", frontier(0), frontier(1_000), world.history["ping"], writer="test"
    )
    packed = window_of(await history_below(world, 1_000), 2, 0)
    wanted = await answer(packed, blob, None, evaluate_here)
    here = Workplace(spark, BlobPlace(f"file:{tmp_path}"), lambda line: None)
    said = await asyncio.to_thread(run, packed, here)
    result = msgspec.msgpack.decode(said, type=WindowResult)
    assert result.touched > wanted.touched
    history = await history_below(world, 1_000)
    assert await rows_of(world, history, result.parts) == await rows_of(
        world, history, wanted.parts
    )
