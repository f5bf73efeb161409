"""Spark sessions: the settings that every job of ours needs, in one place.

Spark itself is loaded with the first session: whoever launches jobs has none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.spark.local_settings import BATCH_BYTES_MAX, LocalSettings
from tidemill.spark.worker_daemon import MODULE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENT_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times the thresholds of the JVM for its second compiler.

A job of some seconds ends before that compiler has paid: it was a third of the processor of a
backfill of 166,000 records. A long job passes ten times the count as well. Options of who runs a
session (`spark.driver.extraJavaOptions` in `spark-defaults.conf`) come after these, and win.
"""


def local_session(app: str, settings: LocalSettings) -> SparkSession:
    """A session whose driver, executors and Python workers all run here, on loopback only.

    Arrow batches are large because every batch crosses a pipe between the JVM and Python. The
    console progress bar and the web page are off, since the caller reports progress. Cost: 4 to 9 s
    for the first session of a process.
    """
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{settings.cores}]")
        .appName(app)
        .config("spark.driver.memory", f"{settings.memory_mb}m")
        .config("spark.driver.defaultJavaOptions", PATIENT_COMPILER)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(settings.cores))
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50000")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(BATCH_BYTES_MAX))
        .config("spark.python.worker.reuse", "true")
    )
    jars = jars_in(Path(settings.jars)) if settings.jars else ()
    if jars:
        builder = builder.config("spark.jars", ",".join(str(jar) for jar in jars))
    if settings.scratch:
        builder = builder.config("spark.local.dir", settings.scratch).config(
            "spark.sql.warehouse.dir", str(Path(settings.scratch) / "warehouse")
        )
    return _opened(builder)


def session_of(app: str, conf: Mapping[str, str]) -> SparkSession:
    """A session with exactly these settings."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    for key, value in conf.items():
        builder = builder.config(key, value)
    return _opened(builder)


def _opened(builder: SparkSession.Builder) -> SparkSession:
    session: SparkSession = builder.config("spark.python.daemon.module", MODULE).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    # Workers run the interpreter we run in; without spark-submit the only other door is an
    # environment variable of the whole process.
    session.sparkContext.pythonExec = sys.executable
    return session


def jars_in(directory: Path) -> tuple[Path, ...]:
    """The jars of a folder in the order of their names; none if it does not exist."""
    return tuple(sorted(directory.glob("*.jar"))) if directory.is_dir() else ()


def split_evenly(start: int, stop: int, rows_max: int) -> Sequence[tuple[int, int]]:
    """[start, stop) cut into ranges of at most `rows_max`, in order."""
    return [(lower, min(lower + rows_max, stop)) for lower in range(start, stop, rows_max)]
