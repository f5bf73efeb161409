"""`python -m tidemill_ingest`: this service alone, as `tidemill up --role ingest`."""

from __future__ import annotations

import sys

from tidemill.runtime.commands import run_command

if __name__ == "__main__":
    run_command("up", "--role", "ingest", *sys.argv[1:])
