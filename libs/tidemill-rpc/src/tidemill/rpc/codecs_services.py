"""Messages between services, to the wire and back."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing

import pyarrow as pa

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.rpc.codecs import parts, table_in
from tidemill.rpc.messages import Delivered, Work
from tidemill_protos.ingest.v1 import ingest_pb2 as ingest
from tidemill_protos.work.v1 import work_pb2 as work


def offsets_out(offsets: Mapping[int, int]) -> list[ingest.PartitionOffset]:
    """Offsets by partition."""
    return [ingest.PartitionOffset(partition=p, offset=o) for p, o in sorted(offsets.items())]


def offsets_in(messages: Iterable[ingest.PartitionOffset]) -> dict[int, int]:
    """Offsets by partition."""
    return {message.partition: message.offset for message in messages}


def delivery_out(delivered: Delivered) -> Iterator[ingest.DeliverResponse]:
    """The parts of a delivery; only the last one has the positions."""
    rows = list(parts(delivered.rows))
    for table in rows[:-1]:
        yield ingest.DeliverResponse(rows_arrow_ipc=pack_table(table))
    yield ingest.DeliverResponse(
        rows_arrow_ipc=pack_table(rows[-1]),
        letters_arrow_ipc=pack_table(delivered.letters),
        last=True,
        positions=offsets_out(delivered.positions),
    )


async def deliveries_in(
    messages: AsyncGenerator[ingest.DeliverResponse, None],
) -> AsyncGenerator[Delivered, None]:
    """Whole deliveries; one of which the last part did not come is none."""
    tables: list[pa.Table] = []
    async with aclosing(messages):
        async for message in messages:
            tables.append(table_in(message.rows_arrow_ipc))
            if message.last:
                letters = table_in(message.letters_arrow_ipc)
                yield Delivered(pa.concat_tables(tables), letters, offsets_in(message.positions))
                tables = []


def work_out(held: Work) -> work.Work:
    """One part of a resource."""
    return work.Work(
        role=held.role,
        kind=held.kind,
        name=held.name,
        ready=held.ready,
        reason=held.reason,
        message=held.message,
        details_json=json.dumps(held.details),
        process=held.process,
        epoch=held.epoch,
    )


def work_in(message: work.Work) -> Work:
    """One part of a resource."""
    return Work(
        message.role,
        message.kind,
        message.name,
        message.ready,
        message.reason,
        message.message,
        json.loads(message.details_json or "{}"),
        message.process,
        message.epoch,
    )
