"""Parent of Spark's Python workers: `python -m tidemill.spark.worker_daemon pyspark.worker`.

Workers are forks of this process. Spark's own parent imports nothing for them. Each worker of each
stage then takes some seconds of a processor for imports before its first row.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
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
    leave_archives_out()
    from pyspark.daemon import manager

    for name in (*PRELOADED, *(each.value for each in entry_points(group=JOBS))):
        import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a worker then copies none of the pages that workers share
    manager()


def leave_archives_out() -> None:
    """Import Spark's Python from the folder that it is installed in, not from archives beside it.

    Spark puts the archives first on the path. Python compiles each module of an archive in every
    process, and each task reads the contents of all archives again. A folder of another Spark than
    the archives belong to is left alone.
    """
    archives = [each for each in sys.path if each.endswith(".zip") and Path(each).exists()]
    rest = [each for each in sys.path if each not in archives]
    spark, py4j = (PathFinder.find_spec(name, rest) for name in ("pyspark", "py4j"))
    if spark is None or spark.origin is None or py4j is None:
        return
    for archive in archives:
        if Path(archive).parent == Path(spark.origin).parent / "python/lib":
            sys.path.remove(archive)
            sys.path_importer_cache.pop(archive, None)


if __name__ == "__main__":
    main()
