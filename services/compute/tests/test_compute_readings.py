"""Views that need nearly all of an input read it as others do, and say what each says alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate
from tidemill.catalog.record_rows import shape_of_output, shape_of_relation
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.logical.scans import TIME_AT, AllOf, AnyOf, Comparison, Scan, Test
from tidemill.datalog.parser import parse
from tidemill.datalog.pushdown import Bounds, share_of
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.parts import Part
from tidemill.testkit.turns import Turns
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.readings import is_near
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

SALE = pa.schema([("o", pa.int64()), ("a", pa.int64()), ("k", pa.string())])
SHAPE = shape_of_relation("sale", SALE)
WHOLE = "t(o, a, k) := sale(o, a, k) ^ sale(a, _, k);"
NEAR = (
    "t(o, k) := sale(o, _, k) ^ sale(_, _, k);",
    "t(k) @sum(a) @count(o) := sale(o, a, k) if o > 3;",
    "t(a, k) := sale(o, a, k) ^ not sale(a, _, k) if o > 1 ^ a < 90;",
)
FAR = (
    "t(k) := sale(_, _, k);",
    't(o, a) := sale(o, a, "k1");',
    "t(o, a, k) := sale(o, a, k) if o == 5;",
)
PROGRAMS = (WHOLE, *NEAR, *FAR)
EVERY = (1, 2, 3)


class World:
    """An input, and views over it."""

    def __init__(self, programs: Sequence[str]) -> None:
        self.clock, ids = ManualClock(0), map(str, itertools.count())
        self.collections = Collections(MemoryConsensus(), MemoryBlob(), self.clock, ids.__next__)
        self.shared = SharedInputs()
        self.targets = [self._target(at, text) for at, text in enumerate(programs)]
        self.views: list[ViewDriver] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.fed = 0

    def _target(self, at: int, text: str) -> ViewTarget:
        columns = (("o", "int"), ("a", "int"), ("k", "text"))
        given = InputSchemas({"sale": InputSchema("sale", "relation", columns)})
        program = check(parse(text), given)
        outputs = {"t": (f"v{at}/t", shape_of_output(program, "t"))}
        inputs = {"sale": ("sale", SHAPE)}
        return ViewTarget(f"v{at}", program, inputs, outputs, f"v{at}/errors", f"v{at}/state")

    async def create(self) -> None:
        await self.collections.create("sale", Description(SALE, retain_ms=0), start=frontier(0))
        for each in self.targets:
            made = {each.errors: ERROR_SCHEMA, each.state: STATE_SCHEMA}
            for name, schema in {**made, each.outputs["t"][0]: each.outputs["t"][1].schema}.items():
                await self.collections.create(name, Description(schema), start=frontier(0))

    async def start(self, at: int, *, alone: bool = False) -> ViewDriver:
        shared = SharedInputs() if alone else self.shared
        settings = ComputeSettings(step_changes_max=7, hold_interval_s=0.0)
        view = ViewDriver(self.targets[at], self.collections, self.clock, settings, shared)
        self.views.append(view)
        self._tasks.append(asyncio.create_task(view.maintain_forever()))
        await self.reach()
        return view

    async def feed(self, rows: Sequence[tuple[int, int, str, int]], upper: int) -> None:
        times = pa.array([upper - 1] * len(rows), pa.uint64())
        columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
        table = pa.table(
            {"o": columns[0], "a": columns[1], "k": columns[2], "_time": times, "_diff": columns[3]}
        )
        await self.collections.compare_and_append(
            "sale", frontier(self.fed), frontier(upper), table, writer="test"
        )
        self.fed = upper
        await self.reach()

    async def reach(self) -> None:
        turns = Turns(self.clock, 0.1)
        while any(view.progress.lower < self.fed for view in self.views):
            for task in self._tasks:
                if task.done():
                    task.result()
            await turns.take()

    async def stop(self) -> Mapping[str, pa.Table]:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        names = [each.outputs["t"][0] for each in self.targets]
        return {each: consolidate(await self.collections.read_updates(each)) for each in names}


def readers(view: ViewDriver) -> int:
    return view._inputs["sale"].shared.readers


@pytest.mark.rule("C1")
@pytest.mark.parametrize("seed", range(8))
async def test_views_that_read_more_than_they_need_say_what_each_says_alone(seed: int) -> None:
    random = Random(seed)
    texts = [WHOLE, *random.sample(PROGRAMS, 4)]
    random.shuffle(texts)
    steps = list[list[tuple[int, int, str, int]]]()
    there: dict[tuple[int, int, str], int] = {}
    for _ in range(9):
        step = []
        for _ in range(random.randrange(1, 9)):
            row = (random.randrange(9), random.randrange(9), f"k{random.randrange(3)}")
            gone = bool(there.get(row)) and random.random() < 0.6
            there[row] = there.get(row, 0) + (-1 if gone else 1)
            step.append((*row, -1 if gone else 1))
        steps.append(step)
    late = {at: random.randrange(7) for at in range(len(texts))}
    found = []
    together = False
    for alone in (False, True):
        world = World(texts)
        await world.create()
        for number, step in enumerate(steps):
            for at in [at for at, begins in late.items() if begins == number]:
                await world.start(at, alone=alone)
            await world.feed(step, 2 * number + 2)
            together = together or any(readers(view) > 1 for view in world.views)
        found.append(await world.stop())
    assert found[0] == found[1]
    assert together


async def test_a_view_that_needs_nearly_all_rows_shares_those_of_one_that_reads_all() -> None:
    world = World(PROGRAMS)
    await world.create()
    rows = [(o, o * 7 % 97, f"k{o % 3}", 1) for o in range(20)]
    await world.feed(rows, 2)
    for at in range(len(PROGRAMS)):
        await world.start(at)
    near = 1 + len(NEAR)
    assert [readers(view) for view in world.views] == [near] * near + [1] * len(FAR)
    await world.feed([(30, 3, "k1", 1)], 4)
    stores = {rows.store for v in world.views for rows in v._maintainer._engine.shared.values()}  # type: ignore[attr-defined]
    assert max(len(store.readers) for store in stores) >= near
    await world.stop()


async def test_a_view_goes_over_to_all_rows_once_another_reads_them_if_it_has_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for most, readers_then in ((100, 2), (3, 1)):
        monkeypatch.setattr("tidemill_compute.views.view.MOVED_MAX", most)
        world = World((NEAR[0], WHOLE))
        await world.create()
        await world.feed([(o, o * 7 % 97, f"k{o % 3}", 1) for o in range(20)], 2)
        narrow = await world.start(0)
        await world.start(1)
        assert readers(narrow) == 1
        await world.feed([(30, 3, "k1", 1)], 4)
        assert readers(narrow) == readers_then
        await world.stop()


async def test_a_view_without_room_for_all_rows_reads_its_own() -> None:
    """Most rows seem to pass by the bounds of their texts, and hardly any does."""
    for room, there in ((1 << 30, 2), (300_000, 1)):
        world = World(("t(o, a, k) := sale(o, a, k);", 't(o, a, k) := sale(o, a, k) if k >= "k2";'))
        await world.create()
        allowance = Allowance(room, "limits.view_bytes", "view v1")
        world.targets[1] = replace(world.targets[1], allowance=allowance)
        many = [(o, o * 7 % 97, f"k{o % 2}", 1) for o in range(20_000)]
        await world.feed([*many, (-3, 0, "zz", 1)], 2)
        await world.start(0)
        view = await world.start(1)
        await world.feed([(-1, 0, "k2", 1), (-2, 0, "k1", 1)], 4)
        assert readers(view) == there
        assert (await world.stop())["v1/t"].num_rows == 2


O_ABOVE = Comparison(1, ">", 75)
K_ABOVE = Comparison(3, ">=", "2026-01-01")


@pytest.mark.parametrize(
    ("test", "columns", "bounds", "near"),
    [
        (None, (1, 3), {}, True),
        (None, (3,), {}, False),
        (AllOf(()), EVERY, {}, True),
        (AnyOf(()), EVERY, {}, False),
        (O_ABOVE, EVERY, {}, True),
        (O_ABOVE, EVERY, {"o": (0, 100, False)}, True),
        (O_ABOVE, EVERY, {"o": (0, 90, False)}, False),
        (Comparison(1, "==", 5), EVERY, {}, False),
        (AnyOf((Comparison(1, "==", 5), O_ABOVE)), EVERY, {}, True),
        (K_ABOVE, EVERY, {}, True),
        (K_ABOVE, EVERY, {"k": ("2024-01-01", "2026-12-31", False)}, True),
        (K_ABOVE, EVERY, {"k": ("2022-01-01", "2026-09-01", False)}, False),
        (AllOf((Comparison(3, ">=", "k"), Comparison(1, "<=", 9))), EVERY, {"o": (0, 99, False)}, False),
    ],
)  # fmt: skip
def test_most_columns_and_a_quarter_of_the_rows_are_nearly_all(
    test: Test | None, columns: tuple[int, ...], bounds: Mapping[str, Bounds], near: bool
) -> None:
    scan = Scan("sale", columns, test)
    parts = [Part(10, 1, 0, 1, 3, bounds=bounds)] if bounds else []
    assert is_near(scan, SHAPE, parts) == near


@pytest.mark.parametrize("seed", range(20))
def test_the_share_of_evenly_spread_numbers_is_what_counting_says(seed: int) -> None:
    random = Random(seed)
    numbers = range(random.randrange(100), random.randrange(200, 400))
    test = Comparison(1, random.choice(("<", "<=", ">", ">=")), random.randrange(500))
    counted = sum(test.holds((0, number)) for number in numbers) / len(numbers)
    bounds = {"o": (numbers[0], numbers[-1], False)}
    assert share_of(test, ["o"], bounds) == pytest.approx(counted, abs=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_the_share_of_evenly_spread_texts_is_about_what_counting_says(seed: int) -> None:
    random = Random(seed)
    begin = date(2020, 1, 1) + timedelta(days=random.randrange(2_000))
    days = [begin + timedelta(days=n) for n in range(random.randrange(400, 3_000))]
    texts = [*map(str, days)]
    shown: tuple[Sequence[str], float] = random.choice(((texts, 0.01), (_codes(random), 0.05)))
    values, apart = shown
    test = Comparison(1, random.choice(("<", "<=", ">", ">=")), random.choice(values))
    counted = sum(test.holds((0, value)) for value in values) / len(values)
    bounds = {"k": (values[0], values[-1], False)}
    assert share_of(test, ["k"], bounds) == pytest.approx(counted, abs=apart)


def _codes(random: Random) -> list[str]:
    """Numbers written in letters, in order, behind the same beginning."""
    numbers = sorted(random.sample(range(26**4), 2_000))
    return ["order-" + "".join(chr(97 + n // 26**at % 26) for at in (3, 2, 1, 0)) for n in numbers]


@pytest.mark.parametrize(
    ("sign", "value", "share"),
    [("<", "a", 0.0), (">=", "a", 1.0), ("<", "x", 1.0), (">", "x", 0.0), (">", "c", 0.0),
     ("<=", "b", 0.0), (">=", "b", 1.0)],
)  # fmt: skip
def test_texts_outside_the_bounds_pass_all_or_none(sign: str, value: str, share: float) -> None:
    assert share_of(Comparison(1, sign, value), ["k"], {"k": ("b", "c", False)}) == share


def test_event_times_have_a_share_where_their_column_is_known() -> None:
    test = Comparison(TIME_AT, ">=", 900)
    bounds = {"time": (0, 1_000, False)}
    assert share_of(test, ["k", "time"], bounds, "time") == pytest.approx(0.1)
    assert share_of(test, ["k", "time"], bounds) == 1.0
