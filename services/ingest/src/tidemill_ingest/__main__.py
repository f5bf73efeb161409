"""`python -m tidemill_ingest`: this service alone, beside processes with the other roles."""

from __future__ import annotations

from tidemill.host.command import run_service
from tidemill_ingest.service import IngestProcess, service

if __name__ == "__main__":
    run_service(IngestProcess, lambda chosen: service(chosen.ingest), "Read sources.")
