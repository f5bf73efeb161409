"""Effects and failures: the number of effects for each class of sink and each way to die.

Exactly-once effects have to survive these rows: death before, between and after each write, a
paused owner that wakes, a lost answer, repeated input, compaction. Events return, change or are
withdrawn, two goals have one event, a rule is rewritten.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from aiohttp import web
from redis.asyncio import Redis

from tidemill.arrangement.updates import empty_updates
from tidemill.catalog.record_rows import PredicateShape
from tidemill.catalog.schemas import DONE_SCHEMA, OUTBOX_SCHEMA, corrections_schema
from tidemill.datalog.goals import goal_over
from tidemill.errors import Fenced, TidemillError, Unavailable, UsageError
from tidemill.runtime.clock import ManualClock, SystemClock
from tidemill.runtime.log import Log
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.http_endpoints import served
from tidemill.testkit.pages import defined_in
from tidemill.testkit.turns import Turns
from tidemill.time import frontier
from tidemill_compute.actions.action import ActionDriver
from tidemill_compute.actions.outbox import Firing, Sink, Took, key_in, untold
from tidemill_compute.actions.sink_file import FileSink
from tidemill_compute.actions.sink_http import Delivery, Endpoint, HttpSink
from tidemill_compute.actions.sink_log import LogSink
from tidemill_compute.actions.sink_redis import RedisSink
from tidemill_compute.actions.sink_sqlite import SqliteSink
from tidemill_compute.actions.target import ActionTarget
from tidemill_compute.settings import ComputeSettings

ALARM = pa.schema(
    [("tank", pa.string()), ("level", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
SHAPE = PredicateShape("alarm", ALARM, 2, timed=True)
COLUMNS = {"alarm": (("tank", "text"), ("level", "int"))}
END = 40

Change = tuple[str, int, int, int | None, int, int]
"""tank, level, event time, expiry, instant, difference."""


def steady(seed: int) -> list[Change]:
    """Events that begin once each, several at some instants."""
    random = Random(seed)
    times = [*sorted(random.sample(range(1, END - 2), 12)), 5, 5, 20]
    return [(f"t{n}", 1, time, None, time, 1) for n, time in enumerate(times)]


class Target:
    """A place that counts the effects under each key, over HTTP: told apart, or deaf to keys."""

    def __init__(self, random: Random) -> None:
        self.effects: Counter[str] = Counter()
        self.asked = self.refused = 0
        self.deduplicates = True
        self.failing = 0.0
        self._random = random

    def calm(self) -> None:
        self.failing = 0.0

    async def post(self, request: web.Request) -> web.Response:
        key = request.headers["Idempotency-Key"]
        assert key_in(await request.read()) == key
        if self._random.random() < self.failing:
            self.refused += 1
            return web.Response(status=503)
        if not (self.deduplicates and self.effects[key]):
            self.effects[key] += 1
        if self._random.random() < self.failing:
            self.refused += 1
            return web.Response(status=504)  # it happened, and nobody is told
        return web.Response(status=201)

    async def get(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=200 if self.effects[request.match_info["key"]] else 404)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        posts, asks = web.post("/effects", self.post), web.get("/effects/{key}", self.get)
        async with served(posts, asks) as url:
            yield f"{url}/effects"


class MortalSink:
    """A sink whose process may die before an effect, or after it before anybody writes it down."""

    def __init__(self, inner: Sink, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    @property
    def at_most_once(self) -> bool:
        return self._inner.at_most_once

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        self._fuse.check()
        return await self._inner.recover(doubtful)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        if firings:
            await self._fuse.write(lambda: self._inner.fire(firings, took))

    async def close(self) -> None:
        await self._inner.close()


class World:
    """The stores, and the collection that somebody else writes."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.changes = list(changes)
        self.now = self.process(Fuse(None))
        self.fed = 0

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def action(
        self, collections: Collections, sink: Sink, name: str = "calls", watched: str = "alarm"
    ) -> ActionDriver:
        goal = goal_over("alarm(tank, 1)", COLUMNS, name)
        target = ActionTarget(
            name, goal, watched, SHAPE, f"{name}/outbox", f"{name}/done", f"{name}/corrections"
        )
        settings = ComputeSettings(hold_interval_s=0.0)
        return ActionDriver(target, sink, collections, self.clock, settings)

    async def create(self, *names: str) -> None:
        held, _ = await self.now.create("alarm", Description(ALARM, retain_ms=0))
        for name in names or ("calls",):
            for part, schema in (
                ("outbox", OUTBOX_SCHEMA),
                ("done", DONE_SCHEMA),
                ("corrections", corrections_schema(SHAPE)),
            ):
                await self.now.create(f"{name}/{part}", Description(schema))
            await self.action(self.now, FileSink(Path()), name).prepare()
        await self.now.drop(held)

    async def feed(self, upper: int, watched: str = "alarm") -> None:
        schema = empty_updates(ALARM).schema
        due = [change for change in self.changes if self.fed <= change[4] < upper]
        columns = [pa.array([row[i] for row in due], f.type) for i, f in enumerate(schema)]
        table = pa.Table.from_arrays(columns, schema=schema)
        await self.now.compare_and_append(
            watched, frontier(self.fed), frontier(upper), table, writer="test"
        )
        self.fed = upper

    async def corrections(self, name: str = "calls") -> list[tuple[object, ...]]:
        rows = (await self.now.read_updates(f"{name}/corrections")).sort_by("_time").to_pylist()
        return [(r["_time"], r["arg_tank"], r["sequence"], r["old"], r["new"]) for r in rows]

    async def read_outbox(self, name: str = "calls") -> list[str]:
        """The records of the outbox, each with its instant."""
        rows = (await self.now.read_updates(f"{name}/outbox")).sort_by("_time").to_pylist()
        return [f"{row['instant']}: {row['record']}" for row in rows]


