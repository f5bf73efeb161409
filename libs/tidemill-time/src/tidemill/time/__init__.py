"""Timestamps: partial orders, antichains, frontiers; and the normal form of text."""

from tidemill.time.advancing import advance, advance_lanes, beyond_lanes
from tidemill.time.antichain import Antichain, Frontier, frontier, sole_time
from tidemill.time.changes import ChangeBatch, MutableAntichain, frontier_changes
from tidemill.time.heartbeats import heartbeat, heartbeat_until, is_heartbeat
from tidemill.time.instants import DATES_FROM_MS, MILLISECOND, is_fixed, read_at, unit_doubt
from tidemill.time.orders import (
    PARTITIONED,
    U64,
    U64_MAX,
    U64_TIME,
    Lattice,
    PartitionedOrder,
    Partitions,
    ProductOrder,
    TimeDomain,
)
from tidemill.time.partitions import (
    SourceFrontier,
    partition_frontier,
    partition_offsets,
    read_offsets,
    shown_offsets,
)
from tidemill.time.texts import MARKS_MAX, is_normal, normal
from tidemill.time.typed import EPOCH

__all__ = [
    "Antichain",
    "Frontier",
    "frontier",
    "sole_time",
    "advance",
    "advance_lanes",
    "beyond_lanes",
    "ChangeBatch",
    "MutableAntichain",
    "frontier_changes",
    "DATES_FROM_MS",
    "EPOCH",
    "MILLISECOND",
    "is_fixed",
    "read_at",
    "unit_doubt",
    "heartbeat",
    "heartbeat_until",
    "is_heartbeat",
    "SourceFrontier",
    "partition_frontier",
    "partition_offsets",
    "read_offsets",
    "shown_offsets",
    "MARKS_MAX",
    "is_normal",
    "normal",
    "Lattice",
    "PARTITIONED",
    "PartitionedOrder",
    "Partitions",
    "ProductOrder",
    "TimeDomain",
    "U64",
    "U64_MAX",
    "U64_TIME",
]
