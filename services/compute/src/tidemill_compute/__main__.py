"""`python -m tidemill_compute`: this service alone, beside processes with the other roles."""

from __future__ import annotations

from tidemill.host.command import run_service
from tidemill_compute.service import ComputeProcess, service

if __name__ == "__main__":
    run_service(
        ComputeProcess,
        lambda chosen: service(chosen.compute),
        "Keep event streams, tables, views and actions going.",
    )
