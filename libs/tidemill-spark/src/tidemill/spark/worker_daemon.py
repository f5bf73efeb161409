"""Parent of Spark's Python workers: `python -m tidemill.spark.worker_daemon pyspark.worker`.

Workers are forks of this process. Spark's own parent imports nothing for them. Each worker of each
stage then takes some seconds of a processor for imports before its first row.
"""

from __future__ import annotations

import gc
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

MODULE: Final = "tidemill.spark.worker_daemon"
PRELOADED: Final = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.worker",
    "tidemill.shard.stores",
    "tidemill.spark.backfill",
)
"""Modules that every worker of our jobs needs. None of them starts a thread when it is imported."""
JOBS: Final = "tidemill.spark.jobs"
"""Group of entry points that name modules of tasks. Services have them, which are above us."""


def main() -> None:
    """Import once, then fork a worker at each request of Spark's executor."""
    from pyspark.daemon import manager

    for name in (*PRELOADED, *(each.value for each in entry_points(group=JOBS))):
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker then copies none of the pages that workers share
    manager()


if __name__ == "__main__":
    main()
