"""The Python data source `tidemill` of Spark 4: `spark.dataSource.register(TidemillSource)`."""

from tidemill.client.spark.source import TidemillSource, reading

__all__ = ["TidemillSource", "reading"]
