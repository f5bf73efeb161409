"""`python -m tidemill_remap`: this service alone, beside processes with the other roles."""

from __future__ import annotations

from tidemill.host.command import run_service
from tidemill_remap.service import RemapProcess, service

if __name__ == "__main__":
    run_service(RemapProcess, lambda _: service(), "Bind what sources have come to.")
