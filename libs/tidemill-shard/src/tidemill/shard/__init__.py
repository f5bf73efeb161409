"""Durable collections: a log of versions in Consensus, immutable batches in Blob, two frontiers."""

from tidemill.shard.blob_directory import DirectoryBlob
from tidemill.shard.capabilities import (
    Appended,
    AppendOutcome,
    Capability,
    CapabilityId,
    CollectionStatus,
    Holder,
    ReadCapability,
    UpperMismatch,
    WriteCapability,
)
from tidemill.shard.collections import Collections
from tidemill.shard.compaction import Compacted
from tidemill.shard.consensus_sqlite import SqliteConsensus
from tidemill.shard.part_store import Limits
from tidemill.shard.ports import Blob, BlobEntry, Clock, Consensus, Version
from tidemill.shard.state import KEEP_ALL_MS, Description
from tidemill.shard.stores_memory import MemoryBlob, MemoryConsensus
from tidemill.shard.subscription import Progress, Subscription, Updates

__all__ = [
    "AppendOutcome", "Appended", "Blob", "BlobEntry", "Capability", "CapabilityId", "Clock",
    "CollectionStatus", "Collections", "Compacted", "Consensus", "Description", "DirectoryBlob", "Holder", "Limits", "KEEP_ALL_MS",
    "MemoryBlob", "MemoryConsensus", "Progress", "ReadCapability", "SqliteConsensus",
    "Subscription", "Updates", "UpperMismatch", "Version", "WriteCapability",
]  # fmt: skip
