"""`python -m tidemill_compute`: this service alone, as `tidemill up --role compute`."""

from __future__ import annotations

import sys

from tidemill.runtime.commands import run_command

if __name__ == "__main__":
    run_command("up", "--role", "compute", *sys.argv[1:])
