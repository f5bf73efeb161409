"""`python -m tidemill_compaction`: this service alone, beside processes with the other roles."""

from __future__ import annotations

from tidemill.host.command import run_service
from tidemill_compaction.service import CompactionProcess, service

if __name__ == "__main__":
    run_service(
        CompactionProcess, lambda chosen: service(chosen.compaction), "Keep collections small."
    )
