"""Windows write what one process writes, over deaths at any write and changes of the engine."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tidemill.datalog.placement import Live
from tidemill.datalog.state import StateRow
from tidemill.shard import Collections, Limits
from tidemill.shard.parts import Part
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.mortal_views import END, PROGRAMS, World, expected, follow
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill.time import frontier, sole_time
from tidemill_compute.views.engines import Engine, Engines, Windows
from tidemill_compute.views.present_rows import present_rows
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.windows import planning
from tidemill_compute.views.windows import work as window_work
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.part_rows import PartRows
from tidemill_compute.views.windows.spec import pack_window, unpack_window

IN_WINDOWS = {
    "join and absence": PROGRAMS["join and absence"],
    "rows and columns that nobody looks at": "loud(h) := ping(h, n) if n >= 2;",
    "errors": PROGRAMS["errors"],
    "one error of several keys": "share(h, 6 / 0) := ping(h, n);",
    "two fragments": """
        named(n, h) := ping(h, n) ^ host(h);
        many(n) @count(h) @max(h) := named(n, h);
        few(n) := many(n) @count(c) if c < 2;
    """,
    "a fragment that is one task": """
        here(h) := host(h) ^ ping(h, _);
        all() @count(h) := here(h);
    """,
    "a recursion over facts in all ranges": """
        reach(a, b) := ping(a, b);
        reach(a, c) := reach(a, b) ^ step(b, c);
        step(0, 1); step(1, 2); step(2, 3);
    """,
    "groups of matches": """
        worth(n) @sum(length(h)) @count(h) := ping(h, n) ^ host(h);
        pair(n, m) := ping(h, n) ^ ping(h, m) if n < m;
        often(n) := worth(n) @count(c) ^ pair(n, _) if c > 1;
    """,
    "groups of which each range has a part": """
        worth(n) @sum(length(h)) @count(h) := ping(h, n) ^ host(h);
        longest(n % 2) @count(h) @max(h) := ping(h, n) ^ host(h);
        total() @sum(n) @average(n) @count(1) := ping(_, n);
        kinds() @count_distinct(n) @set(h) := ping(h, n) ^ host(h);
        often(n) ~sum ~count := worth(n) @count(c) if c > 1;
    """,
    "counts that are passed on, and meet again": """
        many(n) @count(h) := ping(h, n);
        either(n, h) := many(n) ^ ping(h, n);
        all(h) @max(n) := either(n, h);
        both(h) := all(h) ^ host(h);
    """,
    "a stated fact beside groups": """
        load("z");
        load(h) @count(n) := ping(h, n) ^ host(h);
    """,
    "aggregates and clocks": PROGRAMS["aggregates and clocks"],
    "facts of a later time": """
        later(h, n) @time(t + 9) := ping(h, n) @time(t) ^ host(h);
        soon(h) @count(n) := later(h, n);
    """,
    "sets of another view": """
        alike(s) @count(h) := load(h) @set(s);
        most(h, m) := load(h) @max(m) ^ host(h);
    """,
}
REMEMBER = {
    "solutions that outlive what established them": PROGRAMS[
        "solutions that outlive what established them"
    ],
    "solutions that outlive one of their facts": PROGRAMS[
        "solutions that outlive one of their facts"
    ],
    "lives after an exchange, and ends of their own": """
        named(n, h) @expires(t + 5) := ping(h, n) @time(t) ^ host(h);
        held(n) := named(n, h) ~expires ^ ping(h, n);
        much(n) @count(h) := named(n, h);
        gone(h) ~expires := host(h) ^ not ping(h, _);
    """,
    "an end of its own, and no end of a fact": """
        met(h, n) @expires(t + 9) := host(h) ^ ping(h, n) @time(t) ~expires ^ not ping(h, 0);
        near(h, n) @expires(t + 6) := host(h) ~expires ^ ping(h, n) @time(t);
    """,
    "an end of its own, established ahead": """
        due(h, n) @time(t + 5) @expires(t + 9) := ping(h, n) @time(t) ~expires;
        once(h) @time(t + 2) @expires(t + 7) := ping(h, 1) @time(t) ~expires ^ host(h) ~expires;
    """,
    "an end of its own, divided by values of any type": """
        alike(s, n) ~count ~max ~set := load(h) @set(s) ^ ping(h, n);
        both(s, n) @expires(t + 6) := alike(s, n) ^ alike(s, m) ^ ping(_, m) @time(t);
    """,
}
IN_WINDOWS |= REMEMBER
NOT_IN_WINDOWS = {
    "the end of a fact": (
        "long(h, n) := host(h) ^ ping(h, n) @time(t) @expires(x) if x > t + 4;",
        "a rule names the end of a fact",
    ),
}  # fmt: skip


class Asked:
    """Evaluates windows in this process, and remembers them."""

    def __init__(self, world: World) -> None:
        self.windows: list[bytes] = []
        self._blob = world.stores[1]

    async def ask(self, packed: bytes) -> bytes:
        self.windows.append(packed)
        return msgspec.msgpack.encode(await answer(packed, self._blob, None, evaluate_here))


def on(view: ViewDriver, world: World, engine: Engine) -> Asked:
    asked = Asked(world)
    view.engines = Engines(engine, Windows(asked.ask, world.clock.now_ms, lambda: "test"), 1 << 30)
    return asked


def spark_view(world: World, changes_max: int = 5) -> tuple[ViewDriver, Asked]:
    view = world.view(world.process(Fuse(None)), changes_max)
    return view, on(view, world, "spark")


@pytest.mark.parametrize("name", IN_WINDOWS)
@pytest.mark.parametrize("seed", range(4))
async def test_windows_that_die_at_any_write_and_change_hands_say_what_the_twin_says(
    name: str, seed: int
) -> None:
    """Each life is kept by windows or by one process, and most end at a write."""
    random = Random(f"{name} {seed}")
    world = World(IN_WINDOWS[name], seed)
    await world.create()
    fed = deaths = windows = 0
    while fed < END:
        upper = min(END, fed + random.randrange(1, 15))
        await world.feed(fed, upper)
        fed = upper
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 6), after=random.random() < 0.5)
            view = world.view(world.process(fuse), random.randrange(1, 9))
            asked = on(view, world, random.choice(("spark", "spark", "local")))
            await follow(world, view, fed)
            deaths, windows = deaths + fuse.blown, windows + len(asked.windows)
    await follow(world, spark_view(world)[0], END)
    assert await world.contents() == expected(world.program, world.history)
    assert deaths > 0
    assert windows > 0
    state = await world.process(Fuse(None)).read_updates("v/state")
    assert name in REMEMBER or not state.num_rows


async def is_found_out(program: str) -> None:
    """The windows of a live view say something else than the twin."""
    world = World(program, 1)
    await world.create()

    async def live() -> None:
        for upper in range(4, END + 1, 4):
            await world.feed(upper - 4, upper)
            await follow(world, spark_view(world)[0], upper)
        assert await world.contents() == expected(world.program, world.history)

    with pytest.raises(AssertionError):
        await live()


@pytest.mark.parametrize("name", REMEMBER)
async def test_a_window_that_forgets_the_state_is_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same comparison fails where no range goes on with solutions."""

    async def nothing(*given: object) -> list[StateRow]:
        return []

    monkeypatch.setattr(window_work.WindowWork, "_state_before", nothing)
    await is_found_out(IN_WINDOWS[name])


