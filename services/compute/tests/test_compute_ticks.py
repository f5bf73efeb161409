"""Ticked programs as views: killed at any write, they say what every tick says by itself, by either
strategy.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tidemill.arrangement.updates import consolidate, empty_updates
from tidemill.catalog.record_rows import (
    PredicateShape,
    record_of,
)
from tidemill.datalog.allowance import Allowance
from tidemill.datalog.checked import CheckedProgram
from tidemill.datalog.joining import joining_inputs
from tidemill.datalog.limits import LimitPassed
from tidemill.datalog.presence import Presence
from tidemill.datalog.records import Record, format_record, parse_record
from tidemill.datalog.tick_plan import Batch, Skew, TickPlan
from tidemill.errors import Exhausted, UsageError
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.ticked_views import (
    END,
    INPUTS,
    PING,
    PUT,
    Answers,
    World,
    as_of,
)
from tidemill.testkit.twins.pointwise import tick_answers, ticks_on_change
from tidemill.testkit.twins.sampling import change_instants, present_at
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views import shared_inputs
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.view import ViewDriver

PROGRAMS = {
    "last value": """
        value(k, v) := put(k, v);
        kept(k, v) @next := value(k, v);
        value(k, v) := kept(k, v) ^ not put(k, _);
    """,
    "kept and dropped": """
        seen(h) := ping(h, _);
        seen(h) @next := seen(h);
        open(k) @next := put(k, _);
        open(k) @next := open(k) ^ not ping(k, _);
    """,
    "counting": """
        n(0) := put(_, _);
        n(x + 1) @next := n(x) if x < 30;
        many() @count(x) := n(x);
    """,
    "toggling for ever": """
        start() := put(_, _);
        on() @next := start() ^ not on();
        on() @next := ping(_, _) ^ not on();
    """,
    "expiry and aggregates": """
        alarm(h) @expires(t + 9) := ping(h, n) @time(t) if n > 1;
        load(h) @count(n) @max(n) := ping(h, n);
        held(h) @next := alarm(h);
        late(h) @expires(t + 20) @next := ping(h, _) @time(t);
    """,
    "numbered": """
        put_at(k, n) := put(k, _) ^ now(n);
        early(k, n) @next := put_at(k, n) if n < 9;
        early(k, n) @next := early(k, n);
        odd(n) := now(n) if n % 2 == 1;
    """,
    "errors": "share(h, 6 / n) := ping(h, n);\nkept(x) @next := share(_, x);",
}
PLANS = {"period": TickPlan(7), "change": TickPlan(None)}


def history(seed: int) -> dict[str, pa.Table]:
    """Updates of the inputs: puts come and go, pings begin and may end."""
    random = Random(seed)
    puts: list[tuple[object, ...]] = []
    for key in "abc":
        times = sorted(random.sample(range(1, END), 4))
        for place, time in enumerate(times):
            puts.append((key, place // 2, time, 1 - 2 * (place % 2)))
    pings: list[tuple[object, ...]] = []
    for _ in range(12):
        time = random.randrange(1, END)
        ends = random.choice((None, time + random.randrange(1, 15)))
        row = (random.choice("abc"), random.randrange(4), time, ends)
        if row[:3] in [ping[:3] for ping in pings]:
            continue
        pings.append((*row, time, 1))
        if ends is not None and ends < END:
            pings.append((*row, ends, -1))
    return {"put": table(puts, PUT), "ping": table(pings, PING)}


def table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    updates = empty_updates(schema).schema
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(updates)]
    return consolidate(pa.Table.from_arrays(columns, schema=updates))


def presences(updates: pa.Table, shape: PredicateShape) -> list[Presence]:
    """The presences that the updates of an input stand for."""
    name = shape.predicate.removesuffix("s")
    make, begun, found = record_of(replace(shape, predicate=name)), {}, []
    rows = zip(*(c.to_pylist() for c in updates.columns), strict=True)
    for *data, time, diff in sorted(rows, key=lambda r: r[-2]):
        if diff > 0:
            begun[tuple(data)] = time
        else:
            found.append(Presence(make(tuple(data)), begun.pop(tuple(data)), time))
    return found + [Presence(make(row), time) for row, time in begun.items()]


Row = tuple[Any, ...]


def expected(program: CheckedProgram, inputs: Mapping[str, pa.Table], plan: TickPlan) -> Answers:
    """Every tick evaluated by itself; between two ticks what the earlier one said, unless it
    expires.
    """
    given = {n: presences(inputs[n], INPUTS[n][1]) for n in program.inputs if n in INPUTS}
    instants, numbers = change_instants(given, END), itertools.count()

    def seen(at: int) -> dict[str, list[Record]]:
        now = [Record("now", (next(numbers),))] if "now" in program.inputs else []
        return {**present_at(given, at), "now": now}

    if plan.period_ms is None:
        ran_at = ticks_on_change(program, seen, instants, END)
        instants, said = [at for at, _ in ran_at], [tick for _, tick in ran_at]
    else:
        instants = list(range(0, END, plan.period_ms))
        said = tick_answers(program, [seen(at) for at in instants], instants)
    found: Answers = []
    for at in range(END):
        ran = [tick for tick, instant in zip(said, instants, strict=True) if instant <= at]
        if not ran:
            found.append(({name: set() for name in program.derived}, set()))
            continue
        alive = {
            n: {t for t in ran[-1].records.get(n, ()) if lives(t, at)} for n in program.derived
        }
        found.append((alive, set(ran[-1].errors)))
    return found


def lives(text: str, at: int) -> bool:
    expires = parse_record(text).expires
    return expires is None or expires > at


WAYS: list[dict[str, Any]] = [{"strategy": "strata"}, {"strategy": "retraction"}]
"""The ways among which a view that begins again chooses."""
in_each_way = pytest.mark.parametrize("way", WAYS, ids=str)


@pytest.mark.rule("MV3", "MV5", "D2")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("when", PLANS)
@pytest.mark.parametrize("seed", range(3))
async def test_a_ticked_view_that_dies_at_any_write_says_what_every_tick_says(
    name: str, when: str, seed: int
) -> None:
    random = Random(f"{name} {when} {seed}")
    world = World(PROGRAMS[name], PLANS[when], history(seed))
    if "now" in world.program.inputs:
        world.plan = replace(world.plan, number="now")
    await world.create()
    deaths = 0
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 15)))
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 8), after=random.random() < 0.5)
            way = random.choice(WAYS)
            view = world.view(world.process(fuse), random.randrange(1, 4), **way)
            await world.follow(view, world.fed)
            deaths += fuse.blown
    await world.follow(world.view(world.now, **random.choice(WAYS)), END)
    assert await world.answers() == expected(world.program, world.inputs, world.plan)
    assert deaths > 0
    state = await world.now.read_updates("v/state")
    for at in range(END):
        as_of(state, at)


@in_each_way
async def test_an_idle_program_leaves_its_ticks_out(way: dict[str, Any]) -> None:
    """A thousand million ticks in which nothing differs take no time, by either strategy."""
    world = World(PROGRAMS["last value"], TickPlan(1), {"put": table([("a", 1, 5, 1)], PUT)})
    await world.create()
    await world.feed(10**9)
    view = world.view(world.now, 5, **way)
    await world.follow(view, 10**9)
    assert view.progress.steps <= 3
    assert as_of(await world.now.read_updates("v/value"), 10**9 - 1) == {("a", 1)}


@in_each_way
async def test_facts_that_are_only_kept_are_written_once(way: dict[str, Any]) -> None:
    rows: list[tuple[object, ...]] = [(f"k{n}", n, 1, 1) for n in range(500)]
    rows += [("other", at, at, 1) for at in range(2, END)]
    world = World(PROGRAMS["last value"], TickPlan(1), {"put": table(rows, PUT)})
    await world.create()
    for upper in range(2, END + 1, 6):
        await world.feed(upper)
        await world.follow(world.view(world.now, **way), upper)
    state = (await world.now.read_updates("v/state"))["solution"].to_pylist()
    assert sum('"k7"' in text for text in state) == 1
    assert len(state) < 500 + 2 * END


ASKING = """
    told(k, v) := put(k, v);
    told(k, v) @async(v) := put(k, v);
    answer(k) @async(0) := told(k, v) if v > 0;
    thanks(k) @next := answer(k);
    lost(k) @async(9) := put(k, 2);
