"""Views as processes that die at any write: the whole history must come out as if evaluated at
once.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate
from tidemill.catalog.schemas import STATE_SCHEMA
from tidemill.datalog import state
from tidemill.datalog.strategy import Strategy
from tidemill.errors import Corrupt
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.faults.groups import MemoryGroups
from tidemill.testkit.faults.overtaken import Overtaken
from tidemill.testkit.mortal_views import END, PROGRAMS, World, expected, follow, table
from tidemill.time import frontier, sole_time
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.view_updates import update_table

OLDER_STATES = json.loads(Path(__file__).with_name("older_states.json").read_text())
"""Program, seed of the history, an instant, and the state just before it of a view that engines on
rows and columns kept."""


@pytest.mark.rule("C1", "C4", "MV3", "MV5", "D2")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(8))
async def test_a_view_that_dies_at_any_write_says_what_the_twin_says(name: str, seed: int) -> None:
    await live_and_die(name, seed)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(2))
async def test_a_view_with_more_columns_than_the_dataflow_takes_says_the_same(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.datalog.dataflow.missing_in", lambda checked: "wide rows")
    await live_and_die(name, seed)


@pytest.mark.rule("C1", "C4", "MV3", "MV5", "D2")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(4))
async def test_a_view_that_writes_a_step_at_once_and_dies_says_what_the_twin_says(
    name: str, seed: int
) -> None:
    groups = MemoryGroups()
    await live_and_die(name, seed, groups)
    assert groups.landed > 3


async def live_and_die(name: str, seed: int, groups: MemoryGroups | None = None) -> None:
    """Many lives of a process that keeps a view, most of which end at a write."""
    random = Random(f"{name} {seed}")
    world = World(PROGRAMS[name], seed, groups=groups)
    await world.create()
    fed = deaths = 0
    while fed < END:
        upper = min(END, fed + random.randrange(1, 15))
        await world.feed(fed, upper)
        fed = upper
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 6), after=random.random() < 0.5)
            strategy: Strategy = random.choice(("strata", "retraction"))
            view = world.view(world.process(fuse), random.randrange(1, 9), strategy)
            await follow(world, view, fed)
            deaths += fuse.blown
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    assert await world.contents() == expected(world.program, world.history)
    assert deaths > 0
    state = consolidate(await world.process(Fuse(None)).read_updates("v/state"))
    for at in range(END):
        assert set(as_of(state, at).values()) <= {1}, (
            at
        )  # no row is there twice, none less than not at all


@pytest.mark.parametrize(("name", "seed", "at", "rows"), OLDER_STATES)
async def test_a_view_goes_on_from_the_state_that_an_older_version_wrote(
    name: str, seed: int, at: int, rows: list[list[object]]
) -> None:
    """Engines before the dataflow wrote each solution as a row of its own."""
    world = World(PROGRAMS[name], seed)
    await world.create()
    await world.feed(0, END)
    state = [(*row, at - 1, 1) for row in rows]
    before = {"v/state": table(state, STATE_SCHEMA)}
    for collection, updates in expected(world.program, world.history).items():
        before[collection] = updates.filter(pa.array(updates["_time"].to_numpy() < at))
    for collection, updates in before.items():
        await world.now.compare_and_append(
            collection, frontier(0), frontier(at), updates, writer="an older version"
        )
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    assert await world.contents() == expected(world.program, world.history)


@pytest.mark.rule("MV2")
async def test_a_view_over_inputs_without_their_past_begins_with_what_they_hold() -> None:
    world = World(PROGRAMS["join and absence"], 3)
    start = await world.create(fed=17)
    assert start > 0
    await world.feed(17, END)
    for writes in (2, 1):
        await follow(world, world.view(world.process(Fuse(writes)), 5), END)
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    whole = expected(world.program, world.history)
    for name, rows in (await world.contents()).items():
        for at in range(start, END):
            assert as_of(rows, at) == as_of(whole[name], at)


def as_of(updates: pa.Table, at: int) -> dict[tuple[object, ...], int]:
    sums: dict[tuple[object, ...], int] = {}
    for *row, time, diff in zip(*(c.to_pylist() for c in updates.columns), strict=True):
        if time <= at:
            sums[tuple(row)] = sums.get(tuple(row), 0) + diff
    return {row: n for row, n in sums.items() if n}


@pytest.mark.rule("C1", "C4")
@pytest.mark.parametrize("seed", range(3))
async def test_a_view_comes_as_far_as_the_input_that_is_furthest_behind(seed: int) -> None:
    random = Random(seed)
    world = World(PROGRAMS["join and absence"], seed)
    await world.create()
    fed = dict.fromkeys(world.target.inputs, 0)
    apart = 0
    while min(fed.values()) < END:
        name = random.choice([each for each, upper in fed.items() if upper < END])
        upper = min(END, fed[name] + random.randrange(1, 15))
        await world.feed(fed[name], upper, name)
        fed[name] = upper
        behind = min(fed.values())
        apart += behind < max(fed.values())
        await follow(world, world.view(world.process(Fuse(None)), 5), behind)
        for output, _ in world.target.outputs.values():
            assert (await world.now.status(output)).upper == frontier(behind)
    assert await world.contents() == expected(world.program, world.history)
    assert apart > 0


@pytest.mark.rule("C2", "C3", "MV3")
async def test_a_view_has_both_frontiers_and_its_readers_keep_since() -> None:
    world = World("never(h) := host(h) ^ ping(h, 99);  here(h) := host(h);", 2)
    await world.create()
    outputs = [*(name for name, _ in world.target.outputs.values()), "v/errors"]
    for name in outputs:
        await world.now.retain(name, 5)
    await world.feed(0, 10)
    await follow(world, world.view(world.process(Fuse(None)), 5), 10)
    reader = await world.now.read_hold("v/here", owner="reader", lease_ms=None)
    assert reader.frontier == frontier(5)
    await world.feed(10, END)
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    statuses = {name: await world.now.status(name) for name in outputs}
    assert {status.upper for status in statuses.values()} == {frontier(END)}
    assert statuses["v/here"].since == reader.frontier
    assert statuses["v/never"].since == frontier(END - 5)
    await world.now.drop(reader)
    assert (await world.now.status("v/here")).since == frontier(END - 5)


@pytest.mark.rule("MV7", "D2")
@pytest.mark.parametrize(
    "name", ["join and absence", "solutions that outlive what established them"]
)
async def test_what_is_no_output_is_rebuilt_after_a_restart(name: str) -> None:
    world = World(PROGRAMS[name], 2)
    await world.create()
    for upper in range(4, END + 1, 4):
        await world.feed(upper - 4, upper)
        # Another process each time: of the inputs and of what follows from them it knows nothing.
        await follow(world, world.view(world.process(Fuse(None)), 5), upper)
    assert await world.contents() == expected(world.program, world.history)


@pytest.mark.rule("MV4", "C1")
@pytest.mark.parametrize("name", ["join and absence", "aggregates and clocks"])
async def test_a_view_that_is_overtaken_within_an_interval_adopts_it_and_writes_the_rest(
    name: str,
) -> None:
    world = World(PROGRAMS[name], 2)
    await world.create()
    loser = world.process(Fuse(None), Overtaken)
    await world.feed(0, END)
    await follow(world, world.view(loser, 5), END)
    assert await world.contents() == expected(world.program, world.history)
    assert isinstance(loser, Overtaken)
    assert loser.overtaken > 2


@pytest.mark.rule("MV5")
async def test_inputs_keep_the_history_that_their_outputs_keep_and_no_more() -> None:
    world = World(PROGRAMS["join and absence"], 2)
    await world.create()
    outputs = [name for name, _ in world.target.outputs.values()]

    async def since(names: list[str]) -> list[int]:
        return [sole_time((await world.now.status(name)).since) for name in names]

    view = world.view(world.process(Fuse(None)), 5)
    await world.feed(0, 20)
    await follow(world, view, 20)
    assert await since(list(world.target.inputs)) == [0, 0] == await since(outputs)
    for name in [*outputs, "v/errors"]:
        await world.now.retain(name, 0)
    await world.feed(20, END)
    await follow(world, world.view(world.process(Fuse(None)), 5), END)
    kept = await since(list(world.target.inputs))
    assert max(kept) <= min(await since(outputs))
    assert min(kept) > 20


def test_no_updates_have_the_metadata_of_their_own_schema() -> None:
    """Schemas are equal whatever metadata their fields have."""
    plain = pa.schema([("n", pa.int64())])
    told = pa.schema([pa.field("n", pa.int64(), metadata={"unit": "s"})], {"of": "a table"})
    others = pa.schema([pa.field("n", pa.int64(), metadata={"unit": "ms"})])
    assert plain == told == others
    for schema in (told, plain, others, told):
        found = update_table([], schema).schema
        assert found.field(0).equals(schema.field(0), check_metadata=True)
        assert found.metadata == schema.metadata
    assert update_table([], told) is update_table([], told)


COUNTS_THAT_LIVE_ON = pytest.mark.parametrize("rule", [
    "met(h) := host(h) ^ many(h) ~expires;",
    "met(h) @expires(t + 15) := many(h) ^ ping(h, _) @time(t);",
])  # fmt: skip


@COUNTS_THAT_LIVE_ON
@pytest.mark.parametrize("tag", ["matches", "members", "of a newer version"])
async def test_counts_that_another_version_identified_are_not_gone_on_with(
    rule: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of an engine that is gone would count one match twice."""
    text = "many(h) @count(n) := ping(h, n); " + rule + " big(h, c) := met(h) @count(c);"
    world = World(text, 0)
    await world.create()
    await world.feed(0, 17)
    with monkeypatch.context() as patched:
        patched.setattr(state, "_OF_MATCHES", tag)
        await follow(world, world.view(world.process(Fuse(None)), 5), 17)
    await world.feed(17, END)
    view = world.view(world.process(Fuse(None)), 5)
    if tag == state._OF_MATCHES:
        await follow(world, view, END)
        assert await world.contents() == expected(world.program, world.history)
        return
    says = {"members": "delete the view and apply it anew"}.get(tag, "may be of a newer version")
    with pytest.raises(Corrupt, match=says):
        await view.maintain_forever()


@COUNTS_THAT_LIVE_ON
async def test_a_kind_of_state_that_a_newer_version_has_is_not_gone_on_with(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World("many(h) @count(n) := ping(h, n); " + rule, 0)
    await world.create()
    await world.feed(0, 17)
    await follow(world, world.view(world.process(Fuse(None)), 5), 17)
    await world.feed(17, END)
    before = ViewDriver._state_before

    async def newer(view: ViewDriver, lower: int) -> frozenset[state.StateRow]:
        rows = await before(view, lower)
        assert rows
        return frozenset((rule, f"{kind}/2", text) for rule, kind, text in rows)

    monkeypatch.setattr(ViewDriver, "_state_before", newer)
    with pytest.raises(Corrupt, match="of rule"):
        await world.view(world.process(Fuse(None)), 5).maintain_forever()
