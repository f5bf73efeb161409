"""A backlog of Avro or of Protobuf written by a job is what the decoder of the live path makes of
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_hex

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import SparkSession

from tidemill.arrangement.updates import consolidate, stamp
from tidemill.catalog.records.decisions import DECISIONS_SCHEMA, Decisions
from tidemill.catalog.records.decoding import RecordDecoder
from tidemill.catalog.records.schemas import SchemaBook
from tidemill.reclock import rows_of_bindings
from tidemill.runtime.clock import ManualClock
from tidemill.runtime.formats import (
    LETTER_SCHEMA,
    AvroFormat,
    Column,
    JsonFormat,
    ProtobufFormat,
    RecordFormat,
)
from tidemill.runtime.formats.avro import AvroReader
from tidemill.runtime.formats.lengths import ROW_BYTES_MAX
from tidemill.runtime.formats.registry import HttpRegistry, RegistryAccess
from tidemill.runtime.log import Entry, LogRecord
from tidemill.runtime.log_embedded import EmbeddedLog
from tidemill.runtime.resources.decoding import RecordShape
from tidemill.shard import Collections, Description, DirectoryBlob, SqliteConsensus
from tidemill.shard.stores import BlobPlace
from tidemill.testkit.jobs import SessionLauncher
from tidemill.testkit.schema_registry import Registry, schema_registry
from tidemill.time import PARTITIONED, Antichain, Partitions, partition_frontier
from tidemill_reclock.bulk import Backlog, LogPlace
from tidemill_reclock.bulk_spark import SparkBulkReclock

COLUMNS = (Column("plane", "text"), Column("delay", "int", nullable=True))
RECORDS = {0: 160, 1: 80}
BOUND_AT = 1_000
UNKNOWN = 77
PLAIN = {"type": "record", "name": "F", "fields": [{"name": "plane", "type": "string"}, {"name": "delay", "type": ["null", "int"]}]}  # fmt: skip
OTHER = {"type": "record", "name": "G", "fields": [{"name": "delay", "type": "long"}, {"name": "more", "type": "string"}, {"name": "plane", "type": "string"}]}  # fmt: skip


class Bench:
    """A source whose whole topic is bound at one instant, and its collections."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.launcher = SessionLauncher(spark, BlobPlace(f"file:{folder / 'blob'}"))
        self.collections = Collections(
            SqliteConsensus(folder / "consensus.sqlite"),
            DirectoryBlob(folder / "blob", lambda: token_hex(8)),
            ManualClock(),
            lambda: token_hex(16),
        )

    async def fill(self, record: Callable[[int, int], bytes]) -> list[LogRecord]:
        """Make the collections, and the topic; its records."""
        rows = pa.schema([column.field() for column in COLUMNS])
        for name, schema in (
            ("flights", rows), ("flights/deadletters", LETTER_SCHEMA),
            ("flights/decided", DECISIONS_SCHEMA),
        ):  # fmt: skip
            await self.collections.create(name, Description(schema, kind="source"), lease_ms=None)
        log = EmbeddedLog(self.folder / "log")
        await log.create_topic("flights", len(RECORDS))
        found = []
        for partition, count in RECORDS.items():
            values = [record(partition, offset) for offset in range(count)]
            await log.append("flights", [Entry(None, value, partition, 0) for value in values])
            found += [LogRecord(partition, at, None, v, 0) for at, v in enumerate(values)]
        await log.close()
        return found

    async def write(
        self,
        written: RecordFormat,
        book: SchemaBook | None = None,
        row_bytes: int = ROW_BYTES_MAX,
    ) -> None:
        """Write everything by a job."""
        bound: Antichain[Partitions] = partition_frontier(RECORDS)
        none: Antichain[Partitions] = Antichain.of(PARTITIONED, [])
        changes = [(e, BOUND_AT, 1) for e in bound if e not in none.elements]
        backlog = Backlog(
            "flights", "flights/remap", "flights", "flights/deadletters", {}, RECORDS,
            rows_of_bindings(changes), 0, BOUND_AT + 1,
        )  # fmt: skip
        place = LogPlace("flights", self.folder / "log")
        bulk = SparkBulkReclock(
            self.launcher, self.collections, place, COLUMNS, written, book, row_bytes=row_bytes
        )
        await bulk.write(backlog)

    async def equals(self, decoded: tuple[pa.Table, pa.Table]) -> bool:
        """Whether the collections hold what the live path decoded, and some of both."""
        rows = decoded[0].drop_columns(["_partition", "_offset"])
        for name, table in (("flights", rows), ("flights/deadletters", decoded[1])):
            stored = await self.collections.read_updates(name)
            expected = consolidate(stamp(table, BOUND_AT))
            order = [(column, "ascending") for column in stored.column_names]
            if not stored.num_rows or stored.sort_by(order) != expected.cast(stored.schema).sort_by(
                order
            ):
                return False
        return True


