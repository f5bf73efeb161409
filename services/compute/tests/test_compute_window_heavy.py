"""Windows divide heavy keys among all ranges, other ones from window to window, with one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec
import numpy as np
import pytest

from tidemill.datalog.placement import HeavyKey
from tidemill.shard.parts import Part
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.mortal_views import END, World, expected, follow
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import History
from tidemill_compute.views.engines import Engine, Engines, Windows
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.windows import planning, touching, work
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.planning import Dividing, plan_windows
from tidemill_compute.views.windows.spec import unpack_window
from tidemill_compute.views.windows.touching import Touched
from tidemill_compute.views.windows.work import WindowWork

KEYS = [
    *(HeavyKey("ping", 1, name, 100) for name in "abc"),
    *(HeavyKey("ping", 2, n, 100) for n in (0, 1, 2, None)),
    HeavyKey("host", 1, "a", 100),
]
FEW_KEYS = {
    "a join": "seen(h, n) := ping(h, n) ^ host(h);",
    "what is not there": "alone(h, n) := ping(h, n) ^ not host(h);",
    "a join of what is derived": """
        seen(h, n) := ping(h, n) ^ host(h);
        again(h, n) := seen(h, n) ^ host(h);
    """,
    "rules that divide other keys": """
        seen(h, n) := ping(h, n) ^ host(h);
        low(h, n) := ping(h, n) if n < 2;
        quiet(h) := host(h) ^ not ping(h, _);
    """,
    "errors of a heavy key": "share(h, n) := ping(h, n) ^ host(h) if 6 / n > 1;",
    "groups of a later fragment": """
        seen(h, n) := ping(h, n) ^ host(h);
        many(n) @count(h) @max(h) := seen(h, n);
    """,
}
ALL_KEYS = {
    "a head without the key": "there(n) := ping(h, n) ^ host(h);",
    "clocks": "tick(h, n, t) := host(h) ^ ping(h, n) ^ clock(0, 7) @time(t);",
    "a later time": "later(h, n) @time(t + 9) := ping(h, n) @time(t) ^ host(h);",
    "lives after an exchange": """
        named(n, h) @expires(t + 5) := ping(h, n) @time(t) ^ host(h);
        held(n) := named(n, h) ~expires ^ ping(h, n);
        seen(h, n) := ping(h, n) ^ host(h);
    """,
}
PROGRAMS = FEW_KEYS | ALL_KEYS
OVER_FEW: Counter[str] = Counter()
"""Windows over few keys that divided heavy ones, by the name of the program."""


class Asked:
    """Evaluates windows in this process; counts those that read heavy keys elsewhere."""

    def __init__(self, world: World) -> None:
        self.whole = self.few = 0
        self._blob = world.stores[1]

    async def ask(self, packed: bytes) -> bytes:
        placement = WindowWork(packed, self._blob, None).divided.placement
        if any(read.place.heavy for each in placement.fragments for read in each.reads):
            whole = unpack_window(packed).whole
            self.whole, self.few = self.whole + whole, self.few + (not whole)
        return msgspec.msgpack.encode(await answer(packed, self._blob, None, evaluate_here))


def on(view: ViewDriver, asked: Asked, world: World, engine: Engine) -> None:
    here = Windows(asked.ask, world.clock.now_ms, lambda: "test")
    view.engines = Engines(engine, here, 1 << 30)


@pytest.fixture
def heavy_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look finds some other keys of the inputs that a view reads heavy."""
    random = Random(8)

    def found(history: History, ranges: int) -> tuple[HeavyKey, ...]:
        known = [key for key in KEYS if key.predicate in history.target.inputs]
        return tuple(key for key in known if random.random() < 0.5)

    monkeypatch.setattr(planning, "heavy_in", found)


