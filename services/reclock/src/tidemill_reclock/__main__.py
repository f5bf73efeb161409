"""`python -m tidemill_reclock`: this service alone, as `tidemill up --role reclock`."""

from __future__ import annotations

import sys

from tidemill.runtime.commands import run_command

if __name__ == "__main__":
    run_command("up", "--role", "reclock", *sys.argv[1:])
