"""The Spark job that evaluates the history of a view: range by range where that is possible.

Else one task does it by the maintainer of the service itself. Executors commit nothing. The service
appends their parts by compare-and-append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex

import msgspec
import pyarrow as pa

from tidemill.arrangement.updates import between, concatenate
from tidemill.datalog.allowance import Allowance
from tidemill.errors import Exhausted
from tidemill.runtime.clock import SystemClock
from tidemill.shard.encoding import pack_part
from tidemill.shard.part_store import PartStore
from tidemill.shard.parts import Part
from tidemill.shard.state import Description
from tidemill.shard.stores import BlobPlace, open_blob
from tidemill.spark.workplace import Workplace
from tidemill_compute.views.bulk import History
from tidemill_compute.views.history_spec import unpack_history
from tidemill_compute.views.hydrate_ranges import hydrate_by_ranges
from tidemill_compute.views.input_state import InputState
from tidemill_compute.views.present_rows import present_rows
from tidemill_compute.views.range_history import RangeHistory, ranges_for
from tidemill_compute.views.shared_inputs import SharedInputs
from tidemill_compute.views.view import maintainer_of
from tidemill_compute.views.view_updates import Start

_WRITTEN = "collection string, part binary"
_EXHAUSTED = ""
"""In place of a collection: the part says why there are none.

Spark would try again a task that fails.
"""


class HydrationResult(msgspec.Struct, frozen=True):
    """Parts by collection, or the reason if they took more memory than they may."""

    parts: dict[str, list[bytes]]
    exhausted: str = ""


def run(packed: bytes, here: Workplace) -> bytes:
    """The whole job: range by range, or in one task where the program cannot be divided."""
    history = unpack_history(packed)
    here.say(f"evaluating {history.rows} updates of the inputs of {history.target.name}")
    ranges = ranges_for(history.rows, here.spark.sparkContext.defaultParallelism)
    divided = RangeHistory.of(history, ranges)
    if divided is not None:
        here.say(f"in {ranges} ranges of {len(divided.placement.fragments)} fragments")
        found, exhausted = hydrate_by_ranges(packed, divided, here)
        here.say(exhausted or f"wrote {sum(map(len, found.values()))} parts")
        return msgspec.msgpack.encode(HydrationResult(found, exhausted))
    frame = here.spark.createDataFrame([(0,)], "task int").repartition(1)
    rows = frame.mapInArrow(partial(hydrate_in_task, here.blob, packed), _WRITTEN).collect()
    parts: dict[str, list[bytes]] = {}
    told = [bytes(row["part"]).decode() for row in rows if row["collection"] == _EXHAUSTED]
    if told:
        here.say(told[0])
        return msgspec.msgpack.encode(HydrationResult({}, told[0]))
    for row in rows:
        parts.setdefault(row["collection"], []).append(bytes(row["part"]))
    here.say(f"wrote {len(rows)} parts")
    return msgspec.msgpack.encode(HydrationResult(parts))


def hydrate_in_task(
    place: BlobPlace, packed: bytes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Parts of all collections from the one task with a row, or lack of room for them."""
    if not sum(batch.num_rows for batch in batches):
        return
    try:
        written = asyncio.run(hydrate(place, unpack_history(packed)))
    except Exhausted as error:
        yield _batch(_EXHAUSTED, [str(error).encode()])
        return
    for collection, parts in written.items():
        yield _batch(collection, [pack_part(part) for part in parts])


def _batch(collection: str, parts: Sequence[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "collection": pa.array([collection] * len(parts), pa.string()),
            "part": pa.array(parts, pa.binary()),
        }
    )


async def hydrate(place: BlobPlace, history: History) -> dict[str, Sequence[Part]]:
    """Output of the view, as parts. Raises: Corrupt, Exhausted, and errors of the store."""
    blob = open_blob(place, partial(token_hex, 16))
    store = PartStore(blob, partial(token_hex, 16), now_ms=SystemClock().now_ms)
    try:
        inputs = await _inputs(store, history)
        found = await asyncio.to_thread(evaluated, history, inputs)
        return {
            collection: await store.write(collection, history.written[collection], updates)
            for collection, updates in found.items()
            if updates.num_rows
        }
    finally:
        await blob.close()


async def _inputs(store: PartStore, history: History) -> dict[str, InputState]:
    """Each input with what it holds at `lower`, and its changes up to `upper`."""
    tables: dict[str, pa.Table] = {}
    allowance = history.target.allowance.apart()
    for collection, (description, parts) in history.inputs.items():
        tables[collection] = await _updates(store, description, parts, history.upper, allowance)
    found = {}
    for predicate, (collection, shape) in history.target.inputs.items():
        living = InputState(replace(shape, predicate=predicate))
        begin = 0
        if history.lower:
            # Rows present at `lower` begin there, as a reader of that instant is told.
            begin = history.lower + 1
            present = between(tables[collection], 0, begin)
            living.restart(present_rows(present), begin)
        living.extend(between(tables[collection], begin, history.upper), history.upper)
        found[predicate] = living
    return found


async def _updates(
    store: PartStore,
    description: Description,
    parts: Sequence[Part],
    upper: int,
    allowance: Allowance,
) -> pa.Table:
    """All updates before `upper`. Raises: Exhausted."""
    tables = [description.update_schema().empty_table()]
    for part in parts:
        table = await store.table(part, description, keep=False)
        if part.lower or part.upper is not None:
            table = between(table, part.lower, part.upper)
        allowance.take(table.nbytes)
        tables.append(table)
    return between(concatenate(tables), 0, upper)


def evaluated(history: History, inputs: Mapping[str, InputState]) -> dict[str, pa.Table]:
    """All updates from `lower` to `upper` by collection: the steps of the service in order."""
    maintainer = maintainer_of(history.target, history.settings, SharedInputs())
    maintainer.begin(Start(history.lower, fresh=True), inputs)
    found: dict[str, list[pa.Table]] = {}
    lower = history.lower
    while lower < history.upper:
        step = maintainer.step(lower, history.upper, None)
        for collection, table in step.made():
            found.setdefault(collection, []).append(table)
        lower = step.upper
    return {collection: concatenate(tables) for collection, tables in found.items()}
