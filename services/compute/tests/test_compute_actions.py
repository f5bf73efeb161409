"""Actions whose process dies at any write, also in the middle of a line of its sink."""

from __future__ import annotations

import asyncio
import itertools
import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tidemill.arrangement.updates import empty_updates
from tidemill.catalog.record_rows import PredicateShape
from tidemill.catalog.schemas import DONE_SCHEMA, OUTBOX_SCHEMA, corrections_schema
from tidemill.datalog.goals import goal_over
from tidemill.errors import Unavailable, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.time import frontier
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.firings import Firings
from tidemill_compute.actions.outbox import Firing, Took, untold
from tidemill_compute.actions.sink_file import FileSink
from tidemill_compute.actions.sink_log import LogSink
from tidemill_compute.actions.taking import Taking
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.settings import ComputeSettings

END = 30
ALARM = pa.schema(
    [("tank", pa.string()), ("level", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
SHAPE = PredicateShape("alarm", ALARM, 2, timed=True)
GOAL = goal_over("alarm(tank, 1)", {"alarm": (("tank", "text"), ("level", "int"))}, "calls")


def alarms(seed: int) -> pa.Table:
    """Alarms that come, go and come back under the same key, some below the level of the goal."""
    random = Random(seed)
    rows: list[tuple[object, ...]] = []
    for _ in range(9):
        time = random.randrange(END - 3)
        row = (random.choice("ab"), random.randrange(2), time, None)
        if row not in [known[:4] for known in rows]:
            rows += [(*row, time, 1), (*row, time + 1, -1), (*row, time + 2, 1)]
    return table_of(rows)


def table_of(rows: Sequence[tuple[object, ...]]) -> pa.Table:
    schema = empty_updates(ALARM).schema
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def expected(updates: pa.Table, start: int = 0) -> list[tuple[object, ...]]:
    """(instant, tank, time) of each event of the goal, once, when it first begins."""
    first: dict[tuple[object, ...], int] = {}
    for row in updates.sort_by("_time").to_pylist():
        if row["level"] == 1 and row["_diff"] > 0 and row["_time"] >= start:
            first.setdefault((row["tank"], row["time"]), row["_time"])
    return sorted((instant, *key) for key, instant in first.items())


class TornSink(FileSink):
    """A file whose process may die while it writes a line."""

    def __init__(self, path: Path, fuse: Fuse, random: Random) -> None:
        super().__init__(path)
        self._file = path
        self._fuse = fuse
        self._random = random

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        self._fuse.check()
        if firings and self._random.random() < 0.3:
            whole = "".join(firing.line + "\n" for firing in firings)
            with self._file.open("a") as file:
                file.write(whole[: self._random.randrange(len(whole) + 1)])
            self._fuse.blow()
        await super().fire(firings, took)


class OneByOne(FileSink):
    """A file that takes one line at a time, refuses what comes with it, and cannot be asked."""

    refused = 0

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        await super().recover(doubtful)
        return frozenset()

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        await super().fire(firings[:1], took)
        if len(firings) > 1:
            self.refused += 1
            raise Unavailable("one at a time")


class World:
    """The stores, which outlive every process, and the collection that somebody else writes."""

    def __init__(self, seed: int) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.alarms = alarms(seed)
        self.now = self.process(Fuse(None))
        self.target = ActionTarget(
            "calls", GOAL, "alarm", SHAPE, "calls/outbox", "calls/done", "calls/corrections"
        )

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def action(self, collections: Collections, sink: FileSink | LogSink) -> ActionDriver:
        settings = ComputeSettings(hold_interval_s=0.0)
        return ActionDriver(self.target, sink, collections, self.clock, settings)

    async def create(
        self, sink: FileSink | LogSink, start: int = 0, schema: pa.Schema = ALARM
    ) -> None:
        await self.now.create("alarm", Description(schema, retain_ms=0))
        if start:
            await self.feed(0, start)
        for name, schema in (
            ("calls/outbox", OUTBOX_SCHEMA),
            ("calls/done", DONE_SCHEMA),
            ("calls/corrections", corrections_schema(self.target.shape)),
        ):
            await self.now.create(name, Description(schema), start=frontier(start))
        await self.action(self.now, sink).prepare()

    async def feed(self, lower: int, upper: int) -> None:
        times = self.alarms["_time"].to_numpy()
        part = self.alarms.filter(pa.array((times >= lower) & (times < upper)))
        await self.now.compare_and_append(
            "alarm", frontier(lower), frontier(upper), part, writer="test"
        )


async def follow(world: World, action: ActionDriver, upper: int) -> None:
    """Run an action until it has carried out everything before `upper`, or dies."""
    task = asyncio.create_task(action.fire_forever())
    while not task.done() and action.counts.frontier < upper:
        await asyncio.sleep(0)
        world.clock.move(0.1)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(ended, Killed | asyncio.CancelledError | Unavailable):
        raise AssertionError("the action failed") from ended


def fired(lines: Sequence[str]) -> list[tuple[object, ...]]:
    bodies = [json.loads(line) for line in lines]
    assert len({body["key"] for body in bodies}) == len(bodies)
    return [(body["instant"], body["arguments"][0], body["time"]) for body in bodies]


@pytest.mark.parametrize("seed", range(12))
async def test_a_file_has_one_line_for_each_event_whatever_kills_the_process(
    seed: int, tmp_path: Path
) -> None:
    random, path, world = Random(seed), tmp_path / "calls.jsonl", World(seed)
    await world.create(FileSink(path))
    fed = deaths = 0
    while fed < END:
        upper = min(END, fed + random.randrange(1, 9))
        await world.feed(fed, upper)
        fed = upper
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 5), after=random.random() < 0.5)
            sink = TornSink(path, fuse, random)
            await follow(world, world.action(world.process(fuse), sink), fed)
            deaths += fuse.blown
    await follow(world, world.action(world.process(Fuse(None)), FileSink(path)), END)
    assert sorted(fired(path.read_text().splitlines())) == expected(world.alarms)
    assert deaths > 0


@pytest.mark.parametrize("seed", range(6))
async def test_an_event_that_gets_old_fires_once_whatever_kills_the_process(
    seed: int, tmp_path: Path
) -> None:
    """A restart forgets the keys that the process before had forgotten, and no other ones."""
    random, path, world = Random(seed), tmp_path / "calls.jsonl", World(seed)
    world.target = replace(world.target, remember_ms=4)
    rows = world.alarms.to_pylist()
    for row in {(each["tank"], each["level"], each["time"]): each for each in rows}.values():
        later = sorted(random.sample(range(row["time"] + 3, row["time"] + 20), 2))
        rows += [row | {"_time": at, "_diff": d} for at, d in zip(later, (-1, 1), strict=True)]
    world.alarms = table_of([tuple(row.values()) for row in rows if row["_time"] < END])
    await world.create(FileSink(path))
    fed = deaths = 0
    while fed < END:
        fed, lower = min(END, fed + random.randrange(1, 9)), fed
        await world.feed(lower, fed)
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 5), after=random.random() < 0.5)
            sink = TornSink(path, fuse, random)
            await follow(world, world.action(world.process(fuse), sink), fed)
            deaths += fuse.blown
    await follow(world, world.action(world.process(Fuse(None)), FileSink(path)), END)
    begins = world.alarms.filter(
        pc.less_equal(pc.subtract(world.alarms["_time"].cast(pa.int64()), world.alarms["time"]), 4)
    )
    assert sorted(fired(path.read_text().splitlines())) == expected(begins)
    assert deaths > 0
    told = await world.now.read_updates("calls/corrections")
    memory = Firings(GOAL, follow=False, remember_ms=4)
    _, wanted = memory.take(Taking(SHAPE, memory).changes(world.alarms))
    found = zip(told["key"].to_pylist(), told["sequence"].to_pylist(), strict=True)
    assert sorted(found) == sorted((each.key, each.sequence) for each in wanted)


