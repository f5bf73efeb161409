"""Settings of a process that may have every role."""

from __future__ import annotations

from tidemill.host.settings import ProcessSettings
from tidemill_compaction.settings import CompactionSettings
from tidemill_compute.settings import ComputeSettings
from tidemill_ingest.settings import IngestSettings
from tidemill_query.settings import QuerySettings
from tidemill_reclock.settings import ReclockSettings


class ServerSettings(ProcessSettings, frozen=True, forbid_unknown_fields=True):
    """One process, with everything in it or with some roles."""

    ingest: IngestSettings = IngestSettings()
    reclock: ReclockSettings = ReclockSettings()
    compute: ComputeSettings = ComputeSettings()
    compaction: CompactionSettings = CompactionSettings()
    query: QuerySettings = QuerySettings()
