"""A recursion in windows of a live view goes by rounds, of which tasks and processes may die."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

import msgspec
import pytest

from tidemill.datalog.dataflow import DataflowEngine
from tidemill.shard import MemoryBlob
from tidemill.testkit.faults.fuse import Fuse, Killed
from tidemill.testkit.mortal_views import END, RECURSIONS, World, expected, follow
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.views.engines import Engine, Engines, Windows
from tidemill_compute.views.range_wire import Dealt
from tidemill_compute.views.view import ViewDriver
from tidemill_compute.views.windows import rounds
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.rounds import RoundTold, RoundWork, Sources
from tidemill_compute.views.windows.spec import unpack_window

T = TypeVar("T")
PROGRAMS = {
    "paths of paths, and what reads them": """
        step(n, m) := ping(h, n) ^ ping(h, m) if n < m;
        path(n, m) := step(n, m);
        path(n, k) := path(n, m) ^ path(m, k);
        last(n) := path(n, _) ^ not path(_, n);
    """,
    "an input alone, and rules of other inputs": """
        up(h, n) := ping(h, n) if n > 1;
        up(h, m) := down(n, h) ^ ping(h, m);
        down(n, g) := up(h, n) ^ ping(g, n);
        named(h, n) := least(h) @min(n) ^ host(h);
        wide(n) @count(h) := up(h, n);
    """,
    **RECURSIONS,
    "a recursion above another one, and a clock beside it": """
        path(n, m) := ping(h, n) ^ ping(h, m) if n < m;
        path(n, k) := path(n, m) ^ path(m, k);
        back(n, m) := path(m, n) ^ host(_);
        back(n, k) := back(n, m) ^ back(m, k);
        tick(n, t) := back(n, _) ^ clock(0, 7) @time(t);
    """,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _few_rows_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.datalog.placement.rounds.ROWS_MIN", 0)


class Asked:
    """Evaluates windows in this process, and remembers them."""

    def __init__(self, world: World) -> None:
        self.windows: list[bytes] = []
        self._world = world

    async def ask(self, packed: bytes) -> bytes:
        self.windows.append(packed)
        return await evaluate(self._world, packed)


async def evaluate(world: World, packed: bytes) -> bytes:
    return msgspec.msgpack.encode(await answer(packed, world.stores[1], None, evaluate_here))


def on(view: ViewDriver, world: World, engine: Engine) -> Asked:
    asked = Asked(world)
    view.engines = Engines(engine, Windows(asked.ask, world.clock.now_ms, lambda: "test"), 1 << 30)
    return asked


class Rounds:
    """Counts the rounds that ranges take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        plain = RoundWork.take

        async def take(work: RoundWork, group: int, sources: Sources) -> RoundTold:
            self.taken += 1
            return await plain(work, group, sources)

        monkeypatch.setattr(RoundWork, "take", take)


