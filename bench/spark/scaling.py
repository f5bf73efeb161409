"""Histories on more executors than there are: parts that are measured, and a model.

Work is measured in this process, where no other job counts, and costs of Spark by jobs that do
nothing else. The set-up of a job is what the same job takes over few rows. The model is checked
against the whole history on one core and on two, of which it knows nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa

from bench.spark.model import DIVIDED, Fixed, Predicted, Stage, predict
from bench.spark.worlds import (
    SPAN,
    TWO_FRAGMENTS,
    Spark,
    Taken,
    World,
    by_job,
    in_process,
    inputs_of,
    say,
    taken,
)
from tidemill.datalog.placement import ranges_for
from tidemill.runtime.clock import SystemClock
from tidemill.shard.parts import Part
from tidemill.spark.workplace import Workplace
from tidemill.time import frontier
from tidemill_compute.views.bulk import History
from tidemill_compute.views.bulk_spark import history_window
from tidemill_compute.views.range_wire import WIRE, Dealt, wire_batch
from tidemill_compute.views.windows.spec import pack_window
from tidemill_compute.views.windows.work import WindowWork

EXECUTORS = (1, 2, 4, 16, 64)
RANGES_MEASURED = 64
"""Ranges of which each is measured: one for each of the most executors."""
TASKS, PAYLOADS, PAYLOAD_BYTES = 32, 64, 1 << 20
FEW = 2_000
"""Updates of a history that is all set-up."""
RUNS = 4
"""Runs of a job, of which the least counts; the first one warms up, too."""
RESULTS = Path("bench/results/spark-scaling.json")
DOCUMENT = Path("docs/reference/performance.md")
START, END = "<!-- table of make bench-spark-views -->", "<!-- end of the table of scaling -->"


def _window(history: History, ranges: int, cores: int = 0) -> bytes:
    """The window of a history in so many ranges."""
    window = history_window(history, token_hex(8), SystemClock().now_ms())
    return pack_window(msgspec.structs.replace(window, ranges=ranges, cores=cores))


async def stages_of(world: World, history: History, ranges: int, cores: int = 0) -> list[Stage]:
    """The seconds of a processor of each part that is read, and of each range, by fragments.

    With `cores` those ranges are divided by time that have far more to do than others.
    """
    work, waiting, found = WindowWork(_window(history, ranges, cores), world.blob, None), [], []
    for fragment in work.fragments:
        reading, doing = list[float](), list[float]()
        for at in range(len(work.inputs_of(fragment))):
            begun = time.process_time()
            waiting += [each async for each in work.deal(fragment.number, at)]
            reading.append(time.process_time() - begun)
        mine = [each for each in waiting if each.stage == fragment.number]
        for number in range(work.tasks):
            begun = time.process_time()
            told = [each async for each in work.stage(fragment.number, number, work.tasks, mine)]
            doing.append(time.process_time() - begun)
            waiting += told
        given = [sum(len(d.payload) for d in mine if d.range == at) for at in range(work.tasks)]
        found.append(Stage(tuple(reading), tuple(doing), tuple(given)))
    return found


async def heaviest(world: World, history: History, ranges: int) -> tuple[float, float]:
    """Seconds of a processor in all tasks, and in the heaviest one of each fragment."""
    stages = await stages_of(world, history, ranges, ranges)
    return sum(sum(s.work) for s in stages), sum(max(s.work) for s in stages)


async def _empty_s(world: World, history: History) -> float:
    """Seconds of a processor of a range that has no rows."""
    work = WindowWork(_window(history, RANGES_MEASURED), world.blob, None)
    times = []
    for number in range(8):
        begun = time.process_time()
        [each async for each in work.stage(0, number, RANGES_MEASURED, ())]
        times.append(time.process_time() - begun)
    return median(times)


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One task that does nothing."""
    for _ in batches:
        pass
    yield wire_batch([Dealt(0, 0, "", b"")])


