"""Bounded ranges of a real broker's topic, read by Spark's own connector."""

from __future__ import annotations

from secrets import token_hex

import pytest
from pyspark.sql import SparkSession

from tidemill.runtime.log import Entry
from tidemill.runtime.log_kafka import KafkaLog
from tidemill.spark.log_ranges import OffsetRange, read_kafka


@pytest.mark.server
async def test_exactly_the_named_offsets_are_read(
    spark: SparkSession, kafka_bootstrap: str
) -> None:
    topic = f"ranges-{token_hex(4)}"
    log = KafkaLog(kafka_bootstrap)
    await log.create_topic(topic, 3)
    for partition in range(3):
        values = [f"{partition}:{offset}".encode() for offset in range(200)]
        await log.append(topic, [Entry(None, value, partition, 0) for value in values])
    await log.close()
    ranges = (OffsetRange(0, 50, 120), OffsetRange(2, 0, 200))
    rows = read_kafka(spark, kafka_bootstrap, topic, ranges).collect()
    found = sorted((row["partition"], row["offset"], bytes(row["value"])) for row in rows)
    assert found == [
        (part.partition, offset, f"{part.partition}:{offset}".encode())
        for part in ranges
        for offset in range(part.start, part.stop)
    ]
