"""A recursion that hands no argument on is evaluated by rounds over ranges: the same answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from random import Random
from secrets import token_hex
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from tidemill.arrangement.updates import concatenate, consolidate
from tidemill.datalog.limits import Limits
from tidemill.datalog.placement import Place, Placement
from tidemill.shard.encoding import unpack_part
from tidemill.shard.part_store import PartStore
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.workplace import Workplace
from tidemill.testkit.mortal_views import END, RECURSIONS, World, expected
from tidemill.testkit.twins.window_tasks import evaluate_here
from tidemill_compute.settings import ComputeSettings
from tidemill_compute.views.bulk import History
from tidemill_compute.views.bulk_spark import history_window
from tidemill_compute.views.windows import rounds
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.round_job import RoundJobs
from tidemill_compute.views.windows.spec import WindowResult, pack_window
from tidemill_compute.views.windows.window_job import run
from tidemill_compute.views.windows.work import WindowWork
from tidemill_compute.views.windows.work import _placed as placed_before

PROGRAMS = {
    "the same generation, and what reads it": """
        step(n, m) := ping(h, n) ^ ping(h, m) ^ host(h) if n < m;
        same(n, m) := step(k, n) ^ step(k, m);
        same(n, m) := step(k, n) ^ same(k, j) ^ step(j, m);
        wide(n) @count(m) := same(n, m);
    """,
    "paths of paths": """
        step(n, m) := ping(h, n) ^ ping(h, m) if n < m;
        path(n, m) := step(n, m);
        path(n, k) := path(n, m) ^ path(m, k);
        last(n) := path(n, _) ^ not path(_, n);
    """,
    **RECURSIONS,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _few_rows_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.datalog.placement.rounds.ROWS_MIN", 0)


async def history_of(world: World, seed: int) -> History:
    """All that was fed, in several parts."""
    await world.create()
    random, fed = Random(seed), 0
    while fed < END:
        upper = min(END, fed + random.randrange(5, 30))
        await world.feed(fed, upper)
        fed = upper
    states = {name: await world.now.state(name) for name, _ in world.target.inputs.values()}
    written = [name for name, _ in world.target.outputs.values()] + ["v/state", "v/errors"]
    return History(
        world.target, ComputeSettings(), 0, END,
        {name: (state.description, state.parts()) for name, state in states.items()},
        {name: await world.now.description(name) for name in written},
    )  # fmt: skip


def window_of(history: History, ranges: int) -> bytes:
    window = history_window(history, "test", 0, ranges=ranges)
    assert window.ranges > 1
    rows = dict.fromkeys(window.rows, 100_000)  # by which all processes choose rounds
    return pack_window(msgspec.structs.replace(window, ranges=ranges, cores=2, rows=rows))


async def rows_of(world: World, history: History, result: WindowResult) -> object:
    store, tables = PartStore(world.stores[1], str), {}
    for name in (*(name for name, _ in world.target.outputs.values()), "v/errors"):
        description = history.written[name]
        parts = [
            await store.table(unpack_part(each), description, keep=False)
            for each in result.parts.get(name, ())
        ]
        tables[name] = consolidate(concatenate([description.update_schema().empty_table(), *parts]))
    return tables


@pytest.mark.parametrize("kept", ["kept", "forgotten"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(4))
async def test_rounds_over_ranges_say_what_the_twin_says(
    name: str, seed: int, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no engine is left from the round before, as after the death of an executor."""
    if kept == "forgotten":
        monkeypatch.setattr(rounds, "KEPT_BYTES_MAX", 0)
    world = World(PROGRAMS[name], seed)
    history = await history_of(world, seed)
    packed = window_of(history, (2, 4)[seed % 2])
    work = WindowWork(packed, world.stores[1], None)
    assert any(each.returning for each in work.fragments)
    result = await answer(packed, world.stores[1], None, evaluate_here)
    assert not result.failure, result.message
    assert await rows_of(world, history, result) == expected(world.program, world.history)