async def test_a_restart_knows_what_fired_for_a_fact_without_a_time(tmp_path: Path) -> None:
    """A goal about events may have such facts; each is as old as the timeline."""
    path, world = tmp_path / "calls.jsonl", World(0)
    world.target = replace(world.target, remember_ms=4)
    row = "a", 1, None, None
    world.alarms = table_of(
        [(*row, 1, 1), (*row, 2, -1), (*row, 4, 1), (*row, 6, -1), (*row, 7, 1)]
    )
    await world.create(FileSink(path))
    for lower, upper in ((0, 2), (2, END)):
        await world.feed(lower, upper)
        await follow(world, world.action(world.now, FileSink(path)), upper)
    assert fired(path.read_text().splitlines()) == [(1, "a", None)]
    told = await world.now.read_updates("calls/corrections")
    assert told["instant"].to_pylist() == [2, 4]


async def test_a4_what_a_sink_took_before_it_refused_the_rest_is_not_fired_again(
    tmp_path: Path,
) -> None:
    world, path = World(5), tmp_path / "calls.jsonl"
    sink = OneByOne(path)
    await world.create(sink)
    await world.feed(0, END)
    action = world.action(world.now, sink)
    while action.counts.frontier < END:
        await follow(world, action, END)
    assert fired(path.read_text().splitlines()) == expected(world.alarms)
    assert action.counts.effects == len(expected(world.alarms)) > sink.refused > 2


