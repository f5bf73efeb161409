"""The history of a view in one stage of Spark for each fragment, with an exchange between stages.

A row of the exchange is a table for one range of one fragment, as bytes. Rows for later fragments
and parts that are written pass through. The last stage is one task, which puts errors together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tidemill.arrangement.updates import between
from tidemill.catalog.schemas import ERROR_SCHEMA
from tidemill.datalog.placement import Fragment
from tidemill.datalog.presence import ErrorMove
from tidemill.datalog.ranges.failing import FailingTexts
from tidemill.errors import Exhausted
from tidemill.runtime.clock import SystemClock
from tidemill.shard.encoding import pack_part
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part
from tidemill.shard.state import Description
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.workplace import Workplace
from tidemill_compute.views.history_spec import unpack_history
from tidemill_compute.views.interval_rows import error_moves
from tidemill_compute.views.range_history import RangeFound, RangeHistory
from tidemill_compute.views.range_wire import LAST, WIRE, Dealt, wire_batch
from tidemill_compute.views.view_updates import update_table

if TYPE_CHECKING:  # who launches jobs has no Spark
    from pyspark.sql import DataFrame

_ERRORS, _ROWS, _EXHAUSTED = "#errors", "#rows", "#exhausted"
"""In the place of a collection: what the last stage puts together."""


@dataclass(frozen=True, slots=True)
class _Job:
    """All that tasks need: where objects are, the packed history, and how many ranges there are."""

    place: BlobPlace
    packed: bytes
    ranges: int

    def divided(self) -> RangeHistory:
        """The history as each task makes it again."""
        found = _divided(self.packed, self.ranges)
        assert found is not None, "what was divided once is divided again"
        return found


@lru_cache(4)
def _divided(packed: bytes, ranges: int) -> RangeHistory | None:
    return RangeHistory.of(unpack_history(packed), ranges)


def hydrate_by_ranges(
    packed: bytes, divided: RangeHistory, here: Workplace
) -> tuple[dict[str, list[bytes]], str]:
    """Packed parts by collection, or why there was no room for them.

    Cost: one exchange for each fragment; rows that are in all ranges are read by each.
    """
    job = _Job(here.blob, packed, divided.ranges)
    stage: DataFrame | None = None
    for fragment in divided.placement.fragments:
        given = _given(here, divided, fragment, job)
        dealt = (given if stage is None else stage.union(given)).repartitionById(
            job.ranges, "range"
        )
        stage = dealt.mapInArrow(partial(evaluate_stage, job, fragment.number), WIRE)
    assert stage is not None, "a program that is divided has fragments"
    last = stage.repartitionById(1, "range").mapInArrow(partial(finish, job), WIRE)
    parts: dict[str, list[bytes]] = {}
    for row in last.collect():
        if row["name"] == _EXHAUSTED:
            return {}, bytes(row["payload"]).decode()
        parts.setdefault(row["name"], []).append(bytes(row["payload"]))
    return parts, ""


def _given(here: Workplace, divided: RangeHistory, fragment: Fragment, job: _Job) -> DataFrame:
    """The rows of inputs for one fragment; a task for each part, and one that wakes it."""
    tasks = [(0, "", 0)]
    for name in divided.collections_of(fragment):
        parts = divided.history.inputs[name][1]
        tasks += [(len(tasks) + at, name, at) for at in range(len(parts))]
    frame = here.spark.createDataFrame(tasks, "task int, name string, part int")
    dealt = frame.repartitionById(len(tasks), "task")
    return dealt.mapInArrow(partial(deal_parts, job, fragment.number), WIRE)


def deal_parts(
    job: _Job, number: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: rows of parts of inputs, in the ranges of a fragment."""
    divided = job.divided()
    fragment, history = divided.placement.fragments[number], divided.history
    for batch in batches:
        for row in batch.to_pylist():
            if not row["name"]:
                yield wire_batch([Dealt(number, 0, "", b"")])
                continue
            description, parts = history.inputs[row["name"]]
            rows = asyncio.run(_table(job.place, parts[row["part"]], description))
            rows = between(rows, 0, history.upper)
            for dealt in divided.deal(fragment, row["name"], rows):
                yield wire_batch([dealt])


