"""`python -m tidemill_query`: this service alone, beside processes with the other roles."""

from __future__ import annotations

from tidemill.host.command import run_service
from tidemill_query.service import QueryProcess, service

if __name__ == "__main__":
    run_service(
        QueryProcess,
        lambda chosen: service(chosen.query),
        "Answer users, and apply what they declare.",
    )
