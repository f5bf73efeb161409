"""Rounds of a recursion on Spark: a job of one stage for each, whose tasks hand objects on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa

from tidemill.shard.stores import BlobPlace, StoredBlob, open_blob
from tidemill.spark.workplace import Workplace, executor_folder, task_number
from tidemill_compute.views.range_wire import WIRE, Dealt
from tidemill_compute.views.windows.rounds import (
    Iterated,
    RoundTold,
    RoundWork,
    Sent,
    Sources,
    exchanged_row,
    failed_row,
    few,
    iterate,
)
from tidemill_compute.views.windows.work import WindowWork

if TYPE_CHECKING:  # who launches jobs has no Spark
    from pyspark import RDD
    from pyspark.sql import DataFrame

T = TypeVar("T")
_TOLD = "told binary"


@dataclass(slots=True)
class RoundJobs:
    """The jobs of the rounds of one window, their stages, and the objects to delete at its end."""

    here: Workplace
    packed: bytes
    work: WindowWork
    groups: int
    stages: int = 0
    sent: list[str] = field(default_factory=list)
    _held: list[DataFrame] = field(default_factory=list)

    async def evaluate(
        self, number: int, stage: DataFrame | None
    ) -> tuple[DataFrame | None, list[Dealt]]:
        """A stage with the answers of a fragment in the place of what was dealt to it.

        A window that does not reach the fragment has none. Without a stage the fragment has
        failed, where there are rows for the last stage, which say why.
        """
        begun: Sequence[RoundTold] = ()
        if stage is not None:
            stage = stage.persist()
            self._held.append(stage)
            begun = await asyncio.to_thread(self._begin, number, stage)
        fragment = self.work.fragments[number]
        if not self.work.reaches(fragment, dealt=any(each.sent for each in begun)):
            return stage, []
        by_jobs = partial(iterate, self.work, evaluate=partial(self._round, number), until=few)
        found = await by_jobs(begun)
        while not found.done:
            found = await asyncio.to_thread(self._alone, number, found.sources)
            if not found.done:
                begun = await self._round(number, found.sources)
                found = await by_jobs(begun, before=found.sources)
        sources = found.sources
        self.sent += [each.key for sent in sources for each in sent]
        if found.failed is not None:
            return None, [failed_row(found.failed)]
        tell = partial(_tell, self.here.blob, self.packed, number, self.groups, _packed(sources))
        told = self._tasks().mapPartitionsWithIndex(tell)
        answers = self.here.spark.createDataFrame(told, WIRE, verifySchema=False)
        self.stages += 1
        if stage is not None:
            answers = stage.where(f"stage <> {number}").union(answers)
        return answers, [exchanged_row(sources)]

    async def close(self, blob: StoredBlob) -> None:
        """Delete objects, and forget stages. A job that dies leaves both to others."""
        for each in self._held:
            each.unpersist()
        for key in self.sent:
            await blob.delete(key)

    def _begin(self, number: int, stage: DataFrame) -> list[RoundTold]:
        mine = stage.where(f"stage = {number}")
        mine = mine.repartitionById(self.groups, mine["range"] % self.groups)
        begin = partial(_begin, self.here.blob, self.packed, number, self.groups)
        self.stages += 2
        rows = mine.mapInArrow(begin, _TOLD).collect()
        return [_told(bytes(row["told"])) for row in rows]

    async def _round(self, number: int, sources: Sources) -> list[RoundTold]:
        take = partial(_take, self.here.blob, self.packed, number, self.groups, _packed(sources))
        self.stages += 1
        found = await asyncio.to_thread(self._tasks().mapPartitionsWithIndex(take).collect)
        return [*map(_told, found)]

    def _alone(self, number: int, sources: Sources) -> Iterated:
        """The next rounds of all groups in one task, while each sends little."""
        alone = partial(
            _take_all, self.here.blob, self.packed, number, self.groups, _packed(sources)
        )
        one = self.here.spark.sparkContext.parallelize(range(1), 1)
        self.stages += 1
        (found,) = one.mapPartitionsWithIndex(alone).collect()
        return msgspec.msgpack.decode(found, type=Iterated)

    def _tasks(self) -> RDD[int]:
        return self.here.spark.sparkContext.parallelize(range(self.groups), self.groups)


def _begin(
    place: BlobPlace, packed: bytes, number: int, groups: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: keep what was dealt to the ranges of its group."""
    rows = [
        Dealt(row["stage"], row["range"], row["name"], row["payload"])
        for batch in batches
        for row in batch.to_pylist()
    ]
    group = task_number()

    async def begin(work: RoundWork) -> RoundTold:
        return await work.begin(group, rows)

    told = _on_blob(place, packed, number, groups, begin)
    yield pa.RecordBatch.from_pydict(
        {"told": pa.array([msgspec.msgpack.encode(told)], pa.binary())}
    )


def _take(
    place: BlobPlace, packed: bytes, number: int, groups: int, sources: bytes,
    group: int, _: Iterable[int],
) -> Iterator[bytes]:  # fmt: skip
    """One task: the next round of its group."""

    async def take(work: RoundWork) -> RoundTold:
        return await work.take(group, _sources(sources))

    yield msgspec.msgpack.encode(_on_blob(place, packed, number, groups, take))


def _take_all(
    place: BlobPlace, packed: bytes, number: int, groups: int, sources: bytes,
    _: int, __: Iterable[int],
) -> Iterator[bytes]:  # fmt: skip
    """One task: rounds of all groups, from the first one that sends little to one that does not."""

    async def take(work: RoundWork) -> Iterated:
        async def evaluate(sources: Sources) -> list[RoundTold]:
            return [await work.take(group, sources) for group in range(groups)]

        before = _sources(sources)
        begun = await evaluate(before)
        return await iterate(
            work.window, begun, evaluate, before=before, until=lambda sent: not few(sent)
        )

    yield msgspec.msgpack.encode(_on_blob(place, packed, number, groups, take))


def _tell(
    place: BlobPlace, packed: bytes, number: int, groups: int, sources: bytes,
    group: int, _: Iterable[int],
) -> Iterator[tuple[int, int, str, bytearray]]:  # fmt: skip
    """One task: the answers of the ranges of its group."""

    async def tell(work: RoundWork) -> list[Dealt]:
        return [each async for each in work.tell(group, _sources(sources))]

    for each in _on_blob(place, packed, number, groups, tell):
        yield each.stage, each.range, each.name, bytearray(each.payload)


def _on_blob(
    place: BlobPlace, packed: bytes, number: int, groups: int,
    evaluate: Callable[[RoundWork], Coroutine[None, None, T]],
) -> T:  # fmt: skip
    async def run() -> T:
        blob = open_blob(place, partial(token_hex, 16))
        try:
            folder = executor_folder() / "tidemill-parts"
            return await evaluate(RoundWork(WindowWork(packed, blob, folder), number, groups))
        finally:
            await blob.close()

    return asyncio.run(run())


def _packed(sources: Sources) -> bytes:
    return msgspec.msgpack.encode(sources)


def _sources(packed: bytes) -> Sources:
    return msgspec.msgpack.decode(packed, type=list[list[Sent]])


def _told(packed: bytes) -> RoundTold:
    return msgspec.msgpack.decode(packed, type=RoundTold)