def _say(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One task that hands on a payload many times."""
    for _ in batches:
        for at in range(PAYLOADS):
            yield wire_batch([Dealt(0, at, "", os.urandom(8) + payload)])


def _least(job: partial[Any], times: int = 5) -> Taken:
    """The least seconds of a few runs of a job."""
    found = []
    for _ in range(times):
        with taken() as each:
            job()
        found.append(each)
    return _least_of(found)


def _least_of(found: Sequence[Taken]) -> Taken:
    return Taken(min(each.processor for each in found), min(each.wall for each in found))


def _of_tasks(here: Workplace, payload: bytes, empty_s: float, commit_s: float) -> Fixed:
    """The costs of tasks and of bytes, by jobs that do nothing else."""

    def job(tasks: int, exchanges: int, first: Any) -> None:
        frame = here.spark.range(2, numPartitions=tasks).mapInArrow(first, WIRE)
        for _ in range(exchanges):
            frame = frame.repartitionById(tasks, frame["range"] % tasks).mapInArrow(_pass, WIRE)
        assert frame.collect()

    alone, more = _least(partial(job, 2, 0, _pass)), _least(partial(job, TASKS, 0, _pass))
    dealt = _least(partial(job, 2, 2, _pass))
    much = _least(partial(job, 2, 2, partial(_say, payload)))
    size = 2 * PAYLOADS * (len(payload) + 8)
    return Fixed(
        job_s=0.0, job_cpu_s=0.0,
        task_s=max(0.0, more.processor - alone.processor) / (TASKS - 2),
        byte_s=max(0.0, much.processor - dealt.processor) / size, empty_s=empty_s, commit_s=commit_s,
    )  # fmt: skip


async def _costs(
    here: Spark, world: World, history: History, parts: Mapping[str, Sequence[Part]], few: World
) -> Fixed:
    """The costs of Spark; those of a job are what one over `few` rows takes beside its tasks."""
    place = here.at(world.place)
    payload, empty_s = await _payload(world, history), await _empty_s(world, history)
    commit_s = await _commit_s(world, history, parts)
    found = await asyncio.to_thread(_of_tasks, place, payload, empty_s, commit_s)
    small = await few.history()
    _, took = await _job(here, few, small, await _digests_here(few, small))
    stages = await stages_of(few, small, 2)
    tasks = predict(stages, replace(found, commit_s=0.0), 2, 2)
    return replace(
        found,
        job_s=max(0.0, took.wall - tasks.wall_s),
        job_cpu_s=max(0.0, took.processor - tasks.processor_s),
    )


async def _digests_here(world: World, history: History) -> dict[str, int]:
    """Numbers for what one process says of a history."""
    return await world.digests(history, await in_process(world, history))


async def _job(
    here: Spark, world: World, history: History, wanted: Mapping[str, int]
) -> tuple[dict[str, list[Part]], Taken]:
    """The parts that a job writes as they are wanted, and the least seconds of a few runs."""
    found, parts = list[Taken](), dict[str, list[Part]]()
    for _ in range(RUNS):
        with taken() as each:
            parts = await by_job(history, here.at(world.place))
        assert await world.digests(history, parts) == wanted, "scaling"
        found.append(each)
    return parts, _least_of(found)


async def _commit_s(world: World, history: History, parts: Mapping[str, Sequence[Part]]) -> float:
    """Seconds of appending what a job wrote, one collection after the other."""
    with taken() as found:
        for name in history.written:
            await world.collections.append_parts(
                name, frontier(0), frontier(history.upper), parts.get(name, ()), writer="bench"
            )
    return found.wall


@dataclass(frozen=True, slots=True)
class Line:
    """A prediction, and what was measured: the least of a few runs."""

    predicted: Predicted
    measured: Taken | None


async def measure_scaling(folder: Path, scratch: Path, rows: int) -> None:
    """Measure, predict, compare, print, and write the table."""
    world, few = World(folder / "all", TWO_FRAGMENTS), World(folder / "few", TWO_FRAGMENTS)
    for each, size in ((world, rows), (few, FEW)):
        await each.create()
        await each.feed(inputs_of(size, 0.0), SPAN + 1)
    history = await world.history()
    wanted = await _digests_here(world, history)
    most = max(RANGES_MEASURED, ranges_for(history.rows, RANGES_MEASURED))
    stages = await stages_of(world, history, most)
    measured, fixed = dict[int, Taken](), Fixed(0, 0, 0, 0, 0, 0)
    for cores in (1, 2):
        here = Spark(scratch / str(cores), cores)
        parts, measured[cores] = await _job(here, world, history, wanted)
        if cores == 2:
            fixed = await _costs(here, world, history, parts, few)
        here.session.stop()
    found = [predict(stages, fixed, each, ranges_for(history.rows, each)) for each in EXECUTORS]
    lines = [Line(each, measured.get(each.executors)) for each in found]
    first = _first_bottleneck(stages, fixed, history.rows)
    told = [*_about(stages, fixed, history.rows, first), "", *_table(lines)]
    for line in told:
        print(line)
    _write(told, lines, fixed)
    say(f"scaling: {history.rows:,} updates")


async def _payload(world: World, history: History) -> bytes:
    """Rows of an input as they are handed on."""
    work = WindowWork(_window(history, 2), world.blob, None)
    dealt = [each.payload async for each in work.deal(0, 0)]
    return b"".join(dealt)[:PAYLOAD_BYTES]


def _first_bottleneck(stages: Sequence[Stage], fixed: Fixed, rows: int) -> str:
    """The least number of executors that are held up by something else than work, and what."""
    for executors in range(1, RANGES_MEASURED + 1):
        found = predict(stages, fixed, executors, ranges_for(rows, executors))
        if found.bottleneck != DIVIDED:
            return f"{found.bottleneck}, from {executors} executors on"
    return f"none up to {RANGES_MEASURED} executors"


def _about(stages: Sequence[Stage], fixed: Fixed, rows: int, first: str) -> list[str]:
    reading = [each for stage in stages for each in stage.reading]
    work, given = (sum(sum(getattr(s, name)) for s in stages) for name in ("work", "bytes"))
    return [
        f"* a history of {rows:,} updates in {len(stages)} fragments",
        f"* first bottleneck: {first}",
        f"* set-up, by the same job over {FEW:,} updates: {fixed.job_s:.2f} s,",
        f"  {fixed.job_cpu_s:.2f} s of a processor",
        f"* to append what it wrote: {1000 * fixed.commit_s:.0f} ms",
        f"* seconds of a processor: {sum(reading):.1f} to read {len(reading)} parts, {work:.1f} in ranges",
        f"* the same to hand {given / 1e6:.0f} MB on: {fixed.byte_s * given:.1f}; to start a task: "
        f"{1000 * fixed.task_s:.0f} ms;",
        f"  for a range without rows: {1000 * fixed.empty_s:.0f} ms",
        f"* load of the machine: {os.getloadavg()[0]:.0f}",
    ]


def _table(lines: Sequence[Line]) -> Iterator[str]:
    yield (
        "| executors of one core | ranges | predicted | measured | error of the model "
        "| seconds of processors, predicted | measured | error | times one | bottleneck | date |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    one = lines[0].predicted.wall_s
    for line in lines:
        each, told = line.predicted, line.measured
        wall = processor = " | "
        if told is not None:
            wall = f"{told.wall:.1f} s | {100 * (each.wall_s / told.wall - 1):+.0f} %"
            error = 100 * (each.processor_s / told.processor - 1)
            processor = f"{told.processor:.1f} s | {error:+.0f} %"
        yield (
            f"| {each.executors} | {each.ranges} | {each.wall_s:.1f} s | {wall} "
            f"| {each.processor_s:.1f} s | {processor} "
            f"| {one / each.wall_s:.1f} | {each.bottleneck} | {date.today().isoformat()} |"
        )


def _write(told: Sequence[str], lines: Sequence[Line], fixed: Fixed) -> None:
    """Keep the figures, and put them between two marks of the page."""
    kept = {
        "measured": date.today().isoformat(), "load": round(os.getloadavg()[0], 1),
        "fixed": asdict(fixed), "lines": [asdict(line) for line in lines],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    text = DOCUMENT.read_text()
    start, end = text.index(START) + len(START), text.index(END)
    DOCUMENT.write_text(f"{text[:start]}\n\n" + "\n".join(told) + f"\n\n{text[end:]}")
