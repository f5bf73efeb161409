"""The port to whoever writes a backlog in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tidemill.runtime.kafka_access import KafkaPlace


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Place of the source's topic: the folder of an embedded log, or brokers and access to them."""

    topic: str
    directory: Path | None = None
    kafka: KafkaPlace | None = None

    @property
    def origin(self) -> KafkaPlace:
        """The topic with how its brokers are reached; secrets are named by their files."""
        return self.kafka or KafkaPlace(self.topic)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Everything of a source that is bound, and not written yet.

    `starts` and `stops` are offsets per partition. `bindings` are the remap collection's updates
    before `upper`, from which each offset between them has its time. `rows` and `letters` are the
    collections to write, from their uppers `lower` to `upper`.
    """

    source: str
    remap: str
    rows: str
    letters: str
    starts: Mapping[int, int]
    stops: Mapping[int, int]
    bindings: pa.Table
    lower: int
    upper: int

    @property
    def records(self) -> int:
        """Number of records between starts and stops."""
        return sum(stop - self.starts.get(partition, 0) for partition, stop in self.stops.items())


class BulkReclock(Protocol):
    """Writes a backlog with the meaning of the live path, row for row."""

    async def write(self, backlog: Backlog) -> None:
        """Append the backlog to both collections by compare-and-append on their uppers.

        On return the upper of each is beyond `backlog.upper`, by this writer or by another; a
        writer that lost a race changes nothing. Raises Unavailable if nothing could be written.
        """