@pytest.mark.parametrize("name", ["join and absence", "two fragments"])
async def test_a_window_that_forgets_what_was_there_before_is_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same comparison fails if windows look at changes alone."""

    async def nothing(*given: object) -> dict[str, pa.Table]:
        return {}

    monkeypatch.setattr(window_work.WindowWork, "_before", nothing)
    await is_found_out(IN_WINDOWS[name])


LATER = "later(h, n) @time(t + 9) := ping(h, n) @time(t);"


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_view_that_changes_by_itself_is_looked_at_when_it_does_and_not_before(
    forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `forgets` nobody remembers when, and the comparison finds it out."""
    world = World(LATER, 3)
    await world.create()
    await world.feed(0, END)
    if forgets:
        monkeypatch.setattr(planning, "live_of", lambda placement, outputs: Live())
    view, asked = spark_view(world, 1)
    await follow(world, view, END)
    for upper in range(END + 1, END + 20):
        for name in world.target.inputs:
            held = (await world.now.status(name)).upper
            await world.now.compare_and_append(name, held, frontier(upper), None, writer="test")
    quiet, asked = spark_view(world, 1)
    await follow(world, quiet, END + 19)
    found = (await world.contents())["v/later"]
    later = found.filter(pa.array(found["_time"].to_numpy() > END))
    if forgets:
        assert not later.num_rows
        return
    pings = world.history["ping"]
    assert later.num_rows
    assert later.num_rows <= pings.num_rows
    # One window to begin, and one for each instant at which something happens, at most.
    assert 0 < len(asked.windows) <= 1 + len({*later["_time"].to_pylist()})


