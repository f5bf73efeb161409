"""`engine: auto` changes engines by memory and lag, says why, and no answer shows it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random

import msgspec
import pytest

from tidemill.errors import Exhausted
from tidemill.host.settings import LimitSettings
from tidemill.testkit.faults.fuse import Fuse
from tidemill.testkit.mortal_views import END, World, expected, follow
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.auto import BACK_S, GROWING_S, GROWING_STEPS, AutoRule
from tidemill_compute.views.bulk import History
from tidemill_compute.views.engines import Engines, Windows
from tidemill_compute.views.part import range_memory
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.spec import WindowResult

TEXT = """
    named(n, h) := ping(h, n) ^ host(h);
    many(n) @count(h) := named(n, h);
"""

RECURSION = """
    step(n, m) := ping(h, n) ^ ping(h, m) if n < m;
    path(n, m) := step(n, m);
    path(n, k) := path(n, m) ^ path(m, k);
"""


async def history_of(world: World) -> History:
    """All rows of a view, which has written nothing."""
    await world.create()
    await world.feed(0, END)
    states = {name: await world.now.state(name) for name, _ in world.target.inputs.values()}
    written = [name for name, _ in world.target.outputs.values()] + ["v/state", "v/errors"]
    return History(
        world.target, ComputeSettings(), 0, END,
        {name: (state.description, state.parts()) for name, state in states.items()},
        {name: await world.now.description(name) for name in written},
    )  # fmt: skip


def test_a_view_leaves_one_process_at_four_fifths_of_its_memory() -> None:
    rule = AutoRule(1_000)
    rule.step_here(0.0, 0.1, 0, 800, 10)
    assert rule.wanted == "local"
    rule.step_here(1.0, 0.1, 0, 801, 10)
    assert rule.wanted == "spark"
    assert rule.why.said == ("about 801 bytes of 10 rows, above 80% of limits.view_bytes (1,000)")


EVERY_S = GROWING_S / GROWING_STEPS


@pytest.mark.parametrize(("busy", "wanted"), [(0.6, "spark"), (0.4, "local")])
def test_a_lag_that_grows_is_a_reason_where_the_process_is_busy(busy: float, wanted: str) -> None:
    rule = AutoRule(1_000)
    for step in range(GROWING_STEPS):
        rule.step_here(step * EVERY_S, busy * EVERY_S, step, 1, 1)
        assert rule.wanted == "local"
    rule.step_here(GROWING_S, busy * EVERY_S, GROWING_STEPS, 1, 1)
    assert rule.wanted == wanted
    assert ("lag has grown over 10 steps" in rule.why.said) == (wanted == "spark")


@pytest.mark.parametrize(("every_s", "shrinks"), [(EVERY_S, 9), (EVERY_S / 4, 1_000)])
def test_a_lag_that_shrinks_or_has_not_grown_for_long_is_none(every_s: float, shrinks: int) -> None:
    """A backlog that is being loaded makes lag for some minutes."""
    rule = AutoRule(1_000)
    for step in range(3 * GROWING_STEPS):
        rule.step_here(step * every_s, every_s, step % shrinks, 1, 1)
    assert rule.wanted == "local"


def test_a_view_comes_back_after_an_hour_below_half_of_its_memory() -> None:
    rule = AutoRule(1_000)
    rule.step_here(0.0, 0.1, 0, 900, 9)  # 100 bytes a row
    rule.window_there(10.0, 4)
    rule.window_there(BACK_S, 5)  # half is not below half
    rule.window_there(BACK_S + 20, 4)
    rule.window_there(2 * BACK_S + 19, 4)
    assert rule.wanted == "spark"
    rule.window_there(2 * BACK_S + 20, 4)
    assert rule.wanted == "local"
    assert rule.why.said == "about 400 bytes of rows, below half of what one process may use"


def test_rows_that_fit_nowhere_are_known_before_they_are_read() -> None:
    rule = AutoRule(1 << 20)
    rule.estimate(13_000)
    assert rule.wanted == "local"
    rule.estimate(14_000)
    assert rule.wanted == "spark"


@pytest.mark.parametrize(
    ("kept", "begins", "wanted"),
    [(499, False, "local"), (500, False, "spark"), (0, True, "spark")],
)
def test_a_step_without_room_is_a_reason_where_rows_that_are_kept_are_large(
    kept: int, begins: bool, wanted: str
) -> None:
    rule = AutoRule(1_000)
    rule.kept_here(kept)
    rule.exhausted("too much", begins=begins)
    assert rule.wanted == wanted
    assert ("one process has no room: too much" in rule.why.said) == (wanted == "spark")


def test_a_range_on_this_machine_has_the_memory_of_a_view() -> None:
    limits = LimitSettings(view_bytes=1, history_bytes=2)
    assert range_memory(limits, remote=False) == (1, "limits.view_bytes")
    assert range_memory(limits, remote=True) == (2, "limits.history_bytes")


async def test_a_view_without_room_on_spark_is_given_up_after_its_smallest_window() -> None:
    """A further try of the same view, after a pause, asks for that window alone."""
    world, asked = World(TEXT, 5), 0

    async def ask(packed: bytes) -> bytes:
        nonlocal asked
        asked += 1
        said = WindowResult({}, {}, True, failure="exhausted", message="no room in a range")
        return msgspec.msgpack.encode(said)

    await world.create()
    await world.feed(0, END)
    view = world.view(world.process(Fuse(None)), 20)
    windows = Windows(ask, world.clock.now_ms, lambda: "test", setting="limits.view_bytes")
    engines = view.engines = Engines("spark", windows, 1 << 30)
    for tries in (3, 4):  # windows of 20, 5 and 1 changes, and the last one again
        with pytest.raises(Exhausted, match="no room in a range") as caught:
            await asyncio.wait_for(view.maintain_forever(), 60)
        assert caught.value.setting == "limits.view_bytes"
        assert engines.running == "spark"
        assert asked == tries


def engines_of(world: World, lacking: str = "") -> Engines:
    async def ask(packed: bytes) -> bytes:
        raise AssertionError("nobody asks for windows")

    return Engines(
        "auto", Windows(ask, world.clock.now_ms, lambda: "test", lacking=lambda: lacking), 1 << 30
    )


async def test_without_spark_a_view_stays_where_it_is_and_says_what_to_install() -> None:
    engines = engines_of(World(TEXT, 1), "pyspark is not installed")
    assert engines.choose(fresh=False) == "local"
    assert engines.why.said == "the rows fit into one process"
    assert not engines.gave_up(Exhausted("too much", reason="memory"), begins=True)
    assert engines.choose(fresh=False) == "local"
    assert engines.why.said == "pyspark is not installed"


def lagging(rule: AutoRule) -> None:
    for step in range(GROWING_STEPS + 1):
        rule.step_here(step * EVERY_S, EVERY_S, step, 1, 1)


@pytest.mark.parametrize("text", [RECURSION, TEXT])
async def test_a_lag_takes_no_recursion_to_windows_that_would_begin_it_anew(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each window costs all of its facts, and a step of one process what has changed."""
    monkeypatch.setattr("tidemill.datalog.placement.rounds.ROWS_MIN", 0)
    world = World(text, 1)
    engines = engines_of(world)
    engines.plan(await history_of(world))
    lagging(engines.rule)
    if text == TEXT:
        assert engines.choose(fresh=False) == "spark"
        return
    assert engines.choose(fresh=False) == engines.wanted == "local"
    assert engines.why.cause == "Rounds"
    assert "each window on Spark would evaluate its recursion anew" in engines.why.said
    engines.stepped(GROWING_S, 0.1, 0, (1, 1))
    assert engines.choose(fresh=False) == "local"
    assert engines.why.cause == "Fits"
    lagging(engines.rule)
    engines.stepped(GROWING_S, 0.1, 1, (1 << 30, 1))
    assert engines.choose(fresh=False) == "spark"
    assert engines.why.cause == "Memory"


async def test_a_view_changes_engines_at_any_frontier_and_its_answers_do_not_show_it() -> None:
    random, world = Random(3), World(TEXT, 5)
    windows = 0

    async def ask(packed: bytes) -> bytes:
        nonlocal windows
        windows += 1
        return msgspec.msgpack.encode(await answer(packed, world.stores[1], None, evaluate_here))

    await world.create()
    await world.feed(0, END)
    view = world.view(world.process(Fuse(None)), 2)
    engines = view.engines = Engines(
        "auto", Windows(ask, world.clock.now_ms, lambda: "test"), 1 << 30
    )
    ran, tell = [], engines.stepped

    def stepped(now_s: float, took_s: float, behind: int, held: tuple[int, int]) -> None:
        tell(now_s, took_s, behind, held)
        ran.append(engines.running)
        engines.rule.wanted = random.choice(("local", "spark"))

    engines.stepped = stepped  # type: ignore[method-assign]  # chance in place of memory
    await follow(world, view, END)
    changes = sum(a != b for a, b in pairwise(ran))
    assert changes > 3
    assert windows > 3
    assert await world.contents() == expected(world.program, world.history)
