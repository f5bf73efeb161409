"""A changed program: below one instant every output says what the old one says, from it on what the
new one does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate, empty_updates
from tidemill.catalog.record_rows import shape_of_events, shape_of_output
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.parser import parse
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record
from tidemill.datalog.tick_plan import TickPlan
from tidemill.errors import AlreadyUsed, Fenced, UsageError
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.testkit.faults.fuse import Fuse, Killed, MortalConsensus
from tidemill.testkit.twins.outputs import written
from tidemill.time import Frontier, frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.takeover import Differs, Takeover, VersionChange
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

END = 60
WAIT_S_MAX = 240.0
"""Loops may be compiled in a thread while virtual time passes."""
PING = pa.schema(
    [("h", pa.string()), ("n", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
SHAPE = shape_of_events("ping", PING)
OLD = """
    alarm(h) @expires(t + 9) := ping(h, n) @time(t) if n > 1;
    calm(h) := ping(h, n) ^ not alarm(h);
    share(6 / n) := ping(_, n);
"""
NEW = """
    alarm(h) @expires(t + 20) := ping(h, n) @time(t) if n > 2;
    calm(h) := ping(h, n) ^ not alarm(h);
    share(7 / n) := ping(_, n);
    loud(h) := ping(h, 3);
"""
OUTPUTS = ("alarm", "calm", "share")


def checked(text: str) -> CheckedProgram:
    schema = InputSchema("ping", "events", (("h", "text"), ("n", "int")))
    return check(parse(text), InputSchemas({"ping": schema}))


def history(seed: int) -> list[tuple[Any, ...]]:
    """Pings that begin and may end."""
    random = Random(seed)
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for _ in range(25):
        time = random.randrange(1, END)
        ends = random.choice((None, time + random.randrange(1, 15)))
        row = (random.choice("abc"), random.randrange(4), time, ends)
        found[row[:3]] = row
    return list(found.values())


class World:
    """The stores, which outlive every process, and the input that somebody else writes."""

    def __init__(self, seed: int, old: str = OLD, new: str = NEW) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.rows = history(seed)
        self.now = self.process(Fuse(None))
        self.old, self.new = checked(old), checked(new)
        self.fed = 0
        self.at: int | None = None
        self.waits = False
        self.told: list[Differs] = []

    def process(self, fuse: Fuse) -> Collections:
        consensus = MortalConsensus(self.stores[0], fuse)
        return Collections(consensus, self.stores[1], self.clock, self.ids.__next__)

    def target(self, name: str, program: CheckedProgram, outputs: str, state: str) -> ViewTarget:
        shapes = {p: (f"{outputs}/{p}", shape_of_output(program, p)) for p in program.derived}
        return ViewTarget(
            name, program, {"ping": ("ping", SHAPE)}, shapes, f"{outputs}/errors", state,
            TickPlan(1) if program.ticked else None,
        )  # fmt: skip

    def change(self) -> VersionChange:
        return VersionChange(
            self.target("v", self.old, "v", "v/state"),
            self.target("v@2", self.new, "v", "v@2/state"),
            self.target("v@2", self.new, "v@2", "v@2/state"),
            self.at,
            self.waits,
        )

    def settings(self, random: Random) -> ComputeSettings:
        return ComputeSettings(
            hold_interval_s=0.0,
            step_changes_max=random.randrange(1, 9),
        )

    def takeover(self, collections: Collections, random: Random, fuse: Fuse) -> Takeover:
        async def make(name: str, begin: Frontier) -> None:
            await self.ensure(collections, name, begin)

        async def record(at: int) -> None:
            await fuse.write(lambda: self._record_frontier(at))

        change, settings = self.change(), self.settings(random)
        return Takeover(change, collections, self.clock, settings, make, record)

    async def _record_frontier(self, at: int) -> None:
        """Record the frontier as the catalog does: durable, once, and always the same."""
        assert self.at in (None, at)
        self.at = at

    def view(self, target: ViewTarget, collections: Collections, random: Random) -> ViewDriver:
        return ViewDriver(target, collections, self.clock, self.settings(random))

    async def ensure(self, collections: Collections, name: str, begin: Frontier) -> None:
        kind = name.rpartition("/")[2]
        schema = ERROR_SCHEMA if kind == "errors" else STATE_SCHEMA
        if kind in self.new.columns:
            schema = shape_of_output(self.new, kind).schema
        retain = 0 if kind == "state" or ("@" in name and kind != "takeover") else 1 << 40
        try:
            held, _ = await collections.create(
                name, Description(schema, retain_ms=retain), start=begin, lease_ms=1
            )
            await collections.drop(held)
        except AlreadyUsed:
            return

    async def create(self) -> None:
        """The old view over a table that has nothing yet."""
        held, _ = await self.now.create("ping", Description(PING, retain_ms=1 << 40))
        await self.now.drop(held)
        before = self.view(self.change().before, self.now, Random(0))
        begin = await before.hold_inputs()
        for name in (*(f"v/{p}" for p in self.old.derived), "v/errors", "v/state"):
            await self.ensure(self.now, name, begin)
        await before.prepare()

    async def feed(self, upper: int) -> None:
        changes = [(*row, row[2], 1) for row in self.rows]
        changes += [(*row, row[3], -1) for row in self.rows if row[3] is not None]
        due = [change for change in changes if self.fed <= change[4] < upper]
        schema = empty_updates(PING).schema
        columns = [pa.array([row[i] for row in due], f.type) for i, f in enumerate(schema)]
        await self.now.compare_and_append(
            "ping", frontier(self.fed), frontier(upper),
            pa.Table.from_arrays(columns, schema=schema), writer="test",
        )  # fmt: skip
        self.fed = upper

    async def until(self, task: asyncio.Task[None], done: Any) -> None:
        """Run a task until a condition has held for a while, or it ends."""
        held = 0
        async with asyncio.timeout(WAIT_S_MAX):
            while not task.done() and held <= 20:
                held = held + 1 if done() else 0
                await self.clock.advance(0.05)

    async def change_over(self, fuse: Fuse, random: Random, upper: int) -> bool:
        """One life of the process that changes the program; whether it has been changed."""
        collections = self.process(fuse)
        takeover = self.takeover(collections, random, fuse)
        task = asyncio.create_task(takeover.run())

        def stuck() -> bool:
            return min(takeover.beside.progress.lower, self.fed) >= upper and takeover.beside.rests

        await self.until(task, stuck)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if ended is not None and not isinstance(ended, Killed | asyncio.CancelledError):
            raise AssertionError("the takeover failed") from ended
        self.told += [] if takeover.differs is None else [takeover.differs]
        return ended is None

    async def follow(self, target: ViewTarget, fuse: Fuse, random: Random, upper: int) -> None:
        """One life of a process that keeps one version up to an instant."""
        view = self.view(target, self.process(fuse), random)
        task = asyncio.create_task(view.maintain_forever())
        await self.until(task, lambda: view.progress.lower >= upper)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(ended, Killed | asyncio.CancelledError):
            raise AssertionError("the view failed") from ended

    def expected(self, program: CheckedProgram) -> dict[str, Mapping[int, set[Any]]]:
        """The contents that the twin says, at each instant."""
        given = [
            Presence(
                Record("ping", row[:2], row[2], row[3]),
                row[2],
                float("inf") if row[3] is None else row[3],
            )
            for row in self.rows
        ]
        said = written(program, {"ping": given}, END)
        return {n: {at: as_of(rows, at) for at in range(END)} for n, rows in said.items()}

    async def check(self) -> int:
        """Compare everything written with the two programs; the common frontier."""
        at = self.at
        assert at is not None
        old, new = self.expected(self.old), self.expected(self.new)
        for name in (*self.new.derived, "errors"):
            stored = await self.now.read_updates(f"v/{name}")
            for instant in range(0 if name in old else at, END):
                wanted = (old if instant < at else new)[name][instant]
                assert as_of(stored, instant) == wanted, (name, instant, at)
        return at


def as_of(updates: pa.Table, at: int) -> set[tuple[object, ...]]:
    sums: dict[tuple[object, ...], int] = {}
    for *row, time, diff in zip(*(c.to_pylist() for c in updates.columns), strict=True):
        if time <= at:
            sums[tuple(row)] = sums.get(tuple(row), 0) + diff
    found = {row: n for row, n in sums.items() if n}
    assert set(found.values()) <= {1}
    return set(found)


@pytest.mark.rule("MV5", "UP1", "D2")
@pytest.mark.parametrize("seed", range(12))
async def test_a_change_that_dies_at_any_write_has_one_instant_for_everything(seed: int) -> None:
    """Before, in the middle of, and after the takeover; uppers never go back, and are those of one
    version.
    """
    random, world = Random(seed), World(seed)
    await world.create()
    change, deaths, phase = world.change(), 0, "before"
    begin, seen = random.randrange(5, 40), 0
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 9)))
        for _ in range(random.randrange(2, 5)):
            fuse = Fuse(random.randrange(1, 12), after=random.random() < 0.5)
            if phase == "before" and world.fed < begin:
                await world.follow(change.before, fuse, random, world.fed)
            elif phase != "after":
                done = await world.change_over(fuse, random, world.fed)
                phase = "after" if done else "changing"
            else:
                await world.follow(change.after, fuse, random, world.fed)
            deaths += fuse.blown
            uppers = [sole_time((await world.now.status(f"v/{n}")).upper) for n in OUTPUTS]
            assert min(uppers) >= seen
            seen = min(uppers)
    while phase != "after":
        await world.feed(world.fed + 5)
        done = await world.change_over(Fuse(None), random, world.fed)
        phase = "after" if done else "changing"
    await world.follow(change.after, Fuse(None), random, END)
    at = await world.check()
    assert deaths > 3
    assert at > 0


@pytest.mark.parametrize("seed", range(4))
async def test_a_version_that_waits_is_compared_and_takes_over_once_it_is_approved(
    seed: int,
) -> None:
    """Processes die at any write while the version waits, and afterwards."""
    random, world = Random(seed), World(seed)
    await world.create()
    world.waits = True
    deaths, approved_at = 0, random.randrange(25, 45)
    while world.at is None or world.fed < END:
        await world.feed(min(END + 30, world.fed + random.randrange(2, 9)))
        world.waits = world.fed < approved_at
        for _ in range(2):
            fuse = Fuse(random.randrange(1, 30), after=random.random() < 0.5)
            done = await world.change_over(fuse, random, world.fed)
            deaths += fuse.blown
            assert not (world.waits and (done or world.at))
            if done:
                break
        if done:
            break
    await world.feed(max(END, world.fed))
    await world.follow(world.change().after, Fuse(None), random, END)
    assert await world.check() >= 1
    assert deaths > 1
    assert world.told
    old, new = world.expected(world.old), world.expected(world.new)
    for each in world.told:
        if each.at < END:
            alone = [
                new[n][each.at] ^ old.get(n, {}).get(each.at, set()) for n in world.new.derived
            ]
            assert each.rows == sum(map(len, alone)), each


async def test_a_subscriber_of_the_old_version_sees_the_new_one_as_changes() -> None:
    world, random = World(1), Random(1)
    await world.create()
    change = world.change()
    await world.feed(20)
    await world.follow(change.before, Fuse(None), random, 20)
    held = await world.now.read_hold("v/calm", owner="reader", at=frontier(0), lease_ms=None)
    before = await world.now.snapshot(held, 19)
    for upper in (30, 40, END):
        await world.feed(upper)
        if await world.change_over(Fuse(None), random, upper):
            break
    await world.feed(END)
    await world.follow(change.after, Fuse(None), random, END)
    at = await world.check()
    news = consolidate(await world.now.changes(held, 20, END))
    rows = {tuple(r[n] for n in r if not n.startswith("_")) for r in before.to_pylist()}
    old, new = world.expected(world.old), world.expected(world.new)
    for instant in range(20, END):
        for r in news.to_pylist():
            if r["_time"] == instant:
                row = tuple(r[n] for n in r if not n.startswith("_"))
                (rows.add if r["_diff"] > 0 else rows.remove)(row)
        assert rows == (old if instant < at else new)["calm"][instant]


async def test_a_process_that_slept_through_the_change_writes_nothing_of_the_old_version() -> None:
    world, random = World(2), Random(2)
    await world.create()
    await world.feed(20)
    asleep = world.view(world.change().before, world.process(Fuse(None)), random)
    sleeping = asyncio.create_task(asleep.maintain_forever())
    await world.until(sleeping, lambda: asleep.progress.lower >= 20)
    step, asleep._maintainer.step = asleep._maintainer.step, None  # type: ignore[method-assign,assignment]
    await _over(world, random)
    await world.until(sleeping, lambda: False)
    assert isinstance(sleeping.exception(), TypeError), "it was awake"
    # It wakes with a step of the old version in its hands.
    asleep._maintainer.step = step  # type: ignore[method-assign]

    async def wake() -> None:
        await asleep._step(END)
        await asleep._settle()

    with pytest.raises(Fenced):
        await wake()
    await world.follow(world.change().after, Fuse(None), random, END)
    await world.check()


async def _over(world: World, random: Random) -> None:
    for upper in (30, 40, 50):
        await world.feed(upper)
        if await world.change_over(Fuse(None), random, upper):
            break
    await world.feed(END)


async def test_a_program_becomes_one_with_ticks_and_back() -> None:
    kept = OLD + "seen(h) := ping(h, _);\nseen(h) @next := seen(h);"
    plain = OLD.replace("> 1", "> 2") + "seen(h) := ping(h, _);"
    for old, new in ((OLD, kept), (kept, kept.replace("6 / n", "7 / n")), (kept, plain)):
        world, random = World(3, old, new), Random(3)
        await world.create()
        await world.feed(20)
        await world.follow(world.change().before, Fuse(None), random, 20)
        for upper in (30, 40, 50):
            await world.feed(upper)
            if await world.change_over(Fuse(None), random, upper):
                break
        await world.feed(END)
        await world.follow(world.change().after, Fuse(None), random, END)
        stored = await world.now.read_updates("v/calm")
        wanted = world.expected(checked(plain if new == plain else OLD))["calm"]
        assert as_of(stored, END - 1) == wanted[END - 1]


async def test_what_has_said_everything_cannot_be_changed() -> None:
    world, random = World(1), Random(1)
    await world.create()
    await world.feed(20)
    await world.now.close_collection("ping")
    task = asyncio.create_task(world.takeover(world.now, random, Fuse(None)).run())
    await world.until(task, lambda: False)
    with pytest.raises(UsageError, match="said everything"):
        task.result()
    assert world.at is None
