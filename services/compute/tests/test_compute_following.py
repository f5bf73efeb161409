"""An action that follows its events: one effect for each beginning, change and end, whatever dies.

The twin reads all changes at once, and knows nothing of steps, outboxes or deaths.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from aiohttp import web

from tidemill.arrangement.updates import update_schema
from tidemill.catalog.record_rows import PredicateShape
from tidemill.catalog.schemas import DONE_SCHEMA, corrections_schema, outbox_schema
from tidemill.datalog.goals import goal_over
from tidemill.errors import Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.durations import Milliseconds
from tidemill.runtime.resources.specs import GroupSpec, RateSpec
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.http_endpoints import served
from tidemill.time import frontier
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.messages import Names, pager_duty
from tidemill_compute.actions.outbox import Firing, Sink, Took, untold
from tidemill_compute.actions.sink_file import FileSink
from tidemill_compute.actions.sink_http import Endpoint, HttpSink
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.settings import ComputeSettings

ALARM = pa.schema(
    [("tank", pa.string()), ("time", pa.int64()), ("expires", pa.int64()), ("max", pa.int64())]
)
SHAPE = PredicateShape(
    "alarm", ALARM, 1, timed=True, lattices=(("max", ("int",)),), sure=frozenset({"max"})
)
GOAL = goal_over("alarm(tank) @max(m)", {"alarm": (("tank", "text"),)}, "calls")
END = 40
TARGET = ActionTarget(
    "calls", GOAL, "alarm", SHAPE, "calls/outbox", "calls/done", "calls/corrections", follow=True
)

Change = tuple[str, int, int | None, int, int, int]
"""tank, event time, expiry, value, instant, difference."""


def lives(seed: int) -> list[Change]:
    """Events that begin, get other values, end, and some that come back."""
    random = Random(seed)
    changes: list[Change] = []
    for number in range(8):
        tank, at = f"t{number}", random.randrange(1, 10)
        time, value = at, random.randrange(3)
        while at < END - 2:
            changes.append((tank, time, None, value, at, 1))
            at += random.randrange(1, 9)
            if at >= END - 1 or random.random() < 0.2:
                break
            changes.append((tank, time, None, value, at, -1))
            if random.random() < 0.4:  # it has ended, and comes back later
                at += random.randrange(1, 6)
            value += 1
    return changes


def expected(changes: Sequence[Change]) -> list[tuple[int, str, str, int]]:
    """Effects that are due: instant, tank, phase, value; by one look at each instant."""
    told = []
    for tank in sorted({change[0] for change in changes}):
        was: int | None = None
        mine = [change for change in changes if change[0] == tank]
        for instant in sorted({change[4] for change in mine}):
            now = was
            for *_, value, _, diff in sorted(
                (change for change in mine if change[4] == instant), key=lambda each: each[5]
            ):
                now = value if diff > 0 else None
            if was is None and now is not None:
                told.append((instant, tank, "begin", now))
            elif was is not None and now is None:
                told.append((instant, tank, "end", was))
            elif was is not None and now is not None and was != now:
                told.append((instant, tank, "change", now))
            was = now
    return sorted(told)


class World:
    """The stores, and the collection that somebody else writes."""

    def __init__(
        self, changes: Sequence[Change], limit: RateSpec | None = None,
        group: GroupSpec | None = None,
    ) -> None:  # fmt: skip
        self.limit = limit
        self.group = group
        self.clock = ManualClock(0)
        self.stores = MemoryConsensus(), MemoryBlob()
        self.ids = map(str, itertools.count())
        self.changes = changes
        self.now = self.process(Fuse(None))
        self.fed = 0

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def action(self, collections: Collections, sink: Sink) -> ActionDriver:
        settings = ComputeSettings(hold_interval_s=0.0)
        target = replace(TARGET, limit=self.limit, group=self.group, repeats=True)
        return ActionDriver(target, sink, collections, self.clock, settings)

    async def create(self) -> None:
        held, _ = await self.now.create("alarm", Description(ALARM, retain_ms=0))
        first = self.action(self.now, FileSink(Path()))
        for part, schema in (
            ("outbox", outbox_schema(follow=True, limited=self.limit is not None)),
            ("done", DONE_SCHEMA),
            ("corrections", corrections_schema(SHAPE)),
        ):
            await self.now.create(f"calls/{part}", Description(schema))
        await first.prepare()
        await self.now.drop(held)

    async def feed(self, upper: int) -> None:
        due = [change for change in self.changes if self.fed <= change[4] < upper]
        schema = update_schema(ALARM)
        rows = [(tank, time, ends, value, at, diff) for tank, time, ends, value, at, diff in due]
        columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
        table = pa.Table.from_arrays(columns, schema=schema)
        await self.now.compare_and_append(
            "alarm", frontier(self.fed), frontier(upper), table, writer="test"
        )
        self.fed = upper

    async def follow(self, action: ActionDriver, upper: int) -> None:
        """Run an action until everything before `upper` is carried out, or it dies."""
        task = asyncio.create_task(action.fire_forever())
        while not task.done() and action.counts.frontier < upper:
            await asyncio.sleep(0)
            self.clock.move(0.01)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(ended, Killed | asyncio.CancelledError | Unavailable):
            raise AssertionError("the action failed") from ended


class ListSink:
    """A sink that keeps what it was told, and in `told` what it was told again, too."""

    at_most_once = False

    def __init__(self) -> None:
        self.told: list[Firing] = []

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        return frozenset({each.key for each in self.told} & {each.key for each in doubtful})

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        self.told += firings
        took(firings)

    async def close(self) -> None:
        """Nothing is open."""


def seen(path: Path, whole: bool = True) -> list[tuple[int, str, str, int]]:
    """Effects in a file: each key once, and those of one event numbered from its own, if `whole`
    without a gap.
    """
    bodies = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({body["key"] for body in bodies}) == len(bodies)
    numbers: Counter[str] = Counter()
    for body in bodies:
        before = numbers[body["event"]]
        assert not whole or body["key"] == (
            f"{body['event']}.{before}" if before else body["event"]
        )
        numbers[body["event"]] += 1
    values = (int(body["record"].rpartition("@max(")[2].partition(")")[0]) for body in bodies)
    return [
        (b["instant"], b["arguments"][0], b["phase"], v)
        for b, v in zip(bodies, values, strict=True)
    ]


async def follow_to_the_end(
    world: World, sink: Callable[[], Sink], random: Random, *, kills: bool = True
) -> int:
    """Feed everything, a piece at a time, to processes that die at any write; how many died."""
    await world.create()
    deaths = 0
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 9)))
        for _ in range(random.randrange(1, 4) if kills else 0):
            fuse = Fuse(random.randrange(1, 5), after=random.random() < 0.5)
            await world.follow(world.action(world.process(fuse), sink()), world.fed)
            deaths += fuse.blown
    reached = 0
    while reached < END:
        last = world.action(world.now, sink())
        await world.follow(last, END)
        reached = last.counts.frontier
    return deaths


@pytest.mark.parametrize("seed", range(10))
async def test_each_phase_is_told_once_whatever_kills_the_process(
    seed: int, tmp_path: Path
) -> None:
    path, world = tmp_path / "calls.jsonl", World(lives(seed))
    deaths = await follow_to_the_end(world, partial(FileSink, path), Random(seed))
    assert sorted(seen(path)) == expected(world.changes)
    assert deaths > 0


@pytest.mark.parametrize("seed", range(4))
async def test_a_limit_counts_alike_whatever_kills_the_process(seed: int, tmp_path: Path) -> None:
    random, limit = Random(seed), RateSpec(count=1, per=Milliseconds(8))
    told, deaths = [], 0
    for kills in (False, True):
        path, world = tmp_path / f"{kills}.jsonl", World(lives(seed), limit)
        deaths += await follow_to_the_end(world, partial(FileSink, path), random, kills=kills)
        told.append(sorted(seen(path, whole=False)))
    assert told[0] == told[1]
    due = expected(lives(seed))
    assert set(told[0]) < set(due), "nothing was held back"
    began = [instant for instant, _, phase, _ in told[0] if phase == "begin"]
    assert all(after - before >= 8 for before, after in itertools.pairwise(began))
    assert deaths > 0


@pytest.mark.parametrize("seed", range(6))
async def test_a_group_is_told_once_whatever_kills_the_process(seed: int, tmp_path: Path) -> None:
    path, within = tmp_path / "calls.jsonl", 8
    world = World(lives(seed), group=GroupSpec(within=Milliseconds(within)))
    deaths = await follow_to_the_end(world, partial(FileSink, path), Random(seed))
    messages = [json.loads(line) for line in path.read_text().splitlines()]
    (tmp_path / "events.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for message in messages for each in message["events"])
    )
    assert sorted(seen(tmp_path / "events.jsonl", whole=False)) == expected(world.changes)
    assert len({message["key"] for message in messages}) == len(messages)
    groups = [(m["instant"] // within, m["phase"]) for m in messages]
    assert len(set(groups)) == len(groups) < len(expected(world.changes))
    for message in messages:
        assert {e["instant"] // within for e in message["events"]} == {message["instant"] // within}
        assert {event["phase"] for event in message["events"]} == {message["phase"]}
    assert deaths > 0


class Pager:
    """An endpoint of pages: which arrived first under each key, and how many were there at once."""

    def __init__(self, random: Random) -> None:
        self.first: dict[str, str] = {}
        self.under_way: Counter[str] = Counter()
        self.together = self.most = self.refused = 0
        self._random = random

    async def post(self, request: web.Request) -> web.Response:
        key, body = request.headers["Idempotency-Key"], await request.json()
        event = body["dedup_key"]
        self.under_way[event] += 1
        self.together = max(self.together, self.under_way[event])
        self.most = max(self.most, self.under_way.total())
        for _ in range(self._random.randrange(20)):
            await asyncio.sleep(0)
        self.under_way[event] -= 1
        if self._random.random() < 0.1:
            self.refused += 1
            return web.Response(status=503)
        self.first.setdefault(key, body["event_action"])
        return web.Response(status=202)


@pytest.mark.parametrize("seed", range(4))
async def test_pages_of_one_event_never_overtake_each_other_in_their_lanes(seed: int) -> None:
    world, pager = World(lives(seed)), Pager(Random(seed))
    compose = pager_duty(lambda: "key", "error", "${record}", Names(["tank"], ""))
    async with served(web.post("/", pager.post)) as url:
        endpoint = Endpoint(url, compose=compose, again_s=(0.0,), lanes_max=4)
        sink = partial(HttpSink, endpoint, world.clock)
        deaths = await follow_to_the_end(world, sink, Random(seed))
    numbers: dict[str, list[str]] = {}
    for key in pager.first:
        numbers.setdefault(key.partition(".")[0], []).append(key)
    for event, keys in numbers.items():
        assert keys == [event, *(f"{event}.{n}" for n in range(1, len(keys)))]
    phases = Counter(phase for _, _, phase, _ in expected(world.changes))
    told = Counter(pager.first.values())
    assert told == {"trigger": phases["begin"] + phases["change"], "resolve": phases["end"]}
    assert pager.together == 1 < pager.most, "no two events were told at once"
    assert min(deaths, pager.refused) > 0, "nothing failed"


def test_the_lives_have_every_phase() -> None:
    phases = Counter(phase for seed in range(10) for _, _, phase, _ in expected(lives(seed)))
    assert min(phases["begin"], phases["change"], phases["end"]) > 20


async def test_an_event_from_before_the_action_neither_changes_nor_ends() -> None:
    world = World([("t", 1, None, 1, 1, 1), ("t", 1, None, 1, 5, -1), ("t", 1, None, 2, 5, 1)])
    await world.create()
    sink = ListSink()
    await world.feed(END)
    action = world.action(world.now, sink)
    action.counts.frontier = 3  # where firing begins
    await action._put(3, await action._step_end(END))
    assert not sink.told


async def test_what_lasts_is_told_again_and_what_has_ended_is_not() -> None:
    lasts, ends = ("a", 1, None, 1, 1, 1), [("b", 2, None, 1, 2, 1), ("b", 2, None, 1, 6, -1)]
    world = World([lasts, *ends])
    await world.create()
    sink = ListSink()
    await world.feed(END)
    action = world.action(world.now, sink)
    await world.follow(action, END)
    first = [(each.phase, each.record[:9]) for each in sink.told]
    assert [phase for phase, _ in first] == ["begin", "begin", "end"]
    for restarted in (action, world.action(world.now, sink)):
        await world.follow(restarted, END)
        sink.told.clear()
        task = asyncio.create_task(restarted.repeat_forever(60))
        for _ in range(10):
            await asyncio.sleep(0)
        await world.clock.advance(60)
        task.cancel()
        assert [each.arguments for each in sink.told] == ['["a"]']
        sink.told.append(Firing("", "", 0, "", "[]", None))  # something that was told before