async def test_the_state_forgets_solutions_that_end_while_nothing_else_changes() -> None:
    """The facts go on by another rule, and only rows of the state say that solutions ended."""
    ends = "up(1) @time(0) @expires(t + 15) := ping(h, n) @time(t) ^ host(h);"
    world = World(f"{ends} up(1) @time(0);", 1)
    await world.create()
    await world.feed(0, END)
    await follow(world, spark_view(world)[0], END)
    assert present_rows(await world.now.read_updates("v/state")).num_rows
    view, _ = spark_view(world)
    task = asyncio.create_task(view.maintain_forever())
    for upper in range(END + 1, END + 20):
        for name in world.target.inputs:
            held = (await world.now.status(name)).upper
            await world.now.compare_and_append(name, held, frontier(upper), None, writer="test")
        while not task.done() and view.progress.lower < upper:
            await asyncio.sleep(0)
            world.clock.move(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not present_rows(await world.now.read_updates("v/state")).num_rows


async def test_an_interval_without_a_change_asks_nobody_and_the_next_one_looks_at_few_keys() -> (
    None
):
    world = World(IN_WINDOWS["two fragments"], 2)
    await world.create()
    await world.feed(0, END)
    view, asked = spark_view(world, 1)
    await follow(world, view, END)
    assert len(asked.windows) > 2
    whole = [unpack_window(each).whole for each in asked.windows]
    assert whole == [True] + [False] * (len(whole) - 1)
    # All inputs rest from here on.
    for upper in (END + 1, END + 9):
        for name in world.target.inputs:
            held = (await world.now.status(name)).upper
            await world.now.compare_and_append(name, held, frontier(upper), None, writer="test")
        quiet, asked = spark_view(world)
        await follow(world, quiet, upper)
        assert asked.windows == []
    assert sole_time((await world.now.status("v/few")).upper) == END + 9


async def test_outputs_that_windows_read_are_held_while_they_do_and_no_longer() -> None:
    """One half of the outputs is an instant ahead: the other half is still read as it was."""
    world = World(IN_WINDOWS["two fragments"], 6)
    await world.create()
    await world.now.retain("v/named", 0)
    await world.feed(0, 20)
    await follow(world, spark_view(world)[0], 20)

    async def holders() -> list[str | None]:
        return [each.owner for each in (await world.now.status("v/named")).holders]

    assert await holders() == ["view:v"]
    await world.now.compare_and_append(
        "v/state", frontier(20), frontier(30), None, writer="an earlier life"
    )
    await world.feed(20, 30)
    named = expected(world.program, world.history)["v/named"]
    times = named["_time"].to_numpy()
    await world.now.compare_and_append(
        "v/named", frontier(20), frontier(30),
        named.filter(pa.array((times >= 20) & (times < 30))), writer="an earlier life",
    )  # fmt: skip
    assert sole_time((await world.now.status("v/named")).since) <= 19
    await follow(world, spark_view(world)[0], 30)
    await world.feed(30, END)
    view = world.view(world.process(Fuse(None)), 5)
    on(view, world, "local")
    await follow(world, view, END)
    assert await holders() == []
    assert await world.contents() == expected(world.program, world.history)


async def test_one_window_evaluated_twice_writes_the_same_bytes_under_the_same_names() -> None:
    world = World(IN_WINDOWS["two fragments"], 3)
    await world.create()
    await world.feed(0, END)
    view, asked = spark_view(world)
    await follow(world, view, END)
    again = Asked(world)
    for window in asked.windows:
        before = {each.key for each in await world.stores[1].list("")}
        assert await again.ask(window) == await again.ask(window)
        assert {each.key for each in await world.stores[1].list("")} == before


async def test_the_rows_that_a_window_looks_at_do_not_follow_its_ranges() -> None:
    """Facts in all ranges would count once for each, and the next window had more ranges again."""
    world = World("met(n, m) := ping(h, n) ^ host(h) ^ ping(_, m);", 3)
    await world.create()
    await world.feed(0, END)
    view, asked = spark_view(world)
    await follow(world, view, END)
    most = 0
    for packed in asked.windows:
        window = unpack_window(packed)
        if window.whole:
            continue
        found = [
            await answer(
                pack_window(msgspec.structs.replace(window, ranges=ranges)),
                world.stores[1], None, evaluate_here,
            )
            for ranges in (1, 4, 16)
        ]  # fmt: skip
        assert len({each.looked for each in found}) == 1
        most = max(most, *(each.touched for each in found))
    assert most > 1


@pytest.mark.parametrize("name", NOT_IN_WINDOWS)
async def test_a_program_without_windows_stays_in_one_process_and_says_why(name: str) -> None:
    text, said = NOT_IN_WINDOWS[name]
    world = World(text, 1)
    await world.create()
    await world.feed(0, END)
    view, asked = spark_view(world)
    await follow(world, view, END)
    assert asked.windows == []
    assert view.engines is not None
    assert view.engines.running == "local"
    assert said in view.engines.why.said
    assert await world.contents() == expected(world.program, world.history)


class Listing(Collections):
    """Writes and merges leave tiny parts, which lists name."""

    def __init__(self, *given: Any) -> None:
        few = Limits(inline_bytes_max=0, part_bytes_max=100, listed_parts=1)
        super().__init__(*given, limits=few)


async def lists_in_windows(name: str) -> tuple[World, int]:
    """A view whose inputs are merged all the time, and how many lists its windows name."""
    world, named = World(IN_WINDOWS[name], 3), 0
    await world.create()
    for upper in range(4, END + 1, 4):
        await world.feed(upper - 4, upper)
        store = world.process(Fuse(None), Listing)
        view = world.view(store, 5)
        asked = on(view, world, "spark")
        await follow(world, view, upper)
        for collection, _ in world.target.inputs.values():
            await store.compact(collection)
        for collection, _ in world.target.outputs.values():
            await store.list_parts(collection)
        windows = map(unpack_window, asked.windows)
        named += sum(len(keys) for each in windows for keys in each.lists.values())
    return world, named


LISTED = ("join and absence", "two fragments", "an end of its own, and no end of a fact")


@pytest.mark.parametrize("name", LISTED)
async def test_windows_read_parts_that_lists_name(name: str) -> None:
    world, named = await lists_in_windows(name)
    assert await world.contents() == expected(world.program, world.history)
    assert named > 0


async def test_a_window_that_forgets_what_lists_name_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The companion: the same comparison fails where lists are passed over."""

    async def nothing(*given: object) -> tuple[Part, ...]:
        return ()

    monkeypatch.setattr(PartRows, "parts_of", nothing)
    with pytest.raises(AssertionError):
        await test_windows_read_parts_that_lists_name("two fragments")


async def test_a_window_whose_list_is_gone_says_so() -> None:
    world, named = World(IN_WINDOWS["two fragments"], 3), list[bytes]()
    await world.create()
    await world.feed(0, END)
    view, asked = spark_view(world)
    await follow(world, view, END)
    for packed in asked.windows:
        window = unpack_window(packed)
        lists = {collection: ["ping/list-0-gone"] for collection in window.parts}
        named.append(pack_window(msgspec.structs.replace(window, lists=lists)))
    found = [await answer(each, world.stores[1], None, evaluate_here) for each in named]
    assert "gone" in {each.failure for each in found}
