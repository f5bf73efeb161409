"""Subcommands of `tidemill`, run by a service that is started by its own name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


def run_command(name: str, *arguments: str) -> None:
    """Be `tidemill NAME ARGUMENTS…`.

    Raises: SystemExit with its code, or if the command is not here.
    """
    found = entry_points(group="console_scripts", name="tidemill")
    if not found:
        raise SystemExit("the command tidemill is not installed here: install tidemill-embedded")
    command: Callable[[], Any] = next(iter(found)).load()
    sys.argv = ["tidemill", name, *arguments]
    command()