async def test_a_topic_has_one_record_for_each_event(tmp_path: Path) -> None:
    world, log = World(5), EmbeddedLog(tmp_path)
    sink = LogSink(log, "calls", "calls")
    await world.create(sink)
    for lower, upper, writes in ((0, 9, 3), (9, 20, 2), (20, END, None)):
        await world.feed(lower, upper)
        await follow(world, world.action(world.process(Fuse(writes)), sink), upper)
    reader = await log.reader("calls", {0: 0})
    records = await reader.poll(1_000, 0.1)
    lines = [record.value.decode() for record in records if record.value is not None]
    assert fired(lines) == expected(world.alarms)
    await reader.close()
    await log.close()


async def test_history_before_the_creation_of_an_action_does_not_fire(tmp_path: Path) -> None:
    world, path = World(3), tmp_path / "calls.jsonl"
    await world.create(FileSink(path), start=12)
    await world.feed(12, END)
    await follow(world, world.action(world.now, FileSink(path)), END)
    assert {key[1:] for key in fired(path.read_text().splitlines())} <= {
        key[1:] for key in expected(world.alarms, 12)
    }


async def test_what_was_there_before_the_action_does_not_fire_when_it_changes(
    tmp_path: Path,
) -> None:
    world, path = World(3), tmp_path / "calls.jsonl"
    world.alarms = table_of(
        [
            (tank, 1, at, expires, *change)
            for tank, at in (("before", 4), ("after", 14))
            for expires, *change in ((None, at, 1), (None, 17, -1), (20, 17, 1))
        ]
    )
    await world.create(FileSink(path), start=12)
    await world.feed(12, END)
    await follow(world, world.action(world.now, FileSink(path)), END)
    assert fired(path.read_text().splitlines()) == [(14, "after", 14)]


async def test_what_had_gone_before_the_action_fires_when_it_comes_back_once(
    tmp_path: Path,
) -> None:
    """Its presence begins after the action does, and nothing has been told of it."""
    world, path = World(3), tmp_path / "calls.jsonl"
    world.alarms = table_of(
        [
            (tank, 1, 4, None, *change)
            for tank, goes in (("gone", 8), ("there", 15))
            for change in ((4, 1), (goes, -1), (18, 1), (20, -1), (22, 1))
        ]
    )
    await world.create(FileSink(path), start=12)
    for lower, upper in ((12, 19), (19, 21), (21, END)):
        await world.feed(lower, upper)
        await follow(world, world.action(world.process(Fuse(None)), FileSink(path)), upper)
    assert fired(path.read_text().splitlines()) == [(18, "gone", 4), (18, "there", 4)]
    told = (await world.now.read_updates("calls/corrections")).sort_by("_time").to_pylist()
    changes = sorted((row["arg_tank"], row["instant"], row["new"] is None) for row in told)
    assert changes == [(t, *c) for t in ("gone", "there") for c in ((20, True), (22, False))]


async def test_an_event_that_no_longer_has_the_value_of_the_goal_is_there_with_another_one(
    tmp_path: Path,
) -> None:
    """A correction says null only of what is absent; a value that comes back fires no second
    time.
    """
    world, path = World(3), tmp_path / "calls.jsonl"
    schema = pa.schema([("tank", pa.string()), ("count", pa.int64())])
    shape = PredicateShape("often", schema, 1, timed=False, lattices=(("count", ("int",)),))
    goal = goal_over("often(tank) @count(2)", {"often": (("tank", "text"),)}, "calls")
    world.target = replace(world.target, goal=goal, shape=shape)
    rows = [("a", 1, 1, 1), ("b", 2, 1, 1)]
    for at, (old, new) in enumerate(((1, 2), (2, 3), (3, 4), (4, 2)), 2):
        rows += [("a", old, at, -1), ("a", new, at, 1)]
    rows.append(("a", 2, 7, -1))
    table = pa.table(
        [list(column) for column in zip(*rows, strict=True)],
        schema=empty_updates(schema).schema,
    )
    world.alarms = table
    await world.create(FileSink(path), schema=schema)
    await world.feed(0, END)
    await follow(world, world.action(world.now, FileSink(path)), END)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["instant"], line["record"]) for line in lines] == [
        (1, 'often("b") @count(2)'), (2, 'often("a") @count(2)'),
    ]  # fmt: skip
    told = (await world.now.read_updates("calls/corrections")).sort_by("sequence").to_pylist()
    count = 'often("a") @count({})'.format
    assert [(row["instant"], row["old"], row["new"]) for row in told] == [
        (3, count(2), count(3)), (4, count(3), count(4)), (5, count(4), count(2)),
        (7, count(2), None),
    ]  # fmt: skip


