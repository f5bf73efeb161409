"""Bulk reclocking on Spark: starts the job off the hot path and appends what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidemill.arrangement.arrow_bytes import pack_table
from tidemill.errors import Unavailable
from tidemill.runtime.formats import Column, RecordFormat
from tidemill.runtime.formats.lengths import ROW_BYTES_MAX
from tidemill.runtime.formats.schema_memory import KnownSchemas, NumberedRecords
from tidemill.shard import Collections
from tidemill.shard.encoding import unpack_part
from tidemill.spark.launcher import Job, JobFailed, JobKind, SparkLauncher
from tidemill.spark.log_ranges import ranges_between
from tidemill.time import frontier, sole_time
from tidemill_reclock.backfill_job import (
    BackfillResult,
    BackfillSpec,
    ColumnSpec,
    TargetSpec,
)
from tidemill_reclock.bulk import Backlog, LogPlace

JOB = "tidemill_reclock.backfill_job"


@dataclass(frozen=True, slots=True)
class BulkJob:
    """The module of a job that writes a backlog, and how it is told what to do."""

    module: str
    packed: Callable[[BackfillSpec], bytes]


PLAIN = BulkJob(JOB, msgspec.msgpack.encode)
"""Each record becomes a row by itself."""


class BulkSchemas(Protocol):
    """Schemas that records name by number; tidemill.catalog.records.schemas.SchemaBook."""

    async def load_known(self) -> KnownSchemas:
        """Everything that has been decided."""
        ...

    async def learn(self, undecided: Sequence[NumberedRecords]) -> None:
        """Decide about all of these. Raises: Unavailable."""
        ...


class SparkBulkReclock:
    """Guarantees of BulkReclock, by one Spark job and two compare-and-appends.

    A job that meets a schema without a decision gives its records back, and is begun anew once
    there is one.
    """

    def __init__(
        self,
        launcher: SparkLauncher,
        collections: Collections,
        place: LogPlace,
        columns: Sequence[Column],
        record_format: RecordFormat,
        schemas: BulkSchemas | None = None,
        job: BulkJob = PLAIN,
        heartbeats: bool = False,
        row_bytes: int = ROW_BYTES_MAX,
    ) -> None:
        """With `heartbeats` records may be such: the rows have the column `_heartbeat`.

        A record whose row has more than `row_bytes` is a dead letter.
        """
        self._launcher = launcher
        self._collections = collections
        self._place = place
        self._columns = tuple(columns)
        self._format = record_format
        self._schemas = schemas
        self._job = job
        self._heartbeats = heartbeats
        self._row_bytes = row_bytes

    async def write(self, backlog: Backlog) -> None:
        """Guarantees of BulkReclock.

        Raises Unavailable with the end of the job's log if it failed.
        """
        spec = await self._spec(backlog)
        result = await self._write(backlog, spec)
        while result.undecided:
            assert self._schemas is not None
            await self._schemas.learn(result.undecided)
            spec = await self._spec(backlog)
            result = await self._write(backlog, spec)
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

    async def _write(self, backlog: Backlog, spec: BackfillSpec) -> BackfillResult:
        job = Job(JobKind.BACKFILL, backlog.source, self._job.module, self._job.packed(spec))
        outcome = await self._launcher.launch(job)
        if isinstance(outcome, JobFailed):
            raise Unavailable(f"the backfill of {backlog.source} failed: {outcome}")
        return msgspec.msgpack.decode(outcome.result, type=BackfillResult)

    async def _spec(self, backlog: Backlog) -> BackfillSpec:
        ranges = ranges_between(backlog.starts, backlog.stops)
        schemas = None if self._schemas is None else await self._schemas.load_known()
        directory = self._place.directory
        return BackfillSpec(
            source=backlog.source,
            origin=self._place.origin,
            log_directory=None if directory is None else str(directory.resolve()),
            ranges=[(part.partition, part.start, part.stop) for part in ranges],
            bindings=pack_table(backlog.bindings),
            upper=backlog.upper,
            columns=[ColumnSpec(c.name, c.kind, c.nullable) for c in self._columns],
            record_format=self._format,
            schemas=schemas,
            rows=await self._target(backlog.rows),
            letters=await self._target(backlog.letters),
            heartbeats=self._heartbeats,
            row_bytes=self._row_bytes,
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
