"""The data source itself: what Spark registers, and a scan whose version is given up by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tidemill.client.capabilities import AsyncReader
from tidemill.client.spark import writer
from tidemill.client.spark.columns import lanes_of, struct_type
from tidemill.client.spark.options import Options
from tidemill.client.spark.reader import ContentsReader, held_version
from tidemill.client.spark.scanning import version_of
from tidemill.client.spark.streaming import ChangesReader
from tidemill.errors import UsageError
from tidemill.rpc.client import AsyncClient
from tidemill.runtime.ids import random_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TidemillSource(DataSource):  # type: ignore[misc]  # pyspark has no types
    """`spark.read.format("tidemill")`: collections as of an instant, their changes, and tables.

    A DataFrame keeps the instant at which it was loaded, however often a query names it.
    """

    _at: int | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tidemill"

    def _options(self) -> Options:
        return Options.of(self.options)

    def schema(self) -> StructType:
        """The columns of the collection, with `_time` and `_diff` as the options want them."""
        options = self._options()
        schema, at = described(options)
        self._at = None if options.changes else at
        unknown = [name for name in options.columns if name not in schema.names]
        if unknown:
            raise UsageError(
                f"there are no columns {', '.join(unknown)}: {', '.join(schema.names)}",
                reason="UnknownColumn",
            )
        if options.columns:
            schema = pa.schema([schema.field(name) for name in options.columns])
        lanes = {"time": options.changes, "diff": options.changes or options.multiplicity}
        return struct_type(lanes_of(schema, **lanes))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of contents. Raises: UsageError if changes are wanted."""
        options = self._options()
        if options.changes:
            raise UsageError("changes are a stream: spark.readStream", reason="option")
        at = self._at if options.as_of is None else options.as_of
        return ContentsReader(replace(options, as_of=at), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader of changes. Raises: UsageError unless these are wanted."""
        options = self._options()
        if not options.changes:
            raise UsageError(
                "a stream has changes, each with _time and _diff: option('changes', 'true')",
                reason="option",
            )
        return ChangesReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a table. Raises: UsageError for another mode than `append`."""
        options = self._options()
        _refuse_overwriting(overwrite)
        return writer.RowsWriter(options, options.idempotency_key or random_id())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer of a table, batch by batch. Raises: UsageError without an `idempotencyKey`."""
        options = self._options()
        _refuse_overwriting(overwrite)
        if options.idempotency_key is None:
            raise UsageError(
                "a stream that begins again writes its last batch again: name the stream by "
                "option('idempotencyKey', …), and keep the name",
                reason="option",
            )
        return writer.BatchesWriter(options, options.idempotency_key)


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise UsageError("rows are added to a table: mode('append')", reason="mode")


def described(options: Options) -> tuple[pa.Schema, int]:
    """The data columns of the collection, and the instant that is held for as long as `lease`.

    By default that is the latest definite one. Nothing is held for changes, or by a named instant.
    """

    async def look(client: AsyncClient) -> tuple[pa.Schema, int]:
        held = await client.storage.hold_version(
            options.collection, options.as_of, owner="spark", lease_ms=options.lease_ms
        )
        if options.changes or options.as_of is not None:
            await client.storage.drop(held.capability)
        return version_of(held).description.schema, held.at

    with options.connect() as calls:
        return calls.drive(look)


@contextmanager
def reading(spark: SparkSession, **options: str) -> Iterator[DataFrame]:
    """A DataFrame of a collection as of one instant, whose capability is dropped at the end.

    It is renewed by this process for as long as the context lasts: no task may come too late.
    Options are those of the data source.
    """
    known = Options.of({"version": random_id(), **options})
    held = held_version(known, known.as_of)
    with known.connect() as calls:

        async def begin(client: AsyncClient) -> AsyncReader:
            return await AsyncReader(client, held.capability, known.lease_ms).__aenter__()

        kept = calls.drive(begin)
        try:
            source = spark.read.format(TidemillSource.name()).options(**options)
            yield source.option("version", str(known.version)).option("asOf", str(held.at)).load()
        finally:
            calls.drive(lambda _: kept.drop())