async def test_derivations_in_a_wrong_range_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The companion: the same comparison fails where a round deals out by all columns."""
    wrong = Place((1, 2))
    differing = 0
    for seed in range(4):
        world = World(PROGRAMS["paths of paths"], seed)
        history = await history_of(world, seed)
        packed = window_of(history, 4)
        work = WindowWork(packed, world.stores[1], None)
        (fragment,) = [each for each in work.fragments if each.returning]
        reads = [
            replace(each, place=wrong) if each.predicate in fragment.returning else each
            for each in fragment.reads
        ]
        placed = [
            replace(each, reads=tuple(reads)) if each is fragment else each
            for each in work.fragments
        ]
        moved = replace(work.divided.placement, fragments=tuple(placed))

        def wrongly(*_: object, at: Placement = moved) -> Placement:
            return at

        with monkeypatch.context() as patched:
            patched.setattr("tidemill_compute.views.windows.work.placement_with", wrongly)
            placed_before.cache_clear()
            result = await answer(packed, world.stores[1], None, evaluate_here)
        placed_before.cache_clear()
        found = await rows_of(world, history, result)
        differing += bool(result.failure) or found != expected(world.program, world.history)
    assert differing > 2


async def test_objects_of_a_round_that_fails_are_known_for_deletion() -> None:
    world = World(PROGRAMS["paths of paths"], 1)
    work = WindowWork(window_of(await history_of(world, 1), 2), world.stores[1], None)
    sent = rounds.Sent(0, "sent/by/another/task", 7)
    begun = [rounds.RoundTold([sent]), rounds.RoundTold([], "limit", "too much")]

    async def evaluate(_: rounds.Sources) -> list[rounds.RoundTold]:
        raise AssertionError("no round follows one that failed")

    ended = await rounds.iterate(work, begun, evaluate)
    assert ended.failed == begun[1]
    assert [one for each in ended.sources for one in each] == [sent]


async def test_more_rounds_than_are_allowed_are_given_up() -> None:
    world = World(PROGRAMS["paths of paths"], 1)
    world.target = replace(world.target, limits=Limits(rounds=1))
    history = await history_of(world, 1)
    result = await answer(window_of(history, 2), world.stores[1], None, evaluate_here)
    assert result.failure == "limit"
    assert "more than 1 rounds" in result.message
    assert not result.parts


@pytest.mark.server
@pytest.mark.parametrize(("name", "few"), [
    ("the same generation, and what reads it", -1), ("paths of paths", -1), ("paths of paths", 1 << 18),
])  # fmt: skip
async def test_a_job_evaluates_rounds_and_leaves_no_object_of_them(
    name: str, few: int, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts say the same as those of a process, and no other object is there.

    Rounds are a job each, or all in one task where each of them sends few bytes.
    """
    monkeypatch.setattr(rounds, "FEW_BYTES", few)
    jobs = Counter[str]()

    def counted(jobs_: RoundJobs, *of: Any, name: str, plain: Callable[..., Any]) -> Any:
        jobs[name] += 1
        return plain(jobs_, *of)

    for each in ("_all", "_alone"):
        plain = getattr(RoundJobs, each)
        monkeypatch.setattr(RoundJobs, each, partialmethod(counted, name=each, plain=plain))
    place = BlobPlace(f"file:{tmp_path}")
    blob = open_blob(place, lambda: token_hex(8))
    world = World(PROGRAMS[name], 2, blob)
    history = await history_of(world, 2)
    packed = window_of(history, 4)
    before = {each.key for each in await blob.list("")}
    said = await asyncio.to_thread(run, packed, Workplace(spark, place, lambda line: None))
    result = msgspec.msgpack.decode(said, type=WindowResult)
    assert not result.failure, result.message
    assert await rows_of(world, history, result) == expected(world.program, world.history)
    parts = {unpack_part(p).key for each in result.parts.values() for p in each}
    assert {each.key for each in await blob.list("")} - before <= parts
    # All groups are asked once for their answers, after the rounds.
    assert (jobs["_all"] > 2, jobs["_alone"]) == ((True, 0) if few < 0 else (False, 1))
