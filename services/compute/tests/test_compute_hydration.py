"""The history of a view evaluated in bulk is what the view itself would have written, step by
step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.arrangement.interval_updates import END_WORD
from tidemill.arrangement.updates import concatenate, consolidate
from tidemill.catalog.record_rows import shape_of_events, shape_of_output, shape_of_relation
from tidemill.catalog.schemas import ERROR_SCHEMA, STATE_SCHEMA
from tidemill.datalog.check import check
from tidemill.datalog.inputs import InputSchema, InputSchemas
from tidemill.datalog.limits import LimitPassed, Limits
from tidemill.datalog.parser import parse
from tidemill.datalog.placement.sizes import RANGES_MAX, ranges_for
from tidemill.datalog.presence import ErrorMove
from tidemill.errors import Exhausted, Unavailable
from tidemill.runtime.clock import ManualClock
from tidemill.shard import Collections, Description, DirectoryBlob, MemoryConsensus
from tidemill.shard.encoding import unpack_part
from tidemill.shard.parts import Part
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.testkit.jobs import SessionLauncher
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill.time import frontier, sole_time
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views import range_wire
from tidemill_compute.views.bulk import HISTORY_BYTES_MAX, History
from tidemill_compute.views.bulk_spark import SparkHydrate, history_window
from tidemill_compute.views.history_spec import pack_history, unpack_history
from tidemill_compute.views.interval_rows import FailingTexts, error_moves
from tidemill_compute.views.range_history import RangeHistory
from tidemill_compute.views.range_wire import Dealt
from tidemill_compute.views.told_wire import intervals_of
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.view_updates import update_table
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.spec import pack_window, unpack_window

PROGRAMS = {
    "joins and counts": """
        seen(h, n) := ping(h, n) ^ host(h);
        most(h) @max(n) := ping(h, n);
    """,
    "solutions that outlive one of their facts": """
        met(h, n) := host(h) ^ ping(h, n) ~expires;
        first(h) @min(n) := met(h, n);
    """,
    "errors": "share(h, 6 / n) := ping(h, n);",
    "a group after an exchange": """
        named(n, h) := ping(h, n) ^ host(h) if 10 / n > 2;
        many(n) @count(h) := named(n, h);
        often() @count(n) := many(n) @count(c) if c > 1;
    """,
    "a join, a recursion, stated facts": """
        step(0, 1); step(1, 2); step(2, 3);
        beside(n, m) := ping(h, n) ^ ping(h, m) if n < m;
        reach(n, m) := beside(n, m) ^ step(n, m);
        reach(n, k) := reach(n, m) ^ step(m, k);
        alone(h) ~count := host(h) ^ not ping(h, 3);
    """,
    "groups of which each range has a part": """
        worth(concat(h, "x")) @sum(n) @average(n) @min(n) := ping(h, n) ^ host(h);
        all() @count(n) @max(n) := ping(_, n);
        told() @set(h) := ping(h, _);
    """,
    "counts that are passed on, and meet again": """
        many(n) @count(h) := ping(h, n);
        either(n, h) := many(n) ^ ping(h, n);
        all(h) @max(n) := either(n, h);
        both(h) := all(h) ^ host(h);
    """,
    "floats, truth values and texts that cross": """
        half(n, h, float(n) / 2.0, n > 2, concat(h, "é")) := ping(h, n);
        per(f, b) @count(h) := half(_, h, f, b, _);
        named(m) @sum(f) := half(_, _, f, _, m);
        true_ones(n) := half(n, _, _, true, _) ^ not named("aé") if n > 3;
    """,
    "ends that are matched, in one task": """
        lasts(h, e) := ping(h, n) @expires(e);
        both(h) := lasts(h, e) ^ host(h) if e > 20;
    """,
    "facts with ends of their own, at times": """
        seen(h, n) @time(t) @expires(t + 9) := ping(h, n) @time(t) ^ host(h);
        last(h) @max(n) := seen(h, n);
        both(n) := seen("a", n) ^ seen("b", n) ~expires;
    """,
}
HOST = pa.schema([("name", pa.string())])
PING = pa.schema(
    [("h", pa.string()), ("n", pa.int64()), ("time", pa.int64()), ("expires", pa.int64())]
)
INPUTS = {
    "host": ("host", shape_of_relation("host", HOST)),
    "ping": ("ping", shape_of_events("ping", PING)),
}
END = 60
HEAVY_READS: set[str] = set()
"""Reads of which facts of heavy keys are elsewhere than others."""
SETTINGS = ComputeSettings(step_changes_max=7, spark_rows=20)


def updates_of(name: str) -> list[tuple[object, ...]]:
    """Hosts come and go, pings begin and may end: rows with times and differences."""
    if name == "host":
        return [(h, t, 1 - 2 * (t // 15 % 2)) for h in "abc" for t in range(1, END, 15)]
    rows: list[tuple[object, ...]] = []
    for n in range(40):
        time = n * 7 % END
        ends = None if n % 3 else time + n % 11 + 1
        row = ("abc"[n % 3], n % 5, time, ends)
        rows.append((*row, time, 1))
        if ends is not None and ends < END:
            rows.append((*row, ends, -1))
    return rows


class World:
    """Inputs that have been fed, and the collections of a view that has written nothing."""

    def __init__(self, folder: Path, text: str) -> None:
        self.clock = ManualClock(0)
        self.place = BlobPlace(f"file:{folder / 'blob'}")
        ids = map(str, itertools.count())
        blob = DirectoryBlob(folder / "blob", lambda: token_hex(8))
        self.collections = Collections(MemoryConsensus(), blob, self.clock, ids.__next__)
        parsed = parse(text)
        used = {atom.application.name for rule in parsed.rules for atom in rule.atoms}
        schemas = {
            "host": InputSchema("host", "relation", (("name", "text"),)),
            "ping": InputSchema("ping", "events", (("h", "text"), ("n", "int"))),
        }
        program = check(parsed, InputSchemas({n: s for n, s in schemas.items() if n in used}))
        outputs = {p: (f"v/{p}", shape_of_output(program, p)) for p in program.derived}
        inputs = {name: INPUTS[name] for name in program.inputs}
        self.target = ViewTarget("v", program, inputs, outputs, "v/errors", "v/state")

    def view(self) -> ViewDriver:
        return ViewDriver(self.target, self.collections, self.clock, SETTINGS)

    def bulk(self, launcher: SessionLauncher, bytes_max: int = HISTORY_BYTES_MAX) -> SparkHydrate:
        now_ms, unique = self.clock.now_ms, partial(token_hex, 8)
        return SparkHydrate(launcher, self.collections, now_ms, unique, bytes_max)

    async def create(self, start: int) -> None:
        """Everything is fed; the view begins at `start`, and the inputs forget what was before."""
        for name, (_, shape) in self.target.inputs.items():
            await self._create(name, Description(shape.schema, retain_ms=0), 0)
        if start:
            await self._feed(0, start)
        for name in self.target.inputs:
            assert sole_time((await self.collections.status(name)).since) == start
            await self.collections.read_hold(name, owner="view:v", lease_ms=None)
        await self._feed(start, END)
        written = {name: shape.schema for name, shape in self.target.outputs.values()}
        for name, schema in (written | {"v/errors": ERROR_SCHEMA}).items():
            await self._create(name, Description(schema), start)
        await self._create("v/state", Description(STATE_SCHEMA, retain_ms=0), start)
        await self.view().prepare()

    async def _create(self, name: str, description: Description, start: int) -> None:
        held, _ = await self.collections.create(name, description, start=frontier(start))
        if description.retain_ms is None:
            await self.collections.retain(name, None)
        await self.collections.drop(held)

    @property
    def fed(self) -> dict[str, pa.Table]:
        """All updates of the inputs."""
        tables = {}
        for name, (_, shape) in self.target.inputs.items():
            rows, schema = updates_of(name), Description(shape.schema).update_schema()
            columns = [[row[at] for row in rows] for at in range(len(schema))]
            tables[name] = pa.table(columns, schema=schema)
        return tables

    async def _feed(self, lower: int, upper: int) -> None:
        for name, (_, shape) in self.target.inputs.items():
            rows = [row for row in updates_of(name) if lower <= int(str(row[-2])) < upper]
            schema = Description(shape.schema).update_schema()
            columns = [[row[at] for row in rows] for at in range(len(schema))]
            table = pa.table(columns, schema=schema)
            await self.collections.compare_and_append(
                name, frontier(lower), frontier(upper), table, writer="test"
            )

    async def history(self, start: int) -> History:
        states = {name: await self.collections.state(name) for name in self.target.inputs}
        names = [self.target.state, *(c for c, _ in self.target.outputs.values()), "v/errors"]
        written = {name: await self.collections.description(name) for name in names}
        inputs = {name: (state.description, state.parts()) for name, state in states.items()}
        return History(self.target, SETTINGS, start, END, inputs, written)

    async def contents(self) -> dict[str, pa.Table]:
        names = [*(name for name, _ in self.target.outputs.values()), "v/errors"]
        return {name: consolidate(await self.collections.read_updates(name)) for name in names}


async def hydrate(
    world: World, history: History, bytes_max: int = HISTORY_BYTES_MAX
) -> dict[str, list[Part]]:
    """Parts by collection of a history whose ranges are evaluated here. Raises: Exhausted."""
    blob = open_blob(world.place, lambda: token_hex(8))
    window = pack_window(history_window(history, token_hex(8), 0, bytes_max))
    result = await answer(window, blob, None, evaluate_here)
    if result.failure == "exhausted":
        raise Exhausted(result.message)
    assert not result.failure, result.message
    return {name: [*map(unpack_part, parts)] for name, parts in result.parts.items()}


async def follow(world: World, view: ViewDriver) -> None:
    """Run a view until it has written everything."""
    task = asyncio.create_task(view.maintain_forever())
    while not task.done() and view.progress.lower < END:
        await asyncio.sleep(0.001)
        world.clock.move(0.1)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError), ended


@pytest.mark.parametrize("start", [0, 23])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_what_a_task_writes_is_what_the_view_writes(
    tmp_path: Path, name: str, start: int
) -> None:
    world = World(tmp_path, PROGRAMS[name])
    await world.create(start)
    # A history travels as bytes, and its parts beside it.
    history = await world.history(start)
    bare = unpack_history(pack_history(history))
    assert bare == history.bare
    written = await hydrate(world, replace(history, target=bare.target))
    await follow(world, world.view())
    contents = await world.contents()
    assert any(table.num_rows for table in contents.values())
    for collection, table in contents.items():
        copy = f"copy of {collection}"
        await world._create(copy, Description(history.written[collection].schema), start)
        await world.collections.append_parts(
            copy, frontier(start), frontier(END), written.get(collection, ()), writer="test"
        )
        stored = await world.collections.read_updates(copy)
        assert consolidate(stored).equals(table), collection


def by_ranges(
    history: History, ranges: int, written: World, heavy: Sequence[str] = ()
) -> dict[str, pa.Table]:
    """Updates by collection of a history whose ranges are evaluated here, one after the other.

    Some values of the columns in `heavy` are said to be in many rows.
    """
    told = dict.fromkeys(heavy, (("a", 10**6), (3, 10**6)))
    inputs = {
        name: (description, tuple(replace(part, heavy=told) for part in parts))
        for name, (description, parts) in history.inputs.items()
    }
    divided = RangeHistory.of(replace(history, inputs=inputs), ranges)
    reads = [read for each in divided.placement.fragments for read in each.reads]
    HEAVY_READS.update(read.name for read in reads if read.place.heavy)
    waiting: dict[tuple[int, int], dict[str, list[bytes]]] = {}
    found: dict[str, list[pa.Table]] = {}
    errors: list[ErrorMove] = []
    counts: Counter[str] = Counter()

    def put(dealt: Iterable[Dealt]) -> None:
        for each in dealt:
            held = waiting.setdefault((each.stage, each.range), {})
            held.setdefault(each.name, []).append(each.payload)

    for fragment in divided.placement.fragments:
        for collection in divided.collections_of(fragment):
            put(divided.deal(fragment, collection, written.fed[collection]))
        for number in range(divided.ranges_of(fragment)):
            given = waiting.get((fragment.number, number), {})
            answered = divided.evaluate(fragment, number, given)
            put(answered.crossing)
            errors += answered.errors
            counts.update(answered.rows)
            for collection, updates in answered.updates.items():
                found.setdefault(collection, []).append(updates)
    divided.require_rows(counts)
    moves = error_moves(FailingTexts().take(errors), history.lower)
    found["v/errors"] = [update_table(moves, ERROR_SCHEMA)]
    return {collection: concatenate(tables) for collection, tables in found.items()}


@pytest.mark.parametrize(
    ("start", "heavy"), [(0, ()), (23, ()), (23, ("h",)), (0, ("n",)), (23, ("h", "name"))]
)
@pytest.mark.parametrize("name", PROGRAMS)
async def test_what_ranges_write_together_is_what_the_view_writes(
    tmp_path: Path, name: str, start: int, heavy: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_wire, "PAYLOAD_ROWS", 3)  # rows of one range come in several pieces
    world = World(tmp_path, PROGRAMS[name])
    await world.create(start)
    found = by_ranges(await world.history(start), 3, world, heavy)
    await follow(world, world.view())
    contents = await world.contents()
    assert any(table.num_rows for table in contents.values())
    for collection, table in contents.items():
        mine = found.get(collection, table.slice(0, 0))
        assert consolidate(mine).equals(table), collection


def test_ranges_had_heavy_keys_in_pieces() -> None:
    assert {name.partition(":")[2] for name in HEAVY_READS} > {"1/1,2:ping", "1/:host"}


async def test_ranges_have_no_more_rows_together_than_a_view_may(tmp_path: Path) -> None:
    world = World(tmp_path, PROGRAMS["a group after an exchange"])
    world.target = replace(world.target, limits=Limits(rows=7))
    await world.create(0)
    with pytest.raises(LimitPassed, match="named has more than 7 rows"):
        by_ranges(await world.history(0), 7, world)


async def test_a_history_of_which_too_much_would_be_in_all_ranges_is_one_task(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, PAIRS)
    await world.create(0)
    history = await world.history(0)
    copied = 4 * (24 + 8 * 2) * history.rows
    assert RangeHistory.of(history, 4, copied).ranges == 4
    assert RangeHistory.of(history, 4, copied - 1).ranges == 1


def test_a_row_that_begins_and_ends_is_one_interval() -> None:
    endless = END_WORD
    moves = [(7, 1, 1), (8, 2, 1), (7, 3, -1), (7, 5, 1), (9, 6, -1), (9, 9, 1)]
    wanted = {(7, 1, 3, 1), (8, 2, endless, 1), (7, 5, endless, 1), (9, 6, endless, -1),
              (9, 9, endless, 1)}  # fmt: skip
    for given_ in itertools.permutations(moves):
        found = intervals_of(np.array(given_, np.int64)).tolist()
        assert {*map(tuple, found)} == wanted
        assert len(found) == len(wanted)
    assert len(intervals_of(np.empty((0, 3), np.int64))) == 0


def test_ranges_are_a_power_of_two_and_enough_for_tasks_and_rows() -> None:
    found = [ranges_for(*each) for each in [(1, 1), (10, 3), (9_000_001, 2), (10**12, 2)]]
    assert found == [2, 4, 16, RANGES_MAX]


PAIRS = "pair(x, y) := ping(x, n) ^ ping(y, m);"


async def test_a3_a_history_beyond_its_memory_is_given_up_where_it_is_evaluated(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, PAIRS)
    await world.create(0)
    told = await world.history(0)
    for bytes_max in (100, 20_000):  # what is read is counted, and what is derived
        with pytest.raises(Exhausted, match=r"history of view v .*limits\.history_bytes"):
            await hydrate(world, told, bytes_max)
    assert await hydrate(world, told, 10 << 20)


async def test_h1_bytes_in_place_of_a_history_run_nothing(tmp_path: Path) -> None:
    """An object of Python that opens a file when it is read; a history is data."""
    marker = tmp_path / "ran"
    harm = b"cbuiltins\nopen\n(V" + str(marker).encode() + b"\nVw\ntR."
    with pytest.raises(msgspec.DecodeError):
        unpack_history(unpack_window(harm).view)
    with pytest.raises(msgspec.DecodeError):
        unpack_history(harm)
    assert not marker.exists()


@pytest.mark.server
async def test_a3_a_job_beyond_its_memory_says_so_and_the_next_one_has_its_turn(
    tmp_path: Path, spark: SparkSession
) -> None:
    """The view ends as Exhausted, with nothing written; it is not evaluated in the process
    instead.
    """
    world = World(tmp_path, PAIRS)
    await world.create(0)
    launcher = SessionLauncher(spark, world.place)
    view = world.view()
    view.bulk = world.bulk(launcher, 20_000)
    with pytest.raises(Exhausted, match=r"limits\.history_bytes") as caught:
        await view.maintain_forever()
    assert caught.value.setting == "limits.history_bytes"
    assert sole_time((await world.collections.status("v/pair")).upper) == 0
    view = world.view()
    view.bulk = world.bulk(launcher)
    await follow(world, view)
    assert len(launcher.launched) == 2
    assert view.progress.steps == 0
    assert (await world.contents())["v/pair"].num_rows


@pytest.mark.server
async def test_a_view_goes_on_where_a_job_has_left_it(tmp_path: Path, spark: SparkSession) -> None:
    text = PROGRAMS["solutions that outlive one of their facts"]
    alone, world = World(tmp_path / "alone", text), World(tmp_path / "spark", text)
    await alone.create(0)
    await follow(alone, alone.view())
    await world.create(0)
    launcher = SessionLauncher(spark, world.place)
    view = world.view()
    view.bulk = world.bulk(launcher)
    await follow(world, view)
    assert len(launcher.launched) == 1
    assert view.progress.steps == 0  # the job has done it all
    contents = await world.contents()
    assert contents == await alone.contents()
    # The same again loses every race; and a view that has begun asks nobody.
    result = await launcher.launch(launcher.launched[0])
    assert result is not None
    await world.bulk(launcher).hydrate(await world.history(0))
    assert await world.contents() == contents
    launched = len(launcher.launched)
    again = world.view()
    again.bulk = world.bulk(launcher)
    await follow(world, again)
    assert len(launcher.launched) == launched
    for part in msgspec.msgpack.decode(result.result)["parts"].values():  # type: ignore[union-attr]  # it has succeeded
        assert all(unpack_part(each).rows for each in part)


async def test_a_view_evaluates_itself_what_a_job_could_not(tmp_path: Path) -> None:
    class Nobody:
        asked = 0

        async def hydrate(self, history: History) -> None:
            self.asked += 1
            raise Unavailable("nobody is here")

    text = PROGRAMS["joins and counts"]
    alone, world = World(tmp_path / "alone", text), World(tmp_path / "failed", text)
    for each in (alone, world):
        await each.create(0)
    await follow(alone, alone.view())
    view, nobody = world.view(), Nobody()
    view.bulk = nobody
    await follow(world, view)
    assert (nobody.asked, view.progress.steps > 0) == (1, True)
    assert await world.contents() == await alone.contents()
