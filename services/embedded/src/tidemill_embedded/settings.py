"""Settings of the embedded process."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill.shard.stores import BlobPlace
from tidemill_compaction.settings import CompactionSettings
from tidemill_compute.settings import ComputeSettings
from tidemill_ingest.settings import IngestSettings
from tidemill_query.settings import QuerySettings
from tidemill_reclock.settings import ReclockSettings


class SparkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a Spark job on this machine may use."""

    jars: str = ".cache/spark/jars"
    """Folder with the jars of the Kafka connector; only sources on a Kafka broker need it."""

    cores: int = 2
    """Threads of the job."""

    memory_mb: int = 1_024
    """Heap of the job's JVM."""


class StoreSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where collections are kept, when it is not the state directory."""

    consensus: str = ""
    """redis://HOST:PORT/DB or sqlite:FILE; empty is an SQLite file in the state directory."""

    blob: str = ""
    """s3://BUCKET/PREFIX?endpoint=URL&region=NAME or file:FOLDER; empty is in the state directory."""

    access_key: str = ""
    """Key of the bucket; empty takes AWS_ACCESS_KEY_ID, or what the machine may do."""

    secret_key: str = ""
    """Secret of the same key."""

    allow_non_durable: bool = False
    """Start on a Redis that may lose what it has acknowledged; health and metrics then say so."""


class EmbeddedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process with everything in it."""

    directory: str = "./.tidemill"
    """Folder of all state: the log, the collections, logs of jobs. One process at a time."""

    grpc: str = "127.0.0.1:7474"
    """Where clients connect; port 0 takes any free one."""

    http_host: str = "127.0.0.1"
    """Where /metrics, /healthz, /readyz and pushed rows are served."""

    http_port: int = 7475
    """Port of the same; 0 takes any free one."""

    topic_partitions: int = 1
    """Partitions of a topic in the embedded log that a source names and nobody has created."""

    retry_s_min: float = 0.5
    """Pause before a resource whose store or log was away is started again; doubled each time."""

    retry_s_max: float = 30.0
    """The longest such pause."""

    store: StoreSettings = StoreSettings()
    ingest: IngestSettings = IngestSettings()
    reclock: ReclockSettings = ReclockSettings()
    compute: ComputeSettings = ComputeSettings()
    compaction: CompactionSettings = CompactionSettings()
    query: QuerySettings = QuerySettings()
    spark: SparkSettings = SparkSettings()

    @property
    def root(self) -> Path:
        """The state directory as a path."""
        return Path(self.directory)

    @property
    def consensus_address(self) -> str:
        """Where the versions of collections are."""
        return self.store.consensus or f"sqlite:{self.root.resolve() / 'consensus.sqlite'}"

    @property
    def blob_place(self) -> BlobPlace:
        """Where the objects of collections are."""
        address = self.store.blob or f"file:{self.root.resolve() / 'blob'}"
        return BlobPlace(address, self.store.access_key, self.store.secret_key)