def book_of(registry: Registry, bench: Bench) -> SchemaBook:
    decisions = Decisions(bench.collections, "flights/decided")
    return SchemaBook(
        HttpRegistry(RegistryAccess(registry.url)), "format", decisions, AvroReader(COLUMNS)
    )


async def live(
    records: Sequence[LogRecord], written: RecordFormat, registry: Registry, bench: Bench
) -> tuple[pa.Table, pa.Table]:
    """Rows that the decoder of ingest makes of the records, after whatever was decided before."""

    def schemas(field: str, reader: AvroReader) -> SchemaBook:
        decisions = Decisions(bench.collections, "flights/decided")
        return SchemaBook(HttpRegistry(RegistryAccess(registry.url)), field, decisions, reader)

    decoder = RecordDecoder(RecordShape(COLUMNS, COLUMNS, written), schemas)
    try:
        return await decoder.decode(records)
    finally:
        await decoder.close()


@pytest.mark.server
async def test_a3_rows_that_are_too_long_are_the_letters_of_the_live_path(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A3: also those that are so for a byte, in batches of any size; the others are written."""
    bench = Bench(tmp_path, spark)

    def record(partition: int, offset: int) -> bytes:
        size = {7: 5_000, 9: 100, 11: 101}.get(offset % 40, 10)
        return json.dumps({"plane": "x" * (size - 8), "delay": offset}).encode()

    records = await bench.fill(record)
    await bench.write(JsonFormat(), row_bytes=100)
    decoded = await RecordDecoder(
        RecordShape(COLUMNS, COLUMNS, JsonFormat(), row_bytes=100)
    ).decode(records)
    reasons = set(decoded[1]["reason"].to_pylist())
    assert reasons == {
        f"its row has {size} bytes, more than 100 (limits.row_bytes)" for size in ("5,000", "101")
    }
    assert await bench.equals(decoded)


@pytest.mark.server
async def test_avro_has_the_rows_and_letters_of_the_live_path(
    tmp_path: Path, spark: SparkSession
) -> None:
    bench = Bench(tmp_path, spark)
    async with schema_registry() as registry:
        plain, other = registry.register("a", PLAIN), registry.register("b", OTHER)

        def record(partition: int, offset: int) -> bytes:
            if offset % 40 == 7:
                return b"\0" + UNKNOWN.to_bytes(4, "big") + b"?"
            if offset % 40 == 9:
                return b"no avro"
            if offset % 3:
                delay = None if offset % 5 == 0 else offset % 4
                return registry.record(plain, {"plane": f"N{offset % 9}", "delay": delay})
            row = {"plane": f"N{offset % 9}", "delay": offset % 4, "more": "x"}
            return registry.record(other, row)

        records = await bench.fill(record)
        book = book_of(registry, bench)
        await bench.write(AvroFormat(), book)
        await book.close()
        # The first job met schemas about which nothing was decided; the second wrote.
        assert len(bench.launcher.launched) == 2
        assert sorted(registry.asked) == [plain, other, UNKNOWN]
        # The registry knows more by now; what was decided stays.
        while registry.register("c", PLAIN) != UNKNOWN:
            pass
        decoded = await live(records, AvroFormat(), registry, bench)
        assert decoded[1].num_rows == 12
        assert await bench.equals(decoded)
        assert len(registry.asked) == 3
    await bench.collections.close()


def described() -> descriptor_pb2.FileDescriptorSet:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="air", syntax="proto3")
    message = file.message_type.add(name="Flight")
    message.field.add(name="plane", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message.field.add(name="delay", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file])


@pytest.mark.server
async def test_protobuf_has_the_rows_and_letters_of_the_live_path(
    tmp_path: Path, spark: SparkSession
) -> None:
    files = described()
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(files.file[0].SerializeToString())
    flight = message_factory.GetMessageClass(pool.FindMessageTypeByName("air.Flight"))

    def record(partition: int, offset: int) -> bytes:
        if offset % 40 == 9:
            return b"\xff\xff"
        made: bytes = flight(plane=f"N{offset % 9}", delay=offset % 4).SerializeToString()
        return made

    bench = Bench(tmp_path, spark)
    records = await bench.fill(record)
    written = ProtobufFormat(files.SerializeToString(), "air.Flight")
    await bench.write(written)
    assert len(bench.launcher.launched) == 1
    decoded = await live(records, written, Registry(), bench)
    assert decoded[1].num_rows == 6
    assert await bench.equals(decoded)
    await bench.collections.close()