@pytest.mark.usefixtures("heavy_in")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(3))
async def test_windows_of_heavy_keys_die_at_any_write_and_say_what_the_twin_says(
    name: str, seed: int
) -> None:
    """Each life divides other keys, or is one process, and most end at a write."""
    random = Random(f"{name} {seed}")
    world = World(PROGRAMS[name], seed)
    await world.create()
    asked, fed, deaths = Asked(world), 0, 0
    while fed < END:
        upper = min(END, fed + random.randrange(1, 12))
        await world.feed(fed, upper)
        fed = upper
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 8), after=random.random() < 0.5)
            view = world.view(world.process(fuse), random.randrange(1, 9))
            on(view, asked, world, random.choice(("spark", "spark", "local")))
            await follow(world, view, fed)
            deaths += fuse.blown
    view = world.view(world.process(Fuse(None)), 3)
    on(view, asked, world, "spark")
    await follow(world, view, END)
    assert await world.contents() == expected(world.program, world.history)
    assert deaths > 0
    assert asked.whole > 0
    assert name in FEW_KEYS or not asked.few
    OVER_FEW.update({name: asked.few} if asked.few else {})


def test_windows_over_few_keys_have_divided_some() -> None:
    assert OVER_FEW.keys() >= FEW_KEYS.keys()


def no_pieces(found: Touched | None) -> Touched | None:
    """The touched keys, without pieces of heavy ones."""
    none = np.empty(0, np.uint64)
    return None if found is None else Touched(found.light, found.heavy, none)


def no_heavy_keys(found: Touched | None) -> Touched | None:
    """The touched keys, without heavy ones."""
    none = np.empty(0, np.uint64)
    return None if found is None else Touched(found.light, none, none)


@pytest.mark.usefixtures("heavy_in")
@pytest.mark.parametrize("wrong", [no_pieces, no_heavy_keys])
async def test_windows_that_look_up_no_pieces_are_found_out(
    wrong: Callable[[Touched | None], Touched | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The companion: the same comparison fails where rows of heavy keys are not found."""
    monkeypatch.setattr(work, "touched_by", lambda *told: wrong(touching.touched_by(*told)))
    differing = 0
    for seed in range(4):
        world = World(FEW_KEYS["a join of what is derived"], seed)
        await world.create()
        try:
            for upper in range(4, END + 1, 4):
                await world.feed(upper - 4, upper)
                view = world.view(world.process(Fuse(None)), 2)
                on(view, Asked(world), world, "spark")
                await follow(world, view, upper)
        except AssertionError:  # a row goes that nobody has found
            differing += 1
            continue
        differing += await world.contents() != expected(world.program, world.history)
    assert differing > 0


def part(heavy: int) -> Part:
    """A part of a million rows, of which about so many have the name a."""
    return Part(1_000_000, 0, 0, 1, 2, key="k", heavy={"h": (("a", heavy),)} if heavy else {})


def divides(dividing: Dividing, heavy: int, *, whole: bool = False) -> list[int]:
    """About how many rows the keys have that the next window divides."""
    inputs = {"ping": [part(heavy)], "host": list[Part]()}
    return [key.rows for key in dividing.plan_for(inputs, whole=whole)[0]]


async def new_dividing(text: str) -> Dividing:
    world = World(text, 1)
    await world.create()
    written = [n for n, _ in world.target.outputs.values()] + ["v/state", "v/errors"]
    now = world.now
    history = History(
        world.target, ComputeSettings(), 0, 0,
        {n: (await now.description(n), ()) for n, _ in world.target.inputs.values()},
        {n: await now.description(n) for n in written},
    )  # fmt: skip
    return Dividing(plan_windows(history))


async def test_a_key_is_divided_while_it_has_half_of_what_makes_one_heavy() -> None:
    """A range of four has 250,000 rows on average."""
    dividing = await new_dividing(FEW_KEYS["a join"])
    assert divides(dividing, 0) == []
    assert divides(dividing, 200_000) == []
    assert divides(dividing, 300_000) == [300_000]
    assert divides(dividing, 200_000) == [300_000]
    assert divides(dividing, 100_000) == []
    assert divides(dividing, 200_000) == []


async def test_a_window_over_few_keys_divides_none_that_make_it_look_at_all() -> None:
    dividing = await new_dividing("known(h) := ping(h, n) ^ host(h);")
    assert divides(dividing, 300_000) == []
    assert divides(dividing, 300_000, whole=True) == [300_000]
