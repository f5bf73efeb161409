"""The context of a plan: the catalog, the stores, and the places that sources read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.catalog.catalog import Catalog
from tidemill.catalog.store import ResourceStore, Stored
from tidemill.runtime.places import Places
from tidemill.shard import Collections


class Origins(Protocol):
    """The places that sources read: files, the log of this system, brokers.

    Each call opens what it needs and closes it again.
    """

    def header(self, stored: Stored) -> Sequence[str]:
        """The column names in the first line of a CSV file; none for other sources.

        Raises: UsageError.
        """

    def refuse_undecodable(self, stored: Stored) -> None:
        """Raises: UsageError if the columns of a source cannot be those of its records."""

    async def ensure_topic(self, stored: Stored) -> None:
        """Create the topic of a source in the log of this system, if it is not there."""

    async def sample(self, stored: Stored, rows: int) -> Sequence[bytes]:
        """The first `rows` records of a source, or fewer; none if there are none yet."""

    async def bounds(self, stored: Stored) -> dict[int, tuple[int, int]]:
        """Partition → its first offset and the one behind its last, of a source on a log."""


@dataclass(frozen=True, slots=True)
class ApplyContext:
    """The state over which an apply is planned; new views are planned in `catalog`.

    With `shared_brokers` the log of this system is on brokers that sources may also reach by their
    addresses. A record of a new source may have `row_bytes`.
    """

    catalog: Catalog
    store: ResourceStore
    collections: Collections
    places: Places
    origins: Origins
    row_bytes: int
    shared_brokers: bool = False