async def _table(place: BlobPlace, part: Part, description: Description) -> pa.Table:
    async with _store(place) as store:
        table = await store.table(part, description, keep=False)
    cut = part.lower or part.upper is not None
    return between(table, part.lower, part.upper) if cut else table


def evaluate_stage(
    job: _Job, number: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One task: its ranges of a fragment; what is for other stages passes through."""
    held: dict[int, dict[str, list[bytes]]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            if row["stage"] == number:
                mine = held.setdefault(row["range"], {})
                mine.setdefault(row["name"], []).append(row["payload"])
            else:
                yield wire_batch([Dealt(row["stage"], row["range"], row["name"], row["payload"])])
    divided = job.divided()
    for at, given in held.items():
        try:
            found = divided.evaluate(divided.placement.fragments[number], at, given)
            yield wire_batch(asyncio.run(_write_updates(job.place, divided, found)))
        except Exhausted as error:
            yield wire_batch([Dealt(LAST, 0, _EXHAUSTED, str(error).encode())])
            return
        for dealt in found.crossing:
            yield wire_batch([dealt])


async def _write_updates(place: BlobPlace, divided: RangeHistory, found: RangeFound) -> list[Dealt]:
    """The parts of a range's updates, and what the last stage puts together."""
    dealt = [
        Dealt(LAST, 0, _ERRORS, msgspec.msgpack.encode(list(found.errors))),
        Dealt(LAST, 0, _ROWS, msgspec.msgpack.encode(dict(found.rows))),
    ]
    async with _store(place) as store:
        for collection, updates in found.updates.items():
            parts = await _parts(store, divided, collection, updates)
            dealt += [Dealt(LAST, 0, collection, part) for part in parts]
    return dealt


async def _parts(
    store: PartStore, divided: RangeHistory, collection: str, updates: pa.Table
) -> list[bytes]:
    if not updates.num_rows:
        return []
    description = divided.history.written[collection]
    return [pack_part(part) for part in await store.write(collection, description, updates)]


def finish(job: _Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The last task: parts pass through, errors of all ranges become parts of one collection.

    Raises: LimitPassed where the ranges of a predicate have too many rows together.
    """
    errors: list[ErrorMove] = []
    counts: Counter[str] = Counter()
    for batch in batches:
        for row in batch.to_pylist():
            if row["name"] == _ERRORS:
                errors += msgspec.msgpack.decode(row["payload"], type=list[ErrorMove])
            elif row["name"] == _ROWS:
                counts.update(msgspec.msgpack.decode(row["payload"], type=dict[str, int]))
            else:
                yield wire_batch([Dealt(LAST, 0, row["name"], row["payload"])])
    divided = job.divided()
    divided.require_rows(counts)
    for part in asyncio.run(_error_parts(job.place, divided, errors)):
        yield wire_batch([Dealt(LAST, 0, divided.history.target.errors, part)])


async def _error_parts(
    place: BlobPlace, divided: RangeHistory, errors: Sequence[ErrorMove]
) -> list[bytes]:
    merged = error_moves(FailingTexts().take(errors), divided.history.lower)
    async with _store(place) as store:
        table = update_table(merged, ERROR_SCHEMA)
        return await _parts(store, divided, divided.history.target.errors, table)


@asynccontextmanager
async def _store(place: BlobPlace) -> AsyncIterator[PartStore]:
    blob = open_blob(place, partial(token_hex, 16))
    try:
        yield PartStore(blob, partial(token_hex, 16), now_ms=SystemClock().now_ms)
    finally:
        await blob.close()