async def live_and_die(name: str, seed: int, world: World) -> tuple[int, list[bytes]]:
    """Keep a view by windows or by one process, most of which die; deaths, and all windows."""
    random = Random(f"{name} {seed}")
    await world.create()
    fed, deaths, windows = 0, 0, list[bytes]()
    while fed < END:
        upper = min(END, fed + random.randrange(1, 15))
        await world.feed(fed, upper)
        fed = upper
        for _ in range(random.randrange(1, 4)):
            fuse = Fuse(random.randrange(1, 6), after=random.random() < 0.5)
            view = world.view(world.process(fuse), random.randrange(1, 9))
            asked = on(view, world, random.choice(("spark", "spark", "local")))
            await follow(world, view, fed)
            deaths += fuse.blown
            windows += asked.windows
    view = world.view(world.process(Fuse(None)), 5)
    asked = on(view, world, "spark")
    await follow(world, view, END)
    return deaths, windows + asked.windows


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(3))
async def test_rounds_of_live_windows_whose_process_dies_at_any_write_say_what_the_twin_says(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Rounds(monkeypatch)
    world = World(PROGRAMS[name], seed)
    deaths, windows = await live_and_die(name, seed, world)
    assert await world.contents() == expected(world.program, world.history)
    assert deaths > 0
    assert taken.taken > len(windows) > 0
    assert not (await world.process(Fuse(None)).read_updates("v/state")).num_rows


async def test_a_window_that_does_not_reach_a_recursion_takes_no_round_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later windows look at few keys of other rules, and at all keys of the recursion alone."""
    taken, name = Rounds(monkeypatch), "an input alone, and rules of other inputs"
    world = World(PROGRAMS[name], 2)
    await world.create()
    view = world.view(world.process(Fuse(None)), 1)
    await world.feed(0, END)
    counts = list[tuple[bool, bool, int]]()

    async def ask(packed: bytes) -> bytes:
        before, window = taken.taken, unpack_window(packed)
        found = await evaluate(world, packed)
        counts.append((window.whole, "ping" in window.changes, taken.taken - before))
        return found

    view.engines = Engines("spark", Windows(ask, world.clock.now_ms, lambda: "test"), 1 << 30)
    await follow(world, view, END)
    assert [whole for whole, _, _ in counts] == [True] + [False] * (len(counts) - 1)
    assert all((rounds_ > 0) == reached for _, reached, rounds_ in counts[1:])
    assert {reached for _, reached, _ in counts[1:]} == {False, True}
    assert await world.contents() == expected(world.program, world.history)


class MortalBlob(MemoryBlob):
    """Objects of which a task dies at some writes: before one, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.random: Random | None = None
        self.deaths = Counter[str]()

    async def put(self, key: str, data: bytes) -> None:
        dies = self.random is not None and self.random.random() < 0.4
        after = dies and self.random is not None and self.random.random() < 0.5
        if dies and not after:
            self.deaths["before"] += 1
            raise Killed
        await super().put(key, data)
        if after:
            self.deaths["after"] += 1
            raise Killed


async def until_done(task: Callable[[], Awaitable[T]], random: Random) -> T:
    """The answer of a task that is begun again when it dies, maybe in a process that is new."""
    while True:
        try:
            return await task()
        except Killed:
            if random.random() < 0.5:
                rounds._KEPT.clear()


def begun_again(monkeypatch: pytest.MonkeyPatch, random: Random) -> None:
    """Tasks of rounds are begun again as Spark does it."""
    begin, take, answer = RoundWork.begin, RoundWork.take, RoundWork.answer

    async def begin_again(work: RoundWork, group: int, rows: list[Dealt]) -> RoundTold:
        return await until_done(lambda: begin(work, group, rows), random)

    async def take_again(work: RoundWork, group: int, sources: Sources) -> RoundTold:
        return await until_done(lambda: take(work, group, sources), random)

    async def answer_again(work: RoundWork, group: int, sources: Sources) -> RoundTold:
        return await until_done(lambda: answer(work, group, sources), random)

    monkeypatch.setattr(RoundWork, "begin", begin_again)
    monkeypatch.setattr(RoundWork, "take", take_again)
    monkeypatch.setattr(RoundWork, "answer", answer_again)


@pytest.mark.parametrize(("name", "seed"), [*zip(PROGRAMS, range(4), strict=False)])
async def test_tasks_of_rounds_that_die_at_any_write_leave_the_same_bytes_under_the_same_names(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window is evaluated once in peace, and once among deaths of its tasks and its driver."""
    blob, random = MortalBlob(), Random(seed)
    world = World(PROGRAMS[name], seed, blob)
    _, windows = await live_and_die(name, seed, world)
    plain = {packed: await evaluate(world, packed) for packed in windows}
    before = {each.key: await blob.get(each.key) for each in await blob.list("")}
    begun_again(monkeypatch, random)
    blob.random = Random(seed)
    for packed, wanted in plain.items():
        assert await until_done(lambda asked=packed: evaluate(world, asked), random) == wanted  # type: ignore[misc]
    assert {each.key: await blob.get(each.key) for each in await blob.list("")} == before
    assert set(blob.deaths) == {"before", "after"}, "both kinds of death have happened"


class Processes:
    """Tasks go to any of some processes, which keep engines of their own and may die."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int, random: Random) -> None:
        self.asked, self.made, self.elsewhere, self.deaths = 0, 0, 0, 0
        kept: list[OrderedDict[tuple[str, int, int], object]] = [OrderedDict() for _ in range(size)]
        chosen, engine = RoundWork.chosen, RoundWork._engine

        def choose(work: RoundWork, group: int, wanted: Sequence[int], taken: int) -> int:
            self.asked += 1
            at = random.randrange(size)
            if random.random() < 0.05:
                kept[at].clear()
                self.deaths += 1
            monkeypatch.setattr(rounds, "_KEPT", kept[at])
            found = chosen(work, group, wanted, taken)
            self.elsewhere += found != group
            return found

        async def make(work: RoundWork, at: int) -> DataflowEngine:
            self.made += 1
            return await engine(work, at)

        monkeypatch.setattr(RoundWork, "chosen", choose)
        monkeypatch.setattr(RoundWork, "_engine", make)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_task_takes_the_group_that_its_process_has_kept(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some engines of the two ranges of a task are there, whatever process it comes to."""
    processes = Processes(monkeypatch, 2, Random(3))
    world = World(PROGRAMS[name], 3)
    _, windows = await live_and_die(name, 3, world)
    assert windows
    assert await world.contents() == expected(world.program, world.history)
    plain = [await evaluate(world, packed) for packed in windows]
    while not (processes.elsewhere and processes.deaths):  # until both have happened
        assert [await evaluate(world, packed) for packed in windows] == plain
    assert processes.made < 2 * processes.asked


async def test_a_range_that_forgets_what_was_there_before_a_window_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The companion: the same comparison fails where rounds begin with the changes alone."""
    name = "paths of paths, and what reads them"

    async def nothing(*given: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr("tidemill_compute.views.windows.work.WindowWork._before", nothing)
    differing = 0
    for seed in range(4):
        world = World(PROGRAMS[name], seed)
        await live_and_die(name, seed, world)
        differing += await world.contents() != expected(world.program, world.history)
    assert differing > 2
