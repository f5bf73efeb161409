"""Reads of a view: only the parts and rows that its program can use, with the same answer."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate
from tidemill.catalog.record_rows import shape_of_output, shape_of_relation
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.logical.plan import LogicalPlan, logical_plan
from tidemill.datalog.parser import parse
from tidemill.datalog.pushdown import reading_of
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, MemoryBlob, MemoryConsensus
from tidemill.shard.part_store import Limits
from tidemill.testkit.turns import Turns
from tidemill.time import frontier
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget

SALE = pa.schema([("n", pa.int64()), ("shop", pa.string()), ("note", pa.string())])
BATCHES, ROWS = 8, 50


def plan_without_scans(program: CheckedProgram) -> LogicalPlan:
    """A plan that does not know what of an input can matter."""
    return replace(logical_plan(program), scans={})


class Counting(MemoryBlob):
    """Says which objects were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, key: str) -> bytes | None:
        self.read.append(key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        self.read.append(key)
        return await super().get_range(key, start, stop)


class World:
    """A collection of eight batches, each with numbers of its own, and a view over it."""

    def __init__(self, text: str, *, allow_negative: bool = False) -> None:
        self.clock, self.ids = ManualClock(0), map(str, itertools.count())
        self.consensus, self.blob = MemoryConsensus(), Counting()
        schema = InputSchema("sale", "relation", (("n", "int"), ("shop", "text"), ("note", "text")))
        self.program = check(parse(text), InputSchemas({"sale": schema}))
        outputs = {p: (f"v/{p}", shape_of_output(self.program, p)) for p in self.program.derived}
        inputs = {"sale": ("sale", shape_of_relation("sale", SALE))}
        self.target = ViewTarget("v", self.program, inputs, outputs, "v/errors", "v/state")
        self.input = Description(SALE, key=("n",), allow_negative=allow_negative)

    def process(self) -> Collections:
        limits = Limits(inline_bytes_max=0, cache_bytes_max=0)
        return Collections(
            self.consensus, self.blob, self.clock, self.ids.__next__, limits=limits
        )  # fmt: skip

    async def create(self) -> None:
        now = self.process()
        await now.create("sale", self.input, start=frontier(0))
        for number in range(BATCHES):
            at, numbers = number * 10, range(number * ROWS, (number + 1) * ROWS)
            rows = pa.table({
                "n": pa.array(numbers, pa.int64()), "shop": [f"s{n % 3}" for n in numbers],
                "note": [f"note {n}" for n in numbers], "_time": pa.array([at] * ROWS, pa.uint64()),
                "_diff": pa.array([1] * ROWS, pa.int64()),
            })  # fmt: skip
            await now.compare_and_append(
                "sale", frontier(at), frontier(at + 10), rows, writer="test"
            )
        made = {name: shape.schema for name, shape in self.target.outputs.values()}
        for name, schema in (made | {"v/errors": ERROR_SCHEMA, "v/state": STATE_SCHEMA}).items():
            await now.create(name, Description(schema), start=frontier(0))

    async def follow(self, *, scans: bool = True) -> None:
        """A view until it has written all that is definite: how much it read, and how many rows it
        held then.
        """
        settings = ComputeSettings(step_changes_max=60, hold_interval_s=0.0)
        view = ViewDriver(self.target, self.process(), self.clock, settings)
        self.blob.read.clear()
        with pytest.MonkeyPatch.context() as patched:
            if not scans:
                patched.setattr("tidemill_compute.views.view.logical_plan", plan_without_scans)
            task, turns = asyncio.create_task(view.maintain_forever()), Turns(self.clock, 0.1)
            while not task.done() and view.progress.lower < BATCHES * 10:
                await turns.take()
        self.read = len(self.blob.read)
        self.alive = view._inputs["sale"].alive
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended

    async def answer(self) -> dict[str, pa.Table]:
        reader = self.process()
        names = [name for name, _ in self.target.outputs.values()]
        return {name: consolidate(await reader.read_updates(name)) for name in [*names, "v/errors"]}


@pytest.mark.parametrize(
    ("text", "parts", "rows"),
    [
        (f"f(s) := sale(n, s, _) if n >= {ROWS * 6};", 2, 2 * ROWS),
        ('f(n) := sale(n, "s1", _) if n < 60 ^ n >= 10;', 2, 17),
        (f'f(x) := sale({ROWS * 3 + 1}, _, x);', 1, 1),
        ("f(s) := sale(_, s, _);", BATCHES, 3),
        ("f(s) := sale(n, s, _) if 6 / (n + 1) > 5;", BATCHES, BATCHES * ROWS),
    ],
)  # fmt: skip
async def test_a_view_reads_the_parts_and_keeps_the_rows_that_can_match(
    text: str, parts: int, rows: int
) -> None:
    world, twin = World(text), World(text)
    for each in (world, twin):
        await each.create()
    await world.follow()
    await twin.follow(scans=False)
    assert (world.read, world.alive) == (parts, rows)
    assert (twin.read, twin.alive) == (BATCHES, BATCHES * ROWS)
    assert await world.answer() == await twin.answer()
    await world.follow()  # a restart reads a snapshot instead of changes
    assert world.alive <= rows


async def test_a_collection_that_may_go_below_zero_is_read_whole() -> None:
    world = World("f(s) := sale(n, s, _) if n >= 10000;", allow_negative=True)
    await world.create()
    await world.follow()
    assert world.alive == BATCHES * ROWS


@pytest.mark.parametrize(("rules", "filtered"), [(900, True), (1_200, False)])
def test_a2_a_filter_of_more_tests_than_arrow_takes_is_left_to_who_derives(
    rules: int, filtered: bool
) -> None:
    """A2: ten thousand rules over one input were a segmentation fault, and four thousand four
    seconds a read.
    """
    schema = InputSchema("sale", "relation", (("n", "int"), ("shop", "text"), ("note", "text")))
    text = " ".join(f"p({n}) := sale({n}, s, t);" for n in range(rules))
    plan = logical_plan(check(parse(text), InputSchemas({"sale": schema})))
    assert (reading_of(plan.scans["sale"], SALE, 3).where is not None) == filtered