async def test_w8_an_event_with_a_set_of_several_types_fires_with_each_element_as_it_is(
    tmp_path: Path,
) -> None:
    """W8: elements of two types had no order, which ended the action; truth values became
    numbers.
    """
    world, path = World(3), tmp_path / "calls.jsonl"
    schema = pa.schema([("of", pa.string())])
    shape = PredicateShape("seen", schema, 1, timed=False, written=frozenset({0}))
    goal = goal_over("seen(_)", {"seen": (("of", "set"),)}, "calls")
    world.target = replace(world.target, goal=goal, shape=shape)
    texts = ['{null,false,true,0,1,1.0,"a"}', "{2}"]
    columns = [pa.array(texts), pa.array([1, 2], pa.uint64()), pa.array([1, 1], pa.int64())]
    world.alarms = pa.table(columns, schema=empty_updates(schema).schema)
    await world.create(FileSink(path), schema=schema)
    await world.feed(0, END)
    await follow(world, world.action(world.now, FileSink(path)), END)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["record"] for line in lines] == [f"seen({text})" for text in texts]
    assert str(lines[0]["arguments"]) == "[[None, False, True, 0, 1, 1.0, 'a']]"


async def test_an_action_over_a_collection_that_is_closed_comes_to_its_end(tmp_path: Path) -> None:
    world, path = World(3), tmp_path / "calls.jsonl"
    await world.create(FileSink(path))
    await world.feed(0, END)
    await world.now.compare_and_append("alarm", frontier(END), frontier(), None, writer="test")
    for _ in range(2):
        await asyncio.wait_for(world.action(world.now, FileSink(path)).fire_forever(), 240)
        assert sorted(fired(path.read_text().splitlines())) == expected(world.alarms)


async def test_a_foreign_line_in_the_file_stays_and_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text('# calls of the night\n{"key": "k1"}\n')
    assert await FileSink(path).recover(()) == {"", "k1"}
    path.write_text('# calls of the night\n{"key": "k1"}\n{"key": "k2"')
    assert await FileSink(path).recover(()) == {"", "k1"}
    assert path.read_text() == '# calls of the night\n{"key": "k1"}\n'


async def test_a1_a_foreign_line_that_nests_deep_has_no_key(tmp_path: Path) -> None:
    """A1: whoever may write to a topic or file of a sink kept its action from beginning, for
    good.
    """
    path = tmp_path / "calls.jsonl"
    path.write_text("[" * 100_000 + '\n{"key": "k1"}\n')
    assert await FileSink(path).recover(()) == {"", "k1"}


@pytest.mark.parametrize("end", ['{"key": "k2"', "a line without an end", "x" * 100])
async def test_a1_a_file_of_somebody_else_is_never_cut(tmp_path: Path, end: str) -> None:
    """Not before an action has fired into it, nor a line that is none of ours."""
    path = tmp_path / "notes"
    path.write_text(f"first\n{end}")
    with pytest.raises(UsageError, match="no action of ours wrote it"):
        await FileSink(path).recover(())
    assert path.read_text() == f"first\n{end}"
    path.write_text("first\n")
    await FileSink(path).recover(())
    path.write_text("first\nsecond, by hand")
    with pytest.raises(UsageError, match="no action of ours wrote it"):
        await FileSink(path).recover(())
    assert path.read_text() == "first\nsecond, by hand"


async def test_s8_a_file_is_recovered_in_little_memory(tmp_path: Path) -> None:
    """40 MB of lines in a few; one line of more than any of ours is refused before it is held."""
    path = tmp_path / "calls.jsonl"
    line = json.dumps({"key": "k", "body": "x" * 4000}) + "\n"
    path.write_text(line * 10_000)
    tracemalloc.start()
    try:
        assert await FileSink(path).recover(()) == {"k"}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(UsageError, match="no action of ours wrote it"):
        await FileSink(path).recover(())
    assert path.stat().st_size == 1 << 30


async def test_a1_the_name_of_a_fence_is_no_sink(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fences have such names"):
        FileSink(tmp_path / ".calls.jsonl.fence")
    (tmp_path / ".calls.jsonl.fence").write_text("what somebody wrote")
    with pytest.raises(UsageError, match="is no fence of ours"):
        await FileSink(tmp_path / "calls.jsonl").recover(())
