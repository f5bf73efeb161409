"""Timeless facts with an expiry in outputs of ticked views: no column tells it, and it holds."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate, empty_updates
from tidemill.datalog.tick_plan import TickPlan
from tidemill.testkit.ticked_views import END, PUT, World

PERIOD = 7
PROGRAM = """
    lease(k) @expires(v) := put(k, v) if v > 0;
    lease(k) := put(k, v) if v <= 0;
    seen(k) @next := put(k, _);
"""
Held = dict[int, dict[str, int]]


def puts(random: Random) -> tuple[pa.Table, Held]:
    """Rows of an input, one of each key at a time, and what is there at each instant."""
    rows: list[tuple[object, ...]] = []
    held: Held = {at: {} for at in range(END)}
    for key in "abc":
        times = sorted(random.sample(range(1, END), 7))
        for start, end in zip(times, [*times[1:], END], strict=True):
            if random.random() < 0.2:
                continue
            value = random.choice((0, start + random.randrange(1, 25)))
            rows.append((key, value, start, 1))
            if end < END:
                rows.append((key, value, end, -1))
            for at in range(start, end):
                held[at][key] = value
    schema = empty_updates(PUT).schema
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema)]
    return consolidate(pa.Table.from_arrays(columns, schema=schema)), held


def alive(held: Held, at: int) -> set[str]:
    """Obvious: what a tick saw lives until its value, or until the next tick if that is 0."""
    last = at // PERIOD * PERIOD
    lasting = {key for tick in range(0, at + 1, PERIOD) for key, v in held[tick].items() if v > at}
    return {f'lease("{key}")' for key in lasting | {k for k, v in held[last].items() if not v}}


@pytest.mark.parametrize("begins_anew", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_a_fact_ends_at_the_expiry_that_was_said_last_and_a_restart_knows_it(
    seed: int, begins_anew: bool
) -> None:
    random = Random(seed)
    table, held = puts(random)
    world = World(PROGRAM, TickPlan(PERIOD), {"put": table})
    await world.create()
    view = world.view(world.now)
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 9)))
        if begins_anew:
            view = world.view(world.now)
        await world.follow(view, world.fed)
    found = [records["lease"] for records, _ in await world.answers()]
    assert found == [alive(held, at) for at in range(END)]
