"""`python -m tidemill_remap`: this service alone, as `tidemill up --role remap`."""

from __future__ import annotations

import sys

from tidemill.runtime.commands import run_command

if __name__ == "__main__":
    run_command("up", "--role", "remap", *sys.argv[1:])
