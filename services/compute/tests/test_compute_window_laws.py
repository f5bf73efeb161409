"""Windows of random programs, cut and handed over anywhere, write what one process writes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from unittest.mock import patch

import msgspec
import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from tidemill.catalog.record_rows import (
    PredicateShape,
    arrow_of,
    row_of,
    shape_of_events,
    shape_of_output,
    shape_of_relation,
)
from tidemill.datalog.placement import HeavyKey, live_of, placement_of
from tidemill.datalog.presence import END as NEVER
from tidemill.datalog.presence import Presence
from tidemill.runtime.clock import ManualClock
from tidemill.shard import MemoryBlob, MemoryConsensus
from tidemill.testkit.drawing import drawn
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.mortal_views import World, follow, table
from tidemill.testkit.tidelog import FORMS, UPPER, Example, inputs, programs, programs_alike
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.views.bulk import History
from tidemill_compute.views.engines import Engine, Engines, Windows
from tidemill_compute.views.view_target import ViewTarget
from tidemill_compute.views.windows import planning
from tidemill_compute.views.windows.collecting import answer

LAW = drawn(15)
FindsHeavy = Callable[[History, int], tuple[HeavyKey, ...]]
OUTLIVING = replace(
    FORMS,
    head_marks=(
        "", "@expires(u + 4)", "@time(u + 2) @expires(u + 5)", "~expires", "@time(3) @expires(6)",
        "@count(y) @expires(u + 3)",
    ),
    atom_marks=("", "~expires", "~expires", "@time(u)", "@time(u) ~expires", "@time(w) ~expires"),
    clocks=(),
)  # fmt: skip
"""Rules with ends of their own, with `~expires` in their bodies, and with both."""
EXAMPLE = programs(8, rules_min=2) | programs_alike() | programs(4, OUTLIVING)


class DrawnWorld(World):
    """A world of a drawn program and drawn inputs."""

    def __init__(self, example: Example, drawn: Mapping[str, Sequence[Presence]]) -> None:
        self.clock = ManualClock(0)
        self.ids = map(str, itertools.count())
        self.stores = MemoryConsensus(), MemoryBlob()
        self.program = program = example.checked
        self.now = self.process(Fuse(None))
        shapes = {name: shape_of_input(example, name) for name in program.inputs}
        self.history = {n: updates_of(drawn.get(n, ()), shapes[n]) for n in shapes}
        outputs = {p: (f"v/{p}", shape_of_output(program, p)) for p in program.derived}
        read = {name: (name, shape) for name, shape in shapes.items()}
        self.target = ViewTarget("v", program, read, outputs, "v/errors", "v/state")


def shape_of_input(example: Example, name: str) -> PredicateShape:
    schema = example.checked.inputs[name]
    fields = [pa.field(f"c{at}", arrow_of(kind)) for at, (_, kind) in enumerate(schema.columns)]
    if schema.kind == "relation":
        return shape_of_relation(name, pa.schema(fields))
    ends = [pa.field("time", pa.int64()), pa.field("expires", pa.int64())]
    return shape_of_events(name, pa.schema([*fields, *ends]))


def updates_of(presences: Sequence[Presence], shape: PredicateShape) -> pa.Table:
    make, rows = row_of(shape), list[tuple[object, ...]]()
    for each in presences:
        row = make(replace(each.record, parafacts=()))
        rows.append((*row, int(each.start), 1))
        if each.end < min(UPPER, NEVER):
            rows.append((*row, int(each.end), -1))
    return table(rows, shape.schema)


async def live(world: DrawnWorld, cuts: Sequence[int], engines: Sequence[Engine]) -> int:
    """Keep the view up to each cut by another engine in turn; how many windows that took."""
    windows, fed = 0, 0

    async def ask(packed: bytes) -> bytes:
        nonlocal windows
        windows += 1
        return msgspec.msgpack.encode(await answer(packed, world.stores[1], None, evaluate_here))

    await world.create()
    for upper, engine in zip(sorted({*cuts, UPPER}), itertools.cycle(engines)):
        await world.feed(fed, upper)
        fed = upper
        view = world.view(world.process(Fuse(None)), 3)
        here = Windows(ask, world.clock.now_ms, lambda: "law")
        view.engines = Engines(engine, here, 1 << 40)
        await follow(world, view, upper)
    return windows


SEEN = {"programs": 0, "windows": 0, "divided": 0, "outliving": 0}


def heavy_keys_of(drawn: Mapping[str, Sequence[Presence]], chosen: Random) -> FindsHeavy:
    """Says of other values of the inputs each time that they are heavy."""

    def found(history: History, ranges: int) -> tuple[HeavyKey, ...]:
        keys = [
            HeavyKey(name, column, value, 1_000)
            for name in history.target.inputs
            for each in drawn.get(name, ())
            for column, value in enumerate(each.record.arguments, 1)
        ]
        heavy = tuple(key for key in keys if chosen.random() < 0.3)
        SEEN["divided"] += bool(heavy)
        return heavy

    return found


@LAW
@given(
    EXAMPLE,
    inputs(rows_min=2, rows_max=6),
    st.lists(st.integers(1, UPPER - 1), min_size=2, max_size=4),
    st.lists(st.sampled_from(("spark", "spark", "local")), min_size=2, max_size=3),
    st.integers(0, 1_000),
)
def test_windows_of_random_programs_write_what_one_process_writes(
    example: Example,
    drawn: dict[str, list[Presence]],
    cuts: list[int],
    engines: list[Engine],
    seed: int,
) -> None:
    """Windows divide some keys, others each time."""
    assume(example.checked.inputs)
    placement = placement_of(example.checked)
    rules = placement.plan.rules
    assume(not live_of(placement, example.checked.derived).lacking)

    async def both() -> None:
        alone, handed = DrawnWorld(example, drawn), DrawnWorld(example, drawn)
        await live(alone, cuts, ["local"])
        with patch.object(planning, "heavy_in", heavy_keys_of(drawn, Random(seed))):
            windows = await live(handed, cuts, engines)
        assert await handed.contents() == await alone.contents(), example.text
        SEEN["programs"] += 1
        SEEN["windows"] += windows
        SEEN["outliving"] += any(rule.outlives and rule.lingers for rule in rules)

    asyncio.run(both())


def test_random_programs_had_windows() -> None:
    assert SEEN["programs"] > 5
    assert SEEN["windows"] > SEEN["programs"]
    assert 2 * SEEN["divided"] > SEEN["windows"]
    assert SEEN["outliving"]