async def follow(world: World, action: ActionDriver, upper: int) -> None:
    """Run an action until it has carried out everything before `upper`, dies, or is refused."""
    task, turns = asyncio.create_task(action.fire_forever()), Turns(world.clock, 0.01)
    while not task.done() and action.counts.frontier < upper:
        await turns.take()
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    if not isinstance(ended, Killed | asyncio.CancelledError | Unavailable):
        raise AssertionError("the action failed") from ended


async def survive(
    world: World, make: Callable[[], Sink], random: Random, calm: Callable[[], None] = lambda: None
) -> int:
    """Feed the world in pieces, with deaths at every kind of write, then let a `calm` process end
    it; how many died.
    """
    deaths = 0
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 12)))
        for _ in range(random.randrange(1, 5)):
            fuse = Fuse(random.randrange(1, 6), after=random.random() < 0.5)
            action = world.action(world.process(fuse), MortalSink(make(), fuse))
            await follow(world, action, world.fed)
            deaths += fuse.blown
    calm()
    last = world.action(world.now, make())
    await follow(world, last, END)
    assert last.counts.frontier >= END, "the last process did not come to the end"
    return deaths


def keys(rows: pa.Table) -> Counter[str]:
    return Counter(rows["key"].to_pylist())


class FlakySink:
    """A sink of which two in three answers are lost: before the effect, or after it."""

    def __init__(self, inner: Sink, told: list[str]) -> None:
        self._inner = inner
        self._told = told
        self.at_most_once = inner.at_most_once

    async def recover(self, doubtful: Sequence[Firing]) -> frozenset[str]:
        return await self._inner.recover(doubtful)

    async def fire(self, firings: Sequence[Firing], took: Took = untold) -> None:
        if not firings:
            return
        happens = ("before", "after", "in time")[len(self._told) % 3]
        self._told.append(happens)
        if happens == "before":
            raise Unavailable("nobody answered")
        await self._inner.fire(firings, took)
        if happens == "after":
            raise Unavailable("it happened, and nobody is told")

    async def close(self) -> None:
        await self._inner.close()


