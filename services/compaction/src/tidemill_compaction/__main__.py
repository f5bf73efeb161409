"""`python -m tidemill_compaction`: this service alone, as `tidemill up --role compaction`."""

from __future__ import annotations

import sys

from tidemill.runtime.commands import run_command

if __name__ == "__main__":
    run_command("up", "--role", "compaction", *sys.argv[1:])
