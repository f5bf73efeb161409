"""The floor of a scan: a source that reads nothing, and hands rows on in batches as ours does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidemill.client.spark.columns import BATCH_ROWS, struct_type


def rows_of(size: int, schema: pa.Schema) -> pa.Table:
    """Rows with keys of their own, and random values in the other columns."""
    numbers = np.random.default_rng(7)
    names = pa.array([f"carrier {n}" for n in range(20)])
    made = {
        "k": np.arange(size),
        "a": numbers.integers(0, 1_000_000, size),
        "carrier": names.take(pa.array(numbers.integers(0, 20, size))),
        "f": numbers.integers(0, 1_000, size) / 4,
    }
    return pa.table({name: made[name] for name in schema.names}, schema=schema)


class FloorReader(DataSourceReader):  # type: ignore[misc]  # pyspark has no types
    """Hands the same batch on, as often as rows are wanted."""

    def __init__(self, rows: int, partitions: int, schema: pa.Schema) -> None:
        self._rows = rows
        self._partitions = partitions
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of the scan beside which it stands."""
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        (batch,) = rows_of(BATCH_ROWS, self._schema).combine_chunks().to_batches()
        left = self._rows // self._partitions
        while left:
            yield batch.slice(0, left)
            left -= min(left, BATCH_ROWS)


class Floor(DataSource):  # type: ignore[misc]  # pyspark has no types
    """`spark.read.format("floor")` of so many `rows` in `partitions`, with these `columns`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "floor"

    @property
    def _schema(self) -> pa.Schema:
        kinds = {"carrier": pa.string(), "f": pa.float64()}
        names = self.options["columns"].split(", ")
        return pa.schema([(name, kinds.get(name, pa.int64())) for name in names])

    def schema(self) -> StructType:
        """The columns that are wanted."""
        return struct_type(self._schema)

    def reader(self, schema: StructType) -> FloorReader:
        """A reader of all rows."""
        rows, partitions = int(self.options["rows"]), int(self.options["partitions"])
        return FloorReader(rows, partitions, self._schema)
