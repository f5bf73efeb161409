"""Frontiers of partitioned logs as maps from partition to offset."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidemill.errors import UsageError
from tidemill.time.antichain import Antichain
from tidemill.time.orders import PARTITIONED, U64_MAX, Partitions

SourceFrontier = Antichain[Partitions]
"""Progress through a partitioned log: an offset per partition, and one for partitions to come."""


def partition_frontier(offsets: Mapping[int, int]) -> SourceFrontier:
    """Each partition of `offsets` at its offset, and all other partitions at offset 0.

    No partition at all gives the minimum, which is not the empty frontier.

    Raises: UsageError if a partition or an offset is not in 0 … 2^64−1.
    Cost: O(n log n) for n partitions; at most 2n + 1 elements.
    """
    elements: list[Partitions] = []
    unseen = 0
    for partition, offset in sorted(offsets.items()):
        if not (0 <= partition <= U64_MAX and 0 <= offset <= U64_MAX):
            raise UsageError(f"partition {partition} at offset {offset} is out of range")
        if unseen < partition:
            elements.append(Partitions(unseen, partition - 1, 0))
        elements.append(Partitions(partition, partition, offset))
        unseen = partition + 1
    if unseen <= U64_MAX:
        elements.append(Partitions(unseen, U64_MAX, 0))
    # Disjoint ranges in ascending order are incomparable and sorted as they stand.
    return Antichain(PARTITIONED, tuple(elements))


def shown_offsets(held: SourceFrontier) -> str:
    """The offset of each partition that `held` names singly, as `p0=17,p1=4`; `nothing` if it names
    none.
    """
    offsets = partition_offsets(held)
    return ",".join(f"p{each}={offsets[each]}" for each in sorted(offsets)) or "nothing"


def read_offsets(text: str) -> dict[int, int]:
    """Offsets by partition, written as `shown_offsets` shows them; the letter may be left out.

    Raises: UsageError for anything else, and for a partition that is there twice.
    """
    offsets: dict[int, int] = {}
    for written in text.split(","):
        found = re.fullmatch(r"\s*p?([0-9]{1,20})\s*=\s*([0-9]{1,20})\s*", written)
        if found is None:
            raise UsageError(
                f"{written.strip()!r} is no offset: write partition and offset, as in p0=17,p1=4",
                reason="offsets",
            )
        partition, offset = int(found[1]), int(found[2])
        if partition in offsets:
            raise UsageError(
                f"the partition {partition} is there twice: {text}; give each one once",
                reason="offsets",
            )
        offsets[partition] = offset
    return offsets


def partition_offsets(held: SourceFrontier) -> dict[int, int]:
    """The offset of each partition that `held` names singly; the empty frontier names none."""
    return {element.lo: element.offset for element in held if element.lo == element.hi}
