"""`python -m tidemill_reclock`: this service alone, beside processes with the other roles."""

from __future__ import annotations

from tidemill.host.command import run_service
from tidemill_reclock.service import ReclockProcess, service

if __name__ == "__main__":
    run_service(
        ReclockProcess, lambda chosen: service(chosen.reclock), "Write the rows of sources."
    )
