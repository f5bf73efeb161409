"""Rounds of a recursion on Spark: a job of one stage for each, whose tasks hand objects on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from tidemill.shard.stores import BlobPlace, StoredBlob
from tidemill.spark.workplace import Workplace, executor_folder, task_number, with_blob
from tidemill_compute.views.range_wire import WIRE, Dealt, wire_batch
from tidemill_compute.views.windows.rounds import (
    Iterated,
    RoundTold,
    RoundWork,
    Sent,
    Sources,
    ask_all,
    exchanged_row,
    failed_row,
    few,
    iterate,
    read_sent,
)
from tidemill_compute.views.windows.work import WindowWork

if TYPE_CHECKING:  # who launches jobs has no Spark
    from pyspark.sql import DataFrame

T = TypeVar("T")
Task: TypeAlias = "Callable[..., Iterator[bytes]]"
"""A task for one of the groups that are wanted; it may choose another one of them."""
_TOLD = "told binary"


@dataclass(slots=True)
class RoundJobs:
    """The jobs of the rounds of one window, their stages, and the objects to delete at its end."""

    here: Workplace
    packed: bytes
    work: WindowWork
    groups: int
    stages: int = 0
    sent: set[str] = field(default_factory=set)
    _held: list[DataFrame] = field(default_factory=list)

    async def evaluate(
        self, number: int, stage: DataFrame | None
    ) -> tuple[DataFrame | None, list[Dealt]]:
        """A stage for what follows, without what was dealt to a fragment and with what that says.

        Beside it there are rows of the last stage, which may say that the fragment has failed. A
        window that does not reach the fragment has none.
        """
        fragment = self.work.fragments[number]
        begun = await self._job(
            range(len(self.work.inputs_of(fragment))), _deal, number, self.groups
        )
        if stage is not None:
            stage = stage.persist()
            self._held.append(stage)
            begun += await asyncio.to_thread(self._begin, number, stage)
        if not self.work.reaches(fragment, dealt=any(each.sent for each in begun)):
            return stage, []
        by_jobs = partial(iterate, self.work, evaluate=partial(self._all, number, _take), until=few)
        found = await by_jobs(begun)
        while not found.done:
            found = await asyncio.to_thread(self._alone, number, found.sources)
            if not found.done:
                begun = await self._all(number, _take, found.sources)
                found = await by_jobs(begun, before=found.sources)
        sources = found.sources
        self.sent.update(each.key for sent in sources for each in sent)
        if found.failed is not None:
            return None, [failed_row(found.failed)]
        told = await self._all(number, _answer, sources)
        if stage is not None:
            stage = stage.where(f"stage <> {number}")
        if keys := [one.key for each in told for one in each.sent]:
            rest = self.here.spark.range(len(keys), numPartitions=len(keys))
            rest = rest.mapInArrow(partial(_read, self.here.blob, keys), WIRE)
            stage = rest if stage is None else stage.union(rest)
            self.stages += 1
        return stage, [exchanged_row(sources), *(row for each in told for row in each.rows)]

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

    async def _all(self, number: int, task: Task, sources: Sources) -> list[RoundTold]:
        """The answers of all groups."""
        packed = _packed(sources)

        async def ask(wanted: Sequence[int]) -> list[RoundTold]:
            return await self._job(wanted, task, number, self.groups, packed, wanted)

        return await ask_all(self.groups, ask)

    async def _job(self, wanted: Sequence[int], task: Task, *given: object) -> list[RoundTold]:
        """The answers of a task for each number that is wanted."""
        if not wanted:
            return []
        self.stages += 1
        tasks = self.here.spark.sparkContext.parallelize(wanted, len(wanted))
        do = partial(task, self.here.blob, self.packed, *given)
        told = [*map(_told, await asyncio.to_thread(tasks.mapPartitions(do).collect))]
        self.sent.update(sent.key for each in told for sent in each.sent)
        return told

    def _alone(self, number: int, sources: Sources) -> Iterated:
        """The next rounds of all groups in one task, while each sends little."""
        alone = partial(
            _take_all, self.here.blob, self.packed, number, self.groups, _packed(sources)
        )
        one = self.here.spark.sparkContext.parallelize(range(1), 1)
        self.stages += 1
        (found,) = one.mapPartitionsWithIndex(alone).collect()
        return msgspec.msgpack.decode(found, type=Iterated)


def _deal(
    place: BlobPlace, packed: bytes, number: int, groups: int, mine: Iterable[int]
) -> Iterator[bytes]:
    """One task: the rows of one part of an input, dealt out."""

    async def deal(work: RoundWork) -> RoundTold:
        (at,) = mine
        return await work.deal(at)

    yield msgspec.msgpack.encode(_on_rounds(place, packed, number, groups, deal))


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

    told = _on_rounds(place, packed, number, groups, begin)
    yield pa.RecordBatch.from_pydict(
        {"told": pa.array([msgspec.msgpack.encode(told)], pa.binary())}
    )


def _take(
    place: BlobPlace, packed: bytes, number: int, groups: int, sources: bytes,
    wanted: Sequence[int], mine: Iterable[int],
) -> Iterator[bytes]:  # fmt: skip
    """One task: the next round of a group."""

    async def take(work: RoundWork) -> RoundTold:
        (group,), sent = mine, _sources(sources)
        return await work.take(work.chosen(group, wanted, len(sent) - 1), sent)

    yield msgspec.msgpack.encode(_on_rounds(place, packed, number, groups, take))


def _answer(
    place: BlobPlace, packed: bytes, number: int, groups: int, sources: bytes,
    wanted: Sequence[int], mine: Iterable[int],
) -> Iterator[bytes]:  # fmt: skip
    """One task: the answers of the ranges of a group."""

    async def answer(work: RoundWork) -> RoundTold:
        (group,), sent = mine, _sources(sources)
        return await work.answer(work.chosen(group, wanted, len(sent)), sent)

    yield msgspec.msgpack.encode(_on_rounds(place, packed, number, groups, answer))


def _read(
    place: BlobPlace, keys: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: the rows of objects, by their numbers, that are for later fragments."""
    numbers = [each for batch in batches for each in batch.column("id").to_pylist()]

    async def read(blob: StoredBlob) -> list[Dealt]:
        return [each for at in numbers for each in await read_sent(blob, keys[at])]

    for each in with_blob(place, read):
        yield wire_batch([each])


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

    yield msgspec.msgpack.encode(_on_rounds(place, packed, number, groups, take))


def _on_rounds(
    place: BlobPlace, packed: bytes, number: int, groups: int,
    evaluate: Callable[[RoundWork], Coroutine[None, None, T]],
) -> T:  # fmt: skip
    async def run(blob: StoredBlob) -> T:
        folder = executor_folder() / "tidemill-parts"
        return await evaluate(RoundWork(WindowWork(packed, blob, folder), number, groups))

    return with_blob(place, run)


def _packed(sources: Sources) -> bytes:
    return msgspec.msgpack.encode(sources)


def _sources(packed: bytes) -> Sources:
    return msgspec.msgpack.decode(packed, type=list[list[Sent]])


def _told(packed: bytes) -> RoundTold:
    return msgspec.msgpack.decode(packed, type=RoundTold)