@dataclass(frozen=True)
class Place:
    """A real target: a sink onto it for each process, and how often each key has had its effect."""

    sink: Callable[[], Sink]
    keys: Callable[[], Awaitable[Counter[str]]]


SERVERS = {"redis", "kafka"}
TARGETS = [
    "file", "folder", "sqlite", "embedded log", "http keyed", "http askable", "redis", "kafka",
]  # fmt: skip


@pytest.fixture(
    params=[pytest.param(t, marks=[pytest.mark.server] * (t in SERVERS)) for t in TARGETS]
)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Each target in turn."""
    kind, name = request.param, f"calls_{abs(hash(str(tmp_path)))}"
    async with AsyncExitStack() as closing_all:
        if kind == "file":
            path = tmp_path / "calls.jsonl"
            yield Place(lambda: FileSink(path), lambda: _file_keys(path))
        elif kind == "folder":
            sink, folder = defined_in("how-to/write-a-sink.md", "FolderSink"), tmp_path / "calls"
            yield Place(lambda: sink(folder), lambda: _folder_keys(folder))
        elif kind == "sqlite":
            path = tmp_path / "calls.db"
            yield Place(lambda: SqliteSink(path, "calls", "calls"), lambda: _sqlite_keys(path))
        elif kind == "redis":
            url = request.getfixturevalue("redis_url")
            yield Place(lambda: RedisSink(url, name, "calls"), lambda: _redis_keys(url, name))
        elif kind.startswith("http"):
            target = Target(Random(0))
            target.deduplicates = kind == "http keyed"
            url = await closing_all.enter_async_context(target.served())
            askable = kind == "http askable"
            endpoint = Endpoint(
                url, Delivery.ASKABLE if askable else Delivery.KEYED,
                ask=f"{url}/{{key}}" if askable else "", lanes_max=3,
            )  # fmt: skip
            yield Place(lambda: HttpSink(endpoint, SystemClock()), lambda: _count_effects(target))
        else:
            log: Log = EmbeddedLog(tmp_path / "log")
            if kind == "kafka":
                log = KafkaLog(request.getfixturevalue("kafka_bootstrap"))
            closing_all.push_async_callback(log.close)
            yield Place(lambda: LogSink(log, name, "calls"), lambda: _log_keys(log, name))


async def _count_effects(target: Target) -> Counter[str]:
    return Counter(target.effects)


async def _file_keys(path: Path) -> Counter[str]:
    content = await asyncio.to_thread(path.read_bytes)
    return Counter(map(key_in, content.splitlines()))


async def _folder_keys(folder: Path) -> Counter[str]:
    paths = await asyncio.to_thread(lambda: list(folder.glob("[!.]*")))
    return Counter(key_in(path.read_bytes()) for path in paths)


async def _sqlite_keys(path: Path) -> Counter[str]:
    with closing(sqlite3.connect(path)) as db:
        return Counter(row[0] for row in db.execute("SELECT key FROM calls"))


async def _redis_keys(url: str, stream: str) -> Counter[str]:
    async with Redis.from_url(url) as client:
        return Counter(fields[b"key"].decode() for _, fields in await client.xrange(stream))


async def _log_keys(log: Log, topic: str) -> Counter[str]:
    bounds = await log.bounds(topic)
    reader = await log.reader(topic, {p: low for p, (low, _) in bounds.items()})
    found: Counter[str] = Counter()
    while any(reader.positions()[p] < high for p, (_, high) in bounds.items()):
        records = await reader.poll(1_000, 5.0)
        found.update(key_in(record.value or b"") for record in records)
    await reader.close()
    return found


async def _dies(place: Place) -> World:
    """Death before, between and after the writes of outbox, effect and progress."""
    world = World(steady(1))
    await world.create()
    deaths = await survive(world, place.sink, Random(1))
    assert deaths > 0
    assert len(await world.read_outbox()) == len(world.changes)
    return world


async def _answers_get_lost(place: Place) -> World:
    """The target does not answer, before an effect or after it: redone with the same key."""
    world, random, told = World(steady(2)), Random(2), list[str]()
    await world.create()
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 9)))
        for _ in range(4):
            sink = FlakySink(place.sink(), told)
            await follow(world, world.action(world.now, sink), world.fed)
    await follow(world, world.action(world.now, place.sink()), END)
    assert {"before", "after"} <= set(told)
    assert len(await world.read_outbox()) == len(world.changes)
    return world


async def _events_return(place: Place) -> World:
    """Events that are withdrawn, change, end, come late and come back: no key twice, corrections
    told.
    """
    world = World([*HISTORY, ("late", 1, 2, None, 12, 1)])
    await world.create()
    while world.fed < END:
        await world.feed(min(END, world.fed + 4))
        fuse = Fuse(3)
        await follow(
            world, world.action(world.process(fuse), MortalSink(place.sink(), fuse)), world.fed
        )
    await follow(world, world.action(world.now, place.sink()), END)
    assert sorted(await world.read_outbox()) == sorted([*FIRED, '12: alarm("late", 1) @time(2)'])
    assert await world.corrections() == CORRECTED
    return world


async def _history_is_compacted(place: Place) -> World:
    """Since is moved up to the frontier of the action between two lives."""
    world = World(HISTORY)
    await world.create()
    for upper in (5, 9, 11, END):
        await world.feed(upper)
        await follow(world, world.action(world.process(Fuse(None)), place.sink()), upper)
        for name in ("alarm", "calls/outbox", "calls/done", "calls/corrections"):
            await world.now.compact(name)
    assert sorted(await world.read_outbox()) == sorted(FIRED)
    assert await world.corrections() == CORRECTED
    return world


async def _rules_are_rewritten(place: Place) -> World:
    """The same goal over another collection, that of the new rules: keys are those of events."""
    world = World(HISTORY)
    await world.create()
    await world.feed(END)
    await follow(world, world.action(world.now, place.sink()), END)
    world.changes.append(("new", 1, 14, None, 14, 1))
    world.fed = 0
    await world.now.create("alarm2", Description(ALARM, retain_ms=0))
    await world.now.retain("alarm2", None)
    await world.feed(END + 5, "alarm2")
    again = world.action(world.now, place.sink(), watched="alarm2")
    await follow(world, again, END + 5)
    assert sorted(await world.read_outbox()) == sorted(FIRED)
    assert again.counts.fired == 0
    return world


FAILURES = {
    "a process dies at any write": _dies,
    "the target does not answer": _answers_get_lost,
    "events are withdrawn, late, and return": _events_return,
    "history is compacted up to the frontier": _history_is_compacted,
    "the rules are rewritten": _rules_are_rewritten,
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_every_target_has_each_effect_once_whatever_fails(failure: str, place: Place) -> None:
    world = await FAILURES[failure](place)
    found = await place.keys()
    assert found == keys(await world.now.read_updates("calls/outbox"))
    assert set(found.values()) == {1}


@pytest.mark.parametrize("delivery", list(Delivery))
async def test_an_endpoint_has_each_effect_as_often_as_its_class_says(delivery: Delivery) -> None:
    deaths = refused = asked = 0
    counts: list[int] = []
    for seed in range(4):
        world, target = World(steady(seed)), Target(Random(seed))
        target.deduplicates = delivery is Delivery.KEYED
        target.failing = 0.15
        await world.create()
        async with target.served() as url:
            ask = f"{url}/{{key}}" if delivery is Delivery.ASKABLE else ""
            sink = partial(HttpSink, Endpoint(url, delivery, ask=ask, lanes_max=3), world.clock)
            deaths += await survive(world, sink, Random(seed), target.calm)
        fired = set(keys(await world.now.read_updates("calls/outbox")))
        assert len(fired) == len(world.changes)
        assert set(target.effects) <= fired
        counts += [target.effects[key] for key in fired]
        refused, asked = refused + target.refused, asked + target.asked
    assert deaths > 3
    assert refused > 0, "nothing was refused"
    assert (asked > 0) == (delivery is Delivery.ASKABLE)
    if delivery in (Delivery.KEYED, Delivery.ASKABLE):
        assert set(counts) == {1}
    elif delivery is Delivery.AT_LEAST_ONCE:
        assert min(counts) == 1
        assert max(counts) > 1, "no effect happened twice: the classes cannot be told apart"
    else:
        assert max(counts) == 1
        assert min(counts) == 0, "no effect was lost: the classes cannot be told apart"


async def test_a_paused_owner_that_wakes_is_refused(tmp_path: Path) -> None:
    world = World(steady(1))
    await world.create()
    paused = SqliteSink(tmp_path / "calls.db", "calls", "calls")
    await world.feed(10)
    first = world.action(world.process(Fuse(None)), paused)
    await follow(world, first, 10)
    newer = SqliteSink(tmp_path / "calls.db", "calls", "calls")
    await world.feed(END)
    await follow(world, world.action(world.now, newer), END)
    late = Firing("k", "calls", 39, 'alarm("z", 1)', '["z", 1]', None)
    with pytest.raises(Fenced):
        await first._fire([late])
    assert first.counts.fenced == 1
    with closing(sqlite3.connect(tmp_path / "calls.db")) as db:
        rows = db.execute("SELECT count(*), count(DISTINCT key), max(fence) FROM calls").fetchone()
    assert rows == (len(world.changes), len(world.changes), 2)


@pytest.mark.server
async def test_a_stream_of_redis_refuses_whoever_was_replaced_and_servers_that_forget(
    own_redis_url: str, tmp_path: Path
) -> None:
    redis_url, firing = own_redis_url, Firing("k", "calls", 1, "p()", "[]", None)
    stream = f"calls_{abs(hash(str(tmp_path)))}"
    paused, newer, other = (
        RedisSink(redis_url, stream, who) for who in ("calls", "calls", "other")
    )
    for sink in (paused, newer, other):
        await sink.recover(())
    with pytest.raises(Fenced):
        await paused.fire([firing])
    await newer.fire([firing])
    await newer.fire([firing])
    assert await newer.recover([firing]) == {"k"}
    assert await _redis_keys(redis_url, stream) == {"k": 1}
    async with Redis.from_url(redis_url) as client:
        await client.config_set("appendfsync", "everysec")
        try:
            with pytest.raises(UsageError, match="appendfsync is everysec"):
                await newer.recover(())
            forgiving = RedisSink(redis_url, stream, "calls", allow_non_durable=True)
            assert await forgiving.recover([firing]) == {"k"}
        finally:
            await client.config_set("appendfsync", "always")
    with pytest.raises(Unavailable):
        await RedisSink("redis://127.0.0.1:1/0", stream, "calls").recover(())


async def test_actions_that_share_a_table_have_fences_of_their_own(tmp_path: Path) -> None:
    one = SqliteSink(tmp_path / "a.db", "calls", "one")
    two = SqliteSink(tmp_path / "a.db", "calls", "two")
    await one.recover(())
    await two.recover(())
    firing = Firing("k", "one", 1, "p()", "[]", None)
    await one.fire([firing])
    await two.fire([firing])
    assert await two.recover([firing]) == {"k"}


async def test_a_refusal_is_for_a_person_and_silence_is_tried_again(tmp_path: Path) -> None:
    firing = Firing("k", "calls", 1, "p()", "[]", None)
    target = Target(Random(0))
    async with target.served() as url:
        with pytest.raises(UsageError):
            await HttpSink(Endpoint(f"{url}/nowhere/at/all"), SystemClock()).fire([firing])
        asked = Endpoint(url, Delivery.ASKABLE, ask=f"{url}?{{key}}")
        with pytest.raises(UsageError):
            await HttpSink(asked, SystemClock()).recover([firing])
    with pytest.raises(Unavailable):
        await HttpSink(Endpoint(url), SystemClock()).fire([firing])
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        await SqliteSink(tmp_path / "file" / "x.db", "t", "a").recover(())


HISTORY: list[Change] = [
    ("back", 1, 3, None, 3, 1), ("back", 1, 3, None, 6, -1), ("back", 1, 3, None, 9, 1),
    ("other", 1, 4, 20, 4, 1), ("other", 1, 4, 20, 8, -1), ("other", 1, 4, 30, 8, 1),
    ("ends", 1, 5, 12, 5, 1), ("ends", 1, 5, 12, 12, -1),
    ("low", 0, 5, None, 5, 1), ("low", 0, 5, None, 7, -1),
    ("twice", 1, 10, None, 10, 1), ("twice", 1, 11, None, 10, 1),
]  # fmt: skip
FIRED = [
    '3: alarm("back", 1) @time(3)',
    '4: alarm("other", 1) @time(4) @expires(20)',
    '5: alarm("ends", 1) @time(5) @expires(12)',
    '10: alarm("twice", 1) @time(10)',
    '10: alarm("twice", 1) @time(11)',
]
BACK = 'alarm("back", 1) @time(3)'
CORRECTED = [
    (6, "back", 1, BACK, None),
    (8, "other", 1, 'alarm("other", 1) @time(4) @expires(20)', 'alarm("other", 1) @time(4) @expires(30)'),
    (9, "back", 2, None, BACK),
]  # fmt: skip


@pytest.mark.parametrize("writes", [None, 1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("step", [1, 4, 40])
async def test_what_is_withdrawn_changes_or_comes_back_is_a_correction_and_fires_no_more(
    writes: int | None, step: int, tmp_path: Path
) -> None:
    """An end that was announced is none; events below the level of the goal are none of its
    business.
    """
    world, path = World(HISTORY), tmp_path / "calls.jsonl"
    await world.create()
    while world.fed < END:
        await world.feed(min(END, world.fed + step))
        await follow(world, world.action(world.process(Fuse(writes)), FileSink(path)), world.fed)
    await follow(world, world.action(world.now, FileSink(path)), END)
    assert sorted(await world.read_outbox()) == sorted(FIRED)
    assert await world.corrections() == CORRECTED
    assert len(path.read_text().splitlines()) == len(FIRED)


async def test_two_goals_on_one_event_fire_both(tmp_path: Path) -> None:
    world = World(HISTORY)
    await world.create("one", "two")
    await world.feed(END)
    for name in ("one", "two"):
        sink = FileSink(tmp_path / "both.jsonl")
        await follow(world, world.action(world.now, sink, name), END)
        assert sorted(await world.read_outbox(name)) == sorted(FIRED)
    lines = [json.loads(line) for line in (tmp_path / "both.jsonl").read_text().splitlines()]
    assert Counter(line["action"] for line in lines) == {"one": 5, "two": 5}
    assert len({line["key"] for line in lines}) == 10


async def test_a_goal_whose_history_is_gone_stops_instead_of_skipping(tmp_path: Path) -> None:
    world, path = World(HISTORY), tmp_path / "calls.jsonl"
    await world.create()
    await world.feed(20)
    await follow(world, world.action(world.now, FileSink(path)), 20)
    held = await world.now.read_hold("alarm", owner="action:calls", lease_ms=None)
    await world.now.drop(held)
    await world.feed(END)
    await world.now.set_policy("alarm", frontier(30))
    action = world.action(world.now, FileSink(path))
    with pytest.raises(TidemillError):
        await asyncio.wait_for(action.fire_forever(), 240)
    assert action.counts.frontier <= 20