"""


def expected_of_nodes(world: World) -> Answers:
    """Three nodes by hand: each tick of each sees what was sent to it before, once."""
    given = presences(world.inputs["put"], INPUTS["put"][1])
    mail: list[list[tuple[int, Record]]] = [[], [], []]
    thanks: list[set[Record]] = [set(), set(), set()]
    now: list[tuple[set[Record], set[str]]] = [(set(), set())] * 3
    found: Answers = []
    for at in range(END):
        for node in range(3) if at % 7 == 0 else ():
            puts = {p.record.arguments for p in given if p.start <= at < p.end}
            puts = {(k, v) for k, v in puts if v == node}
            letters = {record for sent, record in mail[node] if sent < at}
            mail[node] = [each for each in mail[node] if each[0] >= at]
            told = {Record("told", put) for put in puts} | letters_of("told", letters)
            answers = letters_of("answer", letters)
            now[node] = (
                told | answers | thanks[node],
                {
                    f"node {node}: a message to 9, which is no node: {Record('lost', (k,))}"
                    for k, v in puts
                    if v == 2
                },
            )
            thanks[node] = {Record("thanks", each.arguments) for each in answers}
            mail[node] += [(at, Record("told", put)) for put in puts]
            asked = {r.arguments[0] for r in told if r.arguments[1] != 0}
            mail[0] += [(at, Record("answer", (k,))) for k in asked]
        texts: dict[str, set[str]] = {name: set() for name in world.program.derived}
        for node, (records, _) in enumerate(now):
            for each in records:
                record = Record(each.predicate, (node, *each.arguments))
                texts[record.predicate].add(format_record(record))
        found.append((texts, set().union(*(errors for _, errors in now))))
    return found


def letters_of(predicate: str, letters: set[Record]) -> set[Record]:
    """The messages that bring facts of a predicate."""
    return {record for record in letters if record.predicate == predicate}


@pytest.mark.parametrize("seed", range(3))
async def test_nodes_exchange_every_message_once_whatever_dies(seed: int) -> None:
    random = Random(seed)
    plan = TickPlan(7, nodes=3, place={"put": 1})
    world = World(ASKING, plan, history(seed))
    rows = [
        (k, v % 3, t, t + 1) for v, (k, t) in enumerate(itertools.product("ab", range(2, 35, 4)))
    ]
    changes = [(k, v, t, 1) for k, v, t, _ in rows] + [(k, v, t + 9, -1) for k, v, t, _ in rows]
    world.inputs = {"put": table(changes, PUT)}
    await world.create()
    deaths = 0
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(3, 15)))
        fuse = Fuse(random.randrange(1, 9), after=random.random() < 0.5)
        await world.follow(world.view(world.process(fuse), 2, **random.choice(WAYS)), world.fed)
        deaths += fuse.blown
    await world.follow(world.view(world.now, **random.choice(WAYS)), END)
    assert await world.answers() == expected_of_nodes(world)
    assert deaths > 0
    assert any(errors for _, errors in await world.answers())


@in_each_way
async def test_a_message_is_seen_one_instant_later_where_ticks_follow_changes(
    way: dict[str, Any],
) -> None:
    """The facts of the tick that takes a message in stand until the next tick, as all facts do."""
    world = World(
        "got(k) @async(0) := put(k, _) ^ not got(k);\nback(k) := got(k);",
        TickPlan(None),
        {"put": table([("a", 1, 5, 1), ("a", 1, 20, -1)], PUT)},
    )
    await world.create()
    await world.feed(END)
    await world.follow(world.view(world.now, **way), END)
    back = await world.now.read_updates("v/back")
    assert [bool(as_of(back, at)) for at in (5, 6, 7, 8, 19, 20, 21)] == [
        False, True, True, True, True, False, False,
    ]  # fmt: skip


@in_each_way
async def test_a_program_that_ticks_on_change_goes_on_until_it_is_quiet(
    way: dict[str, Any],
) -> None:
    """One change counts to 30 at successive instants, also if its process dies in between."""
    world = World(
        PROGRAMS["counting"], TickPlan(None), {"put": table([("a", 1, 5, 1), ("a", 1, 6, -1)], PUT)}
    )
    await world.create()
    for upper in (6, 9, 20, END):
        await world.feed(upper)
        await world.follow(world.view(world.now, 3, **way), upper)
    counts = await world.now.read_updates("v/n")
    assert [as_of(counts, at) for at in (5, 6, 7, 30)] == [{(0,)}, {(1,)}, {(2,)}, {(25,)}]


@in_each_way
async def test_a_program_that_is_never_quiet_stalls_with_the_reason(way: dict[str, Any]) -> None:
    world = World(
        "on() @next := put(_, _) ^ not on();",
        TickPlan(None),
        {"put": table([("a", 1, 5, 1)], PUT)},
    )
    await world.create()
    await world.feed(END)
    settings = ComputeSettings(tick_returns_max=20, hold_interval_s=0.0)
    view = ViewDriver(world.target(**way), world.now, world.clock, settings)
    with pytest.raises(LimitPassed, match="no rest after 20 ticks that nothing but @next"):
        await view.maintain_forever()


@in_each_way
async def test_a_step_without_room_for_it_begins_again_with_fewer_ticks(
    way: dict[str, Any],
) -> None:
    """The changes of all ticks are more than the view may hold, those of some are not."""
    rows = [
        (f"k{n}", at, at + t, 1 - 2 * t) for n in range(60) for at in range(1, END) for t in (0, 1)
    ]
    world = World(PROGRAMS["last value"], TickPlan(1), {"put": table(rows, PUT)})
    await world.create()
    await world.feed(END)

    def view(bytes_max: int) -> ViewDriver:
        room = Allowance(bytes_max, "limits.view_bytes", "view v")
        return world.view(world.now, 1_000, allowance=room, **way)

    with pytest.raises(Exhausted) as given_up:
        await view(2_000).maintain_forever()
    assert given_up.value.setting == "limits.view_bytes"
    tight = view(500_000)
    await world.follow(tight, END)
    assert 1 < tight.progress.steps < END
    assert await world.answers() == expected(world.program, world.inputs, world.plan)


async def test_texts_of_rows_that_are_gone_are_forgotten_by_ticks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_inputs, "TEXTS_MAX", 200)
    rows = [
        (f"{n} at {at}", 1, at + t, 1 - 2 * t)
        for n in range(90)
        for at in range(1, END)
        for t in (0, 1)
    ]
    world = World(
        "seen(k) := put(k, _);\nlast(k) @next := seen(k);", TickPlan(1), {"put": table(rows, PUT)}
    )
    await world.create()
    await world.feed(END)
    shared, settings = SharedInputs(), ComputeSettings(window_ticks_max=2, hold_interval_s=0.0)
    target = world.target()
    await world.follow(ViewDriver(target, world.now, world.clock, settings, shared), END)
    assert len(shared.texts(0)) < END * 90 / 2
    assert await world.answers() == expected(world.program, world.inputs, world.plan)


@pytest.mark.parametrize(
    ("admission", "seen"),
    [
        ("tick", {7: 1, 14: 3, 21: 4}),
        ("eager", {3: 1, 9: 2, 10: 3, 16: 4}),
        (Batch(3), {14: 3}),
        (Batch(3, 8), {14: 2, 21: 4}),
    ],
)
@in_each_way
async def test_what_a_tick_takes_in_is_chosen_for_each_input(
    admission: Any, seen: dict[int, int], way: dict[str, Any]
) -> None:
    """Number of rows admitted at each instant; a restart at each instant changes nothing."""
    rows = [("a", 1, 3, 1), ("b", 2, 9, 1), ("c", 3, 10, 1), ("d", 4, 16, 1)]
    if isinstance(admission, Batch) and admission.wait_ms is not None:
        seen = {14: 3, 28: 4}
    for restarts in (False, True):
        plan = TickPlan(7, admission={"put": admission})
        world = World(
            "n() @count(k) := put(k, _);\nx() ~count @next := n();", plan, {"put": table(rows, PUT)}
        )
        await world.create()
        for upper in range(1, END + 1) if restarts else (END,):
            await world.feed(upper)
            await world.follow(world.view(world.now, **way), upper)
        counts = [as_of(await world.now.read_updates("v/n"), at) for at in range(END)]
        steps = {
            at: int(str(next(iter(counts[at]))[0]))
            for at in range(1, END)
            if counts[at] != counts[at - 1]
        }
        assert steps == seen


JOINED = """
    value(k, v) := put(k, v);
    kept(k, v) @next := value(k, v);
    value(k, v) := kept(k, v) ^ not put(k, _);
    met(h, n, v) := ping(h, n) ^ value(h, v);
    told(h) @async(0) := met(h, _, _);
    heard(h) @next := told(h);
