"""Bulk reclocking on Spark: starts the job off the hot path and appends what it wrote."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from tidemill.runtime.formats import AvroFormat, Column, ProtobufFormat, RecordFormat
from tidemill.shard import Collections
from tidemill.shard.encoding import unpack_part
from tidemill.spark.launcher import Job, JobFailed, JobKind, SparkLauncher
from tidemill.spark.log_ranges import ranges_between
from tidemill.time import Unavailable, frontier, sole_time
from tidemill_reclock.backfill_job import (
    BackfillResult,
    BackfillSpec,
    ColumnSpec,
    TargetSpec,
)
from tidemill_reclock.bulk import Backlog, LogPlace

JOB = "tidemill_reclock.backfill_job"


class SparkBulkReclock:
    """Guarantees of BulkReclock, by one Spark job and two compare-and-appends."""

    def __init__(
        self,
        launcher: SparkLauncher,
        collections: Collections,
        place: LogPlace,
        columns: Sequence[Column],
        record_format: RecordFormat,
    ) -> None:
        self._launcher = launcher
        self._collections = collections
        self._place = place
        self._columns = tuple(columns)
        self._format = record_format

    async def write(self, backlog: Backlog) -> None:
        """Guarantees of BulkReclock. Raises Unavailable with the end of the job's log if it failed."""
        spec = await self._spec(backlog)
        job = Job(JobKind.BACKFILL, backlog.source, JOB, msgspec.msgpack.encode(spec))
        outcome = await self._launcher.launch(job)
        if isinstance(outcome, JobFailed):
            raise Unavailable(f"the backfill of {backlog.source} failed: {outcome}")
        result = msgspec.msgpack.decode(outcome.result, type=BackfillResult)
        for target in (spec.letters, spec.rows):
            parts = [
                unpack_part(packed)
                for written in result.written
                if written.collection == target.collection
                for packed in written.parts
            ]
            await self._collections.append_parts(
                target.collection, frontier(target.lower), frontier(backlog.upper), parts,
                writer=backlog.source,
            )  # fmt: skip

    async def _spec(self, backlog: Backlog) -> BackfillSpec:
        ranges = ranges_between(backlog.starts, backlog.stops)
        assert not isinstance(self._format, AvroFormat | ProtobufFormat)  # no job reads these
        directory = self._place.directory
        return BackfillSpec(
            source=backlog.source,
            topic=self._place.topic,
            log_directory=None if directory is None else str(directory.resolve()),
            bootstrap=self._place.bootstrap,
            ranges=[(part.partition, part.start, part.stop) for part in ranges],
            bindings=_as_stream(backlog.bindings),
            upper=backlog.upper,
            columns=[ColumnSpec(c.name, c.kind, c.nullable) for c in self._columns],
            record_format=self._format,
            rows=await self._target(backlog.rows),
            letters=await self._target(backlog.letters),
        )

    async def _target(self, collection: str) -> TargetSpec:
        description = await self._collections.description(collection)
        upper = (await self._collections.status(collection)).upper
        return TargetSpec(
            collection,
            description.schema.serialize().to_pybytes(),
            list(description.key),
            sole_time(upper),
        )


def _as_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
