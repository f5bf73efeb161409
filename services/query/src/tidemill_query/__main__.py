"""`python -m tidemill_query`: this service alone, as `tidemill up --role query`."""

from __future__ import annotations

import sys

from tidemill.runtime.commands import run_command

if __name__ == "__main__":
    run_command("up", "--role", "query", *sys.argv[1:])