"""


def expected_to_join(world: World) -> Answers:
    """Each tick over what it has seen: puts as of it, pings when they come."""
    puts, pings = (presences(world.inputs[n], INPUTS[n][1]) for n in ("put", "ping"))
    found: Answers = []
    value, kept = set[Row](), set[Row]()
    met, told, heard = set[Record](), set[Record](), set[Record]()
    for at in range(END):
        if at % 7 == 0:
            given = {p.record.arguments for p in puts if p.start <= at < p.end}
            kept, heard = value, {Record("heard", r.arguments, r.time) for r in told}
            told = {Record("told", r.arguments[:1], r.time) for r in met}
            value = given | {row for row in kept if row[0] not in {k for k, _ in given}}
        come = [p.record for p in pings if p.start <= at]
        met = {
            Record("met", (*r.arguments, v), r.time)
            for r in come
            for k, v in value
            if k == r.arguments[0]
        }
        said = [Record("value", row) for row in value] + [Record("kept", row) for row in kept]
        texts: dict[str, set[str]] = {name: set() for name in world.program.derived}
        for record in (*said, *met, *told, *heard):
            texts[record.predicate].add(format_record(record))
        found.append((texts, set()))
    return found


@pytest.mark.parametrize("seed", range(3))
async def test_rows_that_join_a_tick_are_seen_at_their_instant_whatever_dies(seed: int) -> None:
    """Answers at each instant, of a view that is killed at any write and goes on."""
    random = Random(seed)
    plan = TickPlan(7, admission={"ping": "stratum"})
    world = World(JOINED, plan, history(seed))
    hosts = itertools.cycle("abc")
    rows = [(next(hosts), at % 4, at, None, at, 1) for at in range(2, END, 3)]
    assert "ping" in joining_inputs(world.program)
    world.inputs["ping"] = table(rows, PING)
    await world.create()
    deaths = 0
    while world.fed < END:
        await world.feed(min(END, world.fed + random.randrange(1, 9)))
        fuse = Fuse(random.randrange(1, 9), after=random.random() < 0.5)
        await world.follow(world.view(world.process(fuse), 2, **random.choice(WAYS)), world.fed)
        deaths += fuse.blown
    await world.follow(world.view(world.now, **random.choice(WAYS)), END)
    assert await world.answers() == expected_to_join(world)
    assert deaths > 0


@in_each_way
async def test_an_event_waits_until_a_later_one_says_how_late_it_is(way: dict[str, Any]) -> None:
    rows = [("a", 1, t, None, at, 1) for t, at in ((5, 5), (8, 8), (2, 9), (20, 20))]
    for restarts in (False, True):
        plan = TickPlan(None, admission={"ping": Skew(4)})
        world = World(
            "n(t) := ping(_, _) @time(t);\nx() @next := n(_);", plan, {"ping": table(rows, PING)}
        )
        await world.create()
        for upper in range(1, END + 1) if restarts else (END,):
            await world.feed(upper)
            await world.follow(world.view(world.now, **way), upper)
        found = await world.now.read_updates("v/n")
        seen = {at: {int(str(row[0])) for row in as_of(found, at)} for at in (8, 9, 19, 20)}
        assert seen == {8: set(), 9: {2}, 19: {2}, 20: {2, 5, 8}}


@in_each_way
async def test_a_program_that_never_rests_over_closed_inputs_is_given_up(
    monkeypatch: pytest.MonkeyPatch, way: dict[str, Any]
) -> None:
    monkeypatch.setattr("tidemill_compute.views.ticked._ALONE_MAX", 50)
    text = "on() @next := put(_, _) ^ not on();"
    world = World(text, TickPlan(1), {"put": table([("a", 1, 5, 1)], PUT)})
    await world.create()
    await world.feed(20)
    await world.now.close_collection("put")
    with pytest.raises(UsageError, match="does not come to rest"):
        await world.view(world.now, **way).maintain_forever()
