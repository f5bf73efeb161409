"""Writing the backlog of a source by a Spark job. Imported only when there is one: Spark loads slowly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidemill.runtime.formats import Column, RecordFormat
from tidemill.spark.launcher import LocalLauncher
from tidemill_embedded.world import World
from tidemill_reclock.bulk import Backlog
from tidemill_reclock.bulk_spark import BulkSettings, LogPlace, SparkBulkReclock


async def write_with_spark(
    backlog: Backlog,
    topic: str,
    bootstrap: str | None,
    columns: Sequence[Column],
    record_format: RecordFormat,
    world: World,
) -> None:
    """Write a backlog from the log of this process, or from the broker at `bootstrap`."""
    root, spark = world.root, world.settings.spark
    place = LogPlace(topic, bootstrap=bootstrap)
    if bootstrap is None:
        place = LogPlace(topic, directory=root / "log")
    settings = BulkSettings(
        world.settings.blob_place, Path(spark.jars), root / "spark", spark.cores, spark.memory_mb
    )
    bulk = SparkBulkReclock(
        LocalLauncher(root / "jobs"), world.collections, place, columns, record_format, settings
    )
    await bulk.write(backlog)
