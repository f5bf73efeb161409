"""Inputs of ticked views as words: they say what the same rows say as records."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate, empty_updates
from tidemill.datalog.tick_plan import Skew, TickPlan
from tidemill.testkit.ticked_views import END, PING, PUT, Answers, World, as_of

PROGRAMS = {
    "kept values": """
        value(k, v) := put(k, v);
        kept(k, v) @next := value(k, v);
        value(k, v) := kept(k, v) ^ not put(k, _);
    """,
    "joined events": """
        met(h, n, v) := ping(h, n) ^ put(h, v);
        met(h, n, v) @next := met(h, n, v) ^ not put(h, v);
        load(h) @count(n) @max(n) := ping(h, n);
    """,
    "times of events": """
        late(h) @expires(t + 9) := ping(h, _) @time(t);
        seen(h, n) @next := late(h) ^ ping(h, n);
    """,
    "one input unread": "some(h) @next := ping(h, _);\nput_is_there() := put(_, _);",
}


def histories(random: Random) -> dict[str, pa.Table]:
    """Rows that are there several times, with nulls; events that are withdrawn, and that end."""
    puts: list[tuple[object, ...]] = []
    for key in ("a", "b", "c", None):
        held: dict[object, int] = {}
        for time in sorted(random.choices(range(1, END), k=9)):
            value = random.choice((None, 1, 2))
            diff = random.choice((1, 2)) if not held.get(value) or random.random() < 0.4 else -1
            held[value] = held.get(value, 0) + diff
            puts.append((key, value, time, diff))
    pings: list[tuple[object, ...]] = []
    for number in range(14):
        time, copies = random.randrange(1, END), random.choice((1, 1, 2))
        ends = random.choice((None, time + random.randrange(1, 15)))
        row, came = (random.choice("abc"), number % 5, time, ends), time + random.choice((0, 0, 3))
        if ends is not None and came >= ends:
            continue
        gone = random.choice((None, ends, came + random.randrange(1, 20)))
        if ends is not None:
            gone = ends if gone is None else min(ends, gone)
        pings.append((*row, came, copies))
        if gone is not None:
            pings.append((*row, gone, -copies))
    return {"put": table(puts, PUT), "ping": table(pings, PING)}


def table(rows: list[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    updates = empty_updates(schema).schema
    kept = [row for row in rows if isinstance(row[-2], int) and row[-2] < END]
    columns = [pa.array([row[i] for row in kept], f.type) for i, f in enumerate(updates)]
    return consolidate(pa.Table.from_arrays(columns, schema=updates))


async def keep(world: World, random: Random) -> tuple[Answers, list[set[tuple[object, ...]]]]:
    """All answers, and the state at each instant, of a view that begins anew now and then."""
    await world.create()
    view = world.view(world.now, random.randrange(1, 9))
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 12)))
        if random.random() < 0.5:
            view = world.view(world.now, random.randrange(1, 9))
        await world.follow(view, world.fed)
    state = await world.now.read_updates("v/state")
    return await world.answers(), [as_of(state, at) for at in range(END)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(4))
async def test_rows_that_a_tick_takes_as_words_say_what_records_say(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that come several times, have nulls, are withdrawn or end; also after a restart."""
    random = Random(f"{name} {seed}")
    inputs, plan = histories(random), TickPlan(random.choice((1, 4, 7)))
    taken: list[str] = []
    takes_rows = TickPlan.takes_rows

    def noting(plan: TickPlan, input_: str) -> bool:
        taken.append(input_)
        return takes_rows(plan, input_)

    monkeypatch.setattr(TickPlan, "takes_rows", noting)
    as_words, _ = await keep(World(PROGRAMS[name], plan, inputs), Random(seed))
    assert taken
    monkeypatch.setattr(TickPlan, "takes_rows", lambda plan, input_: False)
    as_records, _ = await keep(World(PROGRAMS[name], plan, inputs), Random(seed))
    assert as_words == as_records
    assert any(records for at in as_words for records in at[0].values())


def test_only_rows_that_no_gate_holds_and_one_node_sees_are_taken_as_words() -> None:
    assert TickPlan(7).takes_rows("put")
    assert TickPlan(7, admission={"ping": "eager"}).takes_rows("put")
    for plan in (
        TickPlan(None), TickPlan(7, nodes=2), TickPlan(7, place={"put": 0}),
        TickPlan(7, admission={"put": "eager"}), TickPlan(7, admission={"put": Skew(3)}),
        TickPlan(7, admission={"ping": "stratum"}),
    ):  # fmt: skip
        assert not plan.takes_rows("put")
