"""A session of Spark that loads the classes that jobs of tests need: `session.py SCRATCH`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidemill.spark.local_settings import LocalSettings
from tidemill.spark.session import local_session


def kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they are, by way of a worker in Python."""
    yield from batches


session = local_session("classes", LocalSettings(memory_mb=600, scratch=sys.argv[1]))
rows = session.range(0, 100, 1, 2).mapInArrow(kept, "id long")
assert len(rows.groupBy("id").count().sort("id").toArrow()) == 100
rows.repartition(2, "id").write.parquet(f"{sys.argv[1]}/rows")
assert session.read.parquet(f"{sys.argv[1]}/rows").where("id < 7").count() == 7
session.stop()
