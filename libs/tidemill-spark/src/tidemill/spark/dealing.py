"""Rows that say what tasks have to do, dealt out to the tasks of a stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def dealt(spark: SparkSession, rows: pa.Table, task: str) -> DataFrame:
    """A frame of `rows`, each in the partition that its whole number in the column `task` names.

    Numbers begin at 0. The rows go to the JVM as Arrow. Rows of Python pass a worker of another
    kind, whose parent imports everything once more. Cost: one shuffle of a few rows.
    """
    last = pc.max(rows[task]).as_py() if rows.num_rows else 0
    return spark.createDataFrame(rows).repartitionById(last + 1, task)
