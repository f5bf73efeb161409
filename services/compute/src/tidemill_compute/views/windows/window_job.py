"""The Spark job of one window: a stage for each fragment, an exchange between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tidemill.datalog.placement import Fragment, ranges_for
from tidemill.shard.stores import BlobPlace, StoredBlob
from tidemill.spark.workplace import Workplace, executor_folder, task_number, with_blob
from tidemill_compute.views.range_wire import WIRE, Dealt, wire_batch
from tidemill_compute.views.windows.collecting import answer
from tidemill_compute.views.windows.crew import cores_of
from tidemill_compute.views.windows.round_job import RoundJobs
from tidemill_compute.views.windows.spec import Window, pack_window, unpack_window
from tidemill_compute.views.windows.work import FAILED, WindowWork

if TYPE_CHECKING:  # who launches jobs has no Spark
    from pyspark.sql import DataFrame

TASK_ROWS = 2_000
"""Changes for which there is a task more: a task of nothing takes as long as it takes for these."""


def run(packed: bytes, here: Workplace) -> bytes:
    """The packed answer of a packed window. Commits nothing."""
    cores = cores_of(here.spark)
    window, stages, rounds = unpack_window(packed), 0, list[RoundJobs]()
    if window.fresh:
        packed = pack_window(
            msgspec.structs.replace(window, ranges=_ranges(window, cores), cores=cores)
        )

    async def evaluate(packed: bytes, work: WindowWork) -> AsyncIterator[Dealt]:
        nonlocal stages
        groups = work.tasks if window.fresh else groups_for(work.window, cores)
        stage: DataFrame | None = None
        for fragment in work.fragments:
            if fragment.returning:
                jobs = RoundJobs(here, packed, work, min(groups, cores))
                rounds.append(jobs)
                stage, told = await jobs.evaluate(fragment.number, stage)
                for dealt in told:
                    yield dealt
                if any(each.name == FAILED for each in told):
                    return
                continue
            given = _given(here, packed, work, fragment)
            if given is not None:
                stages += stage is None
                stage = given if stage is None else stage.union(given)
            if stage is None:
                stage = here.spark.range(groups, numPartitions=groups)
            else:
                stage = stage.repartitionById(groups, stage["range"] % groups)
            task = partial(evaluate_stage, here.blob, packed, fragment.number, groups)
            stages += 1
            stage = stage.mapInArrow(task, WIRE)
        for row in await asyncio.to_thread(stage.collect) if stage is not None else ():
            yield Dealt(row["stage"], row["range"], row["name"], bytes(row["payload"]))

    async def evaluate_all(blob: StoredBlob) -> bytes:
        try:
            found = await answer(packed, blob, None, evaluate)
        finally:
            for jobs in rounds:
                await jobs.close(blob)
        stages_all = stages + sum(jobs.stages for jobs in rounds)
        result = msgspec.structs.replace(found, stages=stages_all)
        parts = sum(map(len, result.parts.values()))
        here.say(f"{result.touched} ranges, {parts} parts, {result.exchanged} bytes exchanged")
        return msgspec.msgpack.encode(result)

    return with_blob(here.blob, evaluate_all)


def _ranges(window: Window, cores: int) -> int:
    """Ranges of a fresh view: one for each core at least, where it is divided."""
    if window.ranges == 1:
        return 1
    ranges = min(ranges_for(sum(window.rows.values()), cores), window.ranges_max)
    return max(ranges, window.ranges)


def groups_for(window: Window, cores: int) -> int:
    """Tasks of each stage of a window; a fresh view has one for each range, to hold less."""
    if window.fresh:
        return window.ranges
    if window.whole or window.heavy or window.anew:  # one change may touch all rows of a heavy key
        return min(window.ranges, cores)
    # A stream of Arrow takes some 32 bytes for a change.
    wanted = sum(map(len, window.changes.values())) // (32 * TASK_ROWS)
    return max(1, min(window.ranges, cores, wanted))


def _given(
    here: Workplace, packed: bytes, work: WindowWork, fragment: Fragment
) -> DataFrame | None:
    """The rows of the inputs of a fresh view for one fragment: a task for each part."""
    size = len(work.inputs_of(fragment))
    if not size:
        return None
    numbers = here.spark.range(size, numPartitions=size)
    return numbers.mapInArrow(partial(deal_parts, here.blob, packed, fragment.number), WIRE)


def deal_parts(
    place: BlobPlace, packed: bytes, number: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: the rows of parts of inputs, by their numbers, in the ranges of a fragment."""
    numbers = [each for batch in batches for each in batch.column("id").to_pylist()]

    async def deal(blob: StoredBlob) -> list[Dealt]:
        work = WindowWork(packed, blob, None)
        return [each for at in numbers async for each in work.deal(number, at)]

    for each in with_blob(place, deal):
        yield wire_batch([each])


def evaluate_stage(
    place: BlobPlace, packed: bytes, number: int, groups: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: its ranges of a fragment; what is for other stages passes through."""
    group = task_number()
    crossed: list[Dealt] = []
    for batch in batches:
        if "stage" not in batch.schema.names:
            continue  # it begins with nothing
        for row in batch.to_pylist():
            dealt = Dealt(row["stage"], row["range"], row["name"], row["payload"])
            if dealt.stage == number:
                crossed.append(dealt)
            else:
                yield wire_batch([dealt])
    found = with_blob(place, partial(_stage, packed, number, group, groups, crossed))
    for each in found:
        yield wire_batch([each])


async def _stage(
    packed: bytes, number: int, group: int, groups: int, crossed: Sequence[Dealt],
    blob: StoredBlob,
) -> list[Dealt]:  # fmt: skip
    work = WindowWork(packed, blob, executor_folder() / "tidemill-parts")
    return [each async for each in work.stage(number, group, groups, crossed)]
