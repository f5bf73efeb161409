"""How a subcommand ends."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes, the same for every subcommand."""

    OK = 0
    REFUSED = 1
    COMMAND_LINE = 2
    OUTSIDE_OF_TIME = 3
    UNREACHABLE = 4
    FAILED = 5
    INTERRUPTED = 130
